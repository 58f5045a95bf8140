"""The measuring of whole models: what is measured, in which order, and what is kept when something fails."""

import json

import pytest
import torch

from longfire import ENCODINGS
from longfire.bench import model_speed
from longfire.bench.model_speed import Case, ModelSetting, add_ratios, measure_case, measure_model
from longfire.cli import main
from longfire.model import LongfireConfig
from longfire.provenance import kernel_hash

SMALL = {"size": "tiny", "forward": (), "training": (), "decoding": (), "tokens": 32, "seconds": 0.001}
NO_BIAS = [name for name, cls in ENCODINGS.items() if cls.bias is ENCODINGS["nope"].bias]


@pytest.fixture(autouse=True)
def _few_words(monkeypatch):
    """A small vocabulary: these tests are about what is measured, not how fast it is."""
    of_size = LongfireConfig.of_size
    monkeypatch.setattr(LongfireConfig, "of_size", lambda name, **changes: of_size(name, vocab_size=64, **changes))


def small(**options):
    return ModelSetting.on("cpu", **(SMALL | options))


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ({"device": "gpu"}, "the device cannot be 'gpu'"),
        ({"dtype": "float64"}, "the dtype cannot be 'float64'"),
        ({"size": "bse"}, "the size cannot be 'bse'. Did you mean 'base'"),
        ({"tokens": 0}, "tokens must be at least 1"),
        ({"decoding_batch": 0}, "decoding_batch must be at least 1"),
        ({"seconds": 0.0}, "seconds must be above 0"),
        ({"forward": (0,)}, "a length must be at least 1"),
        ({"training": (0,)}, "a length must be at least 1"),
        ({"decoding": (-8,)}, "a length must be at least 1"),
        ({"encodings": ("fier",)}, "there is no encoding named 'fier'. Did you mean 'fire'"),
    ],
)
def test_settings_are_checked(options, message):
    with pytest.raises(ValueError, match=message):
        ModelSetting.on(**({"device": "cpu"} | options))


def test_what_is_usual_depends_on_the_device(monkeypatch):
    monkeypatch.setattr(torch.cuda, "is_available", lambda: False)
    assert ModelSetting.on() == ModelSetting.on("cpu")
    assert (ModelSetting.on().size, ModelSetting.on().compile) == ("tiny", False)
    with pytest.raises(ValueError, match="no CUDA device"):
        ModelSetting.on("cuda")
    monkeypatch.setattr(torch.cuda, "is_available", lambda: True)
    gpu = ModelSetting.on()
    assert (gpu.device, gpu.dtype, gpu.size, gpu.compile) == ("cuda", "bfloat16", "base", True)
    assert ModelSetting.on(tokens=None, dtype="float32").tokens == gpu.tokens


def test_batches_have_as_many_tokens_at_every_length():
    setting = small(tokens=64, decoding_batch=3)
    assert [setting.batch(Case("forward", n, "fire")) for n in (16, 64, 100)] == [4, 1, 1]
    assert setting.batch(Case("decoding", 1000, "fire")) == 3


def test_forward_is_measured_with_every_encoding_and_the_baseline_first():
    cases = small(forward=(16, 32), kernels=("flash", "cudnn")).cases()
    assert cases[:2] == [Case("forward", 16, "rope", "flash"), Case("forward", 16, "rope", "cudnn")]
    assert cases[2:4] == [Case("forward", 16, "fire"), Case("forward", 16, "fire-s")]
    assert [case.n for case in cases] == sorted(case.n for case in cases)
    at_16 = [case for case in cases if case.n == 16]
    assert len(at_16) == len(ENCODINGS) + 2  # shared FIRE, and the baseline's second kernel
    assert {case.kernel for case in at_16 if case.encoding in NO_BIAS and case.encoding != "rope"} == {"cudnn"}
    assert {case.encoding for case in at_16} == {*ENCODINGS, "fire-s"}
    assert {case.encoding for case in cases if case.kernel} == set(NO_BIAS)


