"""The paper's tables and figures as commands."""

import json
import re
from dataclasses import replace
from html import escape

import pytest

from longfire.cli import main
from longfire.lab.scales import SCALES
from longfire.lab.tables import ENTRIES, LengthEntry, TaskEntry
from longfire.tasks import SUITES
from tests.lab.boxes import write_boxes
from tests.tasks.rows import write

IN_THE_PAPER = {
    "Theorem 3.1",
    *("Figure 1", "Figure 2", "Figure 3", "Figure 4", "Figure 5", "Figure 6", "Figure 7", "Figure 8"),
    *("Table 1", "Table 2", "Table 3", "Table 4", "Table 5", "Table 6", "Table 7", "Table 11", "Table 13"),
}
"""All except Tables 8, 9, 10 and 12, which list hyperparameters."""
STEPS = 4


def test_the_list_covers_the_paper(capsys):
    """`Figures 1 and 7` counts as two."""
    assert main(["reproduce", "--list"]) == 0
    listed = capsys.readouterr().out.splitlines()
    assert len(listed) == len(ENTRIES) == 18
    named = set()
    for line, (name, entry) in zip(listed, ENTRIES.items(), strict=True):
        assert re.fullmatch(rf"{name} +{entry.shows} +{re.escape(entry.what)}", line)
        for kind, numbers in re.findall(r"(Theorem|Figure|Table)s? ([\d.]+(?: and [\d.]+)*)", entry.shows):
            named |= {f"{kind} {number}" for number in numbers.split(" and ")}
    assert named == IN_THE_PAPER


@pytest.mark.parametrize("scale", SCALES)
@pytest.mark.parametrize("name", ENTRIES)
def test_dry_runs(name, scale, capsys, tmp_path):
    text = tmp_path / "text"
    text.mkdir()
    entry = ENTRIES[name]
    given = ["--corpus", str(text)] if scale == "small" and isinstance(entry, LengthEntry) else []
    assert main(["reproduce", name, "--scale", scale, "--dry-run", "--out", str(tmp_path / "out"), *given]) == 0
    printed = capsys.readouterr().out
    assert f"{entry.shows}: {entry.what}" in printed
    last = 0 if isinstance(entry, TaskEntry) else SCALES[scale].seeds[-1]
    for label in getattr(entry, "encodings", ()):
        assert f"{label}, seed {last}" in printed
        assert f"{label}, seed {last + 1}" not in printed
    assert ("fine-tune:" in printed) == isinstance(entry, TaskEntry)
    if isinstance(entry, LengthEntry):
        own = {"paper": "hub:c4", "small": str(text), "smoke": "the Python standard library"}[scale]
        held_out = "hub:c4@validation" if scale == "paper" else "a held-out part"
        assert f"train on: {own}\ntest on: {held_out}" in printed
        assert (", arxiv (hub:arxiv@validation), github (" in printed) == (scale == "paper" and entry.texts)
    assert not (tmp_path / "out").exists()


def test_dry_runs_of_fine_tuning(capsys, tmp_path):
    """Questions are counted if the data is there."""
    dry = ["--dry-run", "--out", str(tmp_path / "out")]
    assert main(["reproduce", "narrative-qa", "--scale", "paper", *dry]) == 0
    tuned = capsys.readouterr().out.partition("fine-tune:\n")[2].splitlines()
    rope = tmp_path / "out" / "paper" / "base" / "runs" / "rope-0"
    for name, value in [
        ("name", "scrolls"),
        ("steps", "25000"),
        ("tested at", "512, 2048, 4096, 8192, 16384, 24576, 32768"),
        *(("checkpoint", f"{rope}{stretch}") for stretch in ("", ":rope_pi=8192", ":rope_pi=32768")),
    ]:
        assert f"{name:18} {value}" in tuned
    assert "narrative_qa  narrative_qa" in tuned
    assert "--data FOLDER" in tuned[-1]
    data = ["--data", str(write_boxes(tmp_path / "tasks"))]
    assert main(["reproduce", "narrative-qa", *dry, *data]) == 0
    assert re.search(r"^narrative_qa +narrative_qa +\d+ +\d+ +2$", capsys.readouterr().out, re.MULTILINE)
    assert main(["reproduce", "scrolls-large", "--scale", "paper", *dry]) == 0
    tuned = capsys.readouterr().out.partition("fine-tune:\n")[2].splitlines()
    assert [line.split()[0] for line in tuned[-9:-2]] == list(SUITES["scrolls"])
    assert f"{'checkpoint':18} {tmp_path / 'out' / 'paper' / 'large' / 'runs' / 'fire-0'}" in tuned
    assert main(["reproduce", "glue", *dry, "--data", "nowhere"]) == 2
    assert "there is no file or folder nowhere" in capsys.readouterr().err


