"""Generated blocks and pictures come from the records, and stale ones are noticed."""

import json
import re
import shutil
from functools import cache

import pytest
from PIL import Image

from benchmarks.markdown import comparison_markdown, learned_markdown, reproduction_markdown, shared_description
from benchmarks.pages import PAGES, TASK_RECORDS, five_encodings, with_blocks
from benchmarks.pictures import (
    FIVE,
    INITIAL_BIASES,
    digest,
    draw_pictures,
    draw_readme,
    pictures,
    read_stamp,
    stale_pictures,
    stamp,
)
from benchmarks.release_check import problems
from benchmarks.results import ROOT, compact, not_compact, read_record
from benchmarks.speed_markdown import attention_figures, forward_markdown
from benchmarks.update import update
from longfire.lab.reported import reported
from longfire.lab.tables import ENTRIES
from longfire.provenance import kernel_hash
from longfire.report.explore import effects
from longfire.report.speed import speed_table
from longfire.report.verdict import verdict
from tests.report.records import attention_record, compare_record, layout_record, with_other_texts


@pytest.fixture(scope="module", autouse=True)
def _initial_biases_once():
    """They are the same whenever the pictures are listed."""
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr("benchmarks.pictures.effects", cache(effects))
        yield


@pytest.fixture
def repository(tmp_path):
    """Writes pages and records into a repository that has only the picture without a record."""
    (tmp_path / "docs" / "images").mkdir(parents=True)
    shutil.copy(ROOT / "docs" / INITIAL_BIASES, tmp_path / "docs" / INITIAL_BIASES)

    def make(pages, records):
        for name, text in [*pages.items(), *((f"results/{name}.json", json.dumps(of)) for name, of in records.items())]:
            path = tmp_path / name
            path.parent.mkdir(parents=True, exist_ok=True)
            path.write_text(text, encoding="utf-8")
        return tmp_path

    return make


def block(name, content="old"):
    return f"<!-- {name} -->\n{content}\n<!-- end -->\n"


@pytest.mark.parametrize("name", PAGES)
def test_pages_are_up_to_date(name):
    page = (ROOT / name).read_text(encoding="utf-8")
    assert "<!-- end -->" in page
    assert with_blocks(page) == page, "run python -m benchmarks.update"


def test_pictures_are_up_to_date():
    assert {ROOT / "docs" / name for name in pictures()} == set((ROOT / "docs" / "images").iterdir())
    assert not stale_pictures(), "run python -m benchmarks.update"


def test_every_record_is_on_a_page():
    pages = "".join((ROOT / name).read_text(encoding="utf-8") for name in PAGES)
    for folder, kind in (("compare", "figures"), ("tried", "figures"), ("downstream", "figures"), ("bench", "table")):
        for file in (ROOT / "results" / folder).glob("*.json"):
            known = f"<!-- {file.stem}-{kind} -->" in pages
            assert known or f"results/bench/{file.name}" in pages, f"{file.name} is shown nowhere"
    results, tables = ((ROOT / "docs" / name).read_text(encoding="utf-8") for name in ("results.md", "tables.md"))
    for entry in ENTRIES.values():
        assert f"## {entry.shows}: {entry.what}\n" in tables or f"| `{entry.name}` |" in tables
    assert all(f"\n### {title}\n" in results for title in TASK_RECORDS.values())
    for title, anchor in re.findall(r"\[([^]]+)\]\(results.md#([\w-]+)\)", tables.partition("## On tasks")[2]):
        assert re.sub(r"\W+", "-", title.lower()) == anchor


def test_records_are_compact():
    assert not not_compact(), "run python -m benchmarks.update"
    record = {"setting": {"a": [1, 2], "÷": {}}, "runs": [{"seed": 0, "losses": [[1, 2.5]]}, {"seed": 1}], "biases": {}}
    lines = ["{", '"setting": {', '"a": [1,2],', '"÷": {}', "},", '"runs": [', '{"seed":0,"losses":[[1,2.5]]},']
    assert compact("encodings", record) == "\n".join([*lines, '{"seed":1}', "]", "}", ""])
    assert json.loads(compact("biases", record)) == record  # where they are drawn


def measured_with(kernels):
    record = attention_record()
    record["provenance"] |= {"commit": "abc1234"} | ({"kernels": kernels} if kernels else {})
    return record


def test_update_and_refusals(repository):
    pages = {"README.md": block("h200-attention-figures") + block("speed"), "benchmarks/README.md": "nothing\n"}
    root = repository(pages, {})
    with pytest.raises(ValueError, match=r"shows h200-attention, but .* has no h200-attention.json"):
        update(root)
    record = measured_with(kernel_hash())
    repository({"benchmarks/README.md": block("h200-attention-table")}, {"bench/h200-attention": record})
    for _ in range(2):  # a second time changes nothing
        update(root)
        table = f"```\n{speed_table(record)}\n```"
        assert (root / "benchmarks" / "README.md").read_text() == block("h200-attention-table", table)
        readme = (root / "README.md").read_text()
        assert readme.startswith(block("h200-attention-figures", attention_figures(record)))
        assert "takes 1.25 times as long as FlashAttention" in readme
    assert problems(root) == []
    with pytest.raises(ValueError, match="nothing generates the block 'h200-attention-graph'"):
        with_blocks(block("h200-attention-graph"))
    shutil.copytree(root / "results" / "bench", root / "results" / "other")
    with pytest.raises(ValueError, match="two records have one name"):
        update(root)


