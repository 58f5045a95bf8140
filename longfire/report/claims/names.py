"""Encodings as records name them, and as a person writes them."""

from longfire.encodings import ENCODINGS
from longfire.encodings.registry import title_of

PLAIN, NO_THRESHOLD, FIXED = "fire:log=False,threshold=None", "fire:threshold=None", "fire:threshold=fixed"
LINEAR, ONE_LAYER, GELU = "fire:hidden_layers=0", "fire:hidden_layers=1", "fire:activation=gelu"
CONSTANT = "fire:threshold=fixed,init_L=512,horizon=512"
OURS, OURS_AT_128 = "fire:init=kerple_log,horizon=512", "fire:init=kerple_log,horizon=128"
FINAL = "fire:hidden_layers=1,final_activation=True"
WRITTEN = {
    **dict.fromkeys((OURS, OURS_AT_128), "FIRE as we train it"),
    "fire-s": "FIRE-S",
    PLAIN: "FIRE without log and threshold",
    NO_THRESHOLD: "FIRE without threshold",
    FIXED: "FIRE with a fixed threshold",
    CONSTANT: "FIRE with a constant normaliser",
    LINEAR: "linear",
    ONE_LAYER: "one hidden layer",
    GELU: "GELU",
    FINAL: "one hidden layer, final activation",
}
"""The parts of FIRE that the paper leaves out or changes, as it calls them, and what we add."""


def written(name: str) -> str:
    """An encoding as a person writes it."""
    return WRITTEN.get(name) or (title_of(name) if name in ENCODINGS else name)
