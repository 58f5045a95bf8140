"""Speed and memory of attention and of models."""
