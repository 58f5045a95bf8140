"""One table model: text for a terminal, Markdown and HTML for pages."""

import re
import sys
from collections.abc import Collection, Iterable, Mapping, Sequence
from dataclasses import dataclass
from html import escape
from shutil import get_terminal_size
from textwrap import fill

WIDEST, NARROWEST = 120, 60
"""Columns that a report is laid out for."""
BOLD, PLAIN = "\x1b[1m", "\x1b[0m"
_STYLE = re.compile(r"\x1b\[[0-9;]*m")


def width() -> int:
    """Columns for a report: the terminal's, within bounds; where there is none, as in a file, the most."""
    columns = get_terminal_size((WIDEST, 24)).columns if sys.stdout.isatty() else WIDEST
    return min(WIDEST, max(NARROWEST, columns))


@dataclass(frozen=True)
class Table:
    """Rows of cells under named columns, with the same content as text, Markdown and HTML."""

    columns: Sequence[str]
    rows: Sequence[Sequence[str]]
    left: int = 1
    """Leading columns that hold names: aligned left, the others right."""
    highlights: Collection[tuple[int, int]] = ()
    """(row, column) of cells set in bold: the best of a column, say."""
    title: str = ""
    """Above the table."""
    notes: Sequence[str] = ()
    """Below the table, a paragraph each."""

    def text(self, *, bold: bool = False) -> str:
        """For a terminal. Highlighted cells are bold where the terminal can, and carry a star otherwise."""
        starred = {column for _, column in self.highlights} if not bold else set()

        def cell(i: int, j: int, content: str) -> str:
            if (i, j) in self.highlights:
                return f"{BOLD}{content}{PLAIN}" if bold else f"{content}*"
            return f"{content} " if j in starred else content  # so that digits stay aligned

        rows = [[cell(i, j, content) for j, content in enumerate(row)] for i, row in enumerate(self.rows)]
        table = [list(self.columns), *rows]
        widths = [max(_width(row[column]) for row in table) for column in range(len(self.columns))]

        def line(row: Sequence[str]) -> str:
            gaps = [" " * (width - _width(content)) for content, width in zip(row, widths, strict=True)]
            pairs = enumerate(zip(row, gaps, strict=True))
            return "  ".join(
                f"{content}{gap}" if j < self.left else f"{gap}{content}" for j, (content, gap) in pairs
            ).rstrip()

        rule = "  ".join("─" * width for width in widths)
        lines = "\n".join([line(table[0]), rule, *(line(row) for row in table[1:])])
        notes = (fill(note, width(), break_on_hyphens=False) for note in self.notes)
        return "\n\n".join([*([self.title] if self.title else []), lines, *notes])

    def markdown(self) -> str:
        """For a page on GitHub or the site."""
        rule = ["---" if column < self.left else "--:" for column in range(len(self.columns))]
        rows = [
            [f"**{content}**" if (i, j) in self.highlights else content for j, content in enumerate(row)]
            for i, row in enumerate(self.rows)
        ]
        lines = "\n".join(f"| {' | '.join(row)} |" for row in (self.columns, rule, *rows))
        return "\n\n".join([*([self.title] if self.title else []), lines, *self.notes])

    def html(self) -> str:
        """For a report: scrolls within its box, with the first column at rest. Cells are plain text, escaped here."""
        head = "".join(f'<th scope="col">{escape(column)}</th>' for column in self.columns)
        rows = "".join(
            f"<tr>{''.join(self._html_cell(i, j) for j in range(len(row)))}</tr>" for i, row in enumerate(self.rows)
        )
        title = f"<h3>{escape(self.title)}</h3>" if self.title else ""
        notes = "".join(f'<p class="soft">{escape(note)}</p>' for note in self.notes)
        table = f"<table><thead><tr>{head}</tr></thead><tbody>{rows}</tbody></table>"
        return f'{title}<div class="scroll" tabindex="0">{table}</div>{notes}'

    def _html_cell(self, i: int, j: int) -> str:
        content = escape(self.rows[i][j])
        content = f"<strong>{content}</strong>" if (i, j) in self.highlights else content
        return f'<th scope="row">{content}</th>' if j == 0 else f"<td>{content}</td>"


def text_table(header: Sequence[str], rows: Sequence[Sequence[str]], left: int = 1) -> str:
    """Aligned columns: the first `left` of them to the left, the others to the right. Styles take no room."""
    return Table(header, rows, left).text()


def markdown_table(header: Sequence[str], rows: Sequence[Sequence[str]], left: int = 1) -> str:
    """The same as Markdown."""
    return Table(header, rows, left).markdown()


def places(rows: Iterable[Mapping[str, object]]) -> int:
    """Digits behind the point that a table's numbers have, as it was read: those of the number that has most."""
    numbers = (value for row in rows for value in row.values() if isinstance(value, float))
    return max((len(str(value).partition(".")[2]) for value in numbers), default=0)


def _width(cell: str) -> int:
    return len(_STYLE.sub("", cell))
