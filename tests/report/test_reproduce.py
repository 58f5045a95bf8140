"""Reproductions on a page: beside the paper's numbers, with a picture, and what is missing called so."""

import json
import re
import runpy
import shutil
from pathlib import Path

from longfire.lab.reported import reported
from longfire.lab.scales import PAPERS
from longfire.lab.tables import ENTRIES
from longfire.report.reproduce import (
    NO_NUMBERS,
    PAPERS_RECIPES,
    heading,
    learned_table,
    reproduced_markdown,
    reproduced_page,
)
from tests.report.records import compare_record

ROOT = Path(__file__).parents[2]


def with_learned(record):
    """c, L and look-back of two layers, which grow with the seed."""
    for run in record["runs"]:
        if run["encoding"] == "fire":
            layer = {"c": 0.1 + 0.01 * run["seed"], "L": 40.0 + run["seed"], "look_back": [0.5, 0.7, 1.0, 1.3]}
            run["learned"] = [{"layer": 0, **layer}, {"layer": 1, **layer, "L": None}]
    return record


def test_what_was_learned():
    table = learned_table(with_learned(compare_record()))
    assert table.rows[0] == ["1", "0.110 ± 0.010", "41 ± 1", "2.0 ± 0.0", "1.0 ± 0.0"]
    assert table.rows[1][:3] == ["2", "0.110 ± 0.010", "–"]
    assert "training length 64" in table.notes[0]
    assert learned_table(compare_record()) is None
    assert learned_table(with_learned(compare_record(seeds=(0,)))).rows[0] == ["1", "0.100", "40", "2.0", "1.0"]


def test_beside_the_papers_numbers():
    page = reproduced_markdown(compare_record(), reported("perplexity"))
    assert "| FIRE | **2.127 ± 0.030** |" in page
    assert "| in the paper, trained at 2,048 | 512 | 1,024 | 2,048 | 4,096 | 8,192 |" in page
    assert "| FIRE | 3.149 | 3.083 | 3.054 | 3.046 | 3.056 |" in page
    assert "| YaRN |" not in page  # the paper has a picture of it
    assert "| FIRE-S | 3.22 | 3.14 | 3.10 | 3.09 | 3.10 |" in reproduced_markdown(compare_record(), reported("sharing"))
    assert reproduced_markdown(compare_record(), []).endswith(NO_NUMBERS)


def test_a_page_beside_the_papers_numbers(tmp_path):
    path = reproduced_page(compare_record(), tmp_path / "report.html", "Figure 1: <all>", reported("perplexity"))
    page = path.read_text(encoding="utf-8")
    assert "<title>Figure 1: &lt;all&gt;</title>" in page
    assert "<h1>Figure 1: &lt;all&gt;</h1>" in page
    section = page[page.index('<section id="paper">') : page.index('<section id="method">')]
    assert '<th scope="row">FIRE</th><td>3.149</td><td>3.083</td><td>3.054</td><td>3.046</td><td>3.056</td>' in section
    assert "315 billion tokens of C4." in section
    page = reproduced_page(compare_record(), path, "Figure 2", []).read_text(encoding="utf-8")
    assert NO_NUMBERS in page


def test_a_table_by_the_papers_own_recipe_is_called_so():
    record = compare_record()
    assert tuple(PAPERS) == PAPERS_RECIPES
    for name in ("base", "large", "base-512"):
        record["setting"]["recipe"]["name"] = name
        assert heading("Table 3", "FIRE's parts", record) == "Table 3: FIRE's parts"
    record["setting"]["recipe"] |= {"name": "small-large", "size": "base"}  # in place of large models
    title = "In place of Table 3 (FIRE's parts): models of 820k trained at 64"
    assert heading("Table 3", "FIRE's parts", record) == title


def test_the_page_of_tables(tmp_path):
    for folder in ("benchmarks", "results/reproduce", "docs/images"):
        (tmp_path / folder).mkdir(parents=True)
    script = str(shutil.copy(ROOT / "benchmarks" / "update.py", tmp_path / "benchmarks"))
    page = tmp_path / "docs" / "tables.md"
    page.write_text("before\n<!-- tables -->\nold\n<!-- end -->\nafter\n", encoding="utf-8")
    record = tmp_path / "results" / "reproduce" / "biases.json"
    record.write_text(json.dumps(with_learned(compare_record())), encoding="utf-8")
    runpy.run_path(script, run_name="__main__")
    made = page.read_text(encoding="utf-8")
    assert made.startswith("before\n<!-- tables -->\n\n± is the standard deviation over seeds. The paper's models: ")
    assert made.count("± is the standard deviation") == made.count("two-sided t-test") == 1
    title = "In place of Figures 4 and 8 (learned biases of FIRE, head by head): models of 820k trained at 64"
    assert f"\n\n## {title}\n\n" in made
    assert "| 1 | 0.110 ± 0.010 | 41 ± 1 |" in made
    assert f"![{title}](images/reproduce-biases.png)" in made
    assert "Not run yet: `theorem` (Theorem 3.1), `speed` (Figure 5), `perplexity-base` (Figures 1 and 7), " in made
    assert "`biases`" not in made
    assert "| `glue-large` | Figure 3, Table 13 | GLUE and SuperGLUE, one mixture, large models | not run |" in made
    assert (tmp_path / "docs" / "images" / "reproduce-biases.png").stat().st_size > 10_000
    assert runpy.run_path(script)["with_tables"](made) == made


def test_what_is_not_there(tmp_path):
    (tmp_path / "reproduce").mkdir()
    shutil.copy(ROOT / "results" / "reproduce" / "perplexity-base.json", tmp_path / "reproduce")
    with_tables = runpy.run_path(str(ROOT / "benchmarks" / "update.py"))["with_tables"]
    page = with_tables("<!-- tables -->\n<!-- end -->", tmp_path)
    (line,) = [line for line in page.splitlines() if line.startswith("Not run yet: ")]
    assert line.startswith("Not run yet: `theorem` (Theorem 3.1), `speed` (Figure 5), `perplexity-large` (Figure 2), ")
    assert "`perplexity-512` (Figure 6)" in line
    assert "`perplexity-base`" not in page
    assert page.count("| not run |") == 6


def test_no_table_of_the_paper_is_absent():
    """From the page: it is shown, or said where it is, or why it is not there."""
    page = (ROOT / "docs" / "tables.md").read_text(encoding="utf-8")
    for entry in ENTRIES.values():
        assert (
            f"{entry.shows}: {entry.what}" in page
            or f"{entry.shows} ({entry.what})" in page
            or f"`{entry.name}`" in page
        )
    assert "| Sandwich | 2,048 | 48.0 | " in page
    assert "| FIRE-S | fused | " in page
    results = (ROOT / "docs" / "results.md").read_text(encoding="utf-8")
    for title, anchor in re.findall(r"\[([^]]+)\]\(results.md#([\w-]+)\)", page.partition("## On tasks")[2]):
        assert f"\n### {title}\n" in results
        assert "".join(re.findall(r"\w", title.lower())) == anchor.replace("-", "")
