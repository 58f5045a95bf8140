"""A comparison on a synthetic task as text, picture and page."""

import pytest

from longfire.report.compare import compare_table, comparison_tables
from longfire.report.compare_plot import plot_compare
from longfire.report.description import description
from longfire.report.failures import failures
from longfire.report.metric import EXACT_MATCH, LOG_PERPLEXITY, median_and_range, percent
from longfire.report.page import report_page
from longfire.report.summary import lines_of, metric_of, with_titles
from longfire.report.verdict import verdict
from tests.report.browser import curves, looking_at, overflow
from tests.report.records import EXACT, LABELS, compare_record, task_record


def test_percentages():
    """Only everything is 100, and only nothing is 0."""
    assert [percent(value) for value in (0, 0.01, 0.4, 0.8, 49.6, 99.4, 99.8, 99.99, 100)] == [
        "0", "0.1", "0.4", "1", "50", "99", "99.8", "99.9", "100",
    ]  # fmt: skip
    assert [median_and_range(values) for values in ([], [98.4], [91, 100, 98], [0, 0])] == [
        "–", "98", "98 (91–100)", "0",
    ]  # fmt: skip


def test_a_record_says_what_it_measures():
    assert metric_of(compare_record()) is LOG_PERPLEXITY
    metric = metric_of(task_record())
    assert (metric.key, metric.unit) == (EXACT_MATCH.key, "symbols")
    assert lines_of(task_record())[1].band(160) == (91, 89, 93)
    failed = task_record()
    failed["runs"] = [{"encoding": "fire", "seed": 0, "failed": "no memory"}]
    assert metric_of(failed).is_accuracy
    assert verdict(failed) == "No result: every run failed."


def test_the_verdict():
    assert verdict(task_record()) == (
        "Copy, trained on up to 40 symbols: at 160 symbols (4×) FIRE answers 97 % of questions exactly (median of 3 "
        "seeds), Kerple-log 91 %; RoPE and NoPE fail (below 90 %) past 60. With 3 seeds, results may be chance: "
        "variance over seeds is large."
    )
    assert "chance" not in verdict(task_record(seeds=range(5)))
    assert "(one seed)" in verdict(task_record(seeds=(1,)))


@pytest.mark.parametrize(
    ("exact", "said"),
    [
        ({"fire": (40, 0), "rope": (49, 0)}, "Too early to tell: the models have not learned the task. At 40 symbols"),
        ({"fire": (40, 0), "rope": (49, 0)}, "the best (RoPE) answers 49 % of questions exactly"),
        (
            {"fire": (99, 60), "rope": (99, 3)},
            "no encoding solves 60 symbols (1.5×), where the best, FIRE, answers 60 %",
        ),
        ({"fire": (99, 0), "rope": (99, 0)}, "where all answer 0 % of questions exactly"),
        ({"fire": (99, 0)}, "FIRE does not solve 60 symbols (1.5×), where it answers 0 %"),
        ({"fire": (100, 100), "rope": (100, 100)}, "FIRE and RoPE answer 100 % of questions exactly"),
        ({"fire": (100, 100), "rope": (60, 3)}, "RoPE fails (below 90 %) at 40 already"),
        ({"fire": (99, 89.6)}, "at 60 symbols (1.5×) FIRE answers 90 %"),  # as tables show it
        ({"fire": (99, 99), "rope": (99,)}, "RoPE has no result past 40."),
        ({"fire": (99, 99), "rope": (70,)}, "RoPE fails (below 90 %) at 40 already"),
    ],
)
def test_other_verdicts(exact, said):
    record = task_record(exact, seeds=(1,))
    assert said in verdict(record)
    record["setting"]["lengths"] = [40]
    assert verdict(record)


def test_many_encodings_are_counted():
    """Those that solve the longest length."""
    labels = [f"e{i}" for i in range(8)]
    record = task_record({"fire": (100, 100)}, seeds=(1,))
    (run,) = record["runs"]
    record["runs"] = [
        {**run, "label": label, "accuracy": {"rows": [{"length": 40, "exact_match": 99.0 - i}]}}
        for i, label in enumerate(labels)
    ]
    assert "e0 answers 99 % of questions exactly (one seed), e1 98 %, e2 97 %, 5 others at least 92 %." in verdict(
        record
    )


