"""Tables for a terminal, and for a page in Markdown."""

import re
import sys
from collections.abc import Iterable, Mapping, Sequence
from shutil import get_terminal_size

WIDEST, NARROWEST = 120, 60
"""Columns that a report is laid out for."""
BOLD, PLAIN = "\x1b[1m", "\x1b[0m"
_STYLE = re.compile(r"\x1b\[[0-9;]*m")


def width() -> int:
    """Columns for a report: the terminal's, within bounds; where there is none, as in a file, the most."""
    columns = get_terminal_size((WIDEST, 24)).columns if sys.stdout.isatty() else WIDEST
    return min(WIDEST, max(NARROWEST, columns))


def text_table(header: Sequence[str], rows: Sequence[Sequence[str]], left: int = 1) -> str:
    """Aligned columns: the first `left` of them to the left, the others to the right. Styles take no room."""
    table = [list(header), *(list(row) for row in rows)]
    widths = [max(_width(row[column]) for row in table) for column in range(len(header))]

    def line(row: Sequence[str]) -> str:
        gaps = [" " * (width - _width(cell)) for cell, width in zip(row, widths, strict=True)]
        cells = [cell + gap if i < left else gap + cell for i, (cell, gap) in enumerate(zip(row, gaps, strict=True))]
        return "  ".join(cells).rstrip()

    rule = "  ".join("─" * width for width in widths)
    return "\n".join([line(table[0]), rule, *(line(row) for row in table[1:])])


def markdown_table(header: Sequence[str], rows: Sequence[Sequence[str]], left: int = 1) -> str:
    """The same as Markdown."""
    rule = ["---" if column < left else "--:" for column in range(len(header))]
    return "\n".join(f"| {' | '.join(row)} |" for row in (header, rule, *rows))


def places(rows: Iterable[Mapping[str, object]]) -> int:
    """Digits behind the point that a table's numbers have, as it was read: those of the number that has most."""
    numbers = (value for row in rows for value in row.values() if isinstance(value, float))
    return max((len(str(value).partition(".")[2]) for value in numbers), default=0)


def _width(cell: str) -> int:
    return len(_STYLE.sub("", cell))
