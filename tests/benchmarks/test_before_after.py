"""Two versions compared."""

from benchmarks.before_after import compare, table


def record(**milliseconds):
    rows = [
        {"encoding": name, "engine": "fused", "n": 64, "forward": {"ms": time}} for name, time in milliseconds.items()
    ]
    return {"rows": [*rows, {"encoding": "t5", "engine": "sdpa", "n": 64, "not run": "out of memory"}]}


def test_medians_of_what_both_measured():
    before = [record(fire=2.0, alibi=1.0), record(fire=9.0, alibi=1.0), record(fire=4.0)]
    after = [record(fire=3.0), record(fire=3.0), record(fire=3.0, new=1.0)]
    (row,) = compare(before, after)
    assert row == {
        "what": "fire fused n=64", "part": "forward", "before": 4.0, "after": 3.0, "ratio": 0.75, "spread": 3.5,
    }  # fmt: skip
    assert "0.750" in str(table([row]))
    assert "350.0%" in str(table([row]))