def test_tables():
    exact, tokens = comparison_tables(task_record(), parameters=True)
    assert exact.columns[:2] == ["exact match in % at", "40 (trained)"]
    rows = {label: cells for label, *cells in exact.rows}
    assert rows["Kerple-log"][-3:] == ["95 (93–97)", "91 (89–93)", "–"]
    assert set(exact.highlights) == {(0, 1), (1, 1), (2, 1), (0, 2), (0, 3), (0, 4), (0, 5)}
    assert exact.shaded == 1
    assert "Scored: 512 questions at each length. Median of 3 seeds" in exact.notes[0]
    assert '<strong>97</strong> <span class="spread">(95–99)</span>' in exact.html()
    assert tokens.columns == ["token accuracy in % at", "40 (trained)", "60", "80", "120", "160"]
    assert tokens.rows[1][-1] == "96 (94–96)"
    nothing = {"rope": (100, 0), "nope": (100, 0)}  # the best at 60 is nothing to highlight
    assert set(comparison_tables(task_record(nothing))[0].highlights) == {(0, 1), (1, 1)}


def test_failed_lengths_are_dashes_and_listed():
    record = task_record()
    for run in record["runs"][::4]:
        run["accuracy"]["rows"][-1] = {"length": 160, "tokens_per_row": 323, "failed": "out of memory"}
    assert comparison_tables(record)[0].rows[0][5] == "–"
    assert failures(record) == ["FIRE at 160, seeds 0, 1, 2: out of memory"]
    assert "FIRE has no result past 120." in verdict(record)


def test_the_description_speaks_of_the_task():
    record = task_record()
    record["setting"]["recipe"]["horizon"] = "length"
    text = " ".join(description(with_titles(record)))
    for fact in (
        "25,600 generated rows of up to 40 symbols, each seen once, recipe task-tiny, 400 steps.",
        "FIRE (recommended) starts as Kerple-log", "The task: A paper (2024).",
        "512 questions at each length (40, 60, 80, 120 and 160",
        "a seed that training does not use", "greedy decoding would give the same",
    ):  # fmt: skip
        assert fact in text
    shown = compare_table(record)
    assert "perplexity" not in shown
    assert "held-out" not in shown
    assert max(map(len, shown.splitlines())) <= 120


def test_the_picture(tmp_path, monkeypatch):
    assert [path.name for path in plot_compare(task_record(), tmp_path)] == ["accuracy.png", "losses.png"]
    figures = []
    monkeypatch.setattr("matplotlib.figure.Figure.savefig", lambda self, *_, **__: figures.append(self))
    plot_compare(task_record(), tmp_path)
    (axes,) = figures[0].axes
    assert axes.get_title() == "Copy: exact match by length, median and range over 3 seeds"
    assert axes.get_ylabel() == "exact match in % (higher is better)"
    assert axes.get_xlabel() == "length in symbols"
    assert axes.get_ylim() == (-3, 103)
    assert list(axes.lines[1].get_ydata()) == list(EXACT["kerple_log"])


@pytest.mark.parametrize(("width", "scheme"), [(1280, "light"), (390, "dark")])
def test_the_page(browser, tmp_path, width, scheme):
    path = report_page(task_record(), tmp_path / "report.html")
    with looking_at(browser, path, width, scheme=scheme) as page:
        assert page.locator(".verdict").inner_text() == verdict(task_record())
        assert "erplexity" not in page.locator("body").inner_text()
        assert set(curves(page, "#accuracy")) == {LABELS[one] for one in EXACT}
        assert page.get_by_role("img", name="Exact match in % by length").count() == 1
        svg = page.locator("#accuracy svg")
        assert "length in symbols" in svg.text_content()
        assert "training length" in svg.text_content()
        svg.focus()
        page.keyboard.press("ArrowLeft")
        shown = " ".join(page.locator("#accuracy .tip").inner_text().split())
        assert shown.startswith("160 symbols FIRE 97 (95–99) % Kerple-log 91 (89–93) %")
        assert page.locator("#numbers tbody tr").count() == page.locator("#numbers-2 tbody tr").count() == 4
        assert page.locator("#positions").count() == 0
        assert page.locator("#losses path.curve").count() == 4
        assert page.locator("summary", has_text="Task").count() == 1
        assert overflow(page) == 0
