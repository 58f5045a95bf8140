"""Perplexity by length: the tokens each protocol scores, and the record."""

import math
import sys
from itertools import pairwise

import numpy as np
import pytest
import torch

from longfire.evaluation.perplexity import PROTOCOLS, default_lengths, perplexity_by_length
from longfire.evaluation.scoring import Scorer
from longfire.evaluation.windows import find_windows
from tests.evaluation.foreign_models import DOCUMENTS, V, evaluate, plain_losses, split_of, whole_pieces
from tests.model.models import small_model


@pytest.mark.parametrize("protocol", PROTOCOLS)
def test_a_model_that_knows_nothing(protocol):
    """A uniform model has log V at every length and position, with an interval of width 0."""
    model = small_model()
    torch.nn.init.zeros_(model.lm_head.weight)
    for row in evaluate(model, lengths=(8, 16, 32), protocol=protocol)["rows"]:
        assert row["log_perplexity"] == pytest.approx(math.log(V), rel=1e-6)
        assert row["interval"] == pytest.approx([math.log(V)] * 2, rel=1e-6)
        assert all(part["loss"] == pytest.approx(math.log(V), rel=1e-6) for part in row["by_position"])
        assert "bits_per_byte" not in row
    for row in evaluate(model, split_of(*DOCUMENTS, bytes=2 * sum(DOCUMENTS)), protocol=protocol)["rows"]:
        assert row["bits_per_byte"] == pytest.approx(math.log2(V) / 2, rel=1e-6)


@pytest.mark.parametrize(("protocol", "scored"), [("paper", None), ("paired", None), ("paired", 15), ("paired", 1)])
def test_losses_by_position_average_to_the_whole(protocol, scored):
    for row in evaluate(small_model(), lengths=(16, 33, 64), protocol=protocol, scored=scored)["rows"]:
        parts, first = row["by_position"], 1 if protocol == "paper" else row["length"] - (scored or 8)
        assert [parts[0]["from"], parts[-1]["to"]] == [first, row["length"]]
        assert all(before["to"] == after["from"] for before, after in pairwise(parts))
        assert all(part["from"] & (part["from"] - 1) == 0 for part in parts[1:])
        assert sum(part["tokens"] for part in parts) == row["tokens"]
        total = sum(part["loss"] * part["tokens"] for part in parts)
        assert total / row["tokens"] == pytest.approx(row["log_perplexity"], rel=1e-12)


def test_loss_by_position():
    model, split = small_model(), split_of(*DOCUMENTS)
    (row,) = evaluate(model, split, lengths=(32,))["rows"]
    losses = plain_losses(model, whole_pieces(split, 32))
    assert [(part["from"], part["to"]) for part in row["by_position"]] == [(1, 2), (2, 4), (4, 8), (8, 16), (16, 32)]
    for part in row["by_position"]:
        assert part["loss"] == pytest.approx(losses[:, part["from"] - 1 : part["to"] - 1].mean().item(), rel=1e-5)


def test_paired_scores_the_same_tokens(monkeypatch):
    model, split, seen = small_model(), split_of(*DOCUMENTS), {}
    score = Scorer.__call__

    def recorded(self, ids, first=1):
        seen.setdefault(ids.shape[1], []).append(ids[:, first:])
        return score(self, ids, first)

    monkeypatch.setattr(Scorer, "__call__", recorded)
    record = evaluate(model, split, lengths=(16, 24, 64), protocol="paired", scored=10, batch_tokens=64)
    scored = {n: torch.cat(batches) for n, batches in seen.items()}
    windows = whole_pieces(split, 64)
    assert set(scored) == {16, 24, 64}
    assert all(np.array_equal(ids, windows[:, -10:]) for ids in scored.values())
    assert len({row["digest"] for row in record["rows"]}) == 1
    first, *others = record["rows"]
    assert "difference" not in first
    for row in record["rows"]:
        losses = plain_losses(model, windows[:, -row["length"] :], first=row["length"] - 10)
        assert row["log_perplexity"] == pytest.approx(losses.mean().item(), rel=1e-5)
        assert (row["sequences"], row["documents"], row["tokens"]) == (3, 3, 30)
    for row in others:
        change = row["difference"]
        assert change["from_length"] == 16
        assert change["loss"] == pytest.approx(row["log_perplexity"] - first["log_perplexity"], abs=1e-12)
        assert change["interval"][0] <= change["loss"] <= change["interval"][1]


