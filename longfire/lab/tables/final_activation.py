"""Table 7: an activation after FIRE's MLP."""

from longfire.lab.entry import LengthEntry

ENTRY = LengthEntry(
    "ablation-final",
    "Table 7",
    "FIRE's MLP, of one hidden layer, with and without an activation at its end",
    ("fire:hidden_layers=1,final_activation=True", "fire:hidden_layers=1"),
    reported="final_activation",
)
