"""Table 4: FIRE without a threshold beside the other encodings."""

from longfire.lab.entry import BASELINES, LengthEntry

ENTRY = LengthEntry(
    "ablation-baselines",
    "Table 4",
    "FIRE without the threshold, and the other encodings",
    (*BASELINES, "fire:threshold=None", "fire"),
    reported="transform_baselines",
)
