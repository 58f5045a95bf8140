"""Attention benchmarks: which cases are measured or refused, and what a row contains."""

import pytest
import torch

from longfire.bench.attention_speed import AttentionBenchmark, add_ratios, attend
from longfire.bench.benchmark import Case
from longfire.engines import ENGINES, attention
from longfire.engines.reference import Reference

PLAIN = tuple(name for name in ENGINES if name != "fused")  # fused needs a GPU or a slow interpreter


def small(**options):
    given = {"lengths": (16,), "heads": 2, "head_dim": 8, "seconds": 0.0, "engines": ("sdpa",), "encodings": ("alibi",)}
    return AttentionBenchmark.on("cpu", **(given | options))


class Other(Reference):
    name = "other"

    def run(self, request):
        return super().run(request)


@pytest.fixture
def other(monkeypatch):
    monkeypatch.setitem(ENGINES, "other", Other())
    return Other


def test_batches_have_the_same_number_of_tokens(monkeypatch):
    assert AttentionBenchmark.on("cpu").batch(Case(8, "fire")) == 1
    monkeypatch.setattr(torch.cuda, "is_available", lambda: True)
    gpu = AttentionBenchmark.on()
    assert [gpu.batch(Case(n, "fire")) for n in (2048, 8192, 32768, 65536)] == [16, 4, 1, 1]


def test_cases():
    engines = list(ENGINES)
    cases = AttentionBenchmark.on("cpu").cases()
    assert cases[: 1 + len(engines)] == [Case(512, "no bias", "sdpa"), *(Case(512, "fire", name) for name in engines)]
    assert len(cases) == 2 * (1 + 6 * len(engines))
    assert small(encodings=("alibi", "fire"), shared_layers=3).cases() == [
        Case(16, "no bias", "sdpa"),
        Case(16, "alibi", "sdpa"),
        Case(16, "fire", "sdpa"),
        Case(16, "fire-s", "sdpa", layers=3),
    ]


def test_rows():
    rows = small(encodings=("fire", "alibi"), engines=PLAIN, shared_layers=2, tokens=32).run()["rows"]
    assert len(rows) == 1 + 3 * len(PLAIN)
    for row in rows:
        assert row["batch"] == 2
        assert row["forward"]["fastest"] <= row["forward"]["ms"] <= row["forward"]["slowest"]
        assert row["forward + backward"]["calls"] >= 3
        assert row["errors"]["output"][0] < 1e-5
        assert row["÷ sdpa without bias"]["forward"] > 0
        assert ("layers" in row) == ("÷ not shared" in row) == (row["encoding"] == "fire-s")


def test_the_timed_call_is_attention():
    layers, encoding = small().inputs(Case(16, "fire", "sdpa"))
    expected = attention(*layers[0], encoding, impl="reference")
    for case in (Case(16, "fire", "sdpa"), Case(16, "fire-s", "sdpa")):
        torch.testing.assert_close(attend(case, layers, encoding)[0], expected)
    plain = attend(Case(16, "no bias", "sdpa"), layers, None)[0]
    torch.testing.assert_close(plain, attention(*layers[0], impl="reference"))


def test_gradients_reach_everything(monkeypatch):
    asked = []
    grad = torch.autograd.grad

    def watched(outputs, inputs, *rest, **options):
        asked.append(len(inputs))
        return grad(outputs, inputs, *rest, **options)

    monkeypatch.setattr(torch.autograd, "grad", watched)
    assert "failed" not in small().measured(Case(16, "fire", "sdpa"))
    assert asked[-1] == 3 + 8  # q, k, v; c, L, and weights and biases of three layers
    small().measured(Case(16, "fire-s", "sdpa", layers=3))
    assert asked[-1] == 3 * 3 + 8


def test_a_wrong_engine_is_not_timed(other, monkeypatch):
    monkeypatch.setattr(other, "run", lambda self, request: 1.01 * Reference().run(request))
    _, wrong, right = small(engines=("other", "sdpa")).run()["rows"]
    assert wrong["wrong"].startswith("output: error ")
    assert not {"forward", "forward + backward", "÷ sdpa without bias"} & set(wrong)
    assert wrong["errors"]["output"][0] > 1e-3
    assert right["forward + backward"]["ms"] > 0


def test_baselines_are_never_called_wrong(monkeypatch):
    monkeypatch.setattr("longfire.bench.correctness.verdict", lambda *_: "wrong")
    rows = small().run()["rows"]
    assert [set(row) & {"wrong", "forward"} for row in rows] == [{"forward"}, {"wrong"}]


def test_a_refused_case_is_not_run(other, monkeypatch):
    monkeypatch.setattr(other, "refuses", lambda self, request: "it is Sunday")
    row = small(engines=("other",)).run()["rows"][1]
    assert "other: it is Sunday" in row["not run"]
    assert "errors" not in row


