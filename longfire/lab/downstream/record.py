"""The record of a results folder. Commands with other checkpoints, tasks or lengths add to it if comparable."""

import shutil
from collections.abc import Iterable, Sequence
from pathlib import Path
from typing import Any

from longfire.atomic_io import read_json
from longfire.evaluation.seeds import are_seeds
from longfire.lab.downstream.task_score import is_first, say
from longfire.provenance import provenance
from longfire.tasks import TASKS
from longfire.tasks.placeholder import is_placeholder
from longfire.training.base_recipe import translate_fields
from longfire.training.run import as_json

RECORD = "downstream.json"
PREVIOUS = "downstream-before.json"
"""The record that the current one is not comparable with."""

Record = dict[str, Any]


def read_record(out: Path) -> Record:
    """The record in a folder, with today's names of recipe fields; empty if there is none."""
    record = read_json(out / RECORD)
    for holder, name in (
        (record.get("setting", {}), "recipe"),
        *((row, "finetuned") for row in record.get("rows", ())),
    ):
        if holder.get(name):
            holder[name] = translate_fields(holder[name])
    return record


def start_record(out: Path, setting: Record, rows: Sequence[Record]) -> Record:
    """The record of a new command: its rows, with their earlier scores filled in, and those of earlier commands.

    A record that is not comparable is kept under another name.
    """
    setting, before = as_json(setting), read_record(out)
    if before and (conflict := _conflict(before["setting"], setting)):
        if is_first():
            shutil.copyfile(out / RECORD, out / PREVIOUS)
        say(f"{out / RECORD} has a different setting ({conflict}). It is kept as {PREVIOUS}.")
        before = {}
    if before:
        setting = _merge_settings(before["setting"], setting)
    for row in rows:
        known: Record = next((one for one in before.get("rows", ()) if one.get("key") == row["key"]), {})
        row |= {name: list(known.get(name, ())) for name in ("parts", "scores") if name in row}
    return {"provenance": provenance(), "setting": setting, "rows": _merge_rows(before.get("rows", ()), rows)}


def replace_by(names: Sequence[str], before: Iterable[Record], new: Iterable[Record]) -> list[Record]:
    """The old items, each replaced by the new one that agrees in these names; then the other new ones."""
    fresh = {tuple(one[name] for name in names): one for one in new}
    kept = [fresh.pop(tuple(one[name] for name in names), one) for one in before]
    return [*kept, *fresh.values()]


def _conflict(before: Record, now: Record) -> str:
    """Why the scores of two settings do not belong in one table; empty if they do."""
    both_placeholders = is_placeholder(before["data"]) and is_placeholder(now["data"])
    if Path(before["data"]) != Path(now["data"]) and not both_placeholders:
        return f"data: {before['data']}"
    for name in ("split", "limit"):
        if before[name] != now[name]:
            return f"{name}: {before[name]}"
    if before.get("brief") != now.get("brief"):
        return f"trial: {before.get('brief')}"
    trained = {task: one["tasks"] for one in before.get("mixtures", ()) for task in one["tasks"]}
    here = {task: one["tasks"] for one in now.get("mixtures", ()) for task in one["tasks"]}
    others = [task for task in here if task in trained and trained[task] != here[task]]
    return f"trained together: {'+'.join(trained[others[0]])}" if others else ""


def _merge_settings(before: Record, now: Record) -> Record:
    there, here = set(before["tasks"]), set(now["tasks"])
    name = f"{before['name']}, {now['name']}"
    tasks = [task for task in TASKS if task in there | here]
    if there <= here or here <= there:
        larger = now if there <= here else before
        name, tasks = larger["name"], larger["tasks"]
    missing = {task: why for task, why in before["missing"].items() if task not in here} | now["missing"]
    both = {"name": name, "tasks": tasks, "missing": missing, "lengths": sorted({*before["lengths"], *now["lengths"]})}
    if "mixtures" in now:
        both["mixtures"] = replace_by(["name"], before["mixtures"], now["mixtures"])
    return {**now, **both}


def _merge_rows(before: Iterable[Record], rows: Sequence[Record]) -> list[Record]:
    """Old rows in their order, those with the same weights or folder replaced; then new ones. Labels stay unique."""
    found: list[Record] = []
    for old in before:
        same = [row for row in rows if row["key"] == old.get("key") or row["checkpoint"] == old["checkpoint"]]
        found += [row for row in same or [old] if row not in found]
    found += [row for row in rows if row not in found]
    by_label = {row["label"]: [one for one in found if one["label"] == row["label"]] for row in found}
    for same in by_label.values():
        if len(same) > 1 and not are_seeds(same):
            for row in same:
                row["label"] += f" ({row['checkpoint']})"
    return found
