"""Perplexity by length on held-out text, and scores of answers to a task's questions."""
