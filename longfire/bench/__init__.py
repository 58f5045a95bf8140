"""Speed and memory of biases, attention and whole models."""
