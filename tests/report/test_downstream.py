"""Scores on downstream tasks: tables in the paper's layout, and plots by length."""

import re
import sys

import pytest

from longfire.report.contexts import plot_contexts
from longfire.report.downstream import downstream_table, length_table
from longfire.report.task_rows import with_means
from longfire.tasks import SUITES
from tests.report.downstream_records import PAPER, one, record, row, sweep


def cells(table, label):
    """The cells of each line with this label."""
    return [line[len(label) :].split() for line in table.splitlines() if line.startswith(f"{label} ")]


def words(text):
    return " ".join(text.split())


def test_a_whole_suite_has_the_papers_layout_and_its_average():
    scores = [one(task, 10.0 + i) for i, task in enumerate(SUITES["scrolls"])]
    table = downstream_table(record(SUITES["scrolls"], [row("FIRE", "fire", scores)]), PAPER)
    assert cells(table, "in 2,048 tokens") == [["QAS", "CNLI", "QMS", "NQA", "SumS", "GovR", "QuAL", "Average"]]
    assert cells(table, "metric") == [["F1", "EM", "Rgm", "F1", "Rgm", "Rgm", "EM"]]
    assert cells(table, "questions") == [["1,234"] * 7]
    assert cells(table, "FIRE") == [["10.00", "11.00", "12.00", "13.00", "14.00", "15.00", "16.00", "13.00"]]
    assert cells(table, "  95 %")[0][0] == "8.8…12.8"
    assert cells(table, "  FIRE") == [["16.24", "82.93", "14.58", "9.55", "15.87", "16.31", "24.02", "25.64"]]
    assert "  Kerple" not in table  # not among our encodings
    assert "FIRE: a model with 23.1M parameters, pretrained on 105M tokens in sequences of 512." in words(table)
    assert "held out from the train split" in words(table)
    assert "The paper's rows: 125M parameters" in words(table)


def test_an_incomplete_suite_has_no_average():
    """Instead, a labelled mean over the tasks that every row has, for the paper's rows too."""
    there = [task for task in SUITES["scrolls"] if task != "contract_nli"]
    rows = [
        row("FIRE", "fire", [one(task, 10.0) for task in there]),
        row(
            "RoPE", "rope", [one(task, 20.0) for task in there if task != "quality"],
            parts=[{"mixture": "quality", "failed": "DivergedError: the loss\nis nan"}],
        ),
    ]  # fmt: skip
    missing = {"contract_nli": "the data has no train split"}
    table = downstream_table(record(SUITES["scrolls"], rows, missing=missing), PAPER)
    assert cells(table, "FIRE") == [["10.00", "–", *["10.00"] * 5, "–", "10.00"]]
    assert cells(table, "RoPE") == [["20.00", "–", *["20.00"] * 4, "–", "–", "20.00"]]
    theirs = (16.24 + 14.58 + 9.55 + 15.87 + 16.31) / 5
    assert cells(table, "  FIRE")[0][-2:] == ["25.64", f"{theirs:.2f}"]
    assert cells(table, "in 2,048 tokens")[0][-2:] == ["of", "5"]
    assert "– CNLI is missing: the data has no train split." in table
    assert "– RoPE on quality failed: DivergedError: the loss is nan" in table


def test_glue_has_two_blocks_and_marks_scores_near_chance():
    scores = [
        one(task, 60.0, near=task == "wsc", **({"groups": 5} if task == "multirc" else {})) for task in SUITES["glue"]
    ]
    table = downstream_table(record(SUITES["glue"], [row("FIRE-S", "fire-s", scores)]), PAPER)
    first, second = cells(table, "FIRE-S")
    assert first == ["60.00"] * 8
    assert second == [*["60.00"] * 6, "60.00≈", "60.00"]
    assert cells(table, "  FIRE-S")[1][-1] == "71.04"  # only the average is known
    assert cells(table, "questions")[1][4] == "5"  # MultiRC counts groups
    assert "≈: not above the best constant answer." in words(table)
    guessed = record(["quality"], [row("FIRE", "fire", [one("quality", 24.0, near=True)])])
    assert "≈: not above the best constant answer or option position." in words(downstream_table(guessed, PAPER))


