"""Figures 4 and 8: what FIRE has learned, head by head, at a query within the training length and far beyond it."""

from longfire.lab.entry import LengthEntry

ENTRY = LengthEntry("biases", "Figures 4 and 8", "learned biases of FIRE, head by head", ("fire",), draws_biases=True)
