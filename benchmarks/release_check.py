"""Fail if a performance record is outdated, or if what `benchmarks/update.py` generates is stale."""

import json
import sys

from update import PAGES, RESULTS, ROOT, not_compact, outdated, pictures

from longfire.report.stamp import digest, stamp_of


def problems() -> list[str]:
    """One line for each record, page or picture that a release should not have."""
    measured = {path: json.loads(path.read_text(encoding="utf-8")) for path in sorted(RESULTS.glob("bench/*.json"))}
    captions = {path: outdated(record) for path, record in measured.items()}
    pages = {ROOT / name: change for name, change in PAGES.items() if (ROOT / name).exists()}
    drawn = {ROOT / "docs" / name: record for name, (record, _) in pictures().items()}
    stale = [
        *not_compact(),
        *(page for page, change in pages.items() if change(page.read_text("utf-8")) != page.read_text("utf-8")),
        *(path for path, record in drawn.items() if not path.exists() or stamp_of(path) != digest(record)),
    ]
    return [
        *(f"{path.relative_to(ROOT)}: {caption} Measure it again." for path, caption in captions.items() if caption),
        *(f"{path.relative_to(ROOT)} is stale: run python benchmarks/update.py." for path in stale),
    ]


if __name__ == "__main__":
    found = problems()
    print("\n".join(found) if found else "Records, pages and pictures are up to date.")
    sys.exit(bool(found))
