"""A comparison as a table and as pictures."""

import math
import random
import re
import sys
from statistics import fmean

import pytest

from longfire.report.compare import close_up, compare_table, loss_curve, plot_compare, thinned
from longfire.report.failures import failures
from longfire.report.significance import RULE, adjusted_p_values, clear_best, p_value, seeds_verdict
from longfire.report.summary import amount, lines_of, mean_and_deviation, what_was_run
from longfire.report.table import text_table
from tests.report.records import compare_record, record_of, with_other_texts


def rows_of(table):
    """Its lines by their first word, less what pads them."""
    return {line.split("  ")[0]: re.split(r" {2,}", line.strip())[1:] for line in table.splitlines() if "  " in line}


def test_mean_and_deviation():
    assert mean_and_deviation([]) == (None, None)
    assert mean_and_deviation([2.0]) == (2.0, None)
    assert mean_and_deviation([1.0, 2.0, 3.0]) == (2.0, 1.0)


def test_table():
    shown = compare_table(compare_record())
    rows = rows_of(shown)
    assert rows["log perplexity at"] == ["64 (trained)", "128", "256", "512", "1,024", "tokens/s"]
    assert rows["FIRE"][0] == "2.127 ± 0.030*"
    assert rows["ALiBi"][-2:] == ["2.148 ± 0.032*", "250,000"]
    assert shown.count("*") == 5  # at 512 nothing is clear, and one explains
    assert "*: significantly better than every other encoding" in shown.replace("\n", " ")
    assert f"are significant ({RULE})" in shown.replace("\n", " ")
    assert max(map(len, shown.splitlines())) <= 120


def test_paragraphs_are_as_narrow_as_the_terminal(monkeypatch):
    monkeypatch.setattr(sys.stdout, "isatty", lambda: True)
    monkeypatch.setenv("COLUMNS", "70")
    above, *_, below = compare_table(compare_record()).split("\n\n")
    assert max(map(len, [*above.splitlines(), *below.splitlines()])) <= 70


def test_bold_takes_no_room():
    shown = compare_table(compare_record(), bold=True)
    assert "\x1b[1m2.127 ± 0.030\x1b[0m" in shown
    assert "*" not in shown
    plain = re.sub(r"\x1b\[\d*m", "", shown)
    header, rule, *rows = plain.splitlines()[6:13]
    assert header.startswith("log perplexity")
    assert {len(line) for line in (header, rule, *rows)} == {len(rule)}
    assert text_table(["a"], [["\x1b[1mlong\x1b[0m"], ["b"]], left=0).splitlines()[3] == "   b"


@pytest.mark.parametrize(
    ("ours", "theirs", "clear"),
    [
        ([1.0, 2.0, 3.0], [1.1, 2.1, 3.1], True),  # far less than the seeds differ, but the same in each
        ([1.0, 1.0, 1.0], [1.1, 1.12, 1.15], True),
        ([1.0, 1.0, 1.0], [1.1, 1.2, 1.3], False),  # t is 3.46: one-sided it would do
        ([1.0, 1.0, 1.0], [1.01, 1.01, 1.5], False),  # a single seed makes the most of it
        ([1.0], [9.0], False),  # one seed
        ([1.0, 1.0, 1.0], [1.1, 1.1, None], False),  # not all seeds
        ([1.0, 1.0], [1.1, 1.1], False),  # two
        ([1.0, 1.0, 1.0], [1.0, 1.0, 1.0], False),
    ],
)
def test_a_lead_must_be_significant(ours, theirs, clear):
    record = record_of({"fire": ours, "alibi": theirs})
    assert (clear_best(record, 64) == "fire") is clear
    assert ("*" in compare_table(record)) is clear


def test_the_best_leads_every_other_one():
    """Not the next best alone: here the third is far behind in two seeds of three."""
    close, wide = [1.1, 1.1, 1.1], [0.9, 1.5, 1.5]
    assert clear_best(record_of({"fire": [1.0, 1.0, 1.0], "alibi": close}), 64) == "fire"
    record = record_of({"fire": [1.0, 1.0, 1.0], "alibi": close, "t5": wide})
    assert clear_best(record, 64) is None


