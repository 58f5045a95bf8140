"""Turn an experiment on tasks into one plan. All checks happen here, before training."""

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
"""Which model of a run to test: the best by dev score, validation score or dev loss, or the last."""


@dataclass(frozen=True)
class Experiment:
    """What to fine-tune and test on, and how."""

    name: str
    """A task, tasks joined by +, a suite, or "all"."""
    data: str | Path | None
    """A source for `longfire.tasks.load_examples`."""
    recipe: FinetuneRecipe | None = None
    """None: test without fine-tuning."""
    select: str = "dev"
    """One of `SELECT`."""
    lengths: tuple[int, ...] = ()
    """Test lengths. Empty: the recipe's length, or the first checkpoint's training length."""
    limit: int | None = None
    """Maximum number of test questions per task. None: all."""
    dev_examples: int = 64
    """Maximum number of dev questions per task for selecting a model."""
    split: str = "validation"
    """The split to test on."""
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
        """Groups of tasks that are trained together."""
        return mixtures_of(self.name)

    @property
    def tasks(self) -> list[str]:
        """All tasks, in order."""
        return [task for mixture in self.mixtures for task in mixture.tasks]

    @property
    def requires_all(self) -> bool:
        """Whether a task missing from the data is an error. Suites skip missing tasks."""
        return self.name not in (*SUITES, ALL)

    @property
    def trained_length(self) -> int:
        """Fine-tuning length; 0 without fine-tuning."""
        return 0 if self.recipe is None else self.recipe.length

    def test_lengths(self) -> list[int]:
        """Test lengths in ascending order; empty if the checkpoints decide."""
        return sorted(set(self.lengths)) or ([self.trained_length] if self.recipe else [])


@dataclass(frozen=True)
class Part:
    """One checkpoint and one mixture: a fine-tuning run and its tests, or tests only."""

    candidate: Candidate
    mixture: Mixture
    folder: Path
    """The run's folder or, without fine-tuning, the folder of the tests."""
    identity: dict[str, Any]
    """What the run is trained on, for `longfire.training.finetune`."""


@dataclass(frozen=True)
class Plan:
    """A checked experiment: its questions exist and fit, and its checkpoints support the lengths."""

    experiment: Experiment
    out: Path
    candidates: list[Candidate]
    questions: dict[str, Questions]
    missing: dict[str, str]
    """Missing tasks, with reasons."""
    lengths: list[int]
    tokenizers: dict[str, Any]
    """Keyed by hash."""
    parts: list[Part]

    def setting(self) -> dict[str, Any]:
        """The experiment's setting, for the record."""
        experiment = self.experiment
        common = {
            "name": experiment.name,
            "tasks": experiment.tasks,
            "missing": self.missing,
            "lengths": self.lengths,
            "data": str(experiment.data or "hub"),
            "split": experiment.split,
            "limit": experiment.limit,
        }
        if experiment.recipe is None:
            return {"kind": "evaluate", **common}
        return {
            "kind": "finetune",
            **common,
            "mixtures": [asdict(mixture) for mixture in _available(experiment.mixtures, self.questions)],
            "recipe": asdict(experiment.recipe),
            "select": experiment.select,
            "length": experiment.recipe.length,
            "dev_examples": experiment.dev_examples,
            **({} if experiment.trial is None else {"brief": asdict(experiment.trial)}),
        }


def plan(experiment: Experiment, checkpoints: Sequence[str | Path], out: Path) -> Plan:
    """Load and check everything an experiment needs.

    Args:
        experiment: What to fine-tune and test on.
        checkpoints: FOLDER, or FOLDER:rope_pi=N or FOLDER:yarn=N to extend a RoPE checkpoint to N tokens.
        out: The results folder. Refused if it contains a different experiment.
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
    by_candidate = {one.key: one.tokenizer() for one in candidates}
    hashes = {key: tokenizer_hash(tokenizer) for key, tokenizer in by_candidate.items()}
    tokenizers = {hashes[key]: tokenizer for key, tokenizer in by_candidate.items()}
    questions, missing = load_questions(experiment, list(tokenizers.values()), lengths)
    if recipe is None:
        tested = Mixture(experiment.name, tuple(questions))
        parts = [Part(one, tested, out / "test" / one.key, {}) for one in candidates]
    else:
        parts = [
            Part(one, mixture, out / "runs" / one.key / mixture.name, {**trained_on, "tokenizer": hashes[one.key]})
            for mixture in _available(experiment.mixtures, questions)
            for trained_on in [_identity(mixture, experiment.select, questions)]
            for one in candidates
        ]
    _check_runs(parts)
    return Plan(experiment, out, candidates, questions, missing, lengths, tokenizers, parts)


def _trained_length(candidate: Candidate) -> int:
    row = candidate.describe()
    length: int | None = row["finetuned_length"] or row["trained_length"]
    if length is None:
        raise ValueError(f"the training length of {candidate.given} is unknown. Pass a length (--length N).")
    return length


def _available(mixtures: Sequence[Mixture], questions: dict[str, Questions]) -> list[Mixture]:
    """The mixtures without tasks that the data lacks."""
    available = [Mixture(one.name, tuple(task for task in one.tasks if task in questions)) for one in mixtures]
    return [mixture for mixture in available if mixture.tasks]


def _identity(mixture: Mixture, select: str, questions: dict[str, Questions]) -> dict[str, Any]:
    return {
        "tasks": list(mixture.tasks),
        "train": {task: fingerprint(questions[task].train) for task in mixture.tasks},
        "select": select,
        "judged_by": {task: fingerprint(questions[task].judge) for task in mixture.tasks if select != "last"},
    }


def _check_runs(parts: Sequence[Part]) -> None:
    """Refuse folders that contain a run trained or selected on other questions."""
    for part in parts:
        existing = read_json(part.folder / "recipe.json").get("on", part.identity)
        if different := [name for name, value in as_json(part.identity).items() if existing.get(name) != value]:
            raise ValueError(
                f"{part.folder} already contains a run on other questions (different: {', '.join(different)}). Choose "
                f"another results folder, or delete that run."
            )


def _check_folder(out: Path, experiment: Experiment) -> None:
    """Refuse a folder that contains another experiment. Checkpoints, tasks and lengths may differ."""
    refuse_unwritable(out)
    if not (existing := read_record(out).get("setting")):
        return
    kind = "evaluate" if experiment.recipe is None else "finetune"
    if existing["kind"] != kind:
        raise ValueError(f"{out} contains results of longfire {existing['kind']}. Choose another folder.")
    if experiment.recipe is None:
        return
    there = {**{key: existing.get(key) for key in ("select", "dev_examples")}, **existing["recipe"]}
    here = {"select": experiment.select, "dev_examples": experiment.dev_examples, **experiment.recipe.identity()}
    if different := differences(there, as_json(here)):
        raise ValueError(
            f"{out} already contains a different experiment ({describe_differences(different)}). Choose another "
            f"folder, or delete that one."
        )