@pytest.fixture
def given(tmp_path, monkeypatch):
    """Options for a small text, at a smoke scale with fewer steps."""
    monkeypatch.setenv("LONGFIRE_CACHE", str(tmp_path / "cache"))
    smoke = SCALES["smoke"]
    short = {name: recipe.but(steps=STEPS, batch_size=4) for name, recipe in smoke.recipes.items()}
    monkeypatch.setitem(SCALES, "smoke", replace(smoke, recipes=short, tokens=2048))
    text = tmp_path / "text"
    text.mkdir()
    for n in range(30):
        (text / f"{n}.txt").write_text(f"Box {n}. " + "It holds moss, and tea. " * 80, encoding="utf-8")
    return ["--corpus", str(text), "--out", str(tmp_path / "out"), "--jobs", "1"]


def test_entries_share_their_runs(given, tmp_path, capsys):
    """After a whole entry, other entries and `longfire compare` train only what is missing."""
    out = tmp_path / "out" / "smoke"
    assert main(["reproduce", "ablation-activation", *given]) == 0
    printed = capsys.readouterr().out
    assert "Table 6 (FIRE's MLP with ReLU and GELU)" in printed
    assert "  3.36  " in printed  # the paper's number
    record = json.loads((out / "ablation-activation" / "compare.json").read_text())
    assert [run["label"] for run in record["runs"]] == ["FIRE", "FIRE (activation=gelu)"]
    page = (out / "ablation-activation" / "report.html").read_text(encoding="utf-8")
    for tag in ("title", "h1"):  # its models are not the paper's
        assert re.search(rf"<{tag}>[^<]+{re.escape(escape(ENTRIES['ablation-activation'].what))}", page)
    weights = out / "tiny" / "runs" / "fire-0" / "model" / "model.safetensors"
    before = weights.stat().st_mtime_ns
    assert main(["reproduce", "sharing", *given]) == 0
    shared = json.loads((out / "sharing" / "compare.json").read_text())
    assert shared["runs"][0]["perplexity"] == record["runs"][0]["perplexity"]
    assert main(["reproduce", "biases", *given, "--encodings", "fire", "fire:activation=gelu"]) == 0
    for name in ("biases-fire.png", "biases-fire-activation-gelu.png", "perplexity.png", "losses.png", "report.html"):
        assert (out / "biases" / name).stat().st_size > 1000
    recipe = ["--recipe", "tiny", "--set", "init=None", "horizon=None", f"steps={STEPS}", "batch_size=4"]
    asked = ["--encodings", "fire-s", "fire", "--seeds", "0", "--test-tokens", "2048", *given[:2], "--jobs", "1"]
    assert main(["compare", *recipe, *asked, "--out", str(out / "tiny")]) == 0
    compared = json.loads((out / "tiny" / "compare.json").read_text())
    assert [run["perplexity"] for run in compared["runs"]] == [run["perplexity"] for run in shared["runs"]][::-1]
    assert weights.stat().st_mtime_ns == before


def test_tasks(given, tmp_path, capsys):
    """NarrativeQA by context, with RoPE, and RoPE-PI extended to one and four times the fine-tuning length."""
    out, given = tmp_path / "out", [*given, "--encodings", "rope"]
    assert main(["reproduce", "narrative-qa", *given, "--scale", "small"]) == 2
    assert "needs the rows of its tasks: --data" in capsys.readouterr().err
    assert main(["reproduce", "narrative-qa", *given, "--data", "nowhere"]) == 2
    assert "there is no file or folder nowhere" in capsys.readouterr().err
    rows = [{"id": str(i), "input": f"{'Why? ' * 600}\n\nBox {i}.", "output": "tea"} for i in range(9)]
    for split in ("train", "validation"):
        write(tmp_path / "long" / "narrative_qa" / f"{split}.jsonl", rows)
    assert main(["reproduce", "narrative-qa", *given, "--data", str(tmp_path / "long")]) == 2
    assert re.search("of (the )?9 rows of narrative_qa", capsys.readouterr().err)
    assert not out.exists()
    tasks = write_boxes(tmp_path / "tasks") / "scrolls" / "narrative_qa"
    for file in (tasks / "train.jsonl", tasks / "validation.jsonl"):  # the first row does not fit and is skipped
        write(file, [rows[0], *(json.loads(line) for line in file.read_text().splitlines())])
    assert main(["reproduce", "narrative-qa", *given, "--data", str(tasks)]) == 0
    assert "NarrativeQA by context length" in capsys.readouterr().out
    record = json.loads((out / "smoke" / "narrative-qa" / "downstream.json").read_text())
    assert record["setting"]["lengths"] == [256, 512, 1024, 1536, 2048]
    assert [row["label"] for row in record["rows"]] == ["RoPE", "RoPE-PI 512", "RoPE-PI 2048"]
    assert main(["reproduce", "narrative-qa", *given]) == 0
    file = out / "smoke" / f"narrative-qa-{SCALES['smoke'].data}" / "downstream.json"
    made = json.loads(file.read_text())
    assert made["setting"]["data"] == SCALES["smoke"].data
    assert [one["length"] for one in made["rows"][0]["scores"]] == [256, 512, 1024, 1536, 2048]
    given[-1] = "nope"
    for seeds in (["1"], ["0", "1"]):  # added to the existing results
        assert main(["reproduce", "narrative-qa", *given, "--seeds", *seeds]) == 0
    shown = capsys.readouterr().out
    assert re.search(r"^NoPE, seed 1  +\d", shown, re.MULTILINE)
    assert re.search(r"^NoPE, mean of 2  +\d", shown, re.MULTILINE)
    both = json.loads(file.read_text())
    assert both["rows"][:3] == made["rows"]
    assert [(row["label"], row["seed"]) for row in both["rows"][3:]] == [("NoPE", 1), ("NoPE", 0)]


