"""The questions of tasks: which there are, to train on, to judge by and to test on."""

import re
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from tqdm import tqdm

from longfire.complete_folder import short_hash
from longfire.lab.downstream.brief import MOST, Brief, NoRoomError, Room, bare
from longfire.tasks import SUITES, TASKS, Example, Task, divide, load_examples, prompt_ids, training_rows
from longfire.tasks.placeholder import MADE_UP
from longfire.tasks.rows import document_key
from longfire.tasks.sources import HUB
from longfire.training.initial_model import token_rules
from longfire.validation import hint


@dataclass(frozen=True)
class Questions:
    """Of one task."""

    task: Task
    test: list[Example]
    train: list[Example]
    dev: list[Example]
    """Cut from what was to train on, by document."""
    split: str = "validation"
    """That `test` is of; the others are of train."""


@dataclass(frozen=True)
class Mixture:
    """Tasks that are trained together, in proportion to their rows."""

    name: str
    tasks: tuple[str, ...]


def mixtures_of(name: str) -> list[Mixture]:
    """A task; several, joined by +, as one mixture; "scrolls", each task by itself; "glue", one mixture of all."""
    if name == "scrolls":
        return [Mixture(task, (task,)) for task in SUITES[name]]
    if name in SUITES:
        return [Mixture(name, SUITES[name])]
    tasks = tuple(dict.fromkeys(name.split("+")))
    for task in tasks:
        if task not in TASKS:
            known = TASKS if len(tasks) > 1 else [*SUITES, "all", *TASKS]
            raise ValueError(f"there is no task {task!r}{' to join' * (len(tasks) > 1)}. {hint(task, known)}")
    return [Mixture(name, tasks)]


def load_questions(
    tasks: Sequence[str],
    data: str | Path | None,
    *,
    split: str = "validation",
    to_train: bool = False,
    with_dev: bool = False,
    limit: int | None = None,
    must: bool = True,
    brief: Brief | None = None,
    room: Room | None = None,
) -> tuple[dict[str, Questions], dict[str, str]]:
    """The questions of each task that is there, and of each that is not, why.

    Args:
        tasks: names.
        data: as `load_examples` takes it.
        split: to test on.
        to_train: whether the train split is needed too.
        with_dev: whether a part of it is kept to judge by.
        limit: so many questions to test on, drawn evenly.
        must: a task that is not there is an error, and not left out.
        brief: how short a trial is, if it is one.
        room: what has none is left out.
    """
    _refuse_data(data, to_train)
    limits: dict[str, Any] = {} if brief is None else {"limit": brief.rows}
    found: dict[str, Questions] = {}
    missing: dict[str, str] = {}
    for name in tasks:
        task = TASKS[name] if brief is None else brief.task(TASKS[name])
        try:
            train = load_examples(task, data, "train", **limits) if to_train else []
            test = load_examples(task, data, split, **limits)
            if room is not None:
                train = room.to_train(task, train, 1 + with_dev) if to_train else []
                test = room.to_test(task, test)
        except (FileNotFoundError, NoRoomError) as error:
            if must:
                raise
            missing[name] = _why(error)
            continue
        train, dev = divide(train) if with_dev else (train, [])
        if with_dev and not dev:
            raise ValueError(
                f"{name} has too little to train on for a part of it to judge by: {len(train)} questions on one "
                f"document. Choose the model otherwise: --select validation, or last."
            )
        found[name] = Questions(task, sample(task, test, limit), train, dev, split)
    if not found:
        raise FileNotFoundError(f"{data} has none of these tasks whole: {', '.join(tasks)}.")
    return found, missing


def _refuse_data(data: str | Path | None, to_train: bool) -> None:
    """Refuse what is not there, or cannot be divided."""
    if data is None or str(data) in (HUB, MADE_UP):
        return
    path = Path(data).expanduser()
    if not path.exists():
        raise FileNotFoundError(f"there is no file or folder {data}. Check the path, or give '{HUB}'.")
    if to_train and path.is_file() and path.suffix.lower() != ".zip":
        raise ValueError(
            f"{data} is one file, which would be trained on and tested on alike. Give a folder with train.jsonl and "
            f"validation.jsonl."
        )


def _why(error: Exception) -> str:
    """Without paths and remedies."""
    if isinstance(error, NoRoomError):
        return str(error).partition(". ")[0]
    short = re.search(r"has no .+? (of \w+|in it)", str(error))
    return f"the data {re.sub(r' of .+', ' of it', short[0])}" if short else str(error)


