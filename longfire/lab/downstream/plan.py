"""What is fine-tuned and tested; all of it looked over before anything is trained."""

from collections.abc import Sequence
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

from longfire.atomic_io import read_json
from longfire.lab.downstream.brief import Brief, Room
from longfire.lab.downstream.entrants import Entrant, entrants
from longfire.lab.downstream.questions import (
    Mixture,
    Questions,
    load_questions,
    refuse_tasks_without_room,
    sample,
    tokens_of,
)
from longfire.tasks import Example
from longfire.training import FinetuneRecipe
from longfire.training.base_recipe import translate_fields
from longfire.training.run import as_json
from longfire.validation import at_least, one_of, there_and_here, unlike

RECORD = "downstream.json"
SELECT = ("dev", "validation", "loss", "last")
"""Which model of a run is tested: the best by its answers on dev or on validation, by its loss on dev, or the last."""


@dataclass(frozen=True)
class Experiment:
    """What is fine-tuned and tested, and how."""

    name: str
    """As a person asked for it: a task, tasks joined by +, or a suite."""
    mixtures: tuple[Mixture, ...]
    recipe: FinetuneRecipe
    data: str | Path | None
    """As `longfire.tasks.load_examples` takes it."""
    select: str = "dev"
    lengths: tuple[int, ...] = ()
    """To test at. Empty: the recipe's."""
    limit: int | None = None
    """So many questions of a task to test on. None: all."""
    dev_examples: int = 64
    """So many of a task to judge by, where a dev part does."""
    must: bool = True
    """Whether a task that is not in the data is an error, and not left out."""
    brief: Brief | None = None
    """How short it is, if it is a trial."""

    def __post_init__(self) -> None:
        one_of("select", self.select, SELECT)
        at_least("dev_examples", self.dev_examples, 1)
        if self.limit is not None:
            at_least("limit", self.limit, 1)
        for length in self.lengths:
            at_least("a length", length, 1)

    @property
    def tasks(self) -> list[str]:
        """All, in order."""
        return [task for mixture in self.mixtures for task in mixture.tasks]

    def tested_lengths(self) -> list[int]:
        """In order."""
        return sorted(set(self.lengths)) or [self.recipe.length]


@dataclass(frozen=True)
class Plan:
    """All that is needed, found and looked over before anything is trained."""

    experiment: Experiment
    entrants: list[Entrant]
    questions: dict[str, Questions]
    missing: dict[str, str]
    """Tasks that are not in the data, and why."""

    def mixtures(self) -> list[Mixture]:
        """With the tasks there are."""
        kept = [(one.name, tuple(t for t in one.tasks if t in self.questions)) for one in self.experiment.mixtures]
        return [Mixture(name, tasks) for name, tasks in kept if tasks]

    def judged(self, task: str) -> list[Example]:
        """The questions of a task that models of a run are judged by."""
        of, chosen = self.questions[task], self.experiment.select
        return of.test if chosen == "validation" else sample(of.task, of.dev, self.experiment.dev_examples)

    def setting(self) -> dict[str, Any]:
        """For the record."""
        one = self.experiment
        return {
            "kind": "finetune",
            "name": one.name,
            "tasks": one.tasks,
            "mixtures": [asdict(mixture) for mixture in self.mixtures()],
            "missing": self.missing,
            "recipe": asdict(one.recipe),
            "select": one.select,
            "length": one.recipe.length,
            "lengths": one.tested_lengths(),
            "data": str(one.data or "hub"),
            "split": "validation",
            "limit": one.limit,
            "dev_examples": one.dev_examples,
            **({} if one.brief is None else {"brief": asdict(one.brief)}),
        }


def plan(experiment: Experiment, checkpoints: Sequence[str | Path]) -> Plan:
    """Load and check: checkpoints, their positions, the data, and whether questions and answers have room."""
    found = entrants(checkpoints)
    lengths = experiment.tested_lengths()
    for entrant in found:
        if not entrant.is_ours:
            raise ValueError(
                f"{entrant.given} is a {entrant.config.model_type!r} model, and fine-tuning takes longfire's own."
            )
        entrant.refuse_beyond(max(*lengths, experiment.recipe.length))
    questions, missing = looked_over(experiment, [one.tokenizer() for one in found])
    return Plan(experiment, found, questions, missing)


def looked_over(experiment: Experiment, tokenizers: Sequence[Any]) -> tuple[dict[str, Questions], dict[str, str]]:
    """The questions, which all have room by the tokenizers that are known; and of tasks that are left out, why."""
    lengths, trained = experiment.tested_lengths(), experiment.recipe.length
    different = list({tokens_of(tokenizer): tokenizer for tokenizer in tokenizers}.values())
    questions, missing = load_questions(
        experiment.tasks,
        experiment.data,
        to_train=True,
        with_dev=experiment.select in ("dev", "loss"),
        limit=experiment.limit,
        must=experiment.must,
        brief=experiment.brief,
        room=None if experiment.brief is None else Room(different, min(*lengths, trained)),
    )
    refuse_tasks_without_room(questions.values(), different, lengths, trained)
    return questions, missing


def refuse_other_kind(out: Path, kind: str) -> None:
    """Refuse a folder with a record of fine-tuning to a record of tests alone, and the other way round."""
    if (before := recorded(out)) and before["setting"]["kind"] != kind:
        raise ValueError(
            f"{out} holds a record of {before['setting']['kind']}, which this would write over. Choose another folder."
        )


def refuse_other_experiment(out: Path, setting: dict[str, Any], recipe: FinetuneRecipe) -> None:
    """Refuse a folder in which something else was trained. Checkpoints, tasks and lengths may be other ones."""
    if not (before := recorded(out).get("setting")):
        return
    same = ("select", "dev_examples")
    there = {**{key: before.get(key) for key in same}, **before["recipe"]}
    here = as_json({**{key: setting[key] for key in same}, **recipe.identity()})
    if other := unlike(there, here):
        raise ValueError(
            f"{out} holds another experiment ({there_and_here(other)}). Choose another folder, or delete that one."
        )


def recorded(out: Path) -> dict[str, Any]:
    """The record in a folder; empty, where there is none."""
    record = read_json(out / RECORD)
    for part, key in ((record.get("setting", {}), "recipe"), *((row, "finetuned") for row in record.get("rows", ()))):
        if part.get(key):
            part[key] = translate_fields(part[key])
    return record
