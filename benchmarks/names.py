"""Names of encodings on the pages."""

from typing import Any

from longfire.encodings import ENCODINGS
from longfire.encodings.registry import title_of

RECOMMENDED = {f"fire:init=kerple_log,horizon={length}" for length in (64, 128, 512)}
"""FIRE initialised as Kerple-log with its horizon at the training length, as labelled in records."""
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
    """An encoding's name in prose. Variants without a name here keep the `label` of their record."""
    if encoding in DISPLAY_NAMES:
        return DISPLAY_NAMES[encoding]
    return label or (title_of(encoding) if encoding in ENCODINGS else encoding)


def with_display_names(record: dict[str, Any]) -> dict[str, Any]:
    """A comparison or task record with display names as labels."""
    if "runs" in record:
        runs = [{**run, "label": display_name(run["encoding"], run.get("label", ""))} for run in record["runs"]]
        return {**record, "runs": runs}
    names = {title_of(name): display_name(name) for name in ENCODINGS}
    return {**record, "rows": [{**row, "label": names.get(row["label"], row["label"])} for row in record["rows"]]}
