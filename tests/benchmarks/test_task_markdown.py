"""Task records as Markdown: scores next to the paper's, and what failed or is missing."""

import pytest

from benchmarks.task_markdown import downstream_markdown
from longfire.tasks import SUITES
from tests.report.downstream_records import PAPER, one, record, row, sweep


def cells(page, label):
    """Cells of the table rows with this label."""
    lines = [line[2:-2].split(" | ") for line in page.splitlines() if line.startswith("|")]
    return [line[1:] for line in lines if line[0] == label]


def qmsum(*rows, **more):
    return record(["qmsum"], list(rows), **more)


def fire(score=9.0, **more):
    parts = [{"mixture": "qmsum", "train_rows": 1257}]
    return row("FIRE", "fire", [one("qmsum", score, **more)], parts=parts)


def glue(*rows, **more):
    made = record(SUITES["glue"], list(rows), lengths=(512,), **more)
    made["setting"]["mixtures"] = [{"name": "glue", "tasks": list(SUITES["glue"])}]
    return made


def of_glue(label, encoding, without=(), score=60.0, **more):
    scores = [one(task, score, 512, near=task == "wsc") for task in SUITES["glue"] if task not in without]
    return row(label, encoding, scores, parts=[], **more)


def evaluated():
    """Checkpoints fine-tuned on other tasks, tested as they are."""
    shown = sweep()
    shown["setting"] = {**shown["setting"], "kind": "evaluate", "length": None}
    shown["setting"] = {key: value for key, value in shown["setting"].items() if key not in ("recipe", "mixtures")}
    how = {"name": "scrolls-small", "steps": 300, "batch_size": 32, "seed": 0, "select": "dev"}
    for of in shown["rows"]:
        of |= {"finetuned_length": 2048, "finetuned_on": ["qasper", "quality"], "finetuned": how}
    return shown


def test_one_task_beside_the_papers():
    stretched = row("RoPE-PI", "rope_pi", [one("qmsum", 8.0)], parts=[], extended_to=2048, corpus="books")
    shown = qmsum(fire(), stretched)
    shown["setting"]["data"] = "/somebody/data"
    page = downstream_markdown(shown, PAPER)
    assert page.startswith("All scores are above chance; the scores range from 8.00 (RoPE-PI) to 9.00 (FIRE).")
    assert cells(page, "") == [["ROUGE", "95 %", "paper, base"]]
    assert cells(page, "FIRE") == [["**9.00**", "7.8…11.8", "14.58"]]
    assert cells(page, "RoPE-PI") == [["8.00", "6.8…10.8", "13.12"]]
    assert "Extended: RoPE-PI to 2,048 tokens." in page
    assert page.endswith("1,257 training rows, 1,234 test questions.")
    assert "somebody" not in page


@pytest.mark.parametrize(
    ("parameters", "steps", "limit", "small"),
    [(23e6, 25000, None, True), (125e6, 300, None, True), (125e6, 25000, 10, True), (125e6, 25000, None, False)],
)
def test_small_scale_runs_are_called_so(parameters, steps, limit, small):
    shown = qmsum({**fire(), "parameters": parameters})
    shown["setting"]["recipe"]["steps"] = steps
    shown["setting"]["limit"] = limit
    assert ("Small-scale" in downstream_markdown(shown, PAPER)) == small


def test_tasks_and_encodings_that_the_paper_lacks():
    page = downstream_markdown(record(["squality"], [row("FIRE", "fire", [one("squality", 7.0)], parts=[])]), PAPER)
    assert cells(page, "") == [["ROUGE", "95 %"]]
    assert "The paper has no figures for this." in page
    page = downstream_markdown(qmsum(fire(), row("YaRN", "yarn", [one("qmsum", 3.0)], parts=[])), PAPER)
    assert cells(page, "YaRN") == [["3.00", "1.8…5.8", "–"]]


def test_scores_near_chance_are_marked():
    rows = [row(label, "fire", [one("boolq", 50.5, near=label == "near")], parts=[]) for label in ("near", "above")]
    page = downstream_markdown(record(["boolq"], rows), PAPER)
    assert page.startswith("1 of 2 scores are near chance")
    assert (cells(page, "near")[0][0], cells(page, "above")[0][0]) == ("50.50 ≈", "50.50")
    assert "(50.00)." in page
    scores = [one("qmsum", 9.5, swapped=9.25, near_chance=True), one("qmsum", 8.0, swapped=8.5, near_chance=True)]
    rows = [row("FIRE", "fire", scores[:1], parts=[]), row("RoPE", "rope", scores[1:], parts=[])]
    page = downstream_markdown(record(["qmsum"], rows), PAPER)
    assert page.startswith("Every score is near chance")
    assert "| FIRE | 9.50 ≈ | 8.2…12.2 | 9.25 | 14.58 |" in page


