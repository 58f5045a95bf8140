"""Downstream tasks on a page: in plain words, beside the paper's figures, and as long as there is a record."""

import json
import runpy
import shutil
from pathlib import Path

import pytest

from longfire.report.downstream_markdown import downstream_markdown
from longfire.tasks import SUITES
from tests.report.downstream_records import PAPER, one, record, row, sweep

ROOT = Path(__file__).parents[2]
EMPTY = "before\n<!-- downstream-figures -->\n<!-- end -->\n<!-- qmsum-figures -->\n<!-- end -->\nafter\n"


def cells(page, label):
    """Of the lines of tables that begin with this."""
    lines = [line[2:-2].split(" | ") for line in page.splitlines() if line.startswith("|")]
    return [line[1:] for line in lines if line[0] == label]


def qmsum(*rows, **more):
    return record(["qmsum"], list(rows), **more)


def fire(score=9.0, **more):
    parts = [{"mixture": "qmsum", "train_rows": 1257}]
    return row("FIRE", "fire", [one("qmsum", score, **more)], parts=parts)


def test_what_was_run_is_said_and_the_papers_figure_stands_beside():
    stretched = row("RoPE-PI", "rope_pi", [one("qmsum", 8.0)], parts=[], extended_to=2048, corpus="books")
    page = downstream_markdown(qmsum(fire(), stretched), PAPER)
    assert page.startswith(
        "**Small-scale run.** FIRE and RoPE-PI: models of 23.1M parameters, pretrained on 105M tokens of books in "
        "sequences of 512 (RoPE-PI extended to 2,048 tokens). Each was fine-tuned on `qmsum` (1,257 rows), in "
        "sequences of at most 2,048 tokens: 300 steps of 32 rows, recipe scrolls-small, seed 0. The model "
        "tested is each run's best on a dev split held out from the train split. Tested on 1,234 "
        "questions of the validation split, in 2,048 tokens.\n"
    )
    assert cells(page, "") == [["ROUGE", "95 %", "paper, base"]]
    assert cells(page, "FIRE") == [["9.00", "7.8…11.8", "14.58"]]
    assert cells(page, "RoPE-PI") == [["8.00", "6.8…10.8", "13.12"]]


def test_where_the_data_lie_is_not_said():
    shown = qmsum(fire())
    shown["setting"]["data"] = "/somebody/data"
    assert "somebody" not in downstream_markdown(shown, PAPER)


@pytest.mark.parametrize(
    ("parameters", "steps", "limit", "small"),
    [(23e6, 25000, None, True), (125e6, 300, None, True), (125e6, 25000, 10, True), (125e6, 25000, None, False)],
)
def test_only_what_is_of_the_papers_scale_is_not_called_small(parameters, steps, limit, small):
    shown = qmsum({**fire(), "parameters": parameters})
    shown["setting"]["recipe"]["steps"] = steps
    shown["setting"]["limit"] = limit
    assert ("Small-scale" in downstream_markdown(shown, PAPER)) == small


def test_a_task_or_an_encoding_that_the_paper_has_not():
    page = downstream_markdown(record(["squality"], [row("FIRE", "fire", [one("squality", 7.0)], parts=[])]), PAPER)
    assert cells(page, "") == [["ROUGE", "95 %"]]
    assert "The paper has no figures for this." in page
    page = downstream_markdown(qmsum(fire(), row("YaRN", "yarn", [one("qmsum", 3.0)], parts=[])), PAPER)
    assert cells(page, "YaRN") == [["3.00", "1.8…5.8", "–"]]


def test_what_is_not_above_one_answer_is_marked():
    rows = [row(label, "fire", [one("boolq", 50.5, near=label == "near")], parts=[]) for label in ("near", "above")]
    page = downstream_markdown(record(["boolq"], rows), PAPER)
    assert cells(page, "near")[0][0] == "50.50 ≈"
    assert cells(page, "above")[0][0] == "50.50"
    assert "≈: not above the best constant answer (50.00)." in page
    assert "swapped" not in page
    assert "≈" not in downstream_markdown(qmsum(fire()), PAPER)


def test_failed_is_failed_and_missing_is_missing():
    failed = row("RoPE", "rope", [], parts=[{"mixture": "qmsum", "failed": "DivergedError: <a|b>\nis nan"}])
    page = downstream_markdown(qmsum(fire(), failed, row("NoPE", "nope", [], parts=[]), interrupted=True), PAPER)
    assert cells(page, "RoPE") == [["failed", "–", "14.90"]]
    assert cells(page, "NoPE") == [["missing", "–", "14.36"]]
    assert r"- RoPE on qmsum failed: DivergedError: &lt;a\|b> is nan" in page
    assert "It was interrupted" in page


def glue(*rows, **more):
    made = record(SUITES["glue"], list(rows), lengths=(512,), **more)
    made["setting"]["mixtures"] = [{"name": "glue", "tasks": list(SUITES["glue"])}]
    return made


