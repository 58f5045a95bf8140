"""Time attention in two versions of longfire, taking turns on one machine.

git worktree add ../before REVISION
python -m benchmarks.before_after ../before before-after.json --encodings fire t5 --lengths 2048 32768

Further options are those of `longfire bench attention`. A ratio below 1 means that this version is faster.
"""

import argparse
import os
import statistics
import subprocess
import sys
import tempfile
from pathlib import Path
from typing import Any

from longfire.atomic_io import read_json, write_json
from longfire.bench.benchmark import BOTH, FORWARD, name_of
from longfire.report.table import Table

AFTER = Path(__file__).resolve().parent.parent
Key = tuple[str, str]
"""A measurement: what was measured, and its part."""


def main() -> None:
    """Measure both versions and compare them."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("before", type=Path, help="folder of the other version")
    parser.add_argument("out", type=Path, help="JSON file to write")
    parser.add_argument("--rounds", type=int, default=3, help="measurements of each version (default: 3)")
    arguments, options = parser.parse_known_args()
    if not (arguments.before / "longfire").is_dir():
        parser.error(
            f"{arguments.before} has no longfire/: pass the folder of another version, such as a git worktree."
        )
    folders = {"before": arguments.before.resolve(), "after": AFTER}
    records: dict[str, list[dict[str, Any]]] = {name: [] for name in folders}
    for number in range(arguments.rounds):
        for name in reversed(folders) if number % 2 else folders:
            print(f"Round {number + 1} of {arguments.rounds}: {name}", file=sys.stderr, flush=True)
            records[name].append(measure(folders[name], options))
    rows = compare(*records.values())
    versions = {name: found[0]["provenance"] for name, found in records.items()}
    write_json(arguments.out, {"provenance": versions, "setting": records["after"][0]["setting"], "rows": rows})
    print(table(rows))


def measure(folder: Path, options: list[str]) -> dict[str, Any]:
    """The record of one version's `longfire bench attention`."""
    with tempfile.TemporaryDirectory() as scratch:
        file = Path(scratch, "record.json")
        command = [sys.executable, "-m", "longfire", "bench", "attention", *options, "--out", str(file)]
        ended = subprocess.run(command, cwd=folder, env={**os.environ, "PYTHONPATH": str(folder)}, stdout=sys.stderr)
        if not file.exists():
            raise SystemExit(f"{folder} measured nothing (exit status {ended.returncode}).")
        record: dict[str, Any] = read_json(file)
        return record


def compare(before: list[dict[str, Any]], after: list[dict[str, Any]]) -> list[dict[str, Any]]:
    """Median milliseconds over the rounds, of what both versions measured, and how much they vary."""
    times = [[_times(record) for record in records] for records in (before, after)]
    rows = []
    for what, part in times[1][0]:
        found = [[one[what, part] for one in version if (what, part) in one] for version in times]
        if all(found):
            old, new = (statistics.median(values) for values in found)
            spread = max(max(values) / min(values) for values in found) - 1
            rows.append({"what": what, "part": part, "before": old, "after": new, "ratio": new / old, "spread": spread})
    return rows


def _times(record: dict[str, Any]) -> dict[Key, float]:
    return {
        (name_of(None, row.get("arrangement"), row["encoding"], row["engine"], row["n"]), part): row[part]["ms"]
        for row in record["rows"]
        for part in (FORWARD, BOTH)
        if part in row
    }


def table(rows: list[dict[str, Any]]) -> Table:
    """One row per measurement."""
    formats = {"what": "", "part": "", "before": ".3g", "after": ".3g", "ratio": ".3f", "spread": ".1%"}
    cells = [[format(row[name], how) for name, how in formats.items()] for row in rows]
    columns = ["", "", "before, ms", "after, ms", "after ÷ before", "spread of rounds"]
    return Table(columns, cells, left=2)


if __name__ == "__main__":
    main()
