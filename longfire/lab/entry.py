"""A table, figure or theorem of the paper: what it compares, and where its own numbers are."""

from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any

from longfire.tasks import SUITES, TASKS

if TYPE_CHECKING:  # a list of entries loads nothing heavy
    from longfire.lab.comparison import Comparison
    from longfire.lab.downstream.plan import Experiment
    from longfire.lab.scales import Scale

BASELINES = ("nope", "rope", "alibi", "kerple_log", "t5")


@dataclass(frozen=True)
class Entry:
    """What all have."""

    name: str
    shows: str
    """In the paper."""
    what: str


@dataclass(frozen=True)
class TheoremEntry(Entry):
    """Encodings that are rewritten as FIRE. Nothing is trained."""

    max_length: int
    """Positions are below it."""


@dataclass(frozen=True)
class SpeedEntry(Entry):
    """Forward passes of untrained models, with each encoding."""

    size: str
    """Of the model: a name in `longfire.model.SIZES`."""
    length: int
    tokens: int
    """In a batch."""


@dataclass(frozen=True)
class LengthEntry(Entry):
    """Models that are trained short and tested long. `recipe` is the paper's; a scale says what stands for it."""

    encodings: tuple[str, ...]
    reported: str = ""
    """A table of `longfire.lab.reported`. Empty: the paper has a picture alone."""
    recipe: str = "base"
    texts: bool = False
    """Tested on other texts too."""
    draws_biases: bool = False
    """What was learned is drawn."""

    def comparison(
        self,
        scale: "Scale",
        corpus: tuple[tuple[str, Any], ...],
        also: tuple[tuple[str, str], ...] = (),
        **changes: Any,
    ) -> "Comparison":
        """At a scale, on a corpus. Runs of one recipe are shared by all entries."""
        from longfire.lab.comparison import Comparison

        recipe = scale.recipes[self.recipe]
        options: dict[str, Any] = {
            "seeds": scale.seeds,
            "lengths": tuple(round(multiple * recipe.length) for multiple in scale.multiples),
            "tokens": scale.tokens,
            "corpus": corpus,
            "also": also or scale.also if self.texts else (),
        }
        return Comparison(recipe, **{"encodings": self.encodings, **options, **changes})


@dataclass(frozen=True)
class TaskEntry(LengthEntry):
    """The same models, then fine-tuned on tasks and tested. Beside RoPE stands RoPE-PI."""

    task: str = ""
    """Or a suite: as `longfire finetune` takes it."""
    contexts: tuple[float, ...] = ()
    """Of the fine-tuning length, to test at. Empty: that alone."""
    stretches: tuple[int, ...] = (1,)
    """Of the fine-tuning length: how far RoPE-PI is stretched, a row each."""

    def experiment(self, scale: "Scale", data: str | None) -> "Experiment":
        """At a scale, on tasks' rows in a folder."""
        from longfire.lab.downstream.plan import Experiment

        recipe = scale.finetuning[TASKS[self.task].suite if self.task in TASKS else self.task]
        return Experiment(
            self.task,
            data,
            recipe,
            select=scale.select,
            lengths=self.lengths(recipe.length),
            limit=scale.questions,
            dev_examples=scale.questions or 64,
            trial=scale.trial,
        )

    def checkpoints(self, comparison: "Comparison", runs: Path, length: int) -> list[str]:
        """As `longfire finetune` takes them, for fine-tuning at a length; seeds of an encoding side by side."""
        found = []
        for label in comparison.encodings:
            folders = [str(comparison.folder(runs, label, seed)) for seed in comparison.seeds]
            found += folders
            if label == "rope":
                found += [f"{folder}:rope_pi={stretch * length}" for stretch in self.stretches for folder in folders]
        return found

    def lengths(self, length: int) -> tuple[int, ...]:
        """To test at, for fine-tuning at a length: those in which a prompt has three times an answer's room."""
        least = 4 * max(TASKS[task].max_answer for task in SUITES.get(self.task, (self.task,)))
        return tuple(n for n in (round(context * length) for context in self.contexts) if n >= least)