def test_training_and_decoding_are_measured_with_rope_and_fire():
    setting = small(forward=(8,), training=(16,), decoding=(32,), kernels=("flash", "cudnn"), encodings=("t5",))
    assert setting.cases() == [
        Case("forward", 8, "t5"),
        Case("training", 16, "rope", "flash"),
        Case("training", 16, "rope", "cudnn"),
        Case("training", 16, "fire"),
        Case("training", 16, "fire-s"),
        Case("decoding", 32, "rope"),
        Case("decoding", 32, "fire"),
        Case("decoding", 32, "fire-s"),
    ]
    assert str(setting.cases()[1]) == "training rope flash n=16"
    assert str(setting.cases()[3]) == "training fire n=16"


@pytest.mark.parametrize("case", [Case("forward", 16, name) for name in (*ENCODINGS, "fire-s")], ids=str)
def test_the_model_that_is_measured(case):
    config = small().config(case)
    assert config.position_encoding["name"] == case.encoding.removesuffix("-s")
    assert config.share_position_encoding == (case.encoding == "fire-s")
    assert config.max_position_embeddings > case.n
    assert (config.hidden_size, config.num_hidden_layers) == (128, 4)


def test_rows():
    saved = []
    setting = small(forward=(16,), training=(16,), decoding=(24,), encodings=("rope", "fire"), decoding_batch=2)
    record = measure_model(setting, lambda record: saved.append((len(record["rows"]), "interrupted" in record)))
    assert "interrupted" not in record
    assert saved == [*((number, True) for number in range(1, 9)), (8, False)]
    assert record["setting"]["subject"] == "model"
    assert json.loads(json.dumps(record))["provenance"]["versions"]["torch"] == torch.__version__
    assert record["provenance"]["kernels"] == kernel_hash()
    for row, case in zip(record["rows"], setting.cases(), strict=True):
        assert "failed" not in row, row
        assert (row["kind"], row["encoding"], row["n"]) == (case.kind, case.encoding, case.n)
        assert row["batch"] == 2
        assert 0 < row["fastest"] <= row["ms"] <= row["slowest"]
        tokens = 2 if case.kind == "decoding" else 2 * case.n
        assert row["tokens/s"] == pytest.approx(1e3 * tokens / row["ms"], rel=0.01)
        (ratio,) = (key for key in row if key.startswith("÷ rope"))
        (base,) = (other for other in record["rows"] if (other["kind"], other["encoding"]) == (case.kind, "rope"))
        assert ratio == f"÷ rope ({base['engine']})"
        assert row[ratio] == pytest.approx(row["ms"] / base["ms"], abs=1e-3)


def test_every_decoding_step_is_the_first_after_n(monkeypatch):
    """Or the cache would grow, and run out of room, while the clock runs."""
    lengths = []
    original = model_speed.LongfireForCausalLM.forward

    def watched(self, *arguments, past_key_values, **options):
        lengths.append(int(past_key_values.get_seq_length()))
        return original(self, *arguments, past_key_values=past_key_values, **options)

    monkeypatch.setattr(model_speed.LongfireForCausalLM, "forward", watched)
    row = measure_case(small(decoding_batch=2), Case("decoding", 24, "fire"))
    assert "failed" not in row, row
    assert len(lengths) >= 6
    assert set(lengths) == {24}


def test_training_trains(monkeypatch):
    models = []
    original = model_speed.measure_training

    def watched(setting, case, model):
        models.append((model, [parameter.detach().clone() for parameter in model.parameters()]))
        return original(setting, case, model)

    monkeypatch.setitem(model_speed.CALLS, "training", watched)
    row = measure_case(small(dtype="bfloat16"), Case("training", 16, "fire"))
    assert "failed" not in row, row
    ((model, before),) = models
    assert {parameter.dtype for parameter in model.parameters()} == {torch.float32}
    changed = [not torch.equal(new, old) for new, old in zip(model.parameters(), before, strict=True)]
    assert sum(changed) > 0.9 * len(changed)


@pytest.mark.parametrize(
    ("error", "message"),
    [
        (torch.OutOfMemoryError("no"), "out of memory"),
        (RuntimeError("a kernel\nfailed"), "RuntimeError: a kernel"),
    ],
)
def test_what_fails_costs_no_other_row(error, message, monkeypatch):
    def fails(setting, case, model):
        if case.encoding == "fire":
            raise error
        return {"ms": 2.0}

    monkeypatch.setitem(model_speed.CALLS, "forward", fails)
    rows = measure_model(small(forward=(16,), encodings=("rope", "fire", "alibi")))["rows"]
    assert [row.get("failed") for row in rows] == [None, message, None]
    assert not {"ms", "tokens/s", "÷ rope (sdpa)"} & set(rows[1])
    assert rows[2]["÷ rope (sdpa)"] == 1.0


