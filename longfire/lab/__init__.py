"""The lab: train encodings short, test them long, and compare them."""

DEFAULT_ENCODINGS = ("fire", "alibi", "kerple_log", "rope", "nope")
DEFAULT_SEEDS = (0, 1, 2)
