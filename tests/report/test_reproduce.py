"""Reproductions next to the paper's numbers."""

from longfire.lab.reported import reported
from longfire.lab.scales import PAPERS
from longfire.report.page import report_page
from longfire.report.reproduce import NO_NUMBERS, PAPERS_RECIPES, heading, papers_numbers, theorem_table
from tests.report.records import compare_record


def test_a_table_with_the_papers_numbers():
    table = papers_numbers(reported("perplexity"))
    assert table.columns == ["in the paper, trained at 2,048", "512", "1,024", "2,048", "4,096", "8,192"]
    rows = {label: cells for label, *cells in table.rows}
    assert rows["FIRE"] == ["3.149", "3.083", "3.054", "3.046", "3.056"]
    assert "YaRN" not in rows  # the paper has only a figure
    assert papers_numbers(reported("sharing")).rows[-1] == ["FIRE-S", "3.22", "3.14", "3.10", "3.09", "3.10"]
    assert papers_numbers([]) == NO_NUMBERS


def test_theorem():
    row = {"encoding": "kerple_log", "max_length": 2048, "largest": 48.0, "error": 1.234e-15}
    table = theorem_table({"setting": {"dtype": "float64"}, "rows": [row]})
    assert table.rows == [["Kerple-log", "2,048", "48.0", "1.2e-15"]]
    assert "float64" in str(table)


def test_a_page_with_the_papers_numbers(tmp_path):
    theirs = papers_numbers(reported("perplexity"))
    path = report_page(compare_record(), tmp_path / "report.html", "Figure 1: <all>", theirs)
    page = path.read_text(encoding="utf-8")
    assert "<title>Figure 1: &lt;all&gt;</title>" in page
    assert "<h1>Figure 1: &lt;all&gt;</h1>" in page
    section = page[page.index('<section id="paper">') : page.index('<section id="method">')]
    assert '<th scope="row">FIRE</th><td>3.149</td><td>3.083</td><td>3.054</td><td>3.046</td><td>3.056</td>' in section
    assert "315 billion tokens of C4." in section
    page = report_page(compare_record(), path, "Figure 2", NO_NUMBERS).read_text(encoding="utf-8")
    assert NO_NUMBERS in page


def test_only_the_papers_recipes_get_the_papers_title():
    record = compare_record()
    assert tuple(PAPERS) == PAPERS_RECIPES
    for name in ("base", "large", "base-512"):
        record["setting"]["recipe"]["name"] = name
        assert heading("Table 3", "FIRE's parts", record) == "Table 3: FIRE's parts"
    record["setting"]["recipe"] |= {"name": "small-large", "size": "base"}  # replaces the large model
    title = "Scaled-down Table 3 (FIRE's parts): models with 820k parameters, trained at 64"
    assert heading("Table 3", "FIRE's parts", record) == title
