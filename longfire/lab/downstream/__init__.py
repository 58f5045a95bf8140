"""Checkpoints fine-tuned on tasks and tested, side by side."""
