"""Names of encodings on the pages."""

from typing import Any

from longfire.encodings import ENCODINGS
from longfire.encodings.labels import label_title, parse_label
from longfire.report.summary import with_titles

DISPLAY_NAMES = {
    "fire:log=False,threshold=None": "FIRE without log and threshold",
    "fire:threshold=None": "FIRE without threshold",
    "fire:threshold=fixed": "FIRE with a fixed threshold",
    "fire:threshold=fixed,init_L=512,horizon=512": "FIRE with a constant normaliser",
    "fire:hidden_layers=0": "FIRE, linear",
    "fire:hidden_layers=1": "FIRE, one hidden layer",
    "fire:hidden_layers=1,final_activation=True": "FIRE, one hidden layer, final activation",
    "fire:activation=gelu": "FIRE with GELU",
}
"""The paper's variants of FIRE, and ours of its normaliser."""


def display_name(encoding: str, label: str = "") -> str:
    """An encoding's name in prose. Variants without a name here keep the `label` of their record."""
    if encoding in DISPLAY_NAMES:
        return DISPLAY_NAMES[encoding]
    return label or (label_title(encoding) if parse_label(encoding)[0] in ENCODINGS else encoding)


def with_display_names(record: dict[str, Any]) -> dict[str, Any]:
    """A comparison or task record with display names as labels; other records as they are."""
    if "runs" in record:
        record = with_titles(record)
        return {
            **record,
            "runs": [{**run, "label": display_name(run["encoding"], run["label"])} for run in record["runs"]],
        }
    if "kind" in record.get("setting", {}):
        names = {cls.__name__: label_title(name) for name, cls in ENCODINGS.items()}
        return {**record, "rows": [{**row, "label": names.get(row["label"], row["label"])} for row in record["rows"]]}
    return record
