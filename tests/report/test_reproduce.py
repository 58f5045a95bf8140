"""Reproductions on a page: beside the paper's numbers, with a picture, and what is missing called so."""

from pathlib import Path

from longfire.lab.reported import reported
from longfire.lab.scales import PAPERS
from longfire.report.reproduce import (
    PAPERS_RECIPES,
    heading,
    reproduced_page,
)
from tests.report.records import compare_record

ROOT = Path(__file__).parents[2]


def test_a_page_beside_the_papers_numbers(tmp_path):
    path = reproduced_page(compare_record(), tmp_path / "report.html", "Figure 1: <all>", reported("perplexity"))
    page = path.read_text(encoding="utf-8")
    assert "<title>Figure 1: &lt;all&gt;</title>" in page
    assert "<h1>Figure 1: &lt;all&gt;</h1>" in page
    section = page[page.index('<section id="paper">') : page.index('<section id="perplexity">')]
    assert '<th scope="row">FIRE</th><td>3.149</td><td>3.083</td><td>3.054</td><td>3.046</td><td>3.056</td>' in section
    assert "315 billion tokens of C4." in section
    page = reproduced_page(compare_record(), path, "Figure 2", []).read_text(encoding="utf-8")
    assert "The paper shows this as a picture, without numbers." in page


def test_a_table_by_the_papers_own_recipe_is_called_so():
    record = compare_record()
    assert tuple(PAPERS) == PAPERS_RECIPES
    for name in ("base", "large", "base-512"):
        record["setting"]["recipe"]["name"] = name
        assert heading("Table 3", "FIRE's parts", record) == "Table 3: FIRE's parts"
    record["setting"]["recipe"] |= {"name": "small-large", "size": "base"}  # in place of large models
    title = "In place of Table 3 (FIRE's parts): models of 820k trained at 64"
    assert heading("Table 3", "FIRE's parts", record) == title
