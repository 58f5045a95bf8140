"""Tables for a terminal."""

from collections.abc import Sequence


def text_table(header: Sequence[str], rows: Sequence[Sequence[str]], left: int = 1) -> str:
    """Aligned columns: the first `left` of them to the left, the others to the right."""
    table = [list(header), *(list(row) for row in rows)]
    widths = [max(len(row[column]) for row in table) for column in range(len(header))]

    def line(row: Sequence[str]) -> str:
        sides = [str.ljust] * left + [str.rjust] * (len(row) - left)
        return "  ".join(pad(cell, width) for pad, cell, width in zip(sides, row, widths, strict=True)).rstrip()

    rule = "  ".join("─" * width for width in widths)
    return "\n".join([line(table[0]), rule, *(line(row) for row in table[1:])])
