"""A table or figure of the paper: what it compares, and where its own numbers are."""

from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:  # a list of entries loads nothing heavy
    from longfire.lab.comparison import Comparison
    from longfire.lab.scales import Scale

BASELINES = ("nope", "rope", "alibi", "kerple_log", "t5")


@dataclass(frozen=True)
class Entry:
    """Models that are trained short and tested long. `recipe` is the paper's; a scale says what stands for it."""

    name: str
    shows: str
    """In the paper."""
    what: str
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