def test_another_tokenizer(capsys):
    assert main(["reproduce", "sharing", "--tokenizer", "bpe", "--vocab", "512", "--dry-run"]) == 0
    shown = capsys.readouterr().out
    assert re.search(r"^tokenizer +bpe$", shown, re.MULTILINE)
    assert re.search(r"^vocab_size +512$", shown, re.MULTILINE)
    assert max(map(len, shown.splitlines())) <= 160


def test_speed(tmp_path, capsys):
    assert main(["reproduce", "speed", "--scale", "small", "--dry-run"]) == 0
    assert "forward fire-s n=2048" in capsys.readouterr().out
    assert main(["reproduce", "speed", "--encodings", "rope", "fire", "--out", str(tmp_path)]) == 0
    rows = json.loads((tmp_path / "smoke" / "speed" / "model.json").read_text())["rows"]
    assert [(row["kind"], row["encoding"]) for row in rows] == [("forward", "rope"), ("forward", "fire")]
    assert all(row["ms"] > 0 for row in rows)


def test_the_theorem(tmp_path, capsys, monkeypatch):
    """Up to 512 tokens; the committed record has 2,048."""
    monkeypatch.setitem(ENTRIES, "theorem", replace(ENTRIES["theorem"], max_length=512))
    assert main(["reproduce", "theorem", "--out", str(tmp_path)]) == 0
    assert "Theorem 3.1" in capsys.readouterr().out
    rows = json.loads((tmp_path / "theorem.json").read_text())["rows"]
    assert [row["encoding"] for row in rows] == ["alibi", "kerple_log", "kerple_power", "t5", "sandwich"]
    assert all(row["error"] < 1e-9 for row in rows)
    assert all(row["largest"] > 0.1 for row in rows)


@pytest.mark.parametrize(
    ("words", "message"),
    [
        ([], "name a table or figure.*longfire reproduce --list"),
        (["perplexty-base"], "Did you mean 'perplexity-base'.*Known: theorem, perplexity-base, "),
        (
            ["theorem", "--seeds", "5", "--corpus", "books"],
            "theorem does not use --seeds and --corpus. Leave them out",
        ),
        (["speed", "--vocab", "9"], "speed does not use --vocab. Leave it out"),
        (["sharing", "--also", "code=src", "--data", "tasks"], "sharing does not use --data and --also"),
        (["glue", "--also", "code=src"], "glue does not use --also"),
        (["sharing", "--jobs", "0", "--dry-run"], "--jobs must be at least 1, not 0"),
        (["sharing", "--encodings", "fire:horizon=x", "--dry-run"], "fire:horizon=x: horizon must be a whole number"),
        (["sharing", "--corpus", "nowhere", "--dry-run"], "there is no file or folder nowhere"),
        (["theorem", "--scale", "bogus"], "there is no scale named 'bogus'.*Known: paper, small, smoke"),
        (["sharing", "--scale", "small"], "the scale small has no default corpus. Pass one: --corpus"),
    ],
)
def test_mistakes(words, message, capsys, tmp_path):
    assert main(["reproduce", *words, "--out", str(tmp_path)]) == 2
    assert re.search(message, capsys.readouterr().err)
