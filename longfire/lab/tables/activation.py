"""Table 6: ReLU or GELU in FIRE's MLP."""

from longfire.lab.entry import LengthEntry

ENTRY = LengthEntry(
    "ablation-activation", "Table 6", "FIRE's MLP with ReLU and GELU", ("fire", "fire:activation=gelu"), "activation"
)
