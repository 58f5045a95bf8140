"""Tables for a terminal, and for a page in Markdown."""

import re
from collections.abc import Sequence

BOLD, PLAIN = "\x1b[1m", "\x1b[0m"
_STYLE = re.compile(r"\x1b\[[0-9;]*m")


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


def _width(cell: str) -> int:
    return len(_STYLE.sub("", cell))
