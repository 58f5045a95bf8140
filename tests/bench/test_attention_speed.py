"""The measuring of attention: what is measured, what is refused, what is kept."""

import pytest
import torch

from longfire.bench import attention_speed as speed
from longfire.bench.attention_speed import Case, Setting, add_ratios, measure
from longfire.engines import ENGINES, attention
from longfire.engines.reference import Reference
from longfire.provenance import provenance

PLAIN = tuple(name for name in ENGINES if name != "fused")  # that one needs a GPU, or an interpreter that is slow


def small(**options):
    given = {"lengths": (16,), "heads": 2, "head_dim": 8, "seconds": 0.0, "engines": ("sdpa",), "encodings": ("alibi",)}
    return Setting.on("cpu", **(given | options))


class Other(Reference):
    name = "other"

    def run(self, request):
        return super().run(request)


@pytest.fixture
def other(monkeypatch):
    monkeypatch.setitem(ENGINES, "other", Other())
    return Other


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ({"device": "gpu"}, "the device cannot be 'gpu'"),
        ({"dtype": "float64"}, "the dtype cannot be 'float64'"),
        ({"lengths": (0,)}, "a length must be at least 1"),
        ({"tokens": 0}, "tokens must be at least 1"),
        ({"shared_layers": -1}, "shared_layers must be at least 0"),
        ({"engines": ("spda",)}, "there is no engine named 'spda'. Did you mean 'sdpa'"),
        ({"encodings": ("fier",)}, "Did you mean 'fire'"),
        ({"encodings": ("nope",)}, "'nope' has no bias to measure"),
    ],
)
def test_settings_are_checked(options, message):
    with pytest.raises(ValueError, match=message):
        Setting.on(**({"device": "cpu"} | options))


def test_what_is_usual_depends_on_the_device(monkeypatch):
    monkeypatch.setattr(torch.cuda, "is_available", lambda: False)
    assert Setting.on() == Setting.on("cpu")
    assert Setting.on("cpu").dtype == "float32"
    assert Setting.on("cpu", lengths=(8, 4096)).batch(8) == 1
    with pytest.raises(ValueError, match="no CUDA device"):
        Setting.on("cuda")
    monkeypatch.setattr(torch.cuda, "is_available", lambda: True)
    gpu = Setting.on()
    assert (gpu.device, gpu.dtype, gpu.lengths) == ("cuda", "bfloat16", (2048, 8192, 32768))
    assert [gpu.batch(n) for n in (2048, 8192, 32768, 65536)] == [16, 4, 1, 1]
    assert Setting.on(tokens=None, dtype="float32").tokens == 32768


def test_cases():
    engines = list(ENGINES)
    cases = Setting.on("cpu").cases()
    assert cases[: 1 + len(engines)] == [Case(512, "no bias", "sdpa"), *(Case(512, "fire", name) for name in engines)]
    assert len(cases) == 2 * (1 + 6 * len(engines))
    assert small(encodings=("alibi", "fire"), shared_layers=3).cases() == [
        Case(16, "no bias", "sdpa"),
        Case(16, "alibi", "sdpa"),
        Case(16, "fire", "sdpa"),
        Case(16, "fire-s", "sdpa", 3),
    ]


def test_rows():
    record = measure(small(encodings=("fire", "alibi"), engines=PLAIN, shared_layers=2, tokens=32))
    assert "interrupted" not in record
    assert record["setting"]["subject"] == "attention"
    assert len(record["rows"]) == 1 + 3 * len(PLAIN)
    for row in record["rows"]:
        assert row["batch"] == 2
        assert row["forward"]["fastest"] <= row["forward"]["ms"] <= row["forward"]["slowest"]
        assert row["forward + backward"]["calls"] >= 3
        assert row["errors"]["output"][0] < 1e-5
        assert row["÷ sdpa without bias"]["forward"] > 0
        assert ("layers" in row) == ("÷ not shared" in row) == (row["encoding"] == "fire-s")


def test_gradients_reach_everything(monkeypatch):
    asked = []
    grad = torch.autograd.grad

    def watched(outputs, inputs, *rest, **options):
        asked.append(len(inputs))
        return grad(outputs, inputs, *rest, **options)

    monkeypatch.setattr(torch.autograd, "grad", watched)
    row = speed.measure_case(small(), Case(16, "fire", "sdpa"))
    assert "failed" not in row
    assert asked[-1] == 3 + 8  # q, k, v; c, L, and weights and biases of three layers
    speed.measure_case(small(), Case(16, "fire-s", "sdpa", 3))
    assert asked[-1] == 3 * 3 + 8