def test_what_nobody_comes_after_is_not_best():
    assert clear_best(record_of({"fire": [1.0, 1.0]}), 64) is None
    assert seeds_verdict(record_of({"fire": [1.0, 1.0]})) == ""


def test_verdicts():
    a, b = [1.0, 1.0, 1.0], [2.0, 2.0, 2.0]
    assert seeds_verdict(record_of({"a": a, "b": b}), "x").endswith(
        "between two encodings at one length is significant (x)."
    )
    two = record_of({"a": a, "b": b}, lengths=(64, 128))
    two["runs"][0]["perplexity"]["rows"][1]["log_perplexity"] = 3.0
    assert seeds_verdict(two).startswith(
        f"1 of 2 differences between two encodings at one length is significant ({RULE})."
    )
    assert seeds_verdict(two).endswith("Not significantly behind the best: b at 128.")
    assert seeds_verdict(record_of({"a": [1.0, 2.0, 1.0], "b": [2.0, 1.0, 2.0]})).startswith("0 of 1 differences")
    level = record_of({"a": a, "b": b, "c": a}, lengths=(64, 128))
    assert seeds_verdict(level).endswith("Not significantly behind the best: c at every length.")


def test_what_cannot_be_tested_is_said():
    for seeds, said in ((1, "one seed"), (2, "two seeds")):
        few = seeds_verdict(record_of({"a": [1.0] * seeds, "b": [2.0] * seeds}))
        assert few == f"Differences are not testable with {said}: that takes three or more."
    missing = {"a": [1.0, 1.0, 1.0], "b": [2.0, 2.0, None]}
    assert seeds_verdict(record_of(missing)) == "Differences are not testable: no two encodings have every seed."
    three = seeds_verdict(record_of(missing | {"c": [3.0, 3.0, 3.0]}))
    assert three.startswith("1 of 1 differences")
    assert three.endswith("Not tested, as a seed is missing: b.")


def test_a_long_list_is_counted():
    values = {name: [1.0, 1.0, 1.0] for name in "abcdefghij"} | {"k": [2.0, 2.0, 2.0]}
    assert seeds_verdict(record_of(values, (64, 128))).endswith("Not significantly behind the best: 9 at 64, 9 at 128.")


@pytest.mark.parametrize(
    ("t", "degrees", "p"),
    [(4.303, 2, 0.05), (2.776, 4, 0.05), (3.055, 12, 0.01), (3.646, 24, 0.00129), (5.841, 3, 0.01)],
)
def test_two_sided_p_values(t, degrees, p):
    """As in tables of Student's t: numbers of mean t/√n and variance 1."""
    by_seed = [t / math.sqrt(3)] * 3
    assert p_value(by_seed, (1.0, degrees)) == pytest.approx(p, rel=0.01)


def equal_encodings(encodings, seeds, spread=(0.01,), shift=0.0, draws=1500):
    """The share of draws of equal encodings in which any difference is called significant."""
    drawn, errors = random.Random(0), 0
    for _ in range(draws):
        shifts = [drawn.gauss(0, shift) for _ in range(seeds)]
        rows = {i: [s + drawn.gauss(0, spread[i % len(spread)]) for s in shifts] for i in range(encodings)}
        errors += min(adjusted_p_values(rows).values()) <= 0.05
    return errors / draws


def test_equal_encodings_differ_in_at_most_five_percent_of_lengths():
    """As `RULE` says, whether or not seeds shift all encodings alike. The bounds are 5 % and two standard errors."""
    assert 0.03 < equal_encodings(2, 3) < 0.062
    for encodings, seeds, shift in ((5, 3, 0.05), (7, 3, 0.0), (7, 5, 0.05)):
        assert equal_encodings(encodings, seeds, shift=shift) < 0.05 + 0.012


def test_encodings_that_scatter_unlike_hardly_raise_the_error():
    """One with sixty times the others' deviation, which pooling alone calls different in one length of six."""
    assert equal_encodings(7, 3, spread=[0.005] * 6 + [0.3]) < 0.09
    assert equal_encodings(7, 5, spread=[0.005] * 6 + [0.3]) < 0.05


