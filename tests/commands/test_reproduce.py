"""The paper's tables and figures as commands."""

import json
import re
from dataclasses import replace
from html import escape

import pytest

from longfire.cli import main
from longfire.encodings import ENCODINGS
from longfire.encodings.labels import parse_label
from longfire.lab.entry import LengthEntry, TaskEntry
from longfire.lab.reported import reported
from longfire.lab.scales import SCALES
from longfire.lab.tables import ENTRIES
from longfire.tasks import SUITES
from tests.lab.boxes import write_boxes
from tests.tasks.rows import write

IN_THE_PAPER = {
    "Theorem 3.1",
    *("Figure 1", "Figure 2", "Figure 3", "Figure 4", "Figure 5", "Figure 6", "Figure 7", "Figure 8"),
    *("Table 1", "Table 2", "Table 3", "Table 4", "Table 5", "Table 6", "Table 7", "Table 11", "Table 13"),
}
"""All but Tables 8, 9, 10 and 12, which are settings."""


def test_all_of_the_paper_is_there(capsys):
    """`Figures 1 and 7` names two."""
    assert main(["reproduce", "--list"]) == 0
    listed = [line[21:40] for line in capsys.readouterr().out.splitlines()]
    assert len(listed) == len(ENTRIES) == 18
    named = set()
    for shows in listed:
        for kind, numbers in re.findall(r"(Theorem|Figure|Table)s? ([\d.]+(?: and [\d.]+)*)", shows):
            named |= {f"{kind} {number}" for number in numbers.split(" and ")}
    assert named == IN_THE_PAPER


def test_all_are_named(capsys):
    assert main(["reproduce", "--list"]) == 0
    listed = capsys.readouterr().out
    for name, entry in ENTRIES.items():
        assert re.search(rf"^{name} +{entry.shows} +{entry.what}$", listed, re.MULTILINE)


@pytest.mark.parametrize("scale", SCALES)
@pytest.mark.parametrize("name", ENTRIES)
def test_what_would_be_run(name, scale, capsys, tmp_path):
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
    assert ("then fine-tuned:" in printed) == isinstance(entry, TaskEntry)
    if isinstance(entry, LengthEntry):
        texts = {"small": f"{text}; tested on a part of it", "smoke": "the embedded text; tested on a part of it"}
        assert f"trained on {texts.get(scale, 'hub:c4; tested on hub:c4@validation')}" in printed
        assert (", arxiv (hub:arxiv@validation), github (" in printed) == (scale == "paper" and entry.texts)
    assert not (tmp_path / "out").exists()


def test_what_would_be_fine_tuned(capsys, tmp_path):
    """With the tasks' rows, how many questions there are, too."""
    dry = ["--dry-run", "--out", str(tmp_path / "out")]
    assert main(["reproduce", "narrative-qa", "--scale", "paper", *dry]) == 0
    tuned = capsys.readouterr().out.partition("then fine-tuned:\n")[2].splitlines()
    rope = tmp_path / "out" / "paper" / "base" / "runs" / "rope-0"
    for name, value in [
        ("name", "scrolls"),
        ("steps", "25000"),
        ("tested at", "512, 2048, 4096, 8192, 16384, 24576, 32768"),
        *(("checkpoint", f"{rope}{stretch}") for stretch in ("", ":rope_pi=8192", ":rope_pi=32768")),
    ]:
        assert f"{name:18} {value}" in tuned
    assert "narrative_qa  narrative_qa" in tuned
    assert tuned[-1] == "How many questions there are: --data tasks/ tells."
    data = ["--data", str(write_boxes(tmp_path / "tasks"))]
    assert main(["reproduce", "narrative-qa", *dry, *data]) == 0
    assert re.search(r"^narrative_qa +narrative_qa +\d+ +\d+ +2$", capsys.readouterr().out, re.MULTILINE)
    assert main(["reproduce", "scrolls-large", "--scale", "paper", *dry]) == 0
    tuned = capsys.readouterr().out.partition("then fine-tuned:\n")[2].splitlines()
    assert [line.split()[0] for line in tuned[-9:-2]] == list(SUITES["scrolls"])
    assert f"{'checkpoint':18} {tmp_path / 'out' / 'paper' / 'large' / 'runs' / 'fire-0'}" in tuned
    assert main(["reproduce", "glue", *dry, "--data", "nowhere"]) == 2
    assert "there is no file or folder nowhere" in capsys.readouterr().err