def test_paper_scores_every_whole_piece_once():
    split = split_of(*DOCUMENTS)
    windows = find_windows(split, 16)
    assert np.array_equal(windows.ids(0, len(windows)), whole_pieces(split, 16))
    assert len(np.unique(windows.positions)) == len(windows) == sum(n // 16 for n in DOCUMENTS)
    assert windows.digest() != find_windows(split, 32).digest()


def test_a_limit_on_tokens():
    split = split_of(*[50] * 40)
    record = evaluate(small_model(), split, lengths=(10, 25), tokens=205)
    assert [row["sequences"] for row in record["rows"]] == [20, 8]
    again, other = (find_windows(split, 10, 205, seed) for seed in (0, 1))
    assert again.digest() == record["rows"][0]["digest"] != other.digest()
    assert len(np.unique(again.positions)) == 20  # none twice
    assert (np.diff(again.positions) > 0).all()
    assert [row["sequences"] for row in evaluate(small_model(), split, lengths=(25,), tokens=1)["rows"]] == [1]
    paired = evaluate(small_model(), split, lengths=(10, 25), tokens=205, protocol="paired")
    assert [row["sequences"] for row in paired["rows"]] == [8, 8]


def test_the_same_seed_gives_the_same_record():
    model, split = small_model(), split_of(*[50] * 20)
    records = [evaluate(model, split, tokens=200, seed=seed) for seed in (4, 4, 5)]
    for record in records:
        for row in record["rows"]:
            del row["seconds"]
    assert records[0] == records[1] != records[2]


@pytest.mark.parametrize("batch_tokens", [1, 40, 1000])
def test_batches_do_not_matter(batch_tokens):
    model = small_model()
    record, expected = evaluate(model, batch_tokens=batch_tokens), evaluate(model)
    for row, other in zip(record["rows"], expected["rows"], strict=True):
        assert row["log_perplexity"] == pytest.approx(other["log_perplexity"], rel=1e-5)
        assert row["batch"] == max(1, batch_tokens // row["length"])


def test_bfloat16():
    model, split = small_model(), split_of(*DOCUMENTS)
    exact = evaluate(model, split)["rows"]
    for row, other in zip(evaluate(model.bfloat16(), split)["rows"], exact, strict=True):
        assert row["log_perplexity"] == pytest.approx(other["log_perplexity"], rel=0.05)
        windows = whole_pieces(split, row["length"])
        assert row["log_perplexity"] == pytest.approx(plain_losses(model, windows).mean().item(), rel=1e-2)


def test_a_length_no_document_has():
    rows = evaluate(small_model(), lengths=(64, 101))["rows"]
    assert rows[0]["sequences"] == 3
    assert "the longest has 100" in rows[1]["failed"]
    for row in evaluate(small_model(), lengths=(16, 101), protocol="paired")["rows"]:
        assert "101 tokens" in row["failed"]


def test_out_of_memory(monkeypatch):
    """The batch is halved; a length that fails with one window fails alone."""
    score = Scorer.__call__

    def limited(self, ids, first=1):
        if ids.numel() > 40:
            raise torch.OutOfMemoryError("CUDA out of memory. Tried to allocate 2 GB.\nMore of it.")
        return score(self, ids, first)

    expected = evaluate(small_model())["rows"][0]["log_perplexity"]
    monkeypatch.setattr(Scorer, "__call__", limited)
    fits, fails = evaluate(small_model(), lengths=(16, 64))["rows"]
    assert fits["batch"] == 2
    assert fits["log_perplexity"] == pytest.approx(expected, rel=1e-5)
    assert "out of memory" in fails["failed"]
    assert "CUDA out of memory. Tried" in fails["failed"]
    assert "\n" not in fails["failed"]


def test_losses_that_are_not_finite():
    model = small_model()
    with torch.no_grad():
        model.model.norm.weight[0] = float("nan")
    row = evaluate(model)["rows"][0]
    assert "not finite in 17 of 17" in row["failed"]
    assert "log_perplexity" not in row


def test_other_errors_of_a_model_are_recorded(monkeypatch):
    def broken(self, ids, first=1):
        raise RuntimeError("shapes do not fit")

    monkeypatch.setattr(Scorer, "__call__", broken)
    assert evaluate(small_model())["rows"][0]["failed"] == "RuntimeError: shapes do not fit"


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ({"lengths": ()}, "at least one length"),
        ({"lengths": (1,)}, "a length must be at least 2, not 1"),
        ({"protocol": "papr"}, "Did you mean 'paper'"),
        ({"tokens": 0}, "tokens must be at least 1"),
        ({"batch_tokens": 0}, "batch_tokens must be at least 1"),
        ({"scored": 4}, "scored=4 needs protocol 'paired'"),
        ({"lengths": (32, 16), "scored": 16, "protocol": "paired"}, "Score at most 15"),
        ({"split": split_of(90, vocabulary=5000)}, "the model's vocabulary has 61"),
    ],
)
def test_refusals(options, message):
    with pytest.raises(ValueError, match=message):
        evaluate(small_model(), **options)


def test_lengths_are_sorted_and_unique():
    assert [row["length"] for row in evaluate(small_model(), lengths=[32, 16, 32])["rows"]] == [16, 32]


def test_default_lengths():
    assert default_lengths(None) == default_lengths(2048) == (512, 1024, 2048, 4096, 8192)
    assert default_lengths(64) == (64, 128, 256, 512, 1024)


def test_progress_is_a_bar_on_a_terminal_and_a_line_elsewhere(capsys, monkeypatch):
    rows = perplexity_by_length(small_model(), split_of(*DOCUMENTS), (16, 101))["rows"]
    done, failed = capsys.readouterr().err.splitlines()
    assert done.startswith(f"16 tokens: log perplexity {rows[0]['log_perplexity']:.4f}, ")
    assert failed.startswith("101 tokens: no document")
    monkeypatch.setattr(sys.stderr, "isatty", lambda: True)
    perplexity_by_length(small_model(), split_of(*DOCUMENTS), (16,))
    assert "\r16 tokens:   0%|" in (shown := capsys.readouterr().err)
    assert "log perplexity" not in shown