def test_a_diverged_encoding_hides_no_difference():
    """Its scatter is not pooled with that of encodings far better than it."""
    good = {"a": [1.00, 1.01, 1.02], "b": [1.10, 1.12, 1.11], "c": [1.20, 1.22, 1.20]}
    wild = {"rope": [7.0, 8.0, 9.5]}
    assert seeds_verdict(record_of(good)).startswith("3 of 3")
    assert seeds_verdict(record_of(good | wild)).startswith("6 of 6")


def test_missing_is_missing_and_failed_is_said():
    record = compare_record()
    record["runs"][4] = {"encoding": "alibi", "label": "ALiBi", "seed": 1, "failed": "ValueError: loss\nis nan"}
    for run in record["runs"][6:9]:
        run["perplexity"]["rows"][-1] = {"length": 1024, "failed": "out of memory"}
    record["runs"][-1]["perplexity"]["rows"][0]["log_perplexity"] = math.nan
    del record["runs"][-1]["tokens_per_second"], record["runs"][-2]["tokens_per_second"]
    record["runs"] += [{"encoding": "t5", "label": "T5", "seed": seed, "failed": "it is shy"} for seed in (0, 1, 2)]
    shown = compare_table(record)
    assert rows_of(shown)["T5"] == ["–"] * 6
    assert rows_of(shown)["Kerple-log"][-2] == "–"
    assert failures(record) == [
        "ALiBi, seed 1: failed: ValueError: loss is nan",
        "Kerple-log at 1,024, seeds 0, 1, 2: out of memory",
        "NoPE at 64, seed 2: the loss is not a finite number",
        "T5, seeds 0, 1, 2: failed: it is shy",
    ]
    for line in failures(record):
        assert f"– {line}" in shown


def test_what_fails_alike_is_said_once():
    """Learned positions end at one length, whichever is longer and whatever the text."""
    record = with_other_texts(compare_record(("fire", "nope"), seeds=(0, 1)))
    for run in record["runs"][:2]:
        for of in (run["perplexity"], *run["also"].values()):
            for row in of["rows"][1:]:
                reason = f"the model has 64 learned positions, and {row['length']} are needed."
                row |= {"log_perplexity": None, "failed": reason}
    learned = "the model has 64 learned positions, and 128 … 1,024 are needed."
    assert failures(record) == [f"FIRE at 128 … 1,024, on all texts, seeds 0, 1: {learned}"]
    record["runs"][0]["also"]["code"]["rows"][1]["log_perplexity"] = 2.0
    assert failures(record) == [
        f"FIRE on python-stdlib, latex at 128 … 1,024, seeds 0, 1: {learned}",
        f"FIRE on code at 256 … 1,024, seeds 0, 1: {learned.replace('128', '256')}",
        "FIRE on code at 128, seed 1: the model has 64 learned positions, and 128 are needed.",
    ]


def test_other_texts_have_a_table_whatever_they_are_called():
    """Their own failures are said, and a star in them is explained."""
    record = compare_record(("fire", "alibi"))
    for run in record["runs"]:
        run["also"] = {record["setting"]["corpus"]["name"]: run["perplexity"]}
        run["perplexity"] = {"rows": [{**row, "log_perplexity": 2.0} for row in run["perplexity"]["rows"]]}
    record["runs"][0]["also"] = {
        "code": {"rows": [{"length": 64, "failed": "it is long"}]},
        **record["runs"][0]["also"],
    }
    shown = compare_table(record)
    assert f"{record['setting']['corpus']['name']}, the other one:" in shown
    assert "*: significantly better than every other encoding" in shown.replace("\n", " ")
    assert failures(record) == ["FIRE on code at 64, seed 0: it is long"]