@pytest.mark.parametrize("name", [name for name, entry in ENTRIES.items() if isinstance(entry, LengthEntry)])
def test_an_entry_is_what_the_paper_reports(name):
    entry = ENTRIES[name]
    if entry.reported:
        assert [row["encoding"] for row in reported(entry.reported)] == list(entry.encodings)
    if isinstance(entry, TaskEntry):
        theirs = [row["encoding"] for row in reported(entry.task) if row["size"] == entry.recipe]
        parts = [one for one in theirs if one == "fire" or one.startswith("fire:")]
        whole = [one for one in theirs if ":" not in one and one != "rope_pi"]  # which is made of RoPE's model
        assert sorted(entry.encodings) == sorted(parts if name == "glue-ablation" else whole)
    for label in entry.encodings:
        assert parse_label(label)[0] in ENCODINGS


def test_the_papers_scale_is_the_papers():
    entry = ENTRIES["perplexity-base"]
    asked = entry.comparison(SCALES["paper"], (("source", "hub:c4"),))
    assert asked.tested_lengths() == [512, 1024, 2048, 4096, 8192]
    assert (asked.recipe.length, asked.recipe.steps, asked.recipe.batch_size, asked.recipe.init) == (
        2048,
        600_000,
        256,
        None,
    )
    assert [name for name, _ in asked.also] == ["arxiv", "github"]
    assert SCALES["paper"].validation == "hub:c4@validation"
    assert ENTRIES["glue"].experiment(SCALES["paper"], "hub").select == "validation"
    assert ENTRIES["glue"].experiment(SCALES["small"], "data").select == "dev"
    assert ENTRIES["perplexity-large"].comparison(SCALES["paper"], ()).recipe.size == "large"
    assert ENTRIES["perplexity-512"].comparison(SCALES["paper"], ()).recipe.length == 512
    assert not ENTRIES["sharing"].comparison(SCALES["paper"], ()).also


def test_a_whole_one_and_another_that_reuses_its_runs(tmp_path, capsys, monkeypatch):
    monkeypatch.setenv("LONGFIRE_CACHE", str(tmp_path / "cache"))
    text = tmp_path / "text"
    text.mkdir()
    for n in range(30):
        (text / f"{n}.txt").write_text(
            f"Chapter {n}. " + "The cat sat on the mat, and so did I. " * 60, encoding="utf-8"
        )
    out = tmp_path / "out"
    given = ["--corpus", str(text), "--out", str(out), "--jobs", "1"]
    assert main(["reproduce", "ablation-activation", *given]) == 0
    printed = capsys.readouterr().out
    assert "In place of Table 6 (FIRE's MLP with ReLU and GELU): models of 127k trained at 64\n" in printed
    assert "  3.36  " in printed  # the paper's own
    record = json.loads((out / "smoke" / "ablation-activation" / "compare.json").read_text())
    assert [run["label"] for run in record["runs"]] == ["FIRE", "FIRE (activation=gelu)"]
    assert record["runs"][0]["losses"][-1][1] < record["runs"][0]["losses"][0][1]
    page = (out / "smoke" / "ablation-activation" / "report.html").read_text(encoding="utf-8")
    for tag in ("title", "h1"):  # its models are not the paper's
        assert f"<{tag}>In place of Table 6 ({escape(ENTRIES['ablation-activation'].what)}): " in page
    weights = out / "smoke" / "tiny" / "runs" / "fire-0" / "model" / "model.safetensors"
    before = weights.stat().st_mtime_ns
    assert main(["reproduce", "sharing", *given]) == 0
    assert weights.stat().st_mtime_ns == before
    shared = json.loads((out / "smoke" / "sharing" / "compare.json").read_text())
    assert shared["runs"][0]["perplexity"] == record["runs"][0]["perplexity"]
    assert main(["reproduce", "biases", *given, "--encodings", "fire", "fire:activation=gelu"]) == 0
    for name in ("biases-fire.png", "biases-fire-activation-gelu.png"):
        assert (out / "smoke" / "biases" / name).stat().st_size > 10_000
    assert weights.stat().st_mtime_ns == before
    for name in ("perplexity.png", "losses.png", "report.html"):
        assert (out / "smoke" / "sharing" / name).stat().st_size > 1000
    runs = out / "smoke" / "tiny"  # where compare finds them, by the same recipe
    recipe = ["--recipe", "tiny", "--set", "init=None", "horizon=None", "steps=60", "batch_size=16"]
    asked = ["--encodings", "fire-s", "fire", "--seeds", "0", "--test-tokens", "8192", "--corpus", str(text)]
    assert main(["compare", *recipe, *asked, "--out", str(runs), "--jobs", "1"]) == 0
    assert weights.stat().st_mtime_ns == before
    compared = json.loads((runs / "compare.json").read_text())
    assert [run["perplexity"] for run in compared["runs"]] == [run["perplexity"] for run in shared["runs"]][::-1]


