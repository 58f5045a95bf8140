"""Theorem 3.1: FIRE can be ALiBi, Kerple, T5's RPE and Sandwich."""

from longfire.lab.entry import TheoremEntry

ENTRY = TheoremEntry("theorem", "Theorem 3.1", "ALiBi, Kerple, T5 and Sandwich as FIRE", max_length=2048)