def test_what_was_run():
    text = what_was_run(compare_record() | {"interrupted": True})
    assert "FIRE, ALiBi, Kerple-log, RoPE, NoPE" in text
    assert "820k parameters" in text
    assert "was trained from scratch, with 3 seeds. Training was on sequences of 64 tokens of python-stdlib " in text
    assert "(2.46M tokens seen, 1.9M of them different), recipe tiny. FIRE is as published, but for options " in text
    assert "the same tokens are scored at all lengths" in text
    assert text.endswith("It was interrupted: what is missing was not run.")
    record = compare_record()
    record["setting"]["recipe"]["learning_rate"] = 6e-4
    assert "from scratch, with 3 seeds, at a learning rate of 0.0006. Training was on " in what_was_run(record)
    assert "Then held-out text was read in" in what_was_run(record)
    record["setting"]["split"] = "dev"
    assert "Then dev, a part of the text that was kept from training, was read in" in what_was_run(record)
    record["setting"] = {"trained_length": 64, "lengths": [64]}
    record["runs"] = [{"encoding": "fire", "seed": 0}, {"encoding": "rope", "seed": 0, "failed": "no"}]
    assert "fire, rope: with each" in what_was_run(record)
    assert "with one seed." in what_was_run(record)
    sizes = [{"encoding": "fire", "seed": 0, "parameters": n} for n in (1e6, 2e6)]
    assert "of 1M to 2M parameters" in what_was_run(record | {"runs": sizes})
    assert [amount(n) for n in (12, 1234, 2.5e9)] == ["12", "1.23k", "2.5B"]


def test_what_was_run_with_one_encoding():
    """In the singular, and with what its recipe changes in FIRE."""
    record = with_other_texts(compare_record(("fire",)))
    record["setting"]["recipe"] |= {"start": "kerple_log", "horizon": 1.0}
    text = what_was_run(record)
    assert text.startswith("FIRE: with this position encoding a model of 820k parameters was trained from scratch, ")
    assert "FIRE begins as kerple_log and has its horizon at 64 tokens. Then held-out text was read " in text
    assert ". Other texts, none of whose documents is in the corpus, were read too: latex, code." in text
    named = record | {"runs": [run | {"encoding": "fire:horizon=32"} for run in record["runs"]]}
    assert "at 64 tokens, where options that are named do not say otherwise. Then" in what_was_run(named)
    record["setting"]["recipe"] |= {"share": True, "encoding_options": {"log": False}, "horizon": None, "steps": 1600}
    record["setting"]["recipe"]["position_rate"] = 10.0
    assert "FIRE begins as kerple_log, is one for all layers and has log=False." in what_was_run(record)
    assert "recipe tiny, 1,600 steps, the encodings' own parameters at 10 times the model's" in what_was_run(record)
    assert compare_table(record).endswith("250,000")  # there is no verdict on differences that cannot be


def test_speeds_that_nobody_measured_are_no_column():
    record = compare_record()
    for run in record["runs"]:
        del run["tokens_per_second"]
    assert "tokens/s" not in compare_table(record)


def test_what_was_extended_was_not_trained_from_scratch():
    record = compare_record()
    for run in record["runs"]:
        if run["encoding"] in ("nope", "rope"):
            run["extended"] = {"from": "ALiBi", "to": 256, "steps": 10}
    text = what_was_run(record)
    assert "NoPE: with each of these position encodings but RoPE and NoPE a model of 820k" in text
    assert "RoPE and NoPE are each the model of ALiBi, extended to 256 tokens and trained on for 10 steps at" in text


def test_nothing_was_run_yet():
    record = compare_record() | {"runs": [], "biases": {}}
    assert "No run has ended yet." in compare_table(record)


def test_every_line_has_a_colour_of_its_own():
    record = compare_record()
    record["runs"] += [{"encoding": "fire", "label": f"FIRE {i}", "seed": 0} for i in range(2)]
    record["runs"] += [{"encoding": "fire-s", "label": "FIRE-S", "seed": 0}]
    lines = lines_of(record)
    assert lines[0].colors[0] == "#dc143c"  # crimson
    assert len({line.colors for line in lines}) == len(lines) == 8


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


