"""The questions of an experiment: to train on, to choose the best model by, and to test on. All are known to fit."""

from collections.abc import Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import TYPE_CHECKING, Any

from tqdm import tqdm

from longfire.complete_folder import short_hash
from longfire.tasks import SUITES, TASKS, Example, Task, load_examples, prompt_ids, split_train_dev, training_rows
from longfire.tasks.load import HUB, SplitNotFoundError
from longfire.tasks.parse import document_key
from longfire.training.initial_model import token_rules
from longfire.validation import hint

if TYPE_CHECKING:
    from longfire.lab.downstream.plan import Experiment

ALL = "all"
"""Both suites."""
UNBOUNDED = 1 << 62
"""A length that no prompt reaches."""


@dataclass(frozen=True)
class Mixture:
    """Tasks that are trained together, in proportion to their rows."""

    name: str
    tasks: tuple[str, ...]


@dataclass(frozen=True)
class Questions:
    """Of one task."""

    task: Task
    test: list[Example]
    train: list[Example]
    dev: list[Example]
    """Cut from the train split, by document."""
    judge: list[Example]
    """To choose the best model by: a sample of dev, or all of test."""


@dataclass(frozen=True)
class Trial:
    """Limits for a quick trial. Questions that do not fit are left out instead of refused."""

    rows: int
    """Read only the first rows of a split."""
    max_answer: int
    """Generate fewer tokens."""


def mixtures_of(name: str) -> list[Mixture]:
    """A task; several joined by + as one mixture; "scrolls": a mixture per task; "glue": one mixture; "all": both."""
    if name == ALL:
        return [mixture for suite in SUITES for mixture in mixtures_of(suite)]
    if name == "scrolls":
        return [Mixture(task, (task,)) for task in SUITES[name]]
    if name in SUITES:
        return [Mixture(name, SUITES[name])]
    tasks = tuple(dict.fromkeys(name.split("+")))
    for task in tasks:
        if task not in TASKS:
            known = TASKS if len(tasks) > 1 else [*SUITES, ALL, *TASKS]
            raise ValueError(f"there is no task {task!r}{' to combine' * (len(tasks) > 1)}. {hint(task, known)}")
    return [Mixture(name, tasks)]


def load_questions(
    experiment: "Experiment", tokenizers: Sequence[Any], lengths: Sequence[int]
) -> tuple[dict[str, Questions], dict[str, str]]:
    """The questions of each task, checked to fit `lengths` with all tokenizers; and why other tasks are missing."""
    path = Path(experiment.data or HUB).expanduser()
    if experiment.recipe is not None and path.is_file() and path.suffix.lower() != ".zip":
        raise ValueError(
            f"{path} is one file, which would be both trained on and tested on. Give a folder with train.jsonl and "
            f"validation.jsonl."
        )
    found: dict[str, Questions] = {}
    missing: dict[str, str] = {}
    too_long: list[str] = []
    limits = LengthLimits(tokenizers, lengths, experiment.trained_length)
    for name in tqdm(experiment.tasks, "checking questions", unit="task", delay=1, leave=False, disable=None):
        try:
            found[name] = _load_task(name, experiment, limits)
            if experiment.trial is None:
                limits.refuse_too_long(found[name], experiment.split)
        except SplitNotFoundError as error:
            if experiment.requires_all:
                raise
            missing[name] = f"the data has no {error.split} split of it"
        except TooFewRowsError as error:
            if experiment.requires_all:
                raise
            missing[name] = str(error).partition(". ")[0]
        except TooLongError as error:
            too_long.append(str(error))
    if too_long:
        several = [f"the questions of {len(too_long)} tasks do not fit:"] if len(too_long) > 1 else []
        raise ValueError("\n  ".join([*several, *too_long]))
    if not found:
        raise FileNotFoundError(f"{experiment.data} has none of these tasks complete: {', '.join(experiment.tasks)}.")
    return found, missing


def _load_task(name: str, experiment: "Experiment", limits: "LengthLimits") -> Questions:
    task, trial = TASKS[name], experiment.trial
    trains, with_dev = experiment.recipe is not None, experiment.select in ("dev", "loss")
    limit = None if trial is None else trial.rows
    if trial is not None:
        task = replace(task, max_answer=min(task.max_answer, trial.max_answer))
    train = load_examples(task, experiment.data, "train", limit=limit) if trains else []
    test = load_examples(task, experiment.data, experiment.split, limit=limit)
    if trial is not None:
        train = limits.keep_fitting(task, train, 1 + with_dev, to_train=True) if trains else []
        test = limits.keep_fitting(task, test, 1)
    test = sample(task, test, experiment.limit)
    if not trains or not with_dev:
        return Questions(task, test, train, [], test if experiment.select == "validation" else [])
    rest, dev = split_train_dev(train)
    if not dev:
        raise ValueError(
            f"{name} has too few training questions to cut a dev split from: {len(train)} on one document. Choose the "
            f"model differently: --select validation, or last."
        )
    return Questions(task, test, rest, dev, sample(task, dev, experiment.dev_examples))


