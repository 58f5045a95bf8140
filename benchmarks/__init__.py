"""Generates this repository's results pages. Not part of the wheel."""