@pytest.mark.parametrize("kernels", ["today's", "others", None])
def test_outdated_speeds_are_captioned_and_hold_up_a_release(repository, kernels):
    pages = {"README.md": block("speed"), "benchmarks/README.md": block("h200-attention-table")}
    record = measured_with(kernel_hash() if kernels == "today's" else kernels)
    root = repository(pages, {"bench/h200-attention": record})
    before = "\n".join(problems(root))
    for name in ("results/bench/h200-attention.json", "README.md", "benchmarks/README.md", "attention-h200.png"):
        assert f"{name} is stale" in before
    update(root)
    caption = "Measured at commit abc1234; not re-measured since the kernels changed."
    outdated = kernels != "today's"
    assert ("Not re-measured since the kernels changed.\n" in (root / "README.md").read_text()) == outdated
    assert (f"torch 2.11.0+cu130\n{caption}\n" in (root / "benchmarks" / "README.md").read_text()) == outdated
    assert problems(root) == [f"results/bench/h200-attention.json: {caption} Measure it again."] * outdated


@pytest.mark.parametrize("kernels", ["today's", "others"])
def test_layouts(repository, kernels):
    """The fused engine's README says that layouts were not measured, or shows the record and its plot."""
    page = "longfire/engines/fused/README.md"
    root = repository({page: block("layouts")}, {})
    update(root)
    assert (root / page).read_text() == block("layouts", "Not measured yet.")
    record = layout_record()
    record["provenance"] |= {"commit": "abc1234", "kernels": kernel_hash() if kernels == "today's" else kernels}
    repository({}, {"bench/h200-layouts": record})
    assert {f"{page} is stale: run python -m benchmarks.update."} <= {*problems(root)}
    update(root)
    shown = (root / page).read_text()
    row = "| 32 equal documents | ÷ 32 rows | fire | fused | 32,768 | 1.10 | 1.10 (≤ 1.15) | 4.40 | 1.10 (≤ 1.15) |"
    assert row in shown
    assert "\nNVIDIA H200, torch 2.11.0+cu130, 12 heads of 64, bfloat16, commit abc1234.\n" in shown
    assert ": it is out of order\n" in shown
    assert "![Time of each layout relative to its baseline][layouts]" in shown
    caption = "Measured at commit abc1234; not re-measured since the kernels changed."
    assert (caption in shown) == (kernels == "others")
    assert problems(root) == [f"results/bench/h200-layouts.json: {caption} Measure it again."] * (kernels == "others")
    assert (root / "docs" / "images" / "layouts-h200.png").stat().st_size > 20_000


def test_stamp(tmp_path):
    picture = tmp_path / "red.png"
    Image.new("RGB", (3, 2), "red").save(picture)
    assert read_stamp(picture) is None
    stamp(picture, {"rows": [1, 2], "setting": "é"})
    assert read_stamp(picture) == digest({"setting": "é", "rows": [1, 2]}) != digest({"setting": "é", "rows": [2, 1]})
    with Image.open(picture) as image:
        assert image.getpixel((2, 1)) == (255, 0, 0)


def test_only_stale_pictures_are_drawn(repository, monkeypatch):
    root, drawn = repository({}, {}), []

    def draw(path):
        drawn.append(path.name)
        Image.new("RGB", (3, 2), "red").save(path)

    for data, redraw, expected in [(1, False, ["a.png"]), (1, False, []), (2, False, ["a.png"]), (2, True, ["a.png"])]:
        monkeypatch.setattr("benchmarks.pictures.pictures", lambda root, data=data: {"images/a.png": (data, draw)})
        drawn.clear()
        draw_pictures(root, redraw)
        assert drawn == expected


def test_readme_table_and_picture(tmp_path):
    """Five encodings at 1 to 16 times the training length; RoPE leaves the axis."""
    record = read_record("encodings")
    table = five_encodings(record).splitlines()
    assert table[0] == "| log perplexity at | 1× (512 tokens) | 2× | 4× | 8× | 16× |"
    labels = [line.split(" | ")[0] for line in table[2:7]]
    assert labels == ["| FIRE (recommended)", "| FIRE (as published)", "| Kerple-log", "| ALiBi", "| RoPE"]
    assert "35 documents" in table[-1]
    for theme in ("light", "dark"):
        draw_readme(record, theme, tmp_path / f"{theme}.png")
        assert (tmp_path / f"{theme}.png").stat().st_size > 20_000
    assert len(FIVE) == 5