def of_glue(label, encoding, without=()):
    scores = [one(task, 60.0, 512, near=task == "wsc") for task in SUITES["glue"] if task not in without]
    return row(label, encoding, scores, parts=[])


def test_glue_has_its_average_beside_the_papers_and_its_tasks_below():
    page = downstream_markdown(glue(of_glue("FIRE", "fire"), of_glue("RoPE", "rope")), PAPER)
    assert "fine-tuned on 15 tasks together, each as often as it has rows, in" in page
    theirs = [PAPER["glue"][1][task] for task in SUITES["glue"]]
    assert cells(page, "") == [["average", "paper, base"], ["one answer", "FIRE", "RoPE"]]
    assert cells(page, "FIRE") == [["60.00", "71.14"]]
    assert cells(page, "RoPE") == [["60.00", f"{sum(theirs) / 15:.2f}"]]
    (wsc,) = cells(page, "Wsc<br><small>accuracy of 1,234</small>")
    assert wsc == ["50.00", *["60.00 ≈<br><small>58.8…62.8</small>"] * 2]
    assert page.count("<br><small>accuracy of") == 13


def test_without_a_task_there_is_no_average_but_a_mean_of_the_others():
    rows = [of_glue("FIRE", "fire", ["cb", "wsc"]), of_glue("FIRE-S", "fire-s", ["cb"])]
    page = downstream_markdown(glue(*rows, missing={"cb": "has no train split of cb"}), PAPER)
    shared = [task for task in SUITES["glue"] if task not in ("cb", "wsc")]
    mean = sum(PAPER["glue"][6][task] for task in shared) / 13
    assert cells(page, "")[0] == ["average", "paper, base", "mean of the 13 that all have", "paper, base, the same"]
    assert cells(page, "FIRE") == [["missing", "71.14", "60.00", f"{mean:.2f}"]]
    assert cells(page, "FIRE-S") == [["missing", "71.04", "60.00", "–"]]  # of which the paper has the average alone
    assert cells(page, "Cb<br><small>accuracy</small>") == [["–", "missing", "missing"]]
    assert "- cb is left out: has no train split of cb." in page


def tuned():
    """Checkpoints that were fine-tuned on other tasks, tested as they are."""
    shown = sweep()
    shown["setting"] = {**shown["setting"], "kind": "evaluate", "length": None}
    shown["setting"] = {key: value for key, value in shown["setting"].items() if key not in ("recipe", "mixtures")}
    how = {"name": "scrolls-small", "steps": 300, "batch_size": 32, "seed": 0, "select": "dev"}
    for of in shown["rows"]:
        of |= {"finetuned_length": 2048, "finetuned_on": ["qasper", "quality"], "finetuned": how}
    return shown


def test_seeds_of_one_encoding_have_one_average_and_one_column():
    rows = [
        row(label, encoding, [one(task, 50.0 + by, 512) for task in SUITES["glue"]], seed=seed, parts=[], start=start)
        for label, encoding, seed, by, start in (
            ("FIRE", "fire", 0, 0, "alibi"), ("FIRE", "fire", 1, 2, "alibi"), ("RoPE", "rope", 0, 4, None),
        )
    ]  # fmt: skip
    shown = record(SUITES["glue"], rows, lengths=(512,))
    page = downstream_markdown(shown, PAPER)
    assert "FIRE and RoPE, 1 to 2 seeds each: models of" in page
    assert page.count("FIRE (begins as alibi)") == 1
    assert cells(page, "FIRE") == [["51.00 ± 1.41", "71.14"]]
    assert cells(page, "RoPE") == [["54.00", "71.15"]]
    assert cells(page, "")[1] == ["one answer", "FIRE", "RoPE"]
    (boolq,) = [line for line in page.splitlines() if line.startswith("| Boolq")]
    assert "| 51.00<br><small>50.0…52.0</small> | 54.00" in boolq
    assert "Of several seeds a score is the mean, above the least and the most of them; ≈ if it is so in all." in page
    for of_seed in rows[:2]:
        of_seed["scores"][0] |= {"chance": 60.0, "near_chance": True}
    (boolq,) = [line for line in downstream_markdown(shown, PAPER).splitlines() if line.startswith("| Boolq")]
    assert "| 60.00 | 51.00 ≈<br>" in boolq
    rows[1]["scores"][0]["near_chance"] = False
    assert "| 60.00 | 51.00<br>" in downstream_markdown(shown, PAPER)