def sample(task: Task, examples: Sequence[Example], number: int | None) -> list[Example]:
    """So many of them, evenly spaced; of what counts in groups, whole groups of about so many in all."""
    if number is None or number >= len(examples):
        return list(examples)
    if task.metric != "group_exact_match":
        return [examples[i * len(examples) // number] for i in range(number)]
    groups = list(dict.fromkeys(example.group for example in examples))
    wanted = max(1, round(number * len(groups) / len(examples)))
    chosen = {groups[i * len(groups) // wanted] for i in range(wanted)}
    return [example for example in examples if example.group in chosen]


def refuse_tasks_without_room(
    questions: Iterable[Questions], tokenizers: Iterable[Any], lengths: Sequence[int], trained: int | None
) -> None:
    """`refuse_no_room` of each task, by each of the tokenizers that differ: all that have none are named at once."""
    different = {tokens_of(tokenizer): tokenizer for tokenizer in tokenizers}.values()
    said: dict[str, str] = {}
    for of in tqdm(list(questions), "looking over", unit="task", delay=1, leave=False, disable=None):
        for tokenizer in different:
            try:
                refuse_no_room(of, tokenizer, lengths, trained)
            except ValueError as error:
                said.setdefault(of.task.name, str(error))
    several = [f"{len(said)} tasks have no room:"] if len(said) > 1 else []
    if said:
        raise ValueError("\n  ".join([*several, *said.values()]))


def refuse_no_room(questions: Questions, tokenizer: Any, lengths: Sequence[int], trained: int | None) -> None:
    """Refuse lengths in which a question and its answer have no room, of all that are not to be cut.

    Args:
        questions: of a task.
        tokenizer: the model's.
        lengths: to test at.
        trained: the length to train at, if any.
    """
    task, shortest = questions.task, min([*lengths, *([] if trained is None else [trained])])
    if shortest <= task.max_answer:
        raise ValueError(
            f"a length of {shortest} tokens leaves no room for a prompt: {task.name}'s answers may take "
            f"{task.max_answer} of them. Give a greater length."
        )
    if trained is not None:
        _refuse_no_room_to_train(questions, tokenizer, trained)
    of_splits = [
        (split, [(one.id, len(prompt_ids(bare(one), tokenizer, MOST)) + task.max_answer) for one in examples])
        for split, examples in ((questions.split, questions.test), ("train", questions.dev))
    ]
    if (needed := max(size for _, sizes in of_splits for _, size in sizes)) > shortest:
        found = [_too_long(sizes, shortest, split) for split, sizes in of_splits]
        raise ValueError(
            f"{task.name}, to test on: {shortest} tokens, of which {task.max_answer} are for the answer, have no room "
            f"for {' and '.join(filter(None, found))}. Question and cue, which are never cut, take up to "
            f"{needed - task.max_answer}. Give lengths of at least {needed}, or take those rows out of the file."
        )


def _refuse_no_room_to_train(questions: Questions, tokenizer: Any, length: int) -> None:
    learned = [bare(one) for one in (*questions.train, *questions.dev)]
    names = [one.id for one in learned for _ in one.references]
    rows = training_rows(learned, tokenizer, MOST)
    sizes = [(name, len(row["input_ids"])) for name, row in zip(names, rows, strict=True)]
    if (needed := max(size for _, size in sizes)) > length:
        raise ValueError(
            f"{questions.task.name}, to train on: {length} tokens have no room for "
            f"{_too_long(sizes, length, 'train')}. Question and answer, which are never cut, take up to {needed} with "
            f"the cue. Give a length of at least {needed} (--length {needed}), or take those rows out of the file."
        )


def _too_long(sizes: Sequence[tuple[str, int]], room: int, split: str) -> str:
    """`5 of the 250 rows of the train split (12, 40, 7, …)`, by their ids; nothing, if all have room."""
    names = [name for name, size in sizes if size > room]
    shown = [*dict.fromkeys(names)]
    named = ", ".join([*shown[:3], *(["…"] if len(shown) > 3 else [])])
    return f"{len(names)} of the {len(sizes)} rows of the {split} split ({named})" if names else ""


def fingerprint(examples: Sequence[Example]) -> str:
    """The same for the same questions and answers in the same order."""
    documents: dict[int, str] = {}  # many questions are on one
    for example in examples:
        if id(example.document) not in documents:
            documents[id(example.document)] = document_key(example.document)
    return short_hash([[one.id, one.question, documents[id(one.document)], *one.references] for one in examples])


def tokens_of(tokenizer: Any) -> str:
    """The same for tokenizers that make the same tokens."""
    return short_hash(token_rules(tokenizer.backend_tokenizer))
