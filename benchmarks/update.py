"""Make the tables of benchmarks/README.md, and the figures of README.md, anew from results/bench."""

import json
import re
from pathlib import Path

from longfire.report.model_speed import model_figures, model_table
from longfire.report.speed import figures_table, speed_table

ROOT = Path(__file__).resolve().parents[1]
RESULTS = ROOT / "results" / "bench"


def updated(page: str) -> str:
    """The page with every fenced block after `<!-- name -->` replaced by that result's table, where there is one."""

    def table(match: re.Match[str]) -> str:
        result = RESULTS / f"{match[1]}.json"
        if not result.exists():
            return match[0]
        record = json.loads(result.read_text(encoding="utf-8"))
        shown = model_table(record) if record["setting"]["subject"] == "model" else speed_table(record)
        return f"<!-- {match[1]} -->\n```\n{shown}\n```"

    return re.sub(r"<!-- ([\w-]+) -->\n```\n.*?```", table, page, flags=re.DOTALL)


def with_figures(page: str) -> str:
    """The page with all between `<!-- name-figures -->` and `<!-- end -->` made anew from name.json."""

    def figures(match: re.Match[str]) -> str:
        result = RESULTS / f"{match[1]}.json"
        if not result.exists():
            return match[0]
        record = json.loads(result.read_text(encoding="utf-8"))
        table = model_figures(record) if record["setting"]["subject"] == "model" else figures_table(record)
        return f"<!-- {match[1]}-figures -->\n{table}\n<!-- end -->"

    return re.sub(r"<!-- ([\w-]+)-figures -->\n.*?<!-- end -->", figures, page, flags=re.DOTALL)


if __name__ == "__main__":
    for path, change in ((ROOT / "benchmarks" / "README.md", updated), (ROOT / "README.md", with_figures)):
        path.write_text(change(path.read_text(encoding="utf-8")), encoding="utf-8")
