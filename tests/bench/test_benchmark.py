"""What all benchmarks share: checked settings, defaults by device, and a loop that nothing stops but Ctrl-C."""

import pytest
import torch

from longfire.bench.attention_speed import AttentionBenchmark
from longfire.bench.benchmark import Case
from longfire.bench.bias_speed import BiasBenchmark
from longfire.bench.model_speed import ModelBenchmark
from longfire.provenance import kernel_hash

BENCHMARKS = (BiasBenchmark, AttentionBenchmark, ModelBenchmark)


@pytest.mark.parametrize(
    ("kind", "options", "message"),
    [
        *((kind, {"device": "gpu"}, "the device cannot be 'gpu'") for kind in BENCHMARKS),
        *((kind, {"dtype": "float64"}, "the dtype cannot be 'float64'") for kind in BENCHMARKS),
        *((kind, {"seconds": -1.0}, "seconds must be at least 0") for kind in BENCHMARKS),
        *((kind, {"encodings": ("fier",)}, "Did you mean 'fire'") for kind in BENCHMARKS),
        *((kind, {"encodings": ("nope",)}, "'nope' has no bias") for kind in BENCHMARKS[:2]),
        *((kind, {"lengths": (0,)}, "a length must be at least 1") for kind in BENCHMARKS[:2]),
        *((kind, {"heads": 0}, "heads must be at least 1") for kind in BENCHMARKS[:2]),
        *((kind, {"tokens": 0}, "tokens must be at least 1") for kind in BENCHMARKS[1:]),
        (AttentionBenchmark, {"shared_layers": -1}, "shared_layers must be at least 0"),
        (AttentionBenchmark, {"engines": ("spda",)}, "engine named 'spda'. Did you mean 'sdpa'"),
        (ModelBenchmark, {"size": "bse"}, "Did you mean 'base'"),
        (ModelBenchmark, {"decoding_batch": 0}, "decoding_batch must be at least 1"),
        *((ModelBenchmark, {kind: (0,)}, "a length must be") for kind in ("forward", "training", "decoding")),
    ],
)
def test_settings_are_checked(kind, options, message):
    with pytest.raises(ValueError, match=message):
        kind.on(**({"device": "cpu"} | options))


@pytest.mark.parametrize("kind", BENCHMARKS[1:])
def test_defaults_depend_on_the_device(kind, monkeypatch):
    monkeypatch.setattr(torch.cuda, "is_available", lambda: False)
    assert kind.on() == kind.on("cpu")
    assert kind.on().dtype == "float32"
    with pytest.raises(ValueError, match="no CUDA device"):
        kind.on("cuda")
    monkeypatch.setattr(torch.cuda, "is_available", lambda: True)
    assert (kind.on().device, kind.on().dtype) == ("cuda", "bfloat16")
    assert kind.on(tokens=None, dtype="float32").tokens == 32768
    assert BiasBenchmark.on().device == "cpu"


def stub(monkeypatch, found):
    """A bias benchmark of four encodings, whose FIRE finds this, or raises it."""

    def measure(self, case, row):
        if case.encoding == "fire" and isinstance(found, BaseException):
            raise found
        row["ms"] = 1.0

    monkeypatch.setattr(BiasBenchmark, "measure", measure)
    return BiasBenchmark.on(lengths=(8,), encodings=("alibi", "fire", "t5"))


@pytest.mark.parametrize(
    ("error", "key", "reason"),
    [
        (torch.OutOfMemoryError("no"), "not run", "out of memory ("),
        (RuntimeError("a kernel\nfailed"), "failed", "RuntimeError: a kernel"),
        (RuntimeError(), "failed", "RuntimeError:"),
    ],
)
def test_a_failure_costs_no_other_row(error, key, reason, monkeypatch):
    before, failed, after = stub(monkeypatch, error).run()["rows"]
    assert failed[key].startswith(reason)
    assert before["ms"] == after["ms"] == 1.0


def test_the_record_is_saved_after_each_row(monkeypatch):
    saved = []
    benchmark = stub(monkeypatch, None)
    record = benchmark.run(lambda record: saved.append((len(record["rows"]), "interrupted" in record)))
    assert saved == [(1, True), (2, True), (3, True), (3, False)]
    assert record["setting"]["subject"] == "bias"
    assert record["provenance"]["versions"]["torch"] == torch.__version__
    assert record["provenance"]["kernels"] == kernel_hash()


def test_an_interrupted_run_keeps_its_rows(monkeypatch):
    saved = []
    record = stub(monkeypatch, KeyboardInterrupt()).run(lambda record: saved.append(len(record["rows"])))
    assert record["interrupted"] is True
    assert [row["encoding"] for row in record["rows"]] == ["alibi"]
    assert saved == [1, 1]


def test_cases_have_names():
    assert str(Case(16, "rope", "flash", "training")) == "training rope flash n=16"
    assert str(Case(16, "fire")) == "fire n=16"


def test_a_bias_that_does_not_fit_is_not_computed(monkeypatch):
    monkeypatch.setattr("longfire.bench.timing._proc", lambda path, key: 10**6)
    rows = BiasBenchmark.on(lengths=(8, 1024), heads=2, seconds=0.0, encodings=("alibi",)).run()["rows"]
    assert rows[0]["ms"] > 0
    assert "GB free" in rows[1]["not run"]
