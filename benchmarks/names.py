"""Encodings as the pages call them."""

from typing import Any

from longfire.encodings import ENCODINGS
from longfire.encodings.registry import title_of

RECOMMENDED = {f"fire:init=kerple_log,horizon={length}" for length in (64, 128, 512)}
"""FIRE started as Kerple-log with its horizon at the training length, as records label it."""
DISPLAY_NAMES = {
    **dict.fromkeys(RECOMMENDED, "FIRE (recommended)"),
    "fire-s": "FIRE-S",
    "kerple_log": "Kerple-log",
    "kerple_power": "Kerple-power",
    "fire:log=False,threshold=None": "FIRE without log and threshold",
    "fire:threshold=None": "FIRE without threshold",
    "fire:threshold=fixed": "FIRE with a fixed threshold",
    "fire:threshold=fixed,init_L=512,horizon=512": "FIRE with a constant normaliser",
    "fire:hidden_layers=0": "FIRE, linear",
    "fire:hidden_layers=1": "FIRE, one hidden layer",
    "fire:hidden_layers=1,final_activation=True": "FIRE, one hidden layer, final activation",
    "fire:activation=gelu": "FIRE with GELU",
}


def display_name(encoding: str, label: str = "") -> str:
    """An encoding's name in prose. `label` is what its record calls it, for variants that have no name here."""
    if encoding in DISPLAY_NAMES:
        return DISPLAY_NAMES[encoding]
    return label or (title_of(encoding) if encoding in ENCODINGS else encoding)


def with_display_names(record: dict[str, Any]) -> dict[str, Any]:
    """The record of a comparison, or of checkpoints on tasks, with its labels replaced."""
    if "runs" in record:
        runs = [{**run, "label": display_name(run["encoding"], run.get("label", ""))} for run in record["runs"]]
        return {**record, "runs": runs}
    names = {title_of(name): display_name(name) for name in ENCODINGS}
    return {**record, "rows": [{**row, "label": names.get(row["label"], row["label"])} for row in record["rows"]]}