def test_failed_and_missing():
    failed = row("RoPE", "rope", [], parts=[{"mixture": "qmsum", "failed": "DivergedError: <a|b>\nis nan"}])
    page = downstream_markdown(qmsum(fire(), failed, row("NoPE", "nope", [], parts=[]), interrupted=True), PAPER)
    assert cells(page, "RoPE") == [["failed", "–", "14.90"]]
    assert cells(page, "NoPE") == [["missing", "–", "14.36"]]
    assert r"- RoPE on qmsum failed: DivergedError: &lt;a\|b> is nan" in page
    assert "interrupted" in page


def test_suite_has_averages_and_tasks():
    page = downstream_markdown(glue(of_glue("FIRE", "fire"), of_glue("RoPE", "rope", score=61.0)), PAPER)
    assert "15 tasks" in page
    theirs = [PAPER["glue"][1][task] for task in SUITES["glue"]]
    assert cells(page, "") == [["average", "paper, base"], ["constant answer", "FIRE", "RoPE"]]
    assert cells(page, "FIRE") == [["60.00", "71.14"]]
    assert cells(page, "RoPE") == [["61.00", f"{sum(theirs) / 15:.2f}"]]
    (wsc,) = cells(page, "WSC<br><small>accuracy of 1,234</small>")
    assert wsc == ["50.00", "60.00 ≈<br><small>58.8…62.8</small>", "61.00 ≈<br><small>59.8…63.8</small>"]
    (cb,) = cells(page, "CB<br><small>accuracy of 1,234</small>")
    assert cb[2].startswith("**61.00")


def test_missing_task_leaves_a_mean_of_the_others():
    rows = [of_glue("FIRE", "fire", ["cb", "wsc"]), of_glue("FIRE-S", "fire-s", ["cb"])]
    page = downstream_markdown(glue(*rows, missing={"cb": "the data has no train split"}), PAPER)
    mean = sum(PAPER["glue"][6][task] for task in SUITES["glue"] if task not in ("cb", "wsc")) / 13
    assert cells(page, "")[0] == ["average", "paper, base", "mean of the 13 that all have", "paper, base, same tasks"]
    assert cells(page, "FIRE") == [["missing", "71.14", "60.00", f"{mean:.2f}"]]
    assert cells(page, "FIRE-S") == [["missing", "71.04", "60.00", "–"]]  # the paper has its average alone
    assert cells(page, "CB<br><small>accuracy</small>") == [["–", "missing", "missing"]]
    assert "- CB is missing: the data has no train split." in page


def test_seeds_share_a_row_and_a_column():
    rows = [of_glue("FIRE", "fire", score=50.0 + 2 * seed, seed=seed, start="alibi") for seed in (0, 1)]
    page = downstream_markdown(glue(*rows, of_glue("RoPE", "rope", score=54.0, seed=0)), PAPER)
    assert "FIRE, RoPE, 1 to 2 seeds each" in page
    assert page.count("Not as published: FIRE (") == 1
    assert cells(page, "FIRE") == [["51.00 ± 1.41", "71.14"]]
    assert cells(page, "")[1] == ["constant answer", "FIRE", "RoPE"]
    (boolq,) = cells(page, "BoolQ<br><small>accuracy of 1,234</small>")
    assert boolq[1] == "51.00<br><small>50.0…52.0</small>"
    assert "≈ if all seeds are near chance" in page


def test_by_length_with_the_papers_rows_below():
    shown = evaluated()
    shown["rows"][0]["scores"][2] = {"task": "narrative_qa", "length": 16384, "failed": "OutOfMemoryError: it ended"}
    del shown["rows"][1]["scores"][0]
    page = downstream_markdown(shown, PAPER, "images/picture.png")
    assert "Fine-tuning took 300 steps of 32 rows" in page
    assert "None was fine-tuned on `narrative_qa` itself" in page
    assert cells(page, "F1 at") == [["512 (pretrained)", "2,048 (fine-tuned)", "16,384"], ["512", "2,048", "16,384"]]
    ours, theirs = cells(page, "FIRE")
    assert ours == ["**6.00<br><small>4.8…8.8</small>**", "**8.00<br><small>6.8…10.8</small>**", "failed"]
    assert theirs == ["6.23", "8.08", "9.58"]
    assert cells(page, "RoPE-PI")[0][0] == "missing"
    assert cells(page, "RoPE-PI 32768") == [["4.09", "5.91", "5.68"]]
    assert "![Scores by length](images/picture.png)" in page
    assert r"- FIRE on narrative\_qa at 16,384 failed: OutOfMemoryError: it ended" in page
