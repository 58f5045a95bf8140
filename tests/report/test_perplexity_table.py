"""Perplexity by length in a terminal, the answer first."""

import pytest

from longfire.report.perplexity_table import perplexity_table, verdict


def record_of(values, trained=None, **more):
    rows = [
        {"length": n, "log_perplexity": value, "documents": 3, "sequences": 9, "tokens": 9 * n}
        for n, value in values.items()
    ]
    setting = {"setting": {"trained_length": trained}} if trained else {}
    return {"protocol": "paper", "rows": rows, **setting, **more}


@pytest.mark.parametrize(
    ("values", "trained", "answer"),
    [
        ({512: 3.211, 8192: 3.249}, 512, "Log perplexity 3.21 at 512, 3.25 at 8,192 (+0.04): holds past the training"),
        ({512: 3.2, 1024: 3.1, 2048: 3.8}, 1024, "3.10 at 1,024, 3.80 at 2,048 (+0.70): degrades past the training"),
        ({512: 3.2, 1024: 3.0}, None, "3.20 at 512, 3.00 at 1,024 (-0.20): improves as length grows."),
        ({512: 3.2, 1024: 3.199}, None, "3.20 at 512, 3.20 at 1,024 (+0.00): holds as length grows."),
        ({512: 3.2}, 512, "Log perplexity 3.20 at 512.\nScored: 4,608 tokens of 3 documents at 512."),
        ({}, 512, "No length could be scored."),
    ],
)
def test_verdict(values, trained, answer):
    assert answer in verdict(record_of(values, trained))


def test_a_paired_change_whose_interval_includes_0_is_not_significant():
    record = record_of({512: 3.0, 1024: 3.2}, 512)
    record["rows"][1] |= {"tokens": 9 * 512, "difference": {"from_length": 512, "interval": [-0.1, 0.5]}}
    answer = "3.00 at 512, 3.20 at 1,024 (+0.20): no significant change past the training length."
    assert verdict(record) == f"Log perplexity {answer}\nScored: 4,608 tokens of 3 documents at each length."
    record["rows"][1]["difference"]["interval"] = [0.1, 0.3]
    assert "degrades" in verdict(record)


@pytest.mark.parametrize(
    ("split", "said"), [("dev", "run on the dev split of books;"), ("all", "run on all of books;")]
)
def test_the_text_is_named(split, said):
    setting = {"checkpoint": "run", "split": split, "corpus": {"name": "books"}, "trained_length": 16}
    setting |= {"device": "cpu", "dtype": "float32", "attention": "longfire", "encoding": "fire"}
    assert said in perplexity_table(record_of({16: 3.0}) | {"setting": setting})


def test_failed_lengths_and_the_method_come_last():
    record = record_of({16: 3.0})
    record["rows"].append({"length": 101, "failed": "no document has 101 tokens"})
    shown = perplexity_table(record)
    assert shown.startswith("Log perplexity 3.00 at 16.")
    assert shown.index("– length 101: no document") < shown.index("protocol paper")
    assert "interrupted" in perplexity_table(record | {"interrupted": True})
