"""Plots of a comparison."""

import math
from itertools import pairwise
from statistics import fmean

import pytest

from longfire.report.compare_plot import loss_curve, plot_compare, spread_apart, thinned, zoom_limits
from longfire.report.summary import lines_of
from tests.report.records import compare_record, record_of, with_other_texts


@pytest.fixture
def figures(monkeypatch):
    """Collect figures instead of writing files."""
    found = []
    monkeypatch.setattr("matplotlib.figure.Figure.savefig", lambda self, *_, **__: found.append(self))
    return found


@pytest.mark.parametrize("runs", [None, 1, 0])
def test_files(tmp_path, runs):
    record = compare_record()
    record["runs"] = record["runs"][:runs]
    paths = plot_compare(record, tmp_path / "new")
    assert [path.name for path in paths] == ["perplexity.png", "losses.png"]
    assert all(path.read_bytes().startswith(b"\x89PNG") for path in paths)


def test_without_losses_or_results(tmp_path):
    assert all(path.exists() for path in plot_compare(record_of({"fire": [1.0], "alibi": [None]}), tmp_path))


def test_losses_are_thinned_and_averaged():
    assert thinned([], 4) == []
    assert thinned([[1, 4.0], [2, 2.0], [3, 6.0]], 2) == [(1.5, 3.0), (3.0, 6.0)]
    record = compare_record(seeds=(0, 1))
    record["runs"][1]["losses"][0] = [10, math.nan]
    curve = loss_curve(lines_of(record)[0])
    assert len(curve) == 60
    assert curve[0][1] == curve[0][2] == curve[0][3]
    step, mean, low, high = curve[1]
    assert step == 20
    assert low < mean < high


def test_losses_exclude_extensions(tmp_path, figures):
    record = compare_record()
    for run in record["runs"]:
        if run["encoding"] == "nope":
            run["extended"] = {"from": "RoPE", "to": 256, "steps": 3}
    plot_compare(record, tmp_path)
    axes = figures[1].axes[0]
    assert axes.get_title() == "Training loss from scratch, mean and range over seeds"
    assert [line.get_label() for line in axes.lines] == ["FIRE", "ALiBi", "Kerple-log", "RoPE"]


@pytest.mark.parametrize("trained", [256, 1024, 4096])
def test_the_training_length_is_marked_inside_the_axes(trained, tmp_path, figures):
    record = compare_record()
    record["setting"]["trained_length"] = trained
    plot_compare(record, tmp_path)
    figures[0].draw_without_rendering()
    axes = figures[0].axes[0]
    (mark,) = [text for text in axes.texts if text.get_text() == "training length"]
    assert axes.bbox.x0 < mark.get_window_extent().x0 < mark.get_window_extent().x1 < axes.bbox.x1


def test_few_lines_are_labelled_at_their_ends_and_many_have_a_legend(tmp_path, figures):
    record = compare_record()
    plot_compare(record, tmp_path)
    figures[0].draw_without_rendering()
    labels = [text for text in figures[0].axes[0].texts if text.get_text() != "training length"]
    assert [text.get_text() for text in labels] == ["ALiBi", "Kerple-log", "FIRE", "RoPE", "NoPE"]  # from the bottom up
    boxes = [text.get_window_extent() for text in labels]
    assert all(low.y1 <= high.y0 for low, high in pairwise(boxes))
    assert not figures[0].legends
    plot_compare(record_of({f"e{i}": [1.0] for i in range(9)}), tmp_path)
    assert len(figures[2].legends) == 1


@pytest.mark.parametrize(
    ("places", "spread"),
    [
        ([0.1, 0.5], [0.1, 0.5]),
        ([0.5, 0.5, 0.5], [0.4, 0.5, 0.6]),
        ([0.0, 0.01], [0.0, 0.1]),
        ([0.99, 1.0], [0.9, 1.0]),
        ([], []),
    ],
)
def test_labels_are_spread_apart(places, spread):
    assert spread_apart(places, 0.1) == pytest.approx(spread)


def test_each_text_has_a_panel_and_a_zoom(tmp_path, figures):
    def titles(figure):
        return [axes.get_title() for axes in figure.axes if axes.get_visible()]

    record = with_other_texts(compare_record())
    names = ("python-stdlib", "latex", "code")
    plot_compare(record, tmp_path)
    assert titles(figures[0]) == [
        *(f"Perplexity on {name}, 3 seeds" for name in names), *(f"Zoomed in on {name}" for name in names),
    ]  # fmt: skip
    for run in record["runs"]:
        run["also"]["code"]["rows"] = run["also"]["code"]["rows"][:1]  # with one length, nothing falls behind
    plot_compare(record, tmp_path)
    assert len(titles(figures[2])) == 5
    plot_compare(compare_record(seeds=(0,)), tmp_path)
    assert titles(figures[4]) == ["Perplexity by length, one seed", "Zoomed in"]


def test_the_zoom_shows_encodings_that_extrapolate():
    assert zoom_limits(record_of({"fire": [2.0], "alibi": [2.1], "rope": [2.2], "nope": [9.0]})) is None  # one length
    record = compare_record()
    low, high = zoom_limits(record)
    held = [line for line in lines_of(record) if line.encoding in ("fire", "alibi", "kerple_log")]
    seen = [fmean(line.values(n).values()) for line in held for n in record["setting"]["lengths"]]
    assert low < min(seen) < max(seen) < high < min(max(seen) + 0.1, 3.0)
    for run in record["runs"]:  # an encoding that degrades is best at the start
        if run["encoding"] == "nope":
            run["perplexity"]["rows"][0]["log_perplexity"] = min(seen) - 0.5
    assert zoom_limits(record)[0] < min(seen) - 0.5
