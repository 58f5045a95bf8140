"""One table as text, Markdown and HTML."""

import re
import sys

import pytest

from longfire.report.table import Table, render_text, width

TABLE = Table(
    ["name", "n (trained)"],
    [["a", "1.0 ± 0.1"], ["<long> name", "1,000"]],
    highlights={(0, 1)},
    title="A title",
    notes=["A note."],
    swatches=["s0", "s1"],
    shaded=1,
)


def test_text():
    assert TABLE.text().splitlines() == [
        "A title",
        "",
        "name         n (trained)",
        "───────────  ───────────",
        "a             1.0 ± 0.1*",
        "<long> name       1,000",
        "",
        "A note.",
    ]
    assert str(TABLE) == TABLE.text()


def test_bold_text_takes_no_room():
    shown = TABLE.text(bold=True)
    assert "\x1b[1m1.0 ± 0.1\x1b[0m" in shown
    lines = re.sub(r"\x1b\[\d*m", "", shown).splitlines()[2:6]
    assert {len(line) for line in lines} == {len(lines[1])}


def test_markdown():
    assert TABLE.markdown().splitlines() == [
        "A title",
        "",
        "| name | n (trained) |",
        "| --- | --: |",
        "| a | **1.0 ± 0.1** |",
        "| <long> name | 1,000 |",
        "",
        "A note.",
    ]


def test_html():
    shown = TABLE.html()
    assert '<td class="shaded"><strong>1.0</strong> <span class="spread">± 0.1</span></td>' in shown
    assert '<th scope="row"><span class="swatch s1"></span>&lt;long&gt; name</th>' in shown
    assert '<th scope="col" class="shaded">n<small>trained</small></th>' in shown
    assert shown.startswith("<h3>A title</h3>")
    assert shown.endswith('<p class="soft">A note.</p>')


def test_reports_have_paragraphs_tables_and_lists():
    blocks = ["One " * 40, "", Table(["x"], [["1"]], left=0), [], ["first", "second " * 20]]
    text = render_text(blocks)
    assert text.split("\n\n")[1] == "x\n─\n1"
    assert "\n– first\n– second " in text
    assert max(map(len, text.splitlines())) <= 120


@pytest.mark.parametrize(("columns", "found"), [(200, 120), (80, 80), (20, 60)])
def test_reports_fit_the_terminal_within_bounds(columns, found, monkeypatch):
    monkeypatch.setenv("COLUMNS", str(columns))
    assert width() == 120  # to a file
    monkeypatch.setattr(sys.stdout, "isatty", lambda: True)
    assert width() == found
    assert max(map(len, render_text(["word " * 60]).splitlines())) in range(found - 5, found + 1)
