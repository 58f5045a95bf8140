"""A comparison as text and Markdown: verdict, tables, failures and a description."""

import math

import pytest

from longfire.report.compare import SPREAD, compare_table, comparison_tables, scored_text
from longfire.report.description import description
from longfire.report.failures import failures
from longfire.report.metric import mean_and_deviation
from longfire.report.significance import RULE
from longfire.report.summary import COLORS, SPARE, amount, amounts, join_words, lines_of, with_titles
from longfire.report.verdict import verdict
from tests.report.records import compare_record, record_of, with_other_texts


def words(text):
    return " ".join(text.split())


def test_numbers():
    assert [mean_and_deviation(values) for values in ([], [2.0], [1.0, 2.0, 3.0])] == [
        (None, None),
        (2.0, None),
        (2, 1),
    ]
    assert [amount(n) for n in (12, 1234, 2.5e9)] == ["12", "1.23k", "2.5B"]
    assert [amounts(numbers) for numbers in ([], [1e6], [1e6, 2e6], [1e6, 1000001])] == ["", "1M", "1M to 2M", "1M"]
    assert [join_words(list(letters)) for letters in ("", "a", "ab", "abc")] == ["", "a", "a and b", "a, b and c"]


def test_every_line_has_its_own_colour():
    record = compare_record()
    record["runs"] += [{"encoding": "fire", "label": f"FIRE {i}", "seed": 0} for i in range(2)]
    record["runs"] += [{"encoding": "fire-s", "label": "FIRE-S", "seed": 0}]
    lines = lines_of(record)
    assert lines[0].colors == COLORS["fire"]
    assert len({line.colors for line in lines}) == len(lines) == 8


@pytest.mark.parametrize(
    ("encoding", "init", "horizon", "label", "color"),
    [
        ("fire", None, None, "FIRE", "fire"),
        ("fire", "kerple_log", "length", "FIRE (recommended)", "recommended"),
        ("fire:init=kerple_log,horizon=64", None, None, "FIRE (recommended)", "recommended"),
        ("fire:init=random,horizon=None", "kerple_log", "length", "FIRE", "fire"),
        ("fire", "kerple_log", 128, "FIRE (init=kerple_log, horizon=128)", None),
        ("fire-s", "kerple_log", "length", "FIRE-S (recommended)", "fire-s"),
    ],
)
def test_fire_is_named_and_coloured_by_what_it_is(encoding, init, horizon, label, color):
    """Not by what was typed, or written by an earlier release."""
    record = compare_record()
    record["setting"]["recipe"] |= {"init": init, "horizon": horizon}
    names = {"fire": (encoding, "FIRE"), "kerple_log": ("kerple_log", "KerpleLog"), "nope": ("lost", "Mine")}
    for run in record["runs"]:
        run["encoding"], run["label"] = names.get(run["encoding"], (run["encoding"], run["label"]))
    fire, *others = lines_of(with_titles(record))
    assert (fire.label, [line.label for line in others]) == (label, ["ALiBi", "Kerple-log", "RoPE", "Mine"])
    assert fire.colors == (COLORS[color] if color else SPARE[0])
    assert fire.is_fire == (color in ("fire", "recommended"))


def test_the_table():
    (table,) = comparison_tables(compare_record())
    assert table.columns == ["log perplexity at", "64 (trained)", "128", "256", "512", "1,024", "tokens/s"]
    rows = {label: cells for label, *cells in table.rows}
    assert rows["FIRE"][0] == "2.127 ± 0.030"
    assert rows["ALiBi"][-2:] == ["2.148 ± 0.032", "250,000"]
    assert table.shaded == 1
    # at 512, ALiBi is not significantly behind Kerple-log
    assert set(table.highlights) == {(0, 1), (0, 2), (2, 3), (2, 4), (1, 4), (1, 5)}
    (note,) = table.notes
    assert f"are significant ({RULE}). Not significant: ALiBi vs Kerple-log at 512" in note
    assert SPREAD in note


def test_bold_without_a_test():
    """With one seed, the lowest mean, without claiming significance; with one encoding, nothing."""
    (table,) = comparison_tables(record_of({"a": [2.0], "b": [1.0]}))
    assert set(table.highlights) == {(1, 1)}
    assert "Bold: lowest." in table.notes[0]
    (table,) = comparison_tables(record_of({"a": [1.0, 1.0, 1.0]}))
    assert not set(table.highlights)
    assert "Bold" not in str(table.notes)


def test_optional_columns():
    record = compare_record()
    (table,) = comparison_tables(record, parameters=True)
    assert table.columns[-2] == "parameters (for position)"
    assert table.rows[0][-2] == "1.24k"
    for run in record["runs"]:
        del run["tokens_per_second"]
    assert "tokens/s" not in comparison_tables(record)[0].columns


def test_how_much_text_was_scored():
    record = compare_record()
    assert scored_text(record) == "Scored: 30 documents, 56.7k to 921k tokens at each length."
    record["runs"][0]["perplexity"]["rows"][0]["documents"] = 28
    assert "28 to 30 documents" in scored_text(record)
    assert scored_text(record | {"runs": [{"encoding": "fire", "seed": 0, "failed": "no"}]}) == ""