def test_an_interrupted_run_keeps_its_rows(monkeypatch):
    def stops(setting, case, model):
        if case.encoding == "alibi":
            raise KeyboardInterrupt
        return {"ms": 2.0}

    saved = []
    monkeypatch.setitem(model_speed.CALLS, "forward", stops)
    setting = small(forward=(16,), encodings=("rope", "fire", "alibi", "t5"))
    record = measure_model(setting, lambda record: saved.append(len(record["rows"])))
    assert record["interrupted"] is True
    assert [row["encoding"] for row in record["rows"]] == ["rope", "fire"]
    assert saved == [1, 2, 2]


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
    add_ratios(rows)  # after every row: nothing changes
    assert (rows[0]["÷ rope (sdpa flash)"], rows[0]["÷ rope (sdpa cudnn)"]) == (1.0, 2.0)
    assert (rows[2]["÷ rope (sdpa flash)"], rows[2]["÷ rope (sdpa cudnn)"]) == (1.5, 3.0)
    assert not any("÷" in key for other in rows[3:] for key in other)


def test_dry_run(tmp_path, capsys):
    out = tmp_path / "bench.json"
    command = ["bench", "model", "--dry-run", "--device", "cpu", "--forward", "16", "--training", "--decoding", "64"]
    assert main([*command, "--encodings", "rope", "fire", "--tokens", "64", "--out", str(out)]) == 0
    assert capsys.readouterr().out.splitlines() == [
        "forward rope sdpa n=16, batch 4",
        "forward fire n=16, batch 4",
        "decoding rope n=64, batch 8",
        "decoding fire n=64, batch 8",
        "decoding fire-s n=64, batch 8",
        f"5 measurements of a tiny model on cpu in float32, to be written to {out}",
    ]
    assert not out.exists()


def test_help(capsys):
    with pytest.raises(SystemExit, match="0"):
        main(["bench", "model", "--help"])
    shown = " ".join(capsys.readouterr().out.split())
    for option in (
        "--device",
        "--dtype",
        "--size",
        "--forward",
        "--training",
        "--decoding",
        "--tokens",
        "--no-compile",
    ):
        assert option in shown
    assert "Ctrl-C keeps what was measured" in shown


@pytest.mark.parametrize(("end", "status"), [(None, 0), (RuntimeError("broken"), 1), (KeyboardInterrupt(), 130)])
def test_the_command_writes_what_it_shows(end, status, tmp_path, capsys, monkeypatch):
    def measured(setting, case, model):
        if case.encoding == "fire" and end is not None:
            raise end
        return {"ms": 2.0, "fastest": 1.0, "slowest": 3.0, "calls": 3}

    monkeypatch.setitem(model_speed.CALLS, "forward", measured)
    out = tmp_path / "deep" / "bench.json"
    command = ["bench", "model", "--device", "cpu", "--forward", "16", "--training", "--decoding"]
    assert main([*command, "--encodings", "rope", "fire", "--tokens", "16", "--out", str(out)]) == status
    record = json.loads(out.read_text(encoding="utf-8"))
    assert [row["encoding"] for row in record["rows"]] == (["rope"] if status == 130 else ["rope", "fire"])
    assert ("interrupted" in record) == (status == 130)
    assert out.with_suffix(".png").read_bytes().startswith(b"\x89PNG")
    shown = capsys.readouterr().out
    assert "forward, 1 × 16 tokens" in shown
    assert ("broken" in shown) == (status == 1)
    assert ("; interrupted" in shown) == (status == 130)


@pytest.mark.parametrize(
    ("option", "message"),
    [
        (["--size", "bse"], "Did you mean 'base'"),
        (["--encodings", "fier"], "Did you mean 'fire'"),
        (["--forward", "0"], "a length must be at least 1"),
        (["--tokens", "0"], "tokens must be at least 1"),
    ],
)
def test_errors_are_for_people(option, message, capsys):
    assert main(["bench", "model", "--device", "cpu", "--dry-run", *option]) == 2
    shown = capsys.readouterr().err
    assert message in shown
    assert "Traceback" not in shown