def test_comparison_opens_with_verdict_and_picture():
    record = with_other_texts(compare_record())
    parts = comparison_markdown(record, "images/a.png").split("\n\n")
    assert parts[:2] == [verdict(record), "[![Log perplexity by length](images/a.png)](images/a.png)"]
    assert [sum(f"| log perplexity{on} at |" in part for part in parts) for on in ("", " on latex", " on code")] == [
        1
    ] * 3
    assert "| FIRE | **2.127 ± 0.030** |" in parts[2]
    assert "([test](claims.md#" in parts[3]


def test_shared_method_is_stated_once():
    one, other, shorter = (compare_record(of) for of in (("fire", "alibi"), ("fire", "rope"), ("fire", "nope")))
    shorter["setting"]["recipe"] |= {"name": "shorter", "steps": 7}
    shared = shared_description([one, other, shorter])
    assert shared[-1].endswith("unless stated otherwise.")
    assert "recipe tiny" in " ".join(shared)
    assert "recipe tiny" not in comparison_markdown(one, known=shared)
    assert "recipe shorter, 7 steps" in comparison_markdown(shorter, known=shared)
    assert shared_description([one]) == []


def with_learned(record):
    """c, L and look-back of two layers, growing with the seed."""
    for run in record["runs"]:
        if run["encoding"] == "fire":
            layer = {"c": 0.1 + 0.01 * run["seed"], "L": 40.0 + run["seed"], "look_back": [0.5, 0.7, 1.0, 1.3]}
            run["learned"] = [{"layer": 0, **layer}, {"layer": 1, **layer, "L": None}]
    return record


def test_learned_by_layer():
    table = learned_markdown(with_learned(compare_record())).splitlines()
    assert table[2] == "| 1 | 0.110 ± 0.010 | 41 ± 1 | 2.0 ± 0.0 | 1.0 ± 0.0 |"
    assert table[3].startswith("| 2 | 0.110 ± 0.010 | – |")
    assert learned_markdown(compare_record()) == ""


def test_reproduction_stands_beside_the_papers_numbers():
    page = reproduction_markdown(compare_record(), reported("perplexity"), "a.png")
    assert page.startswith("*Stand-in: models of 820k parameters, trained at 64 tokens.*")
    assert "| FIRE | 3.149 | 3.083 | 3.054 | 3.046 | 3.056 |" in page
    assert "| YaRN |" not in page  # the paper has a figure of it
    assert "| FIRE-S | 3.22 | 3.14 | 3.10 | 3.09 | 3.10 |" in reproduction_markdown(
        compare_record(), reported("sharing"), "a.png"
    )
    assert reproduction_markdown(compare_record(), [], "a.png").endswith("as a figure, without numbers.")


def test_page_of_tables(repository):
    root = repository({"docs/tables.md": block("tables")}, {"reproduce/biases": with_learned(compare_record())})
    update(root)
    page = (root / "docs" / "tables.md").read_text(encoding="utf-8")
    assert "\n## Figures 4 and 8: learned biases of FIRE, head by head\n" in page
    assert "| 1 | 0.110 ± 0.010 | 41 ± 1 |" in page
    assert "](images/reproduce-biases.png)" in page
    missing = next(line for line in page.splitlines() if line.startswith("Not run yet: "))
    assert "`theorem` (Theorem 3.1), `speed` (Figure 5), `perplexity-base` (Figures 1 and 7), " in missing
    assert "`biases`" not in missing
    assert page.count("| not run |") == 6
    assert (root / "docs" / "images" / "reproduce-biases.png").stat().st_size > 10_000
    assert problems(root) == []


def test_attention_figures():
    record = attention_record()
    lines = attention_figures(record).splitlines()
    assert lines[0] == "| FIRE, fused engine | 16 × 2,048 tokens | 4 × 8,192 tokens | 1 × 32,768 tokens |"
    assert [line.split(" | ", 1)[1] for line in lines[2:]] == [
        "1.50 | 1.50 | 1.50 |",
        "1.25 | 1.25 | 1.25 |",
        "1.56 | 1.56 | 1.56 |",
        "1.50 | 1.50 | 1.50 |",
        "10.0 | 10.0 | – |",
    ]
    record["rows"] = [row for row in record["rows"] if row["engine"] != "fused" and row["n"] < 32768]
    assert attention_figures(record).count("| – | – |") == 5


def test_forward_pass_by_encoding():
    times = {"n": 2048, "batch": 16, "fastest": 1.0, "slowest": 99.0, "kind": "forward"}
    rows = [{"encoding": "fire", "engine": "fused", "ms": 24.0, **times}]
    rows += [
        {"encoding": "rope", "engine": "sdpa cudnn", "ms": 16.0, **times},
        {**times, "encoding": "t5", "failed": "oom"},
    ]
    setting = {"size": "base", "dtype": "bfloat16", "compile": True, "device": "cuda"}
    table = forward_markdown({**attention_record(), "setting": setting, "rows": rows}).splitlines()
    assert table[2:5] == [
        "| RoPE | sdpa cudnn | **16.00** | 1.00 to 99.00 |",
        "| FIRE | fused | 24.00 | 1.00 to 99.00 |",
        "| T5 | – | failed | – |",
    ]
