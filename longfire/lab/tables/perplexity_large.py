"""Figure 2: perplexity by length of large models, on C4, arXiv and GitHub."""

from longfire.lab.entry import BASELINES, LengthEntry

ENTRY = LengthEntry(
    "perplexity-large",
    "Figure 2",
    "perplexity by length, large models trained at 2048",
    (*BASELINES, "fire"),
    recipe="large",
    texts=True,
)
