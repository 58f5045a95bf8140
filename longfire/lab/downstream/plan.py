"""An experiment on tasks as one checked plan. Everything that can be refused is refused here, before training."""

from collections.abc import Sequence
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

from longfire.atomic_io import read_json, refuse_unwritable
from longfire.lab.downstream.candidates import Candidate, load_candidates
from longfire.lab.downstream.questions import (
    ALL,
    Mixture,
    Questions,
    Trial,
    fingerprint,
    load_questions,
    mixtures_of,
    tokenizer_hash,
)
from longfire.lab.downstream.record import read_record
from longfire.model import LongfireConfig
from longfire.tasks import SUITES
from longfire.training import FinetuneRecipe
from longfire.training.run import as_json
from longfire.validation import at_least, describe_differences, differences, one_of

SELECT = ("dev", "validation", "loss", "last")
"""Which model of a run is tested: the best by its answers on dev or on validation, by its loss on dev, or the last."""


@dataclass(frozen=True)
class Experiment:
    """What to fine-tune and test on, and how."""

    name: str
    """A task, tasks joined by +, a suite, or "all"."""
    data: str | Path | None
    """A source as `longfire.tasks.load_examples` takes it."""
    recipe: FinetuneRecipe | None = None
    """None: test checkpoints as they are."""
    select: str = "dev"
    """One of `SELECT`."""
    lengths: tuple[int, ...] = ()
    """To test at. Empty: the recipe's length, or the one that the first checkpoint was trained at."""
    limit: int | None = None
    """Maximum number of test questions per task. None: all."""
    dev_examples: int = 64
    """Maximum number of dev questions per task to choose a model by."""
    split: str = "validation"
    """To test on."""
    trial: Trial | None = None
    """Limits for a quick trial."""

    def __post_init__(self) -> None:
        one_of("select", self.select, SELECT)
        at_least("dev_examples", self.dev_examples, 1)
        if self.limit is not None:
            at_least("limit", self.limit, 1)
        for length in self.lengths:
            at_least("a length", length, 1)

    @property
    def mixtures(self) -> list[Mixture]:
        """Tasks that are trained together."""
        return mixtures_of(self.name)

    @property
    def tasks(self) -> list[str]:
        """All tasks, in order."""
        return [task for mixture in self.mixtures for task in mixture.tasks]

    @property
    def requires_all(self) -> bool:
        """Whether a task that the data lacks is an error. Suites do without it."""
        return self.name not in (*SUITES, ALL)

    @property
    def trained_length(self) -> int:
        """Length to fine-tune at; 0 if nothing is trained."""
        return 0 if self.recipe is None else self.recipe.length

    def test_lengths(self) -> list[int]:
        """In ascending order; empty if the checkpoints decide."""
        return sorted(set(self.lengths)) or ([self.trained_length] if self.recipe else [])


@dataclass(frozen=True)
class Part:
    """One checkpoint and one mixture: a fine-tuning run and its tests, or only the tests."""

    candidate: Candidate
    mixture: Mixture
    folder: Path
    """Of the run; of the checkpoint's tests, if nothing is trained."""
    identity: dict[str, Any]
    """What the run is trained on, for `longfire.training.finetune`."""


@dataclass(frozen=True)
class Plan:
    """A checked experiment. Its questions exist and fit, its checkpoints have positions for the lengths."""

    experiment: Experiment
    out: Path
    candidates: list[Candidate]
    questions: dict[str, Questions]
    missing: dict[str, str]
    """Tasks that the data lacks, and why."""
    lengths: list[int]
    tokenizers: dict[str, Any]
    """By hash."""
    parts: list[Part]

    def setting(self) -> dict[str, Any]:
        """For the record."""
        one = self.experiment
        common = {
            "name": one.name,
            "tasks": one.tasks,
            "missing": self.missing,
            "lengths": self.lengths,
            "data": str(one.data or "hub"),
            "split": one.split,
            "limit": one.limit,
        }
        if one.recipe is None:
            return {"kind": "evaluate", **common}
        return {
            "kind": "finetune",
            **common,
            "mixtures": [asdict(mixture) for mixture in _present(one.mixtures, self.questions)],
            "recipe": asdict(one.recipe),
            "select": one.select,
            "length": one.recipe.length,
            "dev_examples": one.dev_examples,
            **({} if one.trial is None else {"brief": asdict(one.trial)}),
        }


