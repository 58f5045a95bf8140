"""Figure 6: perplexity by length of base models trained at 512."""

from longfire.lab.entry import BASELINES, LengthEntry

ENTRY = LengthEntry(
    "perplexity-512",
    "Figure 6",
    "perplexity by length, base models trained at 512",
    (*BASELINES, "fire"),
    recipe="base-512",
)
