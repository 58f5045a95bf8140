"""Make the tables of benchmarks/README.md, docs/results.md and README.md anew from results/."""

import json
import re
from pathlib import Path
from typing import Any

from longfire.report.compare import compare_markdown
from longfire.report.model_speed import model_figures, model_table
from longfire.report.speed import figures_table, speed_table

ROOT = Path(__file__).resolve().parents[1]
RESULTS = ROOT / "results"


def result(name: str) -> dict[str, Any] | None:
    """The record of this name, in whichever folder it is."""
    found = [json.loads(path.read_text(encoding="utf-8")) for path in RESULTS.glob(f"*/{name}.json")]
    return found[0] if found else None


def is_of_a_model(record: dict[str, Any]) -> bool:
    """Rather than of attention alone."""
    return bool(record["setting"]["subject"] == "model")


def updated(page: str) -> str:
    """The page with every fenced block after `<!-- name -->` replaced by that result's table, where there is one."""

    def table(match: re.Match[str]) -> str:
        if (record := result(match[1])) is None:
            return match[0]
        shown = model_table(record) if is_of_a_model(record) else speed_table(record)
        return f"<!-- {match[1]} -->\n```\n{shown}\n```"

    return re.sub(r"<!-- ([\w-]+) -->\n```\n.*?```", table, page, flags=re.DOTALL)


def with_figures(page: str) -> str:
    """The page with all between `<!-- name-figures -->` and `<!-- end -->` made anew from name.json."""

    def figures(match: re.Match[str]) -> str:
        if (record := result(match[1])) is None:
            return match[0]
        if "runs" in record:
            table = compare_markdown(record)
        else:
            table = model_figures(record) if is_of_a_model(record) else figures_table(record)
        return f"<!-- {match[1]}-figures -->\n{table}\n<!-- end -->"

    return re.sub(r"<!-- ([\w-]+)-figures -->\n.*?<!-- end -->", figures, page, flags=re.DOTALL)


if __name__ == "__main__":
    pages = {"benchmarks/README.md": updated, "docs/results.md": with_figures, "README.md": with_figures}
    for path, change in ((ROOT / name, change) for name, change in pages.items()):
        path.write_text(change(path.read_text(encoding="utf-8")), encoding="utf-8")
