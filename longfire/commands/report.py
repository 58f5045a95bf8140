"""`longfire report`."""

import argparse
import sys
from pathlib import Path
from typing import Any

from longfire.atomic_io import read_json, refuse_unwritable
from longfire.commands.parser import Commands

RECORD = "compare.json"
LISTED = 5


def add_report(commands: Commands) -> None:
    """Add `longfire report`."""
    parser = commands.add_parser(
        "report",
        help="show several comparisons, on text and on tasks, on one page",
        description="Print a table with a column per comparison, at its longest length, and write a page with the "
        "table, and the verdict, chart and table of each comparison.",
    )
    parser.add_argument(
        "folders", type=Path, nargs="+", metavar="FOLDER", help=f"output folder of longfire compare, with {RECORD}"
    )
    parser.add_argument("--out", type=Path, default=Path("report.html"), metavar="FILE", help="page to write")
    parser.set_defaults(run=run_report)


def run_report(options: argparse.Namespace) -> int:
    """Run `longfire report`."""
    from longfire.report.combined import combined_page, summary_table

    refuse_unwritable(options.out.parent)
    if options.out.is_dir():
        raise ValueError(f"--out {options.out} is a folder: name the page, such as {options.out / 'report.html'}.")
    records = read_records(options.folders)
    page, bold = combined_page(records, options.out), sys.stdout.isatty()
    print(summary_table(records, mark="Bold" if bold else "*").text(bold=bold))
    print(f"\nReport: {page}")
    return 0


def read_records(folders: list[Path]) -> dict[str, dict[str, Any]]:
    """The records of comparisons, by folder. Refuses a folder that has none, or is listed twice."""
    from longfire.report.summary import with_titles

    records: dict[str, dict[str, Any]] = {}
    for i, folder in enumerate(folders):
        if folder.resolve() in [earlier.resolve() for earlier in folders[:i]]:
            raise ValueError(f"{folder}: listed more than once.")
        record = read_json(folder / RECORD)
        if not record:
            raise ValueError(f"{folder} has no {RECORD}: {_found(folder)}. Pass output folders of longfire compare.")
        if not record.get("runs") or "trained_length" not in record.get("setting", {}):
            raise ValueError(f"{folder / RECORD} is not the record of a comparison: it has {', '.join(record)}.")
        records[str(folder)] = with_titles(record)
    return records


def _found(folder: Path) -> str:
    """What is there instead of a record."""
    if not folder.is_dir():
        return "it is a file" if folder.exists() else "there is no such folder"
    names = sorted(path.name for path in folder.iterdir())
    more = f" and {len(names) - LISTED} more" if len(names) > LISTED else ""
    return f"it contains {', '.join(names[:LISTED])}{more}" if names else "it is empty"
