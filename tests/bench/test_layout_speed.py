"""Benchmarks of layouts: what is measured, that the timed calls are right, and the ratios."""

import pytest
import torch

from longfire import attention
from longfire.bench.attention_speed import attend
from longfire.bench.benchmark import Case
from longfire.bench.layout_speed import LayoutBenchmark
from longfire.bench.layouts import BOTH_SIDES, CALLS, CAUSAL, EQUAL, LAYOUTS, RANDOM, ROWS, UNEQUAL, WINDOW, arrange

N = 96


def small(*layouts, **options):
    given = {"lengths": (N,), "heads": 2, "head_dim": 8, "seconds": 0.0, "engines": ("sdpa",)}
    return LayoutBenchmark.on("cpu", layouts=layouts or tuple(LAYOUTS), **(given | options))


def test_arrangements():
    """Documents, calls and positions."""
    assert arrange(EQUAL, N, "cpu").segment_ids.tolist() == [[token // 3 for token in range(N)]]
    assert arrange(ROWS, N, "cpu").calls == ((32, 3),)
    (ids,) = arrange(UNEQUAL, 32768, "cpu").segment_ids
    lengths = ids.unique_consecutive(return_counts=True)[1].tolist()
    assert arrange(CALLS, 32768, "cpu").calls == tuple((1, length) for length in lengths)
    assert len(lengths) == 32
    assert sum(lengths) == 32768
    assert 1500 < max(lengths) < 2500
    assert sum(length % 64 == 0 for length in lengths) < 4
    assert arrange(WINDOW, 32768, "cpu").window == 1024
    positions = arrange(RANDOM, N, "cpu").positions
    assert (positions.diff() > 0).all()
    assert 2 * N < positions[-1] < 4 * N
    assert arrange(RANDOM, N, "cpu") is arrange(RANDOM, N, "cpu")  # engines read a tensor once


def test_cases_on_a_gpu(monkeypatch):
    monkeypatch.setattr(torch.cuda, "is_available", lambda: True)
    benchmark = LayoutBenchmark.on("cuda", layouts=("packed", "window"))
    assert benchmark.cases() == [
        *(Case(32768, "fire", "fused", arrangement=name) for name in (ROWS, EQUAL, CALLS, UNEQUAL, CAUSAL, WINDOW)),
        *(Case(32768, "alibi", "fused", arrangement=name) for name in (CAUSAL, WINDOW)),
    ]
    cases = LayoutBenchmark.on("cuda", layouts=("bidirectional", "positions")).cases()
    assert cases[0] == Case(8192, "no bias", "flash", arrangement=BOTH_SIDES)
    assert [case.engine for case in cases if (case.encoding, case.arrangement, case.n) == ("fire", RANDOM, 4096)] == [
        "fused",
        "chunked",
        "sdpa",
    ]
    assert {case.engine for case in cases if case.encoding == "t5"} == {"fused"}
    assert {benchmark.batch(case) for case in cases if case.n == 4096} == {8}


def test_rows_and_ratios():
    rows = small(engines=("sdpa", "chunked")).run()["rows"]
    assert not [row for row in rows if {"wrong", "failed", "not run"} & set(row)]
    found = {(row["arrangement"], row["encoding"], row["engine"]): row for row in rows}
    assert len(found) == len(rows)
    for row in rows:
        assert {"output", "gradient of q"} <= set(row["errors"])
    for one, other, ratio in (
        ((EQUAL, "fire", "chunked"), (ROWS, "fire", "chunked"), f"÷ {ROWS}"),
        ((UNEQUAL, "fire", "sdpa"), (CALLS, "fire", "sdpa"), f"÷ {CALLS}"),
        ((WINDOW, "alibi", "sdpa"), (CAUSAL, "alibi", "sdpa"), f"÷ {CAUSAL}"),
        ((BOTH_SIDES, "t5", "chunked"), (BOTH_SIDES, "no bias", "sdpa"), "÷ sdpa without bias"),
        ((RANDOM, "kerple_log", "sdpa"), (CAUSAL, "kerple_log", "sdpa"), f"÷ {CAUSAL}"),
    ):
        for part in ("forward", "forward + backward"):
            expected = found[one][part]["ms"] / found[other][part]["ms"]
            assert found[one][ratio][part] == pytest.approx(expected, abs=1e-3)
    assert not any(key.startswith("÷") for key in found[CAUSAL, "fire", "sdpa"])


@pytest.mark.parametrize(("packed", "separate"), [(EQUAL, ROWS), (UNEQUAL, CALLS)])
def test_packed_documents_are_those_of_the_baseline(packed, separate):
    """Both timed calls compute the same, from the same tokens."""
    benchmark = small("packed")
    case, other = (Case(N, "fire", "sdpa", arrangement=name) for name in (packed, separate))
    (row,), encoding = benchmark.inputs(case)
    (out,) = attend(case, [row], encoding, benchmark.arrangement(case).options())
    calls, start = [], 0
    for rows, n in benchmark.arrangement(other).calls:
        pieces = (tensor[0, :, start : start + rows * n].unflatten(1, (rows, n)).transpose(0, 1) for tensor in row)
        calls.append(tuple(pieces))
        start += rows * n
    assert start == N
    assert [q.shape for q, *_ in calls] == [q.shape for q, *_ in benchmark.inputs(other)[0]]
    outs = attend(other, calls, encoding, benchmark.arrangement(other).options())
    together = torch.cat([piece.transpose(0, 1).flatten(1, 2) for piece in outs], dim=1)[None]
    torch.testing.assert_close(out, together, rtol=1e-4, atol=1e-5)


def test_the_baseline_is_not_causal_either():
    benchmark = small("bidirectional")
    case = benchmark.cases()[0]
    layers, encoding = benchmark.inputs(case)
    (out,) = attend(case, layers, encoding, benchmark.arrangement(case).options())
    torch.testing.assert_close(out, attention(*layers[0], causal=False, impl="reference"))


@pytest.mark.parametrize("arrangement", [EQUAL, WINDOW, BOTH_SIDES, RANDOM])
def test_an_engine_that_ignores_the_layout_is_wrong(arrangement, monkeypatch):
    plain = lambda q, k, v, bias, impl, **ignored: attention(q, k, v, bias, impl=impl)  # noqa: E731
    monkeypatch.setattr("longfire.bench.attention_speed.attention", plain)
    benchmark = small()
    case = next(case for case in benchmark.cases() if (case.arrangement, case.encoding) == (arrangement, "fire"))
    assert benchmark.measured(case)["wrong"].startswith("output: error")


def test_a_batch_of_packed_rows():
    row = small("packed", tokens=2 * N).measured(Case(N, "fire", "sdpa", arrangement=UNEQUAL))
    assert row["batch"] == 2
    assert row["forward"]["ms"] > 0


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ({"layouts": ("pakced",)}, "layout cannot be 'pakced'"),
        ({"lengths": (100,)}, "a multiple of 32, not 100"),
        ({"shared_layers": 2}, "Leave out --shared-layers"),
        ({"encodings": ("fier",)}, "Did you mean 'fire'"),
    ],
)
def test_settings_are_checked(options, message):
    with pytest.raises(ValueError, match=message):
        LayoutBenchmark.on("cpu", **({"layouts": ("packed",)} | options))


@pytest.mark.gpu
def test_on_a_gpu():
    # At this length only outputs are checked. A window of n/32 at 1,024 sees 32 keys, where the blurred kinks of an
    # interpolated bias are a third of the gradient of FIRE's c.
    benchmark = LayoutBenchmark.on("cuda", layouts=tuple(LAYOUTS), lengths=(4096,), tokens=4096, seconds=0.01)
    for row in benchmark.run()["rows"]:
        refused = (row["arrangement"], row["encoding"], row["engine"]) == (RANDOM, "fire", "fused")
        assert ("not run" in row) == refused, row
        assert refused or row.get("forward + backward", {}).get("calls", 0) >= 3, row