def sample(task: Task, examples: Sequence[Example], number: int | None) -> list[Example]:
    """About `number` of them, evenly spaced; whole groups, if those are scored as one."""
    if number is None or number >= len(examples):
        return list(examples)
    if task.metric != "group_exact_match":
        return [examples[i * len(examples) // number] for i in range(number)]
    groups = list(dict.fromkeys(example.group for example in examples))
    wanted = max(1, round(number * len(groups) / len(examples)))
    chosen = {groups[i * len(groups) // wanted] for i in range(wanted)}
    return [example for example in examples if example.group in chosen]


class TooFewRowsError(ValueError):
    """In a trial, too few rows of a task fit."""


class TooLongError(ValueError):
    """Questions of a task do not fit."""


@dataclass(frozen=True)
class LengthLimits:
    """What questions and answers, which are never truncated, must fit."""

    tokenizers: Sequence[Any]
    lengths: Sequence[int]
    """To test at."""
    trained: int
    """To train at; 0 if nothing is trained."""

    @property
    def shortest(self) -> int:
        """Models are tested at `lengths`, and judged at the training length."""
        return min([*self.lengths, *([self.trained] if self.trained else [])])

    def tokens_to_learn(self, example: Example) -> int:
        """Question, cue and the longest reference."""
        alone = [replace(example, document="")]
        rows = [row for tokenizer in self.tokenizers for row in training_rows(alone, tokenizer, UNBOUNDED)]
        return max((len(row["input_ids"]) for row in rows), default=0)

    def tokens_to_answer(self, example: Example, task: Task) -> int:
        """Question, cue and the longest answer that may be generated."""
        alone = replace(example, document="")
        prompts = [prompt_ids(alone, tokenizer, UNBOUNDED) for tokenizer in self.tokenizers]
        return max(map(len, prompts), default=0) + task.max_answer

    def keep_fitting(self, task: Task, examples: list[Example], least: int, to_train: bool = False) -> list[Example]:
        """Those that fit; training questions must fit with their own answers too."""
        kept = [
            one
            for one in examples
            if self.tokens_to_answer(one, task) <= self.shortest
            and not (to_train and self.tokens_to_learn(one) > self.shortest)
        ]
        if len(kept) < least:
            purpose = "train" if to_train else "test"
            raise TooFewRowsError(
                f"only {len(kept)} of {len(examples)} rows of {task.name} to {purpose} on fit {self.shortest:,} "
                f"tokens, and {least} must. Give shorter questions and answers, or a larger scale."
            )
        return kept

    def refuse_too_long(self, questions: Questions, split: str) -> None:
        """Name the questions that do not fit; `split` is the one that is tested on."""
        task = questions.task
        if self.trained:
            sizes = {one.id: self.tokens_to_learn(one) for one in (*questions.train, *questions.dev)}
            if (needed := max(sizes.values())) > self.trained:
                raise TooLongError(
                    f"{task.name}: {self.trained} tokens to train on are too few for "
                    f"{_describe_excess(sizes, self.trained, 'train')}. Without their document they need up to "
                    f"{needed}. Give a length of at least {needed} (--length {needed}), or remove those rows."
                )
        asked = ((split, questions.test), ("train", questions.dev))
        by_split = [(name, {one.id: self.tokens_to_answer(one, task) for one in examples}) for name, examples in asked]
        if (needed := max(size for _, sizes in by_split for size in sizes.values())) > self.shortest:
            excess = filter(None, (_describe_excess(sizes, self.shortest, name) for name, sizes in by_split))
            raise TooLongError(
                f"{task.name}: {self.shortest} tokens to test on are too few for {' and '.join(excess)}. Without their "
                f"document, but with {task.max_answer} tokens for the answer, they need up to {needed}. Give lengths "
                f"of at least {needed}, or remove those rows."
            )


def _describe_excess(sizes: dict[str, int], length: int, split: str) -> str:
    """`5 of 250 questions of the train split (12, 40, 7, …)`, by id; empty if all fit."""
    names = [name for name, size in sizes.items() if size > length]
    shown = ", ".join([*names[:3], *(["…"] if len(names) > 3 else [])])
    return f"{len(names)} of {len(sizes)} questions of the {split} split ({shown})" if names else ""


def fingerprint(examples: Sequence[Example]) -> str:
    """A hash of questions and answers in their order."""
    documents: dict[int, str] = {}  # shared by many questions
    for example in examples:
        if id(example.document) not in documents:
            documents[id(example.document)] = document_key(example.document)
    return short_hash([[one.id, one.question, documents[id(one.document)], *one.references] for one in examples])


def tokenizer_hash(tokenizer: Any) -> str:
    """The same for tokenizers that produce the same tokens."""
    return short_hash(token_rules(tokenizer.backend_tokenizer))
