"""How large a reproduction is: the paper's (a cluster), small (one GPU), smoke (a laptop, two minutes)."""

from dataclasses import dataclass

from longfire.errors import hint
from longfire.training import RECIPES, Recipe


@dataclass(frozen=True)
class Scale:
    """What stands for the paper's recipes, and how it is tested."""

    name: str
    recipes: dict[str, Recipe]
    """By the name of the paper's."""
    seeds: tuple[int, ...]
    multiples: tuple[float, ...]
    """Of the training length, to test at."""
    corpus: str | None
    """None: the embedded one. Empty: it must be given."""
    also: tuple[tuple[str, str], ...] = ()
    """Other texts to test on, where an entry asks for them."""
    tokens: int | None = None
    """To test on at each length. None: all."""
    finetuning: tuple[tuple[str, str], ...] = (("scrolls", "scrolls"), ("glue", "glue"))
    """The recipe that a suite is fine-tuned by."""


PAPERS = {name: RECIPES[name] for name in ("base", "large", "base-512")}
SMALL = RECIPES["small"].but(start=None)  # FIRE as published; encodings' own learning rate is ten times the model's
SMOKE = RECIPES["tiny"].but(start=None, horizon=None, steps=60, batch=16)

SCALES = {
    scale.name: scale
    for scale in (
        Scale(
            "paper",
            PAPERS,
            seeds=(0,),
            multiples=(0.25, 0.5, 1, 2, 4),
            corpus="hub:c4",
            also=(("arxiv", "hub:arxiv"), ("github", "hub:github")),
        ),
        Scale(
            "small",
            dict.fromkeys(PAPERS, SMALL),
            seeds=(0, 1, 2),
            multiples=(1, 2, 4, 8, 16),
            corpus="",
            finetuning=(("scrolls", "scrolls-small"), ("glue", "glue-small")),
        ),
        Scale(
            "smoke",
            dict.fromkeys(PAPERS, SMOKE),
            seeds=(0,),
            multiples=(1, 2, 4, 8, 16),
            corpus=None,
            tokens=8192,
            finetuning=(("scrolls", "tiny"), ("glue", "tiny")),
        ),
    )
}


def scale_named(name: str) -> Scale:
    """A scale, or an error that says which there are."""
    if name not in SCALES:
        raise ValueError(f"there is no scale named {name!r}. {hint(name, SCALES)}")
    return SCALES[name]
