"""Fail if a performance record is outdated, or if anything that `benchmarks.update` generates is stale."""

import sys
from pathlib import Path

from benchmarks.pages import PAGES, with_blocks
from benchmarks.pictures import stale_pictures
from benchmarks.results import ROOT, not_compact, outdated, read_all


def problems(root: Path = ROOT) -> list[str]:
    """One line per record, page or picture that blocks a release."""
    results = root / "results"
    bench = {name: record for name, record in read_all(results).items() if name.startswith("bench/")}
    pages = {path: path.read_text(encoding="utf-8") for name in PAGES if (path := root / name).exists()}
    stale = [
        *not_compact(results),
        *(path for path, text in pages.items() if with_blocks(text, results) != text),
        *stale_pictures(root),
    ]
    captions = {name: outdated(record) for name, record in bench.items()}
    return [
        *(f"results/{name}.json: {caption} Measure it again." for name, caption in captions.items() if caption),
        *(f"{path.relative_to(root)} is stale: run python -m benchmarks.update." for path in stale),
    ]


if __name__ == "__main__":
    found = problems()
    print("\n".join(found) if found else "Records, pages and pictures are up to date.")
    sys.exit(bool(found))
