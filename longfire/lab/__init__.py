"""The laboratory: encodings trained short, tested long, and compared."""