def test_a_report_opens_with_the_verdict_and_ends_with_the_method():
    record = compare_record() | {"notes": ["A note."]}
    text, bold = compare_table(record), compare_table(record, bold=True)
    assert words(text).startswith(words(verdict(record)))
    assert text.index("tokens/s") < text.index("Models with")
    assert text.endswith("A note.")
    assert "*: lowest" in words(text)
    assert "Bold: lowest" in words(bold)
    assert "\x1b[1m2.127 ± 0.030\x1b[0m" in bold
    assert max(map(len, text.splitlines())) <= 120
    assert compare_table(compare_record() | {"runs": []}) == "No run has finished yet."


def test_each_text_has_a_table():
    record = with_other_texts(compare_record())
    tables = comparison_tables(record, rule="the rule")
    assert SPREAD in tables[0].notes[0]
    assert [table.columns[0] for table in tables] == [f"log perplexity{on} at" for on in ("", " on latex", " on code")]
    assert (tables[1].rows[0][1], (0, 1) in tables[1].highlights) == ("2.510 ± 0.010", True)
    for table, rule in zip(tables, ("the rule", "by the same test", "by the same test"), strict=True):
        assert f"are significant ({rule})" in table.notes[0]
    assert "Also evaluated on latex and code" in " ".join(description(record))
    record = compare_record(("fire",))
    record["runs"][0]["also"] = {record["setting"]["corpus"]["name"]: record["runs"][0]["perplexity"]}
    assert "log perplexity on python-stdlib (second text) at" in compare_table(record)


def test_the_description_has_the_facts():
    record = compare_record() | {"interrupted": True}
    record["setting"]["recipe"] |= {"learning_rate": 6e-4, "position_lr_factor": 10.0, "steps": 1600}
    text = " ".join(description(record))
    for fact in (
        "820k parameters", "FIRE, ALiBi, Kerple-log, RoPE and NoPE (3 seeds, learning rate 0.0006)", "64 tokens from",
        "python-stdlib (2.46M tokens, 1.9M of them unique)", "recipe tiny, 1,600 steps", "10× the learning rate",
        "FIRE is as published", "held-out text in sequences of 64, 128,", "the same tokens are scored", "interrupted",
    ):  # fmt: skip
        assert fact in text
    record["setting"]["split"] = "dev"
    assert "dev split" in " ".join(description(record))
    record["setting"] = {"trained_length": 64, "lengths": [64]}
    record["runs"] = [{"encoding": "fire", "seed": 0}, {"encoding": "rope", "seed": 0, "failed": "no"}]
    assert description(record)[0] == "Models were trained from scratch with fire and rope (one seed)."


def test_an_interrupted_comparison_says_only_what_it_did():
    record = compare_record(("alibi",)) | {"interrupted": True}
    record["setting"]["recipe"]["position_lr_factor"] = 3.0
    record["runs"] = [record["runs"][0] | {"position_parameters": 0}]
    text = compare_table(record)
    assert "ALiBi (one seed" in words(text)
    assert not any(wrong in words(text) for wrong in ("3 seeds", SPREAD, "position parameters"))


def test_the_description_has_changes_to_fire_and_extensions():
    record = compare_record()
    recipe = record["setting"]["recipe"] = {**record["setting"]["recipe"], "init": "kerple_log", "horizon": 64}
    published, recommended = (
        "FIRE is as published, except for the options in its label.",
        "FIRE (recommended) starts as",
    )
    for shown, own in ((record, published), (with_titles(record), recommended)):
        said = " ".join(description(shown))
        assert [sentence in said for sentence in (published, recommended)] == [own is published, own is recommended]
    recipe |= {"share_position_encoding": True, "encoding_options": {"log": False}, "horizon": None}
    assert "FIRE is shared by all layers and has log=False." in description(record)
    for run in record["runs"]:
        if run["encoding"] in ("nope", "rope"):
            run["extended"] = {"from": "ALiBi", "to": 256, "steps": 10}
    text = " ".join(description(record))
    assert "with FIRE, ALiBi and Kerple-log (3 seeds)" in text
    assert "RoPE and NoPE extend ALiBi's model to 256 tokens, with 10 more training steps" in text


def test_failures_are_dashes_and_listed():
    record = compare_record()
    record["runs"][4] = {"encoding": "alibi", "label": "ALiBi", "seed": 1, "failed": "ValueError: loss\nis nan"}
    for run in record["runs"][6:9]:
        run["perplexity"]["rows"][-1] = {"length": 1024, "failed": "out of memory"}
    record["runs"][-1]["perplexity"]["rows"][0]["log_perplexity"] = math.nan
    record["runs"] += [{"encoding": "t5", "label": "T5", "seed": seed, "failed": "it is shy"} for seed in (0, 1, 2)]
    rows = {label: cells for label, *cells in comparison_tables(record)[0].rows}
    assert rows["T5"] == ["–"] * 6
    assert rows["Kerple-log"][-2] == "–"
    assert failures(record) == [
        "ALiBi, seed 1: failed: ValueError: loss is nan",
        "Kerple-log at 1,024, seeds 0, 1, 2: out of memory",
        "NoPE at 64, seed 2: the loss is not a finite number",
        "T5, seeds 0, 1, 2: failed: it is shy",
    ]
    for line in failures(record):
        assert f"– {line}" in compare_table(record)


def test_similar_failures_are_merged():
    """Learned positions fail at every longer length, on every text."""
    record = with_other_texts(compare_record(("fire", "nope"), seeds=(0, 1)))
    for run in record["runs"][:2]:
        for found in (run["perplexity"], *run["also"].values()):
            for row in found["rows"][1:]:
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
