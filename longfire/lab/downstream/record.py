"""The record of a folder. Commands with other checkpoints, tasks or lengths add to it, as long as it is comparable."""

import shutil
from collections.abc import Iterable, Sequence
from pathlib import Path
from typing import Any

from longfire.evaluation.seeds import are_seeds
from longfire.lab.downstream.exam import is_first, say
from longfire.lab.downstream.plan import RECORD, recorded
from longfire.provenance import provenance
from longfire.tasks import TASKS
from longfire.training.run import as_json

BEFORE = "downstream-before.json"
"""Where the record goes that a command's own cannot be put to."""

Record = dict[str, Any]


def begun(out: Path, setting: Record, rows: Sequence[Record]) -> Record:
    """A command's record before it has done anything: what earlier ones put there, and its own rows, to be filled.

    Args:
        out: the folder.
        setting: the command's.
        rows: of its checkpoints. What is known of one already is put into it.
    """
    setting, before = as_json(setting), recorded(out)
    if before and (differing := _differing(before["setting"], setting)):
        if is_first():
            shutil.copyfile(out / RECORD, out / BEFORE)
        say(f"{out / RECORD} was of other {differing}. It is kept as {BEFORE}.")
        before = {}
    if before:
        setting = _together(before["setting"], setting)
    for row in rows:
        known: Record = next((one for one in before.get("rows", ()) if one.get("key") == row["key"]), {})
        row |= {name: list(known.get(name, ())) for name in ("parts", "scores") if name in row}
    joined = _joined(before.get("rows", ()), rows)
    return {"provenance": provenance(), "setting": setting, "rows": joined}


def renewed(before: Iterable[Record], new: Iterable[Record], *names: str) -> list[Record]:
    """Those of before, each replaced by the new one that has the same under these names; then the other new ones."""
    fresh = {tuple(one[name] for name in names): one for one in new}
    kept = [fresh.pop(tuple(one[name] for name in names), one) for one in before]
    return [*kept, *fresh.values()]


def _differing(before: Record, now: Record) -> str:
    """What of two settings makes their scores no part of one table."""
    if Path(before["data"]) != Path(now["data"]):
        return f"data ({before['data']})"
    for name in ("split", "limit"):
        if before[name] != now[name]:
            return f"questions ({name}: {before[name]})"
    if before.get("brief") != now.get("brief"):
        return f"questions ({before.get('brief') or 'all of the data'})"
    trained = {task: one["tasks"] for one in before.get("mixtures", ()) for task in one["tasks"]}
    here = {task: one["tasks"] for one in now.get("mixtures", ()) for task in one["tasks"]}
    others = [task for task in here if task in trained and trained[task] != here[task]]
    return f"tasks together ({'+'.join(trained[others[0]])})" if others else ""


def _together(before: Record, now: Record) -> Record:
    """The setting of both."""
    there, here = set(before["tasks"]), set(now["tasks"])
    name = f"{before['name']}, {now['name']}"
    tasks = [task for task in TASKS if task in there | here]
    if there <= here or here <= there:
        larger = now if there <= here else before
        name, tasks = larger["name"], larger["tasks"]
    missing = {task: why for task, why in before["missing"].items() if task not in here} | now["missing"]
    both = {"name": name, "tasks": tasks, "missing": missing, "lengths": sorted({*before["lengths"], *now["lengths"]})}
    if "mixtures" in now:
        both["mixtures"] = renewed(before["mixtures"], now["mixtures"], "name")
    return {**now, **both}


def _joined(before: Iterable[Record], rows: Sequence[Record]) -> list[Record]:
    """Rows of before in their order, those of the same weights or folder replaced; then the others; told apart."""
    found: list[Record] = []
    for old in before:
        same = [row for row in rows if row["key"] == old.get("key") or row["checkpoint"] == old["checkpoint"]]
        found += [row for row in same or [old] if row not in found]
    found += [row for row in rows if row not in found]
    shared = {row["label"]: [one for one in found if one["label"] == row["label"]] for row in found}
    for same in shared.values():
        if len(same) > 1 and not are_seeds(same):
            for row in same:
                row["label"] += f" ({row['checkpoint']})"
    return found
