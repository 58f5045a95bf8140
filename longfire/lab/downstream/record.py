"""The record of a results folder. Later commands add checkpoints, tasks and lengths to it if comparable."""

import shutil
from collections.abc import Iterable, Sequence
from pathlib import Path
from typing import Any

from longfire.atomic_io import read_json
from longfire.evaluation.seeds import are_seeds
from longfire.lab.downstream.task_score import say
from longfire.provenance import provenance
from longfire.tasks import TASKS
from longfire.tasks.placeholder import is_placeholder
from longfire.training.base_recipe import translate_fields
from longfire.training.processes import is_first
from longfire.training.run import as_json

RECORD = "downstream.json"
PREVIOUS = "downstream-before.json"
"""The previous record, if not comparable with the current one."""

Record = dict[str, Any]


def read_record(out: Path) -> Record:
    """The record in a folder, with current names of recipe fields; empty if there is none."""
    record = read_json(out / RECORD)
    for parent, name in (
        (record.get("setting", {}), "recipe"),
        *((row, "finetuned") for row in record.get("rows", ())),
    ):
        if parent.get(name):
            parent[name] = translate_fields(parent[name])
    return record


def start_record(out: Path, setting: Record, rows: Sequence[Record]) -> Record:
    """The record of a new command: its rows, with their earlier scores, and the rows of earlier commands.

    An earlier record that is not comparable is kept under another name.
    """
    setting, before = as_json(setting), read_record(out)
    if before and (conflict := _conflict(before["setting"], setting)):
        if is_first():
            shutil.copyfile(out / RECORD, out / PREVIOUS)
        say(f"{out / RECORD} has a different setting ({conflict}); keeping it as {PREVIOUS}.")
        before = {}
    if before:
        setting = _merge_settings(before["setting"], setting)
    for row in rows:
        earlier: Record = next((one for one in before.get("rows", ()) if one.get("key") == row["key"]), {})
        row |= {name: list(earlier.get(name, ())) for name in ("parts", "scores") if name in row}
    return {"provenance": provenance(), "setting": setting, "rows": _merge_rows(before.get("rows", ()), rows)}


def replace_by(names: Sequence[str], before: Iterable[Record], new: Iterable[Record]) -> list[Record]:
    """The old items, each replaced by the new item with the same values of `names`; then the remaining new items."""
    added = {tuple(one[name] for name in names): one for one in new}
    updated = [added.pop(tuple(one[name] for name in names), one) for one in before]
    return [*updated, *added.values()]


def _conflict(before: Record, now: Record) -> str:
    """Why the scores of two settings are not comparable; empty if they are."""
    both_placeholders = is_placeholder(before["data"]) and is_placeholder(now["data"])
    if Path(before["data"]) != Path(now["data"]) and not both_placeholders:
        return f"data: {before['data']}"
    for name in ("split", "limit"):
        if before[name] != now[name]:
            return f"{name}: {before[name]}"
    if before.get("brief") != now.get("brief"):
        return f"trial: {before.get('brief')}"
    old = {task: one["tasks"] for one in before.get("mixtures", ()) for task in one["tasks"]}
    new = {task: one["tasks"] for one in now.get("mixtures", ()) for task in one["tasks"]}
    changed = [task for task in new if task in old and old[task] != new[task]]
    return f"trained together: {'+'.join(old[changed[0]])}" if changed else ""


def _merge_settings(before: Record, now: Record) -> Record:
    old, new = set(before["tasks"]), set(now["tasks"])
    name = f"{before['name']}, {now['name']}"
    tasks = [task for task in TASKS if task in old | new]
    if old <= new or new <= old:
        larger = now if old <= new else before
        name, tasks = larger["name"], larger["tasks"]
    missing = {task: reason for task, reason in before["missing"].items() if task not in new} | now["missing"]
    lengths = sorted({*before["lengths"], *now["lengths"]})
    merged = {"name": name, "tasks": tasks, "missing": missing, "lengths": lengths}
    if "mixtures" in now:
        merged["mixtures"] = replace_by(["name"], before["mixtures"], now["mixtures"])
    return {**now, **merged}


def _merge_rows(before: Iterable[Record], rows: Sequence[Record]) -> list[Record]:
    """Old rows in order, replaced by new rows with the same weights or folder; then the other new rows.

    Labels stay unique.
    """
    merged: list[Record] = []
    for old in before:
        same = [row for row in rows if row["key"] == old.get("key") or row["checkpoint"] == old["checkpoint"]]
        merged += [row for row in same or [old] if row not in merged]
    merged += [row for row in rows if row not in merged]
    by_label = {row["label"]: [one for one in merged if one["label"] == row["label"]] for row in merged}
    for same in by_label.values():
        if len(same) > 1 and not are_seeds(same):
            for row in same:
                row["label"] += f" ({row['checkpoint']})"
    return merged
