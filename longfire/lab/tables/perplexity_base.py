"""Figures 1 and 7: perplexity by length of base models, on C4, arXiv and GitHub. Here alone YaRN is compared, too."""

from longfire.lab.entry import BASELINES, LengthEntry

ENTRY = LengthEntry(
    "perplexity-base",
    "Figures 1 and 7",
    "perplexity by length, base models trained at 2048",
    (*BASELINES, "yarn", "fire"),
    reported="perplexity",
    texts=True,
)