def plan(experiment: Experiment, checkpoints: Sequence[str | Path], out: Path) -> Plan:
    """Load and check everything that an experiment needs.

    Args:
        experiment: What to fine-tune and test on.
        checkpoints: FOLDER, or FOLDER:rope_pi=N or FOLDER:yarn=N for a checkpoint with RoPE extended to N tokens.
        out: The results folder. One that holds a different experiment is refused.
    """
    recipe = experiment.recipe
    candidates = load_candidates(checkpoints)
    lengths = experiment.test_lengths() or [_trained_length(candidates[0])]
    for candidate in candidates:
        if recipe is not None and not isinstance(candidate.config, LongfireConfig):
            kind = candidate.config.model_type
            raise ValueError(f"{candidate.given} is a {kind!r} model; only longfire models can be fine-tuned.")
        candidate.check_length(max(*lengths, experiment.trained_length))
    _check_folder(out, experiment)
    own = {one.key: one.tokenizer() for one in candidates}
    hashes = {key: tokenizer_hash(tokenizer) for key, tokenizer in own.items()}
    tokenizers = {hashes[key]: tokenizer for key, tokenizer in own.items()}
    questions, missing = load_questions(experiment, list(tokenizers.values()), lengths)
    if recipe is None:
        tested = Mixture(experiment.name, tuple(questions))
        parts = [Part(one, tested, out / "test" / one.key, {}) for one in candidates]
    else:
        parts = [
            Part(one, mixture, out / "runs" / one.key / mixture.name, {**trained_on, "tokenizer": hashes[one.key]})
            for mixture in _present(experiment.mixtures, questions)
            for trained_on in [_identity(mixture, experiment.select, questions)]
            for one in candidates
        ]
    _check_runs(parts)
    return Plan(experiment, out, candidates, questions, missing, lengths, tokenizers, parts)


def _trained_length(candidate: Candidate) -> int:
    row = candidate.describe()
    length: int | None = row["finetuned_length"] or row["trained_length"]
    if length is None:
        raise ValueError(f"{candidate.given} does not say at which length it was trained. Give one (--length N).")
    return length


def _present(mixtures: Sequence[Mixture], questions: dict[str, Questions]) -> list[Mixture]:
    """Mixtures of the tasks that the data has."""
    present = [Mixture(one.name, tuple(task for task in one.tasks if task in questions)) for one in mixtures]
    return [mixture for mixture in present if mixture.tasks]


def _identity(mixture: Mixture, select: str, questions: dict[str, Questions]) -> dict[str, Any]:
    return {
        "tasks": list(mixture.tasks),
        "train": {task: fingerprint(questions[task].train) for task in mixture.tasks},
        "select": select,
        "judged_by": {task: fingerprint(questions[task].judge) for task in mixture.tasks if select != "last"},
    }


def _check_runs(parts: Sequence[Part]) -> None:
    """Refuse folders whose run was trained or judged on other questions."""
    for part in parts:
        before = read_json(part.folder / "recipe.json").get("on", part.identity)
        if other := [name for name, value in as_json(part.identity).items() if before.get(name) != value]:
            raise ValueError(
                f"{part.folder} already contains a run on other questions (different: {', '.join(other)}). Choose "
                f"another results folder, or delete that run."
            )


def _check_folder(out: Path, experiment: Experiment) -> None:
    """Refuse a folder with another experiment. Checkpoints, tasks and lengths may differ."""
    refuse_unwritable(out)
    if not (before := read_record(out).get("setting")):
        return
    kind = "evaluate" if experiment.recipe is None else "finetune"
    if before["kind"] != kind:
        raise ValueError(f"{out} contains the results of {before['kind']}. Choose another folder.")
    if experiment.recipe is None:
        return
    there = {**{key: before.get(key) for key in ("select", "dev_examples")}, **before["recipe"]}
    here = {"select": experiment.select, "dev_examples": experiment.dev_examples, **experiment.recipe.identity()}
    if other := differences(there, as_json(here)):
        raise ValueError(
            f"{out} already contains a different experiment ({describe_differences(other)}). Choose another folder, or "
            f"delete that one."
        )
