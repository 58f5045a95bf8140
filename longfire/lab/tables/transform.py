"""Table 3: what the logarithm and the threshold do."""

from longfire.lab.entry import LengthEntry

ENTRY = LengthEntry(
    "ablation-transform",
    "Table 3",
    "FIRE without the logarithm or the threshold",
    ("fire:log=False,threshold=None", "fire:threshold=None", "fire"),
    reported="transform",
)