def test_a_wrong_engine_is_not_timed(other, monkeypatch):
    monkeypatch.setattr(other, "run", lambda self, request: 1.01 * Reference().run(request))
    rows = measure(small(engines=("other", "sdpa")))["rows"]
    assert rows[1]["wrong"].startswith("output: error ")
    assert "where eager's is" in rows[1]["wrong"]
    assert not {"forward", "forward + backward", "÷ sdpa without bias"} & set(rows[1])
    assert rows[1]["errors"]["output"][0] > 1e-3
    assert rows[2]["forward + backward"]["ms"] > 0


def test_baselines_are_measured_as_they_are(monkeypatch):
    monkeypatch.setattr("longfire.bench.correctness.verdict", lambda *_: "wrong")
    rows = measure(small())["rows"]
    assert [set(row) & {"wrong", "forward"} for row in rows] == [{"forward"}, {"wrong"}]


def test_a_refusal_is_not_run(other, monkeypatch):
    monkeypatch.setattr(other, "refuses", lambda self, request: "it is Sunday")
    row = measure(small(engines=("other",)))["rows"][1]
    assert "other: it is Sunday" in row["not run"]
    assert "errors" not in row


@pytest.mark.parametrize(
    ("error", "key", "message"),
    [
        (torch.OutOfMemoryError("no"), "not run", "forward + backward: out of memory ("),
        (RuntimeError("a kernel\nfailed"), "failed", "forward + backward: RuntimeError: a kernel"),
        (RuntimeError(), "failed", "forward + backward: RuntimeError:"),
    ],
)
def test_what_fails_costs_no_other_row(other, monkeypatch, error, key, message):
    def run(self, request):
        if request.q.shape[1] == 4 and torch.is_grad_enabled():  # timed, not checked
            raise error
        return Reference().run(request)

    monkeypatch.setattr(other, "run", run)
    rows = measure(small(heads=4, engines=("other", "sdpa")))["rows"]
    assert rows[1][key].startswith(message)
    assert rows[1]["forward"]["ms"] > 0
    assert "forward + backward" not in rows[1]
    assert "forward + backward" in rows[2]


def test_what_does_not_fit_is_not_run(other, monkeypatch):
    monkeypatch.setattr(other, "dense", False, raising=False)
    maps = 4 * 2 * 64**2  # bytes of (heads × 64 × 64): 5 of them are needed forward at 64, and 20 at 128
    monkeypatch.setattr(speed, "available_memory", lambda: 15 * maps)
    rows = measure(small(lengths=(16, 64, 128), engines=("sdpa", "other"), encodings=("alibi",)))["rows"]
    missing = {(row["engine"], row["n"]): row["not run"] for row in rows if "not run" in row}
    assert set(missing) == {("sdpa", 64), ("sdpa", 128)}
    assert missing["sdpa", 64].startswith("forward + backward: needs about")
    assert missing["sdpa", 128].startswith("forward: needs about")


def test_memory_is_predicted_on_the_cpu_alone(monkeypatch):
    monkeypatch.setattr(speed, "available_memory", lambda: 0.0)
    monkeypatch.setattr(torch.cuda, "is_available", lambda: True)
    assert not any(speed._too_big(Setting.on("cuda"), case, "forward") for case in Setting.on("cuda").cases())
    for case in small(lengths=(64,)).cases():
        assert (speed._too_big(small(), case, "forward") is None) == (case.encoding == "no bias")


def test_an_interrupted_run_keeps_its_rows(other, monkeypatch):
    def stop(self, request):
        raise KeyboardInterrupt

    saved = []
    monkeypatch.setattr(other, "run", stop)
    record = measure(small(engines=("sdpa", "other")), lambda record: saved.append(len(record["rows"])))
    assert record["interrupted"] is True
    assert [row["engine"] for row in record["rows"]] == ["sdpa", "sdpa"]
    assert saved == [1, 2, 2]


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
    setting = Setting.on("cuda", lengths=(256,), tokens=512, heads=4, seconds=0.01, encodings=("fire",))
    rows = measure(setting)["rows"]
    assert [row["engine"] for row in rows[:2]] == ["flash", "cudnn"]
    for row in rows:
        assert not {"wrong", "failed"} & set(row), row
        assert "not run" in row or row["÷ flash"]["forward + backward"] > 0
        assert "not run" in row or row["forward + backward"]["calls"] >= 10


def test_the_timed_call_is_attention():
    layers, encoding = speed._inputs(small(), Case(16, "fire", "sdpa"))
    expected = attention(*layers[0], encoding, impl="reference")
    for case in (Case(16, "fire", "sdpa"), Case(16, "fire-s", "sdpa")):
        torch.testing.assert_close(speed._attend(case, layers, encoding)[0], expected)
    plain = speed._attend(Case(16, "no bias", "sdpa"), layers, None)[0]
    torch.testing.assert_close(plain, attention(*layers[0], impl="reference"))


def test_provenance():
    record = provenance()
    assert record["versions"]["torch"] == torch.__version__
    assert record["hardware"]["cores"] >= 1
    assert set(record) == {"date", "commit", "hardware", "versions"}
