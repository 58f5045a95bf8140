"""Attention with any additive position bias in Triton, forward and backward. README.md says how it works."""
