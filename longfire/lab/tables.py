"""The paper's theorem, tables and figures as data: what each one trains, and where its published numbers are.

Importing this module loads nothing heavy, so `longfire reproduce --list` is instant.
"""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any

from longfire.tasks import SUITES, TASKS

if TYPE_CHECKING:
    from longfire.lab.comparison import Comparison
    from longfire.lab.downstream.plan import Experiment
    from longfire.lab.scales import Scale


@dataclass(frozen=True)
class Entry:
    """A table, figure or theorem of the paper."""

    name: str
    shows: str
    """Its number in the paper."""
    what: str


@dataclass(frozen=True)
class TheoremEntry(Entry):
    """Other encodings rewritten as FIRE, without training."""

    max_length: int


@dataclass(frozen=True)
class SpeedEntry(Entry):
    """Forward passes of untrained models, one per encoding."""

    size: str
    """A name in `longfire.model.SIZES`."""
    length: int
    tokens: int
    """Tokens per batch."""


@dataclass(frozen=True)
class LengthEntry(Entry):
    """Models trained short and tested long."""

    encodings: tuple[str, ...]
    reported: str = ""
    """A table of `longfire.lab.reported`; empty if the paper has only a plot."""
    recipe: str = "base"
    """The paper's recipe, which a scale may replace."""
    texts: bool = False
    """Whether the paper also tests on other texts."""
    draws_biases: bool = False

    def comparison(
        self, scale: "Scale", corpus: Mapping[str, Any], also: Sequence[tuple[str, str]] = (), **changes: Any
    ) -> "Comparison":
        """The comparison at a scale, on a corpus. Entries with the same recipe share runs."""
        from longfire.lab.comparison import Comparison

        recipe = scale.recipes[self.recipe]
        options: dict[str, Any] = {
            "encodings": self.encodings,
            "seeds": scale.seeds,
            "lengths": tuple(round(multiple * recipe.length) for multiple in scale.multiples),
            "tokens": scale.tokens,
            "corpus": corpus,
            "also": tuple(also or scale.also) if self.texts else (),
        }
        return Comparison(**{"recipe": recipe, **options, **changes})


@dataclass(frozen=True)
class TaskEntry(LengthEntry):
    """The same models, fine-tuned and tested on tasks. RoPE is also tested as RoPE-PI."""

    task: str = ""
    """A task or suite, as in `longfire finetune`."""
    contexts: tuple[float, ...] = ()
    """Test lengths, as multiples of the fine-tuning length. Empty: that length only."""
    stretches: tuple[int, ...] = (1,)
    """Target lengths of RoPE-PI, as multiples of the fine-tuning length; one row each."""

    def experiment(self, scale: "Scale", data: str | None) -> "Experiment":
        """The fine-tuning experiment at a scale."""
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

    def checkpoints(self, comparison: "Comparison", out: Path, length: int) -> list[str]:
        """The trained models, as arguments of `longfire finetune`; all seeds of an encoding in a row."""
        checkpoints = []
        for label in comparison.encodings:
            folders = [str(run.folder) for run in comparison.runs(out) if run.label == label]
            checkpoints += folders
            if label == "rope":
                checkpoints += [f"{folder}:rope_pi={n * length}" for n in self.stretches for folder in folders]
        return checkpoints

    def lengths(self, length: int) -> tuple[int, ...]:
        """Test lengths for a fine-tuning length, without those where an answer could fill more than a quarter."""
        least = 4 * max(TASKS[task].max_answer for task in SUITES.get(self.task, (self.task,)))
        return tuple(n for n in (round(context * length) for context in self.contexts) if n >= least)


BASELINES = ("nope", "rope", "alibi", "kerple_log", "t5")
ALL = (*BASELINES, "fire")
TRANSFORMS = ("fire:log=False,threshold=None", "fire:threshold=None", "fire")
DEPTHS = ("fire:hidden_layers=0", "fire:hidden_layers=1", "fire")
FINAL_ACTIVATION = ("fire:hidden_layers=1,final_activation=True", "fire:hidden_layers=1")

_ENTRIES: tuple[Entry, ...] = (
    TheoremEntry("theorem", "Theorem 3.1", "ALiBi, Kerple, T5 and Sandwich as FIRE", max_length=2048),
    LengthEntry(
        "perplexity-base",
        "Figures 1 and 7",
        "perplexity by length, base models trained at 2048",
        (*BASELINES, "yarn", "fire"),
        "perplexity",
        texts=True,
    ),
    LengthEntry(
        "perplexity-large",
        "Figure 2",
        "perplexity by length, large models trained at 2048",
        ALL,
        recipe="large",
        texts=True,
    ),
    TaskEntry(
        "scrolls",
        "Table 1",
        "SCROLLS, base models fine-tuned at four times the training length",
        (*ALL, "fire-s"),
        task="scrolls",
    ),
    TaskEntry(
        "scrolls-large",
        "Table 1",
        "SCROLLS, large models fine-tuned at four times the training length",
        ALL,
        recipe="large",
        task="scrolls",
    ),
    TaskEntry(
        "narrative-qa",
        "Figure 3, Table 11",
        "NarrativeQA by context length",
        ALL,
        task="narrative_qa",
        contexts=(1 / 16, 1 / 4, 1 / 2, 1, 2, 3, 4),
        stretches=(1, 4),
    ),
    TaskEntry(
        "glue", "Figure 3, Table 13", "GLUE and SuperGLUE, one mixture, base models", (*ALL, "fire-s"), task="glue"
    ),
    TaskEntry(
        "glue-large",
        "Figure 3, Table 13",
        "GLUE and SuperGLUE, one mixture, large models",
        ALL,
        recipe="large",
        task="glue",
    ),
    LengthEntry("biases", "Figures 4 and 8", "learned biases of FIRE, head by head", ("fire",), draws_biases=True),
    SpeedEntry(
        "speed", "Figure 5", "time of a forward pass with each encoding", size="base", length=2048, tokens=32768
    ),
    LengthEntry("sharing", "Table 2", "FIRE-S, one encoding for all layers", ("fire", "fire-s"), "sharing"),
    LengthEntry(
        "ablation-transform", "Table 3", "FIRE without the logarithm or the threshold", TRANSFORMS, "transform"
    ),
    TaskEntry(
        "glue-ablation",
        "Table 3",
        "GLUE and SuperGLUE, FIRE without the logarithm or the threshold",
        TRANSFORMS,
        task="glue",
    ),
    LengthEntry(
        "ablation-baselines",
        "Table 4",
        "FIRE without the threshold, and the other encodings",
        (*BASELINES, "fire:threshold=None", "fire"),
        "transform_baselines",
    ),
    LengthEntry("ablation-depth", "Table 5", "FIRE's MLP with zero, one and two hidden layers", DEPTHS, "depth"),
    LengthEntry(
        "ablation-activation",
        "Table 6",
        "FIRE's MLP with ReLU and GELU",
        ("fire", "fire:activation=gelu"),
        "activation",
    ),
    LengthEntry(
        "ablation-final",
        "Table 7",
        "FIRE's MLP with one hidden layer, with and without a final activation",
        FINAL_ACTIVATION,
        "final_activation",
    ),
    LengthEntry(
        "perplexity-512", "Figure 6", "perplexity by length, base models trained at 512", ALL, recipe="base-512"
    ),
)
ENTRIES: dict[str, Entry] = {entry.name: entry for entry in _ENTRIES}
"""Keyed by name, in the paper's order."""