def test_further_training_is_not_among_losses_from_scratch(tmp_path, monkeypatch):
    drawn, record = [], compare_record()
    monkeypatch.setattr("matplotlib.figure.Figure.savefig", lambda self, *_, **__: drawn.append(self.axes[0]))
    plot_compare(record, tmp_path)
    for run in record["runs"]:
        if run["encoding"] == "nope":
            run["extended"] = {"from": "RoPE", "to": 256, "steps": 3}
    plot_compare(record, tmp_path)
    (_, before), (_, after) = drawn[:2], drawn[2:]
    assert before.get_title() == "Loss in training, mean and range over seeds"
    assert after.get_title() == "Loss in training from scratch, mean and range over seeds"
    shown = [[line.get_label() for line in axes.lines] for axes in (before, after)]
    assert shown == [["FIRE", "ALiBi", "Kerple-log", "RoPE", "NoPE"], ["FIRE", "ALiBi", "Kerple-log", "RoPE"]]


@pytest.mark.parametrize("trained", [256, 1024, 4096])
def test_where_training_was_is_said_within_the_picture(trained, tmp_path, monkeypatch):
    drawn, record = [], compare_record()
    record["setting"]["trained_length"] = trained
    monkeypatch.setattr("matplotlib.figure.Figure.savefig", lambda self, *_, **__: drawn.append(self))
    plot_compare(record, tmp_path)
    drawn[0].draw_without_rendering()
    axes = drawn[0].axes[0]
    (said,) = axes.texts
    assert axes.bbox.x0 < said.get_window_extent().x0 < said.get_window_extent().x1 < axes.bbox.x1


@pytest.mark.parametrize("kept", [None, 1, 0])
def test_pictures(tmp_path, kept):
    record = compare_record()
    record["runs"] = record["runs"][:kept]
    paths = plot_compare(record, tmp_path / "new")
    assert [path.name for path in paths] == ["perplexity.png", "losses.png"]
    for path in paths:
        assert path.read_bytes().startswith(b"\x89PNG")


def test_a_picture_has_a_panel_for_each_text(tmp_path, monkeypatch):
    """And below those that others leave far behind, close up, where there are any."""
    from matplotlib.figure import Figure

    titles = []

    def save(figure, path, **_):
        titles.append([axes.get_title() for axes in figure.axes if axes.get_visible()])

    monkeypatch.setattr(Figure, "savefig", save)
    record = with_other_texts(compare_record())
    plot_compare(record, tmp_path)
    assert titles[0] == [
        *(f"Perplexity on {name}, 3 seeds" for name in ("python-stdlib", "latex", "code")),
        *(f"The lower part on {name}, close up" for name in ("python-stdlib", "latex", "code")),
    ]
    for run in record["runs"]:
        run["also"]["code"]["rows"] = run["also"]["code"]["rows"][:1]  # of one length nothing falls behind
    plot_compare(record, tmp_path)
    assert len(titles[2]) == 5
    plot_compare(compare_record(seeds=(0,)), tmp_path)
    assert titles[4] == ["Perplexity by length, one seed", "The lower part, close up"]


def test_a_picture_without_losses(tmp_path):
    record = record_of({"fire": [1.0], "alibi": [None]})
    assert all(path.exists() for path in plot_compare(record, tmp_path))


def test_the_lower_part_is_drawn_close_up():
    values = {"fire": [2.0], "alibi": [2.1], "rope": [2.2], "nope": [9.0]}
    record = record_of(values)
    assert close_up(record) is None  # one length: all hold
    record = compare_record()
    low, high = close_up(record)
    held = [line for line in lines_of(record) if line.encoding in ("fire", "alibi", "kerple_log")]
    seen = [fmean(line.values(n).values()) for line in held for n in record["setting"]["lengths"]]
    assert low < min(seen) < max(seen) < high < min(max(seen) + 0.1, 3.0)
    for run in record["runs"]:  # one that loses its grip is the best before
        if run["encoding"] == "nope":
            run["perplexity"]["rows"][0]["log_perplexity"] = min(seen) - 0.5
    assert close_up(record)[0] < min(seen) - 0.5
