"""What the documents say is true: their code runs, their tables are the results'."""

import json
import re
from pathlib import Path

import pytest

from longfire import ENCODINGS
from longfire.report.speed import speed_table

ROOT = Path(__file__).parents[1]


def code_blocks(name):
    return re.findall(r"```python\n(.*?)```", (ROOT / name).read_text(), flags=re.DOTALL)


def test_readme_runs():
    blocks = code_blocks("README.md")
    assert len(blocks) >= 6
    exec(compile("\n".join(blocks), "README.md", "exec"), {})


def test_contributing_runs(monkeypatch):
    monkeypatch.setattr("longfire.encodings.registry.ENCODINGS", dict(ENCODINGS))
    (block,) = code_blocks("CONTRIBUTING.md")
    names = {}
    exec(compile(block, "CONTRIBUTING.md", "exec"), names)
    import torch

    bias = names["Recency"](2).bias(torch.tensor([[9]]), torch.tensor([[0, 5]]))
    assert bias.tolist() == [[[[-3.0, -2.0]], [[-3.0, -2.0]]]]


def test_readme_lists_every_encoding():
    readme = (ROOT / "README.md").read_text()
    for name, cls in ENCODINGS.items():
        assert f"`{name}`" in readme
        assert f"`{cls.__name__}`" in readme


@pytest.mark.parametrize("name", ["cpu-bias", "cpu-attention"])
def test_benchmark_tables_are_the_results(name):
    record = json.loads((ROOT / "results" / "bench" / f"{name}.json").read_text())
    assert speed_table(record) in (ROOT / "benchmarks" / "README.md").read_text()


def test_links_lead_somewhere():
    for page in [*ROOT.glob("*.md"), *ROOT.glob("*/*.md")]:
        if ".venv" in page.parts:
            continue
        for target in re.findall(r"\]\((?!https?://)([^)#]+)\)", page.read_text()):
            assert (page.parent / target).exists(), f"{page.name} links to {target}"
