"""Triton attention with any additive position bias, forward and backward. See README.md for the design."""