@pytest.mark.parametrize(("columns", "abreast"), [(200, 8), (100, 6), (80, 4), (40, 2)])
def test_a_narrow_terminal_has_fewer_tasks_abreast(columns, abreast, monkeypatch):
    """But at least 60 columns."""
    monkeypatch.setattr(sys.stdout, "isatty", lambda: True)
    monkeypatch.setenv("COLUMNS", str(columns))
    shown = downstream_table(
        record(SUITES["glue"], [row("FIRE", "fire", [one(task, 60.0) for task in SUITES["glue"]])]), PAPER
    )
    assert max(map(len, shown.splitlines())) <= min(120, max(60, columns))
    found = [len(found) for found in cells(shown, "FIRE")]
    assert found[:-1] == [abreast] * ((15 - 1) // abreast)
    assert sum(found) == 15 + 1  # plus the average


def test_the_mean_follows_the_seeds_of_an_encoding():
    rows = [
        row(label, label.lower(), [one(task, 50.0 + by) for task in SUITES["scrolls"][:-1]], seed=seed)
        for label, seed, by in (("FIRE", 0, 0), ("FIRE", 1, 2), ("RoPE", 0, 4), ("FIRE", 2, 1))
    ]
    rows[0]["scores"].append(one("quality", 10.0))
    shown = downstream_table(record(SUITES["scrolls"], rows), PAPER)
    lines = [line for line in shown.splitlines() if line.startswith(("FIRE", "RoPE"))]
    assert lines.pop().startswith("FIRE, RoPE, 1 to 3 seeds each: models")
    names = [re.split("  +", line.strip())[0] for line in lines]
    assert names == ["FIRE, seed 0", "FIRE, seed 1", "FIRE, seed 2", "FIRE, mean of 3", "RoPE"]
    means = re.split("  +", lines[3].strip())[1:]
    assert means == [*["51.00"] * 6, "–", "–", "51.00"]  # QuALITY was tested with one seed only


def test_one_task_has_one_column_and_no_average():
    table = downstream_table(record(["qmsum"], [row("ALiBi", "alibi", [one("qmsum", 3.0, interval=None)])]), PAPER)
    assert cells(table, "ALiBi") == [["3.00"]]
    assert not cells(table, "  95 %")
    assert cells(table, "  ALiBi") == [["5.48"]]
    assert "Average" not in table


@pytest.mark.parametrize(
    ("parameters", "size", "average"),
    [(350_000_000, None, "27.05"), (23_100_000, None, "25.64"), (1, "large", "27.05")],
)
def test_the_papers_models_of_the_nearest_size(parameters, size, average):
    scores = [one(task, 10.0) for task in SUITES["scrolls"]]
    shown = record(SUITES["scrolls"], [row("FIRE", "fire", scores, parameters=parameters)])
    assert cells(downstream_table(shown, PAPER, size), "  FIRE")[0][-1] == average


def test_ablated_fire_is_shown_next_to_the_papers_ablation():
    without = {"init_L": 128.0, "log": False, "threshold": None}
    parts = {"FIRE (log=False, threshold=None)": without, "FIRE": {"init_L": 128.0, "horizon": 512}}
    scores = [one(task, 60.0) for task in SUITES["glue"]]
    rows = [row(label, "fire", scores, options=options) for label, options in parts.items()]
    table = downstream_table(record(SUITES["glue"], rows), PAPER)
    assert cells(table, "  FIRE without log and threshold")[-1][-1] == "69.06"
    assert cells(table, "  FIRE")[-2][-1] == "71.14"
    assert "FIRE without threshold" not in table
    rows[0]["options"] = {"threshold": "fixed"}  # not in the paper
    assert "FIRE without log" not in downstream_table(record(SUITES["glue"], rows), PAPER)
    rows[0] |= {"encoding": "somebodys", "options": {"knob": 1}}  # not registered
    assert cells(downstream_table(record(SUITES["glue"], rows), PAPER), "  FIRE")[-1][-1] == "71.14"


def test_the_paper_is_skipped_if_it_has_no_numbers():
    """For the encoding, the lengths or the task."""
    scores = [one("wnli", 50.0, length) for length in (512, 1024)]
    for shown in (
        record(["squality"], [row("YaRN", "yarn", [one("squality", 3.0)])]),
        record(["wnli"], [row("FIRE", "fire", scores)], (512, 1024)),
        sweep((96, 128, 160)),
    ):
        assert "paper" not in downstream_table(shown, PAPER)


def test_an_empty_record():
    table = downstream_table(record(["qmsum"], [row("FIRE", "fire", [])], interrupted=True), PAPER)
    assert cells(table, "FIRE") == [["–"]]
    assert "interrupted" in words(table)


@pytest.mark.parametrize(
    ("select", "fact"), [("validation", "inflates"), ("loss", "lowest loss"), ("last", "the last one of each run")]
)
def test_how_the_model_was_selected(select, fact):
    shown = downstream_table(record(["qmsum"], [row("FIRE", "fire", [])], select=select), PAPER)
    assert fact in words(shown)


def test_scores_by_length():
    table = length_table(sweep(), "narrative_qa", PAPER["narrative_qa"]).text()
    assert cells(table, "NQA, F1 at") == [["512", "(pretrained)", "2,048", "(fine-tuned)", "16,384"]]
    assert cells(table, "FIRE") == [["6.00", "8.00", "9.00"]]
    assert cells(table, "  FIRE") == [["6.23", "8.08", "9.58"]]
    assert cells(table, "  RoPE-PI 8192") == [["5.24", "4.64", "0.56"]]
    assert table in downstream_table(sweep(), PAPER)


def test_marks_and_failures_by_length():
    shown = sweep()
    shown["rows"][0]["scores"][1] |= {"swapped": 7.5, "near_chance": True}
    shown["rows"][0]["scores"][2] = {"task": "narrative_qa", "length": 16384, "failed": "OutOfMemoryError: it ended"}
    table = downstream_table(shown, PAPER)
    assert cells(table, "FIRE") == [["6.00", "8.00≈", "–"]]
    assert "≈: not above the same answers swapped between documents." in words(table)
    assert "FIRE on narrative_qa at 16,384 failed: OutOfMemoryError: it ended" in table


def test_a_plot_by_length(tmp_path):
    """Even if all scores are 0, a length is missing, or a checkpoint has no scores."""
    poor = sweep()
    poor["rows"][0]["scores"] = [one("narrative_qa", 0.0, 512, interval=None)]
    poor["rows"][1]["scores"] = []
    for name, shown in (("rich", sweep()), ("poor", poor), ("near", sweep((512, 700, 800)))):
        assert plot_contexts(shown, "narrative_qa", tmp_path / f"{name}.png").read_bytes().startswith(b"\x89PNG")


def test_seeds_by_length_are_rows_with_a_mean_in_tables_and_one_line_in_plots(tmp_path):
    shown = sweep()
    others = [
        {**one, "seed": 1, "scores": [{**of, "score": of["score"] + 1} for of in one["scores"]]}
        for one in shown["rows"]
    ]
    shown["rows"] = [*({**one, "seed": 0} for one in shown["rows"]), *others]
    table = downstream_table(shown, PAPER)
    assert cells(table, "FIRE, seed 1") == [["7.00", "9.00", "10.00"]]
    assert cells(table, "FIRE, mean of 2") == [["6.50", "8.50", "9.50"]]
    drawn = with_means(shown)["rows"]
    assert [one["label"] for one in drawn] == ["FIRE", "RoPE-PI"]
    assert drawn[1]["scores"][2]["interval"] == [0.5, 1.5]
    assert plot_contexts(shown, "narrative_qa", tmp_path / "seeds.png").read_bytes().startswith(b"\x89PNG")


def test_long_intervals(tmp_path, monkeypatch):
    """An interval that leaves the axis is labelled with its end; if all scores are 0, the axis fits all."""
    drawn = []
    monkeypatch.setattr("matplotlib.figure.Figure.savefig", lambda self, *_, **__: drawn.append(self.axes[0]))
    short, long, zeros = sweep(), sweep(), sweep()
    long["rows"][0]["scores"][0] |= {"score": 0.0, "interval": [0.0, 45.9]}  # none right, of a few
    for of in zeros["rows"]:
        of["scores"] = [{**one, "score": 0.0, "interval": [0.0, 84.2]} for one in of["scores"]]
    for shown in (short, long, zeros):
        plot_contexts(shown, "narrative_qa", tmp_path / "contexts.png")
    ends = [[text.get_text() for text in axes.texts if text.get_text().startswith("to ")] for axes in drawn]
    assert ends == [[], ["to 46"], []]
    assert drawn[2].get_ylim() == (0, pytest.approx(1.12 * 84.2))
