"""One table model, rendered as text, Markdown and HTML, and reports made of paragraphs, tables and lists."""

import re
import sys
from collections.abc import Collection, Iterable, Mapping, Sequence
from dataclasses import dataclass
from html import escape
from shutil import get_terminal_size
from textwrap import fill

MAX_WIDTH, MIN_WIDTH = 120, 60
SPREAD = re.compile(r" (± .+|\([\d.]+–[\d.]+\))$")
"""What follows a mean or a median: `± 0.03`, `(91–100)`."""
BOLD, PLAIN = "\x1b[1m", "\x1b[0m"


def width() -> int:
    """Columns available to a report: the terminal's, within bounds, or the maximum when writing to a file."""
    columns = get_terminal_size((MAX_WIDTH, 24)).columns if sys.stdout.isatty() else MAX_WIDTH
    return min(MAX_WIDTH, max(MIN_WIDTH, columns))


@dataclass(frozen=True)
class Table:
    """Rows of cells under named columns."""

    columns: Sequence[str]
    rows: Sequence[Sequence[str]]
    left: int = 1
    """Number of left-aligned leading columns; the others are right-aligned."""
    highlights: Collection[tuple[int, int]] = ()
    """(row, column) of bold cells."""
    title: str = ""
    notes: Sequence[str] = ()
    """Paragraphs below the table."""
    swatches: Sequence[str] = ()
    """HTML only: a CSS class per row, the colour of its line in a chart."""
    shaded: int | None = None
    """HTML only: the column with a shaded background."""

    def __str__(self) -> str:
        return self.text()

    def text(self, *, bold: bool = False) -> str:
        """The table for a terminal. Highlighted cells are bold, or starred if `bold` is False."""
        starred = {column for _, column in self.highlights} if not bold else set()

        def cell(i: int, j: int, content: str) -> str:
            if (i, j) in self.highlights:
                return f"{BOLD}{content}{PLAIN}" if bold else f"{content}*"
            return f"{content} " if j in starred else content  # keeps digits aligned

        rows = [[cell(i, j, content) for j, content in enumerate(row)] for i, row in enumerate(self.rows)]
        table = [list(self.columns), *rows]
        widths = [max(_visible_width(row[column]) for row in table) for column in range(len(self.columns))]

        def line(row: Sequence[str]) -> str:
            gaps = [" " * (width - _visible_width(content)) for content, width in zip(row, widths, strict=True)]
            pairs = enumerate(zip(row, gaps, strict=True))
            return "  ".join(
                f"{content}{gap}" if j < self.left else f"{gap}{content}" for j, (content, gap) in pairs
            ).rstrip()

        rule = "  ".join("─" * width for width in widths)
        lines = "\n".join([line(table[0]), rule, *(line(row) for row in table[1:])])
        return "\n\n".join(filter(None, [self.title, lines, *map(_wrap, self.notes)]))

    def markdown(self) -> str:
        """The table for a Markdown page."""
        rule = ["---" if column < self.left else "--:" for column in range(len(self.columns))]
        rows = [
            [f"**{content}**" if (i, j) in self.highlights else content for j, content in enumerate(row)]
            for i, row in enumerate(self.rows)
        ]
        lines = "\n".join(f"| {' | '.join(row)} |" for row in (self.columns, rule, *rows))
        return "\n\n".join(filter(None, [self.title, lines, *self.notes]))

    def html(self) -> str:
        """The table for an HTML page. It scrolls sideways with a fixed first column; cells are escaped here."""
        head = "".join(f'<th scope="col"{self._shade(j)}>{_html_head(one)}</th>' for j, one in enumerate(self.columns))
        rows = "".join(
            f"<tr>{''.join(self._html_cell(i, j) for j in range(len(row)))}</tr>" for i, row in enumerate(self.rows)
        )
        title = f"<h3>{escape(self.title)}</h3>" if self.title else ""
        notes = "".join(f'<p class="soft">{escape(note)}</p>' for note in self.notes if note)
        table = f"<table><thead><tr>{head}</tr></thead><tbody>{rows}</tbody></table>"
        return f'{title}<div class="scroll" tabindex="0">{table}</div>{notes}'

    def _html_cell(self, i: int, j: int) -> str:
        middle, *spread = SPREAD.split(escape(self.rows[i][j]), maxsplit=1)
        content = f"<strong>{middle}</strong>" if (i, j) in self.highlights else middle
        content += f' <span class="spread">{spread[0]}</span>' if spread else ""
        if j:
            return f"<td{self._shade(j)}>{content}</td>"
        swatch = f'<span class="swatch {self.swatches[i]}"></span>' if self.swatches else ""
        return f'<th scope="row">{swatch}{content}</th>'

    def _shade(self, column: int) -> str:
        return ' class="shaded"' if column == self.shaded else ""


Block = str | Table | list[str]
"""Part of a report: a paragraph, a table or a bullet list. Empty paragraphs and lists are skipped."""


def render_text(blocks: Iterable[Block], *, bold: bool = False) -> str:
    """Render a report for a terminal."""

    def text(block: Block) -> str:
        if isinstance(block, Table):
            return block.text(bold=bold)
        return _wrap(block) if isinstance(block, str) else "\n".join(_wrap(f"– {item}", "  ") for item in block)

    return "\n\n".join(text(block) for block in blocks if block)


def places(rows: Iterable[Mapping[str, object]]) -> int:
    """The number of decimals of the most precise number in a table."""
    numbers = (value for row in rows for value in row.values() if isinstance(value, float))
    return max((len(str(value).partition(".")[2]) for value in numbers), default=0)


def _wrap(paragraph: str, indent: str = "") -> str:
    return fill(paragraph, width(), subsequent_indent=indent, break_on_hyphens=False)


def _visible_width(cell: str) -> int:
    return len(re.sub(r"\x1b\[[0-9;]*m", "", cell))


def _html_head(column: str) -> str:
    """A column's name, with the part in brackets in small print below."""
    name, bracket, remark = column.removesuffix(")").partition(" (")
    return f"{escape(name)}<small>{escape(remark)}</small>" if bracket else escape(column)
