"""The questions of an experiment, for training, model selection and testing, all checked to fit."""

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
    """The questions of one task."""

    task: Task
    test: list[Example]
    train: list[Example]
    dev: list[Example]
    """Cut from the train split, by document."""
    judge: list[Example]
    """For selecting the best model: a sample of dev, or all of test."""


@dataclass(frozen=True)
class Trial:
    """Limits for a quick trial. Questions that do not fit are skipped instead of refused."""

    rows: int
    """Number of rows to read from each split."""
    max_answer: int
    """Maximum number of tokens to generate."""


def mixtures_of(name: str) -> list[Mixture]:
    """The mixtures of a task, of tasks joined by + (one mixture), "scrolls" (one per task), "glue" (one) or "all"."""
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
    """The questions of each task, checked to fit `lengths` with every tokenizer, and why tasks are missing."""
    path = Path(experiment.data or HUB).expanduser()
    if experiment.recipe is not None and path.is_file() and path.suffix.lower() != ".zip":
        raise ValueError(
            f"{path} is a single file, so training and test questions would be the same. Pass a folder with "
            f"train.jsonl and validation.jsonl."
        )
    questions: dict[str, Questions] = {}
    missing: dict[str, str] = {}
    too_long: list[str] = []
    limits = LengthLimits(tokenizers, lengths, experiment.trained_length)
    for name in tqdm(experiment.tasks, "checking questions", unit="task", delay=1, leave=False, disable=None):
        try:
            questions[name] = _load_task(name, experiment, limits)
            if experiment.trial is None:
                limits.refuse_too_long(questions[name], experiment.split)
        except SplitNotFoundError as error:
            if experiment.requires_all:
                raise
            missing[name] = f"the data has no {error.split} split"
        except TooFewRowsError as error:
            if experiment.requires_all:
                raise
            missing[name] = str(error).partition(". ")[0]
        except TooLongError as error:
            too_long.append(str(error))
    if too_long:
        several = [f"the questions of {len(too_long)} tasks do not fit:"] if len(too_long) > 1 else []
        raise ValueError("\n  ".join([*several, *too_long]))
    if not questions:
        raise FileNotFoundError(f"{experiment.data} has no complete task of: {', '.join(experiment.tasks)}.")
    return questions, missing


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
            f"{name} has too few training questions for a dev split: {len(train)} on one document. Select the model "
            f"another way: --select validation or --select last."
        )
    return Questions(task, test, rest, dev, sample(task, dev, experiment.dev_examples))


def sample(task: Task, examples: Sequence[Example], number: int | None) -> list[Example]:
    """About `number` examples, evenly spaced; whole groups for metrics that score groups."""
    if number is None or number >= len(examples):
        return list(examples)
    if task.metric != "group_exact_match":
        return [examples[i * len(examples) // number] for i in range(number)]
    groups = list(dict.fromkeys(example.group for example in examples))
    count = max(1, round(number * len(groups) / len(examples)))
    chosen = {groups[i * len(groups) // count] for i in range(count)}
    return [example for example in examples if example.group in chosen]


class TooFewRowsError(ValueError):
    """Raised in a trial if too few rows of a task fit."""


class TooLongError(ValueError):
    """Raised if questions of a task do not fit."""


@dataclass(frozen=True)
class LengthLimits:
    """The lengths that questions and answers must fit, since they are never truncated."""

    tokenizers: Sequence[Any]
    lengths: Sequence[int]
    """Test lengths."""
    trained: int
    """Training length; 0 without fine-tuning."""

    @property
    def shortest(self) -> int:
        """The shortest length at which questions are answered: for tests, or for model selection while training."""
        return min([*self.lengths, *([self.trained] if self.trained else [])])

    def tokens_to_learn(self, example: Example) -> int:
        """Tokens of the question, the cue and the longest reference."""
        alone = [replace(example, document="")]
        rows = [row for tokenizer in self.tokenizers for row in training_rows(alone, tokenizer, UNBOUNDED)]
        return max((len(row["input_ids"]) for row in rows), default=0)

    def tokens_to_answer(self, example: Example, task: Task) -> int:
        """Tokens of the question, the cue and the longest answer that may be generated."""
        alone = replace(example, document="")
        prompts = [prompt_ids(alone, tokenizer, UNBOUNDED) for tokenizer in self.tokenizers]
        return max(map(len, prompts), default=0) + task.max_answer

    def keep_fitting(self, task: Task, examples: list[Example], least: int, to_train: bool = False) -> list[Example]:
        """The examples that fit; training examples must also fit with their references."""
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
                f"tokens; at least {least} must. Pass rows with shorter questions and answers, or a larger --scale."
            )
        return kept

    def refuse_too_long(self, questions: Questions, split: str) -> None:
        """Refuse questions that do not fit. `split` is the test split."""
        task = questions.task
        if self.trained:
            sizes = {one.id: self.tokens_to_learn(one) for one in (*questions.train, *questions.dev)}
            if (needed := max(sizes.values())) > self.trained:
                raise TooLongError(
                    f"{task.name}: a training length of {self.trained} is too short for "
                    f"{_describe_excess(sizes, self.trained, 'train')}, which need up to {needed} tokens even without "
                    f"their document. Pass a length of at least {needed} (--length {needed}), or remove those rows."
                )
        splits = ((split, questions.test), ("train", questions.dev))
        by_split = [(name, {one.id: self.tokens_to_answer(one, task) for one in examples}) for name, examples in splits]
        if (needed := max(size for _, sizes in by_split for size in sizes.values())) > self.shortest:
            excess = filter(None, (_describe_excess(sizes, self.shortest, name) for name, sizes in by_split))
            raise TooLongError(
                f"{task.name}: a length of {self.shortest} is too short for {' and '.join(excess)}, which need up to "
                f"{needed} tokens even without their document ({task.max_answer} of them for the answer). Use lengths "
                f"of at least {needed}, or remove those rows."
            )


def _describe_excess(sizes: dict[str, int], length: int, split: str) -> str:
    """`5 of 250 questions of the train split (12, 40, 7, …)`, with ids; empty if all fit."""
    names = [name for name, size in sizes.items() if size > length]
    shown = ", ".join([*names[:3], *(["…"] if len(names) > 3 else [])])
    return f"{len(names)} of {len(sizes)} questions of the {split} split ({shown})" if names else ""


def fingerprint(examples: Sequence[Example]) -> str:
    """Hash of questions and answers, in order."""
    documents: dict[int, str] = {}  # each hashed once, because many questions share one
    for example in examples:
        if id(example.document) not in documents:
            documents[id(example.document)] = document_key(example.document)
    return short_hash([[one.id, one.question, documents[id(one.document)], *one.references] for one in examples])


def tokenizer_hash(tokenizer: Any) -> str:
    """Hash of a tokenizer's rules, equal for tokenizers that produce the same tokens."""
    return short_hash(token_rules(tokenizer.backend_tokenizer))
