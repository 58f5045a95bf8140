"""Model benchmarks: which cases are measured, in which order, and what each call does."""

import pytest
import torch

from longfire import ENCODINGS
from longfire.bench import model_speed
from longfire.bench.benchmark import Case
from longfire.bench.model_speed import ModelBenchmark, add_ratios
from longfire.model import LongfireConfig

SMALL = {"size": "tiny", "forward": (), "training": (), "decoding": (), "tokens": 32, "seconds": 0.001}
NO_BIAS = [name for name, cls in ENCODINGS.items() if cls.bias is ENCODINGS["nope"].bias]


@pytest.fixture(autouse=True)
def _small_vocabulary(monkeypatch):
    of_size = LongfireConfig.of_size
    monkeypatch.setattr(LongfireConfig, "of_size", lambda name, **changes: of_size(name, vocab_size=64, **changes))


def small(**options):
    return ModelBenchmark.on("cpu", **(SMALL | options))


def case(kind, n, encoding, kernel=None):
    return Case(n, encoding, kernel, kind)


def test_batches_have_the_same_number_of_tokens():
    benchmark = small(tokens=64, decoding_batch=3)
    assert [benchmark.batch(case("forward", n, "fire")) for n in (16, 64, 100)] == [4, 1, 1]
    assert benchmark.batch(case("decoding", 1000, "fire")) == 3


def test_forward_is_measured_with_every_encoding_and_the_baseline_first():
    cases = small(forward=(16, 32), kernels=("flash", "cudnn")).cases()
    assert cases[:2] == [case("forward", 16, "rope", "flash"), case("forward", 16, "rope", "cudnn")]
    assert cases[2:4] == [case("forward", 16, "fire"), case("forward", 16, "fire-s")]
    assert [one.n for one in cases] == sorted(one.n for one in cases)
    at_16 = [one for one in cases if one.n == 16]
    assert len(at_16) == len(ENCODINGS) + 2  # FIRE-S, and the baseline's second kernel
    assert {one.engine for one in at_16 if one.encoding in NO_BIAS and one.encoding != "rope"} == {"cudnn"}
    assert {one.encoding for one in at_16} == {*ENCODINGS, "fire-s"}
    assert {one.encoding for one in cases if one.engine} == set(NO_BIAS)


def test_training_and_decoding_are_measured_with_rope_and_fire():
    options = {"forward": (8,), "training": (16,), "decoding": (32,), "kernels": ("flash", "cudnn")}
    assert small(**options, encodings=("t5",)).cases() == [
        case("forward", 8, "t5"),
        case("training", 16, "rope", "flash"),
        case("training", 16, "rope", "cudnn"),
        case("training", 16, "fire"),
        case("training", 16, "fire-s"),
        case("decoding", 32, "rope"),
        case("decoding", 32, "fire"),
        case("decoding", 32, "fire-s"),
    ]


@pytest.mark.parametrize("name", [*ENCODINGS, "fire-s"])
def test_the_measured_model(name):
    config = small().config(case("forward", 16, name))
    assert config.position_encoding["name"] == name.removesuffix("-s")
    assert config.share_position_encoding == (name == "fire-s")
    assert config.max_position_embeddings > 16
    assert (config.hidden_size, config.num_hidden_layers) == (128, 4)


def test_rows():
    options = {"forward": (16,), "training": (16,), "decoding": (24,), "encodings": ("rope", "fire")}
    benchmark = small(**options, decoding_batch=2)
    rows = benchmark.run()["rows"]
    for row, one in zip(rows, benchmark.cases(), strict=True):
        assert not {"failed", "not run"} & set(row), row
        assert (row["kind"], row["encoding"], row["n"], row["batch"]) == (one.kind, one.encoding, one.n, 2)
        assert 0 < row["fastest"] <= row["ms"] <= row["slowest"]
        tokens = 2 if one.kind == "decoding" else 2 * one.n
        assert row["tokens/s"] == pytest.approx(1e3 * tokens / row["ms"], rel=0.01, abs=0.5)  # rounded
        (base,) = (other for other in rows if (other["kind"], other["encoding"]) == (one.kind, "rope"))
        assert row[f"÷ rope ({base['engine']})"] == pytest.approx(row["ms"] / base["ms"], abs=1e-3)


def test_every_decoding_step_is_the_first_after_n(monkeypatch):
    """Otherwise the cache would grow during timing and overflow."""
    lengths = []
    original = model_speed.LongfireForCausalLM.forward

    def watched(self, *arguments, past_key_values, **options):
        lengths.append(int(past_key_values.get_seq_length()))
        return original(self, *arguments, past_key_values=past_key_values, **options)

    monkeypatch.setattr(model_speed.LongfireForCausalLM, "forward", watched)
    row = small(decoding_batch=2).measured(case("decoding", 24, "fire"))
    assert "failed" not in row, row
    assert len(lengths) >= 6
    assert set(lengths) == {24}


def test_training_trains(monkeypatch):
    models = []
    original = model_speed.training_step

    def watched(benchmark, model, *inputs):
        models.append((model, [parameter.detach().clone() for parameter in model.parameters()]))
        return original(benchmark, model, *inputs)

    monkeypatch.setitem(model_speed.CALLS, "training", watched)
    row = small(dtype="bfloat16").measured(case("training", 16, "fire"))
    assert "failed" not in row, row
    ((model, before),) = models
    assert {parameter.dtype for parameter in model.parameters()} == {torch.float32}
    changed = [not torch.equal(new, old) for new, old in zip(model.parameters(), before, strict=True)]
    assert sum(changed) > 0.9 * len(changed)


def test_ratios():
    def row(kind, encoding, engine, n=8, **found):
        return {"kind": kind, "encoding": encoding, "engine": engine, "n": n, **found}

    rows = [
        row("forward", "rope", "sdpa flash", ms=2.0),
        row("forward", "rope", "sdpa cudnn", ms=1.0),
        row("forward", "fire", "fused", ms=3.0),
        row("forward", "fire", "fused", n=16, ms=3.0),
        row("training", "fire", "fused", ms=3.0),
        row("forward", "t5", "fused", failed="out of memory"),
        row("decoding", "rope", "decode", failed="out of memory"),
        row("decoding", "fire", "decode", ms=3.0),
    ]
    add_ratios(rows)
    add_ratios(rows)  # called after every row: nothing changes
    assert (rows[0]["÷ rope (sdpa flash)"], rows[0]["÷ rope (sdpa cudnn)"]) == (1.0, 2.0)
    assert (rows[2]["÷ rope (sdpa flash)"], rows[2]["÷ rope (sdpa cudnn)"]) == (1.5, 3.0)
    assert not any("÷" in key for other in rows[3:] for key in other)