def test_what_is_not_as_published_is_said():
    shown = tuned()
    assert "kerple_log" not in downstream_markdown(shown, PAPER)
    shown["rows"][0] |= {"start": "kerple_log", "horizon": 512}
    label = shown["rows"][0]["label"]
    said = f"Not as published: {label} (begins as kerple_log and has its horizon at 512 tokens)"
    assert f"{said}." in downstream_markdown(shown, PAPER)
    shown["rows"][1] |= {"start": "alibi"}
    assert f"{said} and {shown['rows'][1]['label']} (begins as alibi)." in downstream_markdown(shown, PAPER)


def test_by_context_with_the_papers_rows_below():
    shown = tuned()
    shown["rows"][0]["scores"][2] = {"task": "narrative_qa", "length": 16384, "failed": "OutOfMemoryError: it ended"}
    del shown["rows"][1]["scores"][0]
    page = downstream_markdown(shown, PAPER, "images/picture.png")
    assert "fine-tuned on qasper and quality in sequences of up to 2,048. Fine-tuning took 300 steps of 32 rows" in page
    assert "of each run the model is the best by its answers to a part of the train split" in page
    assert "None was fine-tuned on `narrative_qa` itself" in page
    lengths = ["512 (pretrained)", "2,048 (fine-tuned)", "16,384"]
    assert cells(page, "F1 at") == [lengths, ["512", "2,048", "16,384"]]
    ours, theirs = cells(page, "FIRE")
    assert ours == ["6.00<br><small>4.8…8.8</small>", "8.00<br><small>6.8…10.8</small>", "failed"]
    assert theirs == ["6.23", "8.08", "9.58"]
    assert cells(page, "RoPE-PI")[0][0] == "missing"
    assert cells(page, "RoPE-PI 32768") == [["4.09", "5.91", "5.68"]]
    assert "![Scores by length](images/picture.png)" in page
    assert r"- FIRE on narrative\_qa at 16,384 failed: OutOfMemoryError: it ended" in page


@pytest.fixture
def place(tmp_path):
    """A repository with the pages that are made anew, and nothing in its results."""
    (tmp_path / "benchmarks").mkdir()
    shutil.copy(ROOT / "benchmarks" / "update.py", tmp_path / "benchmarks" / "update.py")
    (tmp_path / "docs" / "images").mkdir(parents=True)
    (tmp_path / "results" / "downstream").mkdir(parents=True)
    for name in ("README.md", "benchmarks/README.md"):
        (tmp_path / name).write_text("", encoding="utf-8")
    return tmp_path


def update(place, page):
    (place / "docs" / "results.md").write_text(page, encoding="utf-8")
    made = runpy.run_path(str(place / "benchmarks" / "update.py"), run_name="__main__")
    return (place / "docs" / "results.md").read_text(encoding="utf-8"), made["with_figures"]


def test_a_page_says_nothing_without_a_record_and_all_of_it_with_one(place):
    page, _ = update(place, EMPTY)
    assert page == EMPTY
    file = place / "results" / "downstream" / "qmsum.json"
    file.write_text(json.dumps(qmsum(fire())), encoding="utf-8")
    page, with_figures = update(place, EMPTY)
    assert "\n## Fine-tuned on long documents, questions and GLUE\n" in page
    assert f"\n### QMSum: questions on meetings\n\n{downstream_markdown(qmsum(fire()), PAPER)}\n<!-- end -->" in page
    assert with_figures(page) == page
    file.write_text(json.dumps(qmsum(fire(9.5))), encoding="utf-8")
    assert with_figures(page) != page  # stale
    file.unlink()
    assert update(place, page)[0] == EMPTY


def test_scores_by_context_have_their_picture(place):
    (place / "results" / "downstream" / "narrative-qa.json").write_text(json.dumps(tuned()), encoding="utf-8")
    page, _ = update(place, "<!-- narrative-qa-figures -->\n<!-- end -->\n")
    assert "(images/narrative-qa-small.png)" in page
    assert (place / "docs" / "images" / "narrative-qa-small.png").read_bytes().startswith(b"\x89PNG")


def test_every_record_of_the_repository_is_on_the_page():
    page = (ROOT / "docs" / "results.md").read_text(encoding="utf-8")
    for file in (ROOT / "results" / "downstream").glob("*.json"):
        assert f"<!-- {file.stem}-figures -->\n\n###" in page, f"{file.name}: run python benchmarks/update.py"


def test_answers_in_free_words_stand_beside_swapped_ones():
    scores = [one("qmsum", 9.5, swapped=9.25, near_chance=True), one("qmsum", 14.0, swapped=8.0, near_chance=False)]
    rows = [row("FIRE", "fire", scores[:1], parts=[]), row("RoPE", "rope", scores[1:], parts=[])]
    page = downstream_markdown(record(["qmsum"], rows), PAPER)
    assert "| FIRE | 9.50 ≈ | 8.2…12.2 | 9.25 | 14.58 |" in page
    assert "| RoPE | 14.00 | 12.8…16.8 | 8.00 | 14.90 |" in page
    assert "≈: not above the same answers given to questions about other documents." in page