@pytest.mark.parametrize(("error", "key"), [(torch.OutOfMemoryError("no"), "not run"), (RuntimeError("a"), "failed")])
def test_a_failure_says_at_which_stage(other, monkeypatch, error, key):
    def run(self, request):
        if request.q.shape[1] == 4 and torch.is_grad_enabled():  # timed, not checked
            raise error
        return Reference().run(request)

    monkeypatch.setattr(other, "run", run)
    row = small(heads=4, engines=("other",)).run()["rows"][1]
    assert row[key].startswith("forward + backward: ")
    assert row["forward"]["ms"] > 0
    assert "forward + backward" not in row


def test_gradients_of_an_interpolated_bias_have_a_wider_bound(other, monkeypatch):
    errors = {"gradient of the parameters": (0.13, 0.03)}
    monkeypatch.setattr("longfire.bench.correctness.check", lambda attend, sample: errors)
    assert "wrong" in small(engines=("other",), encodings=("fire",)).run()["rows"][1]
    monkeypatch.setattr(other, "interpolates", ENGINES["fused"].interpolates)
    fire, alibi = small(engines=("other",), encodings=("fire", "alibi")).run()["rows"][1:]
    assert "wrong" not in fire
    assert "wrong" in alibi


def test_a_case_that_does_not_fit_is_not_run(other, monkeypatch):
    monkeypatch.setattr(other, "dense", False, raising=False)
    maps = 4 * 2 * 64**2  # bytes of (heads × 64 × 64): 5 of them are needed forward at 64, and 20 at 128
    monkeypatch.setattr("longfire.bench.timing._proc", lambda path, key: 15 * maps)
    rows = small(lengths=(16, 64, 128), engines=("sdpa", "other"), encodings=("alibi",)).run()["rows"]
    missing = {(row["engine"], row["n"]): row["not run"] for row in rows if "not run" in row}
    assert set(missing) == {("sdpa", 64), ("sdpa", 128)}
    assert missing["sdpa", 64].startswith("forward + backward: needs about")
    assert missing["sdpa", 128].startswith("forward: needs about")


def test_memory_is_predicted_on_the_cpu_only(monkeypatch):
    monkeypatch.setattr("longfire.bench.timing._proc", lambda path, key: 1)
    monkeypatch.setattr(torch.cuda, "is_available", lambda: True)
    gpu = AttentionBenchmark.on("cuda")
    assert not any(gpu.shortage(case, "forward") for case in gpu.cases())
    for case in small(lengths=(64,)).cases():
        assert (small().shortage(case, "forward") is None) == (case.encoding == "no bias")


def test_ratios():
    def row(encoding, engine, forward, both=None, mb=None, n=8):
        found = {"encoding": encoding, "engine": engine, "n": n, "forward": {"ms": forward}}
        return found | ({} if both is None else {"forward + backward": {"ms": both, "peak_mb": mb}})

    rows = [
        row("no bias", "flash", 2.0, 4.0, 10.0),
        row("no bias", "cudnn", 1.0, 2.0, 0.0),
        row("fire", "fused", 3.0, 6.0, 15.0),
        row("fire-s", "fused", 2.0, 3.0, 15.0),
        row("alibi", "sdpa", 5.0),
        {"encoding": "t5", "engine": "sdpa", "n": 8, "wrong": "…"},
        row("fire", "fused", 3.0, 6.0, 15.0, n=16),
    ]
    add_ratios(rows)
    assert rows[0]["÷ flash"] == {"forward": 1.0, "forward + backward": 1.0, "memory": 1.0}
    assert rows[2]["÷ flash"] == {"forward": 1.5, "forward + backward": 1.5, "memory": 1.5}
    assert rows[2]["÷ cudnn"] == {"forward": 3.0, "forward + backward": 3.0}
    assert rows[3]["÷ not shared"] == {"forward": 0.667, "forward + backward": 0.5, "memory": 1.0}
    assert rows[4]["÷ flash"] == {"forward": 2.5}
    assert "÷ sdpa without bias" not in rows[2]
    assert not any("÷" in key for index in (5, 6) for key in rows[index])


@pytest.mark.gpu
def test_on_a_gpu():
    options = {"lengths": (256,), "tokens": 512, "heads": 4, "seconds": 0.01, "encodings": ("fire",)}
    rows = AttentionBenchmark.on("cuda", **options).run()["rows"]
    assert [row["engine"] for row in rows[:2]] == ["flash", "cudnn"]
    for row in rows:
        assert not {"wrong", "failed"} & set(row), row
        assert "not run" in row or row["÷ flash"]["forward + backward"] > 0
        assert "not run" in row or row["forward + backward"]["calls"] >= 3