def test_tasks_after_the_same_pretraining(tmp_path, capsys, monkeypatch):
    """NarrativeQA by context, with RoPE and RoPE-PI stretched to one and to four times the fine-tuning length."""
    monkeypatch.setenv("LONGFIRE_CACHE", str(tmp_path / "cache"))
    text = tmp_path / "text"
    text.mkdir()
    for n in range(30):
        (text / f"{n}.txt").write_text(f"Box {n}. " + "It holds moss, and tea. " * 60, encoding="utf-8")
    out = tmp_path / "out"
    given = ["--corpus", str(text), "--out", str(out), "--jobs", "1", "--encodings", "rope"]
    assert main(["reproduce", "narrative-qa", *given, "--scale", "small"]) == 2
    assert "needs the tasks' rows. Give their folder: --data" in capsys.readouterr().err
    assert main(["reproduce", "narrative-qa", *given, "--data", "nowhere"]) == 2
    assert "there is no file or folder nowhere" in capsys.readouterr().err
    rows = [{"id": str(i), "input": f"{'Why? ' * 600}\n\nBox {i}.", "output": "tea"} for i in range(9)]
    for split in ("train", "validation"):
        write(tmp_path / "long" / "narrative_qa" / f"{split}.jsonl", rows)
    assert main(["reproduce", "narrative-qa", *given, "--data", str(tmp_path / "long")]) == 2
    shown = capsys.readouterr().err
    assert "only 0 of 9 rows of narrative_qa to train on fit 256 tokens" in shown
    assert not out.exists()
    tasks = write_boxes(tmp_path / "tasks") / "scrolls" / "narrative_qa"
    for file in (tasks / "train.jsonl", tasks / "validation.jsonl"):  # one of them has no room, and is left out
        write(file, [rows[0], *(json.loads(line) for line in file.read_text().splitlines())])
    status = main(["reproduce", "narrative-qa", *given, "--data", str(tasks)])
    assert status == 0, capsys.readouterr().err
    assert "NarrativeQA at growing context" in capsys.readouterr().out
    record = json.loads((out / "smoke" / "narrative-qa" / "downstream.json").read_text())
    assert record["setting"]["lengths"] == [256, 512, 1024, 1536, 2048]
    assert ENTRIES["narrative-qa"].lengths(8192) == (512, 2048, 4096, 8192, 16384, 24576, 32768)
    assert [row["label"] for row in record["rows"]] == ["RoPE", "RoPE-PI 512", "RoPE-PI 2048"]
    assert main(["reproduce", "narrative-qa", *given]) == 0
    assert "Made-up rows: scores say nothing." in " ".join(capsys.readouterr().out.split())
    made = json.loads((out / "smoke" / "narrative-qa-placeholder" / "downstream.json").read_text())
    assert made["setting"]["data"] == "placeholder"
    assert [one["length"] for one in made["rows"][0]["scores"]] == [256, 512, 1024, 1536, 2048]
    prompts = [one["prompt_tokens"] for one in made["rows"][0]["scores"]]
    assert prompts == [length - 16 for length in (256, 512, 1024, 1536, 2048)]
    given[-1] = "nope"
    for seeds in (["1"], ["0", "1"]):  # what is there is added to
        assert main(["reproduce", "narrative-qa", *given, "--seeds", *seeds]) == 0
    shown, told = capsys.readouterr()
    assert "\n[1/2] NoPE, seed 0, narrative_qa\n" in told
    assert "RoPE, RoPE-PI 512, RoPE-PI 2048, NoPE, 1 to 2 seeds each: models" in " ".join(shown.split())
    assert re.search(r"^NoPE, seed 1  +\d", shown, re.MULTILINE)
    assert re.search(r"^NoPE, mean of 2  +\d", shown, re.MULTILINE)
    both = json.loads((out / "smoke" / "narrative-qa-placeholder" / "downstream.json").read_text())
    assert both["rows"][:3] == made["rows"]
    assert [(row["label"], row["seed"]) for row in both["rows"][3:]] == [("NoPE", 1), ("NoPE", 0)]


