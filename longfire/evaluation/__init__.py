"""Measurements: what is claimed, and on what."""
