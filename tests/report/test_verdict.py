"""The verdict on a comparison, and when it must not conclude anything."""

import math

import pytest

from longfire.report.verdict import verdict
from tests.report.records import compare_record, record_of, with_other_texts


def changed(record, encoding, length, value):
    for run in record["runs"]:
        if run["encoding"] == encoding:
            next(row for row in run["perplexity"]["rows"] if row["length"] == length)["log_perplexity"] = value
    return record


def test_extrapolation_and_the_best():
    said = verdict(compare_record())
    assert said.startswith("Up to 16× the training length (1,024 tokens), ALiBi and Kerple-log lose nothing; ")
    assert "FIRE loses 0.08 nats, RoPE 1.40 and NoPE 1.80." in said
    assert "At 1,024 tokens, ALiBi has the lowest log perplexity (2.148), significantly ahead of all others" in said
    assert "At the training length, FIRE has the lowest" in said


@pytest.mark.parametrize(
    ("by_length", "said"),
    [
        ((2.1, 2.0, 2.111, 2.1, 2.11), "FIRE loses at most 0.02 nats; "),
        ((2.1, 2.107, 2.08, 2.07, 2.06), "FIRE loses nothing; "),  # rises a little, ends lower
        ((2.1, 2.14, 2.1, 2.1, 2.104), "FIRE loses nothing; "),
        ((2.1, 2.2, 2.1, 2.1, 2.0), "FIRE loses 0.10 nats and "),  # a hump is not nothing
    ],
)
def test_small_losses(by_length, said):
    record = compare_record(("fire", "rope"), seeds=(0,))
    for length, value in zip((64, 128, 256, 512, 1024), by_length, strict=True):
        changed(record, "fire", length, value)
    assert f"(1,024 tokens), {said}RoPE" in verdict(record)


@pytest.mark.parametrize(("seeds", "words"), [((0,), "With one seed, "), ((0, 1), "With two seeds, ")])
def test_few_seeds_claim_no_significance(seeds, words):
    said = verdict(compare_record(seeds=seeds))
    assert said.count(words) == 1
    assert "significantly" not in said


def test_a_lead_that_is_not_significant():
    far = {"a": [1.0, 1.0, 1.0], "b": [1.0, 1.001, 1.001], "c": [2.0, 2.0, 2.0]}
    assert verdict(record_of(far)).endswith("a has the lowest log perplexity (1.000), not significantly ahead of b.")
    del far["c"]
    assert "not significantly ahead of b." in verdict(record_of(far))
    missing = verdict(record_of({"a": [1.0, 1.0, None], "b": [2.0, 2.0, 2.0]}))
    assert "a has the lowest" in missing
    assert "not tested, because a seed is missing" in missing
    partly = {"a": [1.0, 1.0, 1.0], "b": [2.0, 2.0, 2.0], "c": [3.0, 3.0, 3.0], "d": [2.0, 2.0, None]}
    assert "significantly ahead of all others with all seeds" in verdict(record_of(partly))


def test_one_encoding_and_one_length():
    assert verdict(compare_record(("fire",))) == "Up to 16× the training length (1,024 tokens), FIRE loses 0.08 nats."
    one = verdict(record_of({"a": [1.0], "b": [2.0]}))
    assert one.startswith("At the training length, a has the lowest log perplexity (1.000). With one seed, ")
    assert "Up to" not in one


@pytest.mark.parametrize(
    ("trained", "lengths", "start"),
    [
        (64, (128, 512), "From 128 to 512 tokens (8× the training length), "),
        (96, (64, 144), "From 64 to 144 tokens (1.5× the training length), "),
        (1024, (64, 128), "At 128 tokens, "),
    ],
)
def test_lengths_without_the_training_length(trained, lengths, start):
    record = record_of({"a": [1.0], "b": [2.0]}, lengths)
    record["setting"]["trained_length"] = trained
    assert verdict(record).startswith(start)


def test_failures_are_named():
    record = compare_record()
    for value in (None, math.nan, math.inf):
        changed(record, "nope", 1024, value)
        assert "NoPE has no result past 512." in verdict(record)
    record["runs"] += [{"encoding": "t5", "label": "T5", "seed": 0, "failed": "no memory"}]
    record["interrupted"] = True
    assert "No result for T5. The experiment was interrupted" in verdict(record)
    assert "every run failed" in verdict(record_of({"a": [None], "b": [None]}))
    assert verdict(compare_record() | {"runs": []}) == "No run has finished yet."


def test_many_encodings_are_counted():
    record = record_of({f"e{i}": [1.0 + i] for i in range(7)}, (64, 128))
    assert "e0, e1, e2 and 4 others lose nothing" in verdict(record)
    for i, run in enumerate(record["runs"]):
        run["perplexity"]["rows"][1]["log_perplexity"] += 0.1 * (i + 1)
    assert "7 encodings lose 0.10 (e0) to 0.70 nats (e6)" in verdict(record)


def test_extended_models_are_named_as_extended():
    record = compare_record()
    for run in record["runs"]:
        if run["encoding"] == "rope":
            run["extended"] = {"from": "ALiBi", "to": 256, "steps": 10}
    assert "RoPE (extended to 256) 1.40" in verdict(record)


def test_other_texts_have_their_own_best():
    said = verdict(with_other_texts(compare_record()))
    assert "On latex, Kerple-log is lowest, significantly ahead of all others. On code, ALiBi is lowest, " in said


def test_barely_trained_models_and_little_text():
    record = record_of({"a": [5.4], "b": [5.5]}, (64, 128))
    assert verdict(record).startswith("Too early to tell")
    assert "a uniform guess scores 5.55" in verdict(record)
    assert "lowest" not in verdict(record)
    for amounts, little in (({}, False), ({"documents": 3}, True), ({"tokens": 512}, True)):
        record = compare_record()
        for run in record["runs"]:
            for row in run["perplexity"]["rows"]:
                row |= amounts
        assert ("Little text was scored" in verdict(record)) is little