def test_a_tokenizer_of_ones_own(capsys):
    assert main(["reproduce", "sharing", "--tokenizer", "bpe", "--vocab", "512", "--dry-run"]) == 0
    shown = capsys.readouterr().out
    assert "\ntokenizer          bpe\n" in shown
    assert "\nvocab_size         512\n" in shown
    assert max(map(len, shown.splitlines())) <= 160


def test_speed(tmp_path, capsys):
    assert main(["reproduce", "speed", "--scale", "small", "--dry-run"]) == 0
    assert "forward fire-s n=2048" in capsys.readouterr().out
    assert main(["reproduce", "speed", "--encodings", "rope", "fire", "--out", str(tmp_path)]) == 0
    rows = json.loads((tmp_path / "smoke" / "speed" / "model.json").read_text())["rows"]
    assert [(row["kind"], row["encoding"]) for row in rows] == [("forward", "rope"), ("forward", "fire")]
    assert all(row["ms"] > 0 for row in rows)


def test_the_theorem(tmp_path, capsys, monkeypatch):
    """To 512 tokens; the record that is kept is of 2,048."""
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
        ([], "reproduce what\\? longfire reproduce --list"),
        (["perplexty-base"], "Did you mean 'perplexity-base'.*Known: theorem, perplexity-base, "),
        (["theorm"], "Did you mean 'theorem'"),
        (
            ["theorem", "--seeds", "5", "--corpus", "books"],
            "theorem has no use for --seeds and --corpus. Leave them out",
        ),
        (["speed", "--vocab", "9"], "speed has no use for --vocab. Leave it out"),
        (["sharing", "--also", "code=src", "--data", "tasks"], "sharing has no use for --data and --also"),
        (["glue", "--also", "code=src"], "glue has no use for --also"),
        (["sharing", "--jobs", "0", "--dry-run"], "--jobs must be at least 1, not 0"),
        (["sharing", "--encodings", "fire:horizon=x", "--dry-run"], "fire:horizon=x: horizon must be a whole number"),
        (["sharing", "--corpus", "nowhere", "--dry-run"], "there is no file or folder nowhere"),
        (["theorem", "--scale", "bogus"], "there is no scale named 'bogus'.*Known: paper, small, smoke"),
        (["speed", "--scale", "smal", "--dry-run"], "there is no scale named 'smal'"),
        (["sharing", "--scale", "smal"], "there is no scale named 'smal'.*small"),
        (["sharing", "--scale", "small"], "the scale small has no text of its own. Give some: --corpus"),
    ],
)
def test_what_cannot_be(words, message, capsys, tmp_path):
    assert main(["reproduce", *words, "--out", str(tmp_path)]) == 2
    assert re.search(message, capsys.readouterr().err)
