"""Which records may decide a claim, which of them are of the same runs, and two records as one."""

from collections.abc import Mapping
from typing import Any

from longfire.report.description import changes_in_rows, changes_to_fire
from longfire.report.summary import Record, lengths_of, seeds_of

Records = Mapping[str, Record]
"""By folder and name, such as reproduce/perplexity-base."""
AND = " + "
"""Between names: the runs of both together."""
ALIKE = ("trained_length", "protocol", "tokens", "split")
"""What records that are taken together share, beside recipe and corpus."""


def record_named(records: Records, name: str) -> Record | None:
    """A record, or several as one; None where one is not there, or they are not of one experiment."""
    found = [records[part] for part in name.split(AND) if part in records]
    if len(found) < len(name.split(AND)):
        return None
    whole: Record | None = found[0]
    for other in found[1:]:
        whole = _joined(whole, other) if whole is not None else None
    return whole


def unfit(record: Record) -> str:
    """Why a record decides nothing: its FIRE is not the published one, or it was tested on what one may choose by."""
    setting = record.get("setting") or {}
    if "runs" in record:
        fire = f"FIRE {changed}" if (changed := changes_to_fire(setting.get("recipe") or {})) else ""
    else:
        fire = f"not as published: {changed}" if (changed := changes_in_rows(record.get("rows", ()))) else ""
    reasons = [fire, "tested on dev" if setting.get("split") == "dev" else ""]
    return ", ".join(filter(None, reasons))


def run_keys(record: Record) -> set[tuple[Any, ...]]:
    """What tells tested runs apart, wherever they are recorded: encoding, seed and what they scored."""
    return {
        (run["encoding"], run["seed"], *((row["length"], row.get("log_perplexity")) for row in _rows(run)))
        for run in record.get("runs", ())
        if _rows(run)
    }


def _rows(run: Mapping[str, Any]) -> list[dict[str, Any]]:
    return list(run.get("perplexity", {}).get("rows", ()))


def _joined(one: Record, other: Record) -> Record | None:
    a, b = one["setting"], other["setting"]
    recipes = a.get("recipe") or {}, b.get("recipe") or {}
    same = all(recipes[0][key] == recipes[1][key] for key in recipes[0] if key in recipes[1])
    corpora = [(setting.get("corpus") or {}).get("fingerprint") for setting in (a, b)]
    if not same or corpora[0] != corpora[1] or any(a.get(key) != b.get(key) for key in ALIKE):
        return None
    seeds = [seed for seed in seeds_of(one) if seed in seeds_of(other)]
    lengths = [length for length in lengths_of(one) if length in lengths_of(other)]
    there = {run["encoding"] for run in one["runs"]}
    runs = [*one["runs"], *(run for run in other["runs"] if run["encoding"] not in there)]
    kept = [run for run in runs if run["seed"] in seeds]
    return {**one, "setting": {**a, "seeds": seeds, "lengths": lengths}, "runs": kept} if seeds else None
