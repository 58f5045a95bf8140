"""Make the tables of benchmarks/README.md anew from results/bench."""

import json
import re
from pathlib import Path

from longfire.report.speed import speed_table

HERE = Path(__file__).parent


def updated(page: str) -> str:
    """The page with every fenced block after `<!-- name -->` replaced by that result's table."""

    def table(match: re.Match[str]) -> str:
        record = json.loads((HERE.parent / "results" / "bench" / f"{match[1]}.json").read_text())
        return f"<!-- {match[1]} -->\n```\n{speed_table(record)}\n```"

    return re.sub(r"<!-- ([\w-]+) -->\n```\n.*?```", table, page, flags=re.DOTALL)


if __name__ == "__main__":
    readme = HERE / "README.md"
    readme.write_text(updated(readme.read_text()))
