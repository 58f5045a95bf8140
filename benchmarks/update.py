"""Compact the records in results/, and regenerate the pictures and the generated blocks of the pages.

Run as `python -m benchmarks.update` in the repository's root. Only pictures whose data changed are drawn; to draw all
after a change to their code, add `--redraw`.
"""

import argparse
from pathlib import Path

from benchmarks.pages import PAGES, with_blocks
from benchmarks.pictures import draw_pictures
from benchmarks.results import ROOT, not_compact
from longfire.atomic_io import write_whole


def update(root: Path = ROOT, redraw: bool = False) -> None:
    """Update records, then pictures, then pages."""
    for path, text in not_compact(root / "results").items():
        write_whole(path, text)
    draw_pictures(root, redraw)
    for path in (root / name for name in PAGES if (root / name).exists()):
        path.write_text(with_blocks(path.read_text(encoding="utf-8"), root / "results"), encoding="utf-8")


if __name__ == "__main__":
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--redraw", action="store_true", help="draw all pictures again")
    update(redraw=parser.parse_args().redraw)
