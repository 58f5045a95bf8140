"""Table 5: how deep FIRE's MLP is."""

from longfire.lab.entry import LengthEntry

ENTRY = LengthEntry(
    "ablation-depth",
    "Table 5",
    "FIRE's MLP with no, one and two hidden layers",
    ("fire:hidden_layers=0", "fire:hidden_layers=1", "fire"),
    reported="depth",
)
