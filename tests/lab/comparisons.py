"""A comparison that trains in a second."""

from longfire.lab.comparison import Comparison
from longfire.training import RECIPES

RECIPE = RECIPES["tiny"].but(steps=3, batch_size=4, length=16, log_every=1, checkpoint_every=10)


def comparison(corpus, **changes):
    options = {"encodings": ("fire", "fire-s", "learned", "nope"), "seeds": (0,), "lengths": (16, 32), "tokens": 512}
    return Comparison(**{"recipe": RECIPE, "corpus": corpus, **options, **changes})
