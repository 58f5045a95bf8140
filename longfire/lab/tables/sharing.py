"""Table 2: FIRE with one encoding for all layers."""

from longfire.lab.entry import LengthEntry

ENTRY = LengthEntry("sharing", "Table 2", "FIRE-S, one encoding for all layers", ("fire", "fire-s"), reported="sharing")
