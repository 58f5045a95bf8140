"""Metrics against published examples, other evaluators and general properties."""

import importlib
import math
import subprocess
import sys
from dataclasses import replace
from statistics import mean

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from longfire.evaluation import metrics
from longfire.evaluation.bootstrap import geometric_interval, mean_interval
from longfire.evaluation.metrics import (
    METRICS,
    Answered,
    average,
    chance,
    exact_match,
    f1,
    rouge,
    rouge_gm,
    score,
    swapped,
)

# The example in the documentation of SCROLLS' metric (tau/scrolls on the hub, metrics/scrolls.py), with its results.
SCROLLS = [
    Answered("0", "exact match example", ("exact match example",)),
    Answered("1", "hello there", ("hello", "hi there")),
    Answered("2", "general kenobi", ("commander kenobi",)),
]
LABELS = ("True", "False")

WORDS = ["the", "An", "cat,", "dog!", "ran", "x_y", "naïve", "Ägypten", "不", "—", "“a”", "7.5"]
words = st.lists(st.sampled_from(WORDS), max_size=8).map(" ".join)
texts = st.one_of(words, st.text(max_size=30))
references = st.lists(texts, min_size=1, max_size=4)


def answers(*rows, group=""):
    """Answers from (prediction, reference, …)."""
    return [Answered(str(i), said, tuple(right), group) for i, (said, *right) in enumerate(rows)]


def judged(*groups):
    """Groups of (prediction, label), as in MultiRC."""
    rows = [(f"q{number}", *row) for number, group in enumerate(groups) for row in group]
    return [Answered(str(i), said, (right,), group) for i, (group, said, right) in enumerate(rows)]


@pytest.mark.parametrize(
    ("metric", "published"), [("f1", 72.2222), ("exact_match", 33.3333), ("rouge_gm", 55.8136)], ids=lambda v: str(v)
)
def test_the_example_of_scrolls(metric, published):
    assert METRICS[metric](SCROLLS) == pytest.approx(published, abs=5e-5)
    found = score(metric, SCROLLS)
    assert (found["score"], found["metric"], found["examples"]) == (METRICS[metric](SCROLLS), metric, 3)
    if metric == "rouge_gm":
        assert [found[kind] for kind in metrics.ROUGE] == pytest.approx([72.2222, 33.3333, 72.2222], abs=5e-5)
        own = mean(rouge_gm(one.prediction, one.references) for one in SCROLLS)
        assert own == pytest.approx(100 / 3)  # the mean of geometric means would be another number


# Target, prediction, F-measure in per cent: from rouge-score's README and rouge_scorer_test.py, and from section 3.1 of
# Lin, ROUGE: A Package for Automatic Evaluation of Summaries (2004), where stemming would make the first one 100.
@pytest.mark.parametrize(
    ("kind", "target", "prediction", "published"),
    [
        ("rouge1", "The quick brown fox jumps over the lazy dog", "The quick brown dog jumps on the log.", 70.588),
        ("rougeL", "The quick brown fox jumps over the lazy dog", "The quick brown dog jumps on the log.", 58.824),
        ("rouge1", "testing one two", "testing", 100 / 2),
        ("rouge2", "testing one two", "testing one", 200 / 3),
        ("rougeL", "testing one two", "testing one", 400 / 5),
        ("rougeL", "testing one two", "testing two", 400 / 5),
        ("rouge1", "testing one two", "", 0),
        ("rougeL", "w1 w2 w3 w4 w5", "/", 0),
        ("rougeL", "police killed the gunman", "police kill the gunman", 75),
        ("rougeL", "police killed the gunman", "the gunman kill police", 50),
        ("rougeL", "police killed the gunman", "the gunman police killed", 50),
    ],
)
def test_published_examples_of_rouge(kind, target, prediction, published):
    assert rouge(prediction, [target])[kind] == pytest.approx(published, abs=1e-3)


def test_each_rouge_has_its_own_best_reference():
    first, second = "f e d c b a", "a b x y z w v u"  # all words in a different order, or few in order
    both = rouge("a b c d e f", [first, second])
    assert both["rouge1"] == 100  # of the first
    assert both["rouge2"] == pytest.approx(100 * 2 / 12)  # of the second: one bigram of 5 and of 7
    alone = [rouge("a b c d e f", [one]) for one in (first, second)]
    assert all(both[kind] == max(one[kind] for one in alone) for kind in metrics.ROUGE)
    assert both["rouge_gm"] > max(one["rouge_gm"] for one in alone)


def test_line_breaks_and_case_do_not_matter_to_rouge():
    """It is ROUGE-L, not Lsum: moving a sentence matters, line breaks do not."""
    spaces = rouge("d e f a b c", ["a b c d e f"])
    assert rouge("d e f\na b c\n", ["a b c\nd e f"]) == spaces
    assert spaces["rougeL"] == 50
    assert rouge("Two words.", ["other", "two WORDS"]) == dict.fromkeys([*metrics.ROUGE, "rouge_gm"], 100.0)
    assert rouge("word", ["word"])["rouge_gm"] == 0  # no bigrams


@pytest.mark.parametrize(
    ("prediction", "reference", "expected"),
    [
        ("The  Cat!", "cat", 100),
        ("an apple a day", "apple day", 100),
        ("Don't know", "dont know", 100),
        ("“the” end", "“ ” end", 100),  # only ASCII punctuation is removed
        ("theory", "ory", 0),
        ("cats", "cat", 0),
        ("7.5", "75", 100),
        ("", "", 100),
        ("the", "", 100),
        ("cafe", "café", 0),
    ],
)
def test_squad_normalisation(prediction, reference, expected):
    assert exact_match(prediction, [reference]) == expected


def test_f1_counts_words_with_multiplicity():
    """Empty texts have an F1 of 0, as in SQuAD 1 and SCROLLS; in SQuAD 2, two of them have 1."""
    assert f1("red red blue", ["red red red green"]) == pytest.approx(400 / 7)  # 2 of 3 words, 2 of 4 found
    assert f1("blue", ["green", "dark blue", "light blue sky"]) == pytest.approx(200 / 3)
    for empty in ("", "the", " .!\n"):
        assert f1(empty, ["the", "", "x"]) == 0
        assert rouge_gm(empty, ["", "x"]) == 0
    assert f1("x", [""]) == 0


def test_labels_are_compared_exactly():
    right = [("not_entailment", "not_entailment"), (" True\n", "True")]
    wrong = [("notentailment", "not_entailment"), ("true", "True"), ("choice1", "choice2"), ("", "True")]
    wrong += [("the True", "True")]
    for rows, expected in ((right, 100), (wrong, 0)):
        assert [METRICS["accuracy"](answers(row)) for row in rows] == [expected] * len(rows)


def test_groups_count_as_a_whole():
    right, wrong = ("True", "True"), ("False", "True")
    found = score("group_exact_match", judged([right, right], [right, wrong], [wrong], [right]))
    assert (found["score"], found["examples"], found["groups"]) == (50, 6, 4)
    shuffled = judged([right, right], [right, wrong], [wrong], [right])[::-1]
    assert METRICS["group_exact_match"](shuffled) == 50
    with pytest.raises(ValueError, match="needs a group for each example; '0' has none"):
        METRICS["group_exact_match"](answers(right))


@given(st.lists(st.tuples(st.integers(0, 4), *[st.sampled_from(["True", "False"])] * 2), min_size=1))
def test_groups_as_in_lm_evaluation_harness(rows):
    pytest.importorskip("lm_eval")
    other = importlib.import_module("lm_eval.tasks.super_glue.multirc.t5_utils")
    items = [other.em([said], [f"{group}_{right}"]) for group, said, right in rows]
    ours = [Answered(str(i), said, (right,), f"g{group}") for i, (group, said, right) in enumerate(rows)]
    assert METRICS["group_exact_match"](ours) == pytest.approx(100 * other.agg_em(items))


@given(texts, references)
def test_f1_and_exact_match_as_in_lm_evaluation_harness(prediction, right):
    pytest.importorskip("lm_eval")
    other = importlib.import_module("lm_eval.tasks.super_glue.record.t5_utils")
    items = [(prediction, f"0_{one.replace('_', '')}") for one in right]  # it splits at "_"
    right = [one.replace("_", "") for one in right]
    assert f1(prediction, right) == pytest.approx(100 * other.squad_f1_agg(items))
    assert exact_match(prediction, right) == 100 * other.squad_em_agg(items)


@given(texts, references)
def test_properties_of_any_text(prediction, right):
    for metric in (f1, exact_match, metrics.accuracy, rouge_gm):
        found = metric(prediction, right)
        assert 0 <= found <= 100
        assert found == metric(prediction, right[::-1]) == metric(prediction, [*right, right[0]])
        assert found == pytest.approx(max(metric(prediction, [one]) for one in right)) or metric is rouge_gm
        assert found >= metric(prediction, right[:1])
    assert exact_match(prediction, [*right, prediction]) == metrics.accuracy(prediction, [*right, prediction]) == 100
    if metrics.normalized(prediction):
        assert f1(prediction, [*right, prediction]) == 100
    if exact_match(prediction, right) and metrics.normalized(prediction):
        assert f1(prediction, right) == 100


@pytest.mark.parametrize("metric", METRICS)
def test_the_order_of_examples_does_not_matter(metric):
    some = [Answered(f"{i}", "a b " * (i % 3) + "c", ("a b c", "c"), f"g{i // 2}") for i in range(9)]
    assert METRICS[metric](some) == pytest.approx(METRICS[metric](some[::-1]))


def test_intervals_contain_the_score_and_narrow_with_more_answers():
    few = answers(*[("a", "a"), ("b", "a")] * 20)
    found, more = score("accuracy", few), score("accuracy", few * 25)
    (low, high), (lower, higher) = found["interval"], more["interval"]
    assert 0 < low < lower < 50 < higher < high < 100
    # 1.96 · √(¼ / 1000), in per cent
    assert higher - lower == pytest.approx(2 * 196 * math.sqrt(0.25 / 1000), rel=0.1)
    assert found["interval_over"] == "examples"
    assert score("accuracy", few, seed=0) == found
    assert score("accuracy", few[:1])["interval"] is None


def test_all_wrong_has_an_exact_interval():
    """Clopper and Pearson's, from tables: 0 to 30.8 % for 0 of 10, 83.2 to 100 % for 20 of 20."""
    assert score("exact_match", answers(*[("x", "y")] * 10))["interval"] == pytest.approx([0, 30.85], abs=0.005)
    assert score("exact_match", answers(*[("x", "x")] * 20))["interval"] == pytest.approx([83.16, 100], abs=0.005)
    groups = judged(*[[("False", "True")] * 3] * 10)
    for metric in ("accuracy", "group_exact_match"):
        assert score(metric, groups)["interval"] == pytest.approx([0, 30.85], abs=0.005)


def test_questions_on_one_document_are_resampled_together():
    """400 questions on 20 documents, each all right or all wrong, are as uncertain as 20 questions."""
    rows = [Answered(f"{i}", "x", ("xy"[i // 20 % 2],), f"d{i // 20}") for i in range(400)]
    found = score("f1", rows)
    assert found["interval_over"] == "groups"
    width = found["interval"][1] - found["interval"][0]
    alone = score("f1", answers(*[("x", "x"), ("x", "y")] * 10))["interval"]
    assert width == pytest.approx(alone[1] - alone[0], rel=0.05)
    without = score("f1", [Answered(one.id, one.prediction, one.references) for one in rows])["interval"]
    assert width > 3 * (without[1] - without[0])


def test_the_interval_of_rouge_contains_its_score():
    texts = ["a b c d", "a b x y", "a x b y", "d c b a", "a b c x", "x y z", "a b", "c d a b"] * 8
    found = score("rouge_gm", answers(*[(text, "a b c d") for text in texts]))
    low, high = found["interval"]
    assert low < found["score"] < high
    assert found["score"] == pytest.approx((found["rouge1"] * found["rouge2"] * found["rougeL"]) ** (1 / 3))


def test_the_interval_of_a_geometric_mean():
    """Equal parts have the interval of their mean; scaling one part scales it, for few units and for many."""
    random = np.random.default_rng(0)
    for K in (5, 60):
        part, counts = random.uniform(10, 90, K), np.ones(K)
        alone = mean_interval(part, counts)
        assert geometric_interval([part], counts) == alone
        assert geometric_interval([part] * 3, counts) == pytest.approx(alone)
        assert geometric_interval([part, 8 * part, part], counts) == pytest.approx(2 * np.array(alone))
    assert geometric_interval([part[:1]] * 2, counts[:1]) is None
    assert geometric_interval([np.ones(3), np.zeros(3)], np.ones(3)) is None


def test_the_interval_of_a_geometric_mean_covers_the_truth():
    """The geometric mean of 40 and 10 is 20, which about 95 % of intervals must contain."""
    for K in (6, 40):
        random, held = np.random.default_rng(1), 0
        for run in range(200):
            base = random.normal(0, 4, K)
            low, high = geometric_interval([40 + base, 10 + base / 2 + random.normal(0, 1, K)], np.ones(K), seed=run)
            held += low <= 20 <= high
        assert 180 <= held <= 199


def test_swapped_answers_come_from_other_documents():
    """Here all questions on a document have the same answer."""
    some = [Answered(str(i), f"w{i // 2}", (f"w{i // 2}",), str(i // 2)) for i in range(10)]
    assert (score("f1", some)["score"], swapped("f1", some)) == (100, 0)
    same = [replace(one, prediction="w1 w2") for one in some]
    assert swapped("f1", same) == pytest.approx(score("f1", same)["score"])
    assert swapped("f1", some[:2]) is None
    assert swapped("f1", [replace(one, group="") for one in some[:2]]) == 100  # not known to share a document
    assert swapped("f1", some[:1]) is None


def test_chance_is_a_constant_answer():
    labels = ["True"] * 6 + ["False"] * 3
    some = [Answered(str(i), "whatever", (label,)) for i, label in enumerate(labels)]
    assert chance("accuracy", some, LABELS) == pytest.approx(100 * 6 / 9)
    assert chance("exact_match", some, LABELS) == pytest.approx(100 * 6 / 9)
    assert chance("f1", some, ()) is None
    groups = judged([("", "False")] * 2, [("", "False"), ("", "True")], [("", "True")], [("", "False")])
    assert chance("group_exact_match", groups, LABELS) == 50  # always False: first and last group


def test_chance_among_options_is_a_constant_position():
    options = [tuple(f"{j} of {i}" for j in range(4)) for i in range(6)]
    some = [Answered(own[0], "?", (own[k],), options=own) for own, k in zip(options, [1, 1, 1, 0, 2, 3], strict=True)]
    assert chance("exact_match", some, ()) == 50
    fewer = Answered("6", "?", ("only",), options=("only",))
    assert chance("exact_match", [*some, fewer], ()) == pytest.approx(100 * 4 / 7)
    assert chance("exact_match", [*some, replace(fewer, options=())], ()) is None


def test_an_average_needs_all_tasks():
    scores = {"cb": 50.0, "rte": 70.0, "copa": 0.0, "wic": None}
    assert average(scores, ["cb", "rte", "copa"]) == 40
    assert average(scores, ["cb", "rte", "wsc"]) is None
    assert average(scores, ["cb", "wic"]) is None
    assert average(scores, []) is None


def test_refusals():
    with pytest.raises(ValueError, match="'q7' has no references"):
        Answered("q7", "x", ())
    for metric in (f1, exact_match, rouge, metrics.accuracy):
        with pytest.raises(ValueError, match="no references"):
            metric("x", [])
        with pytest.raises(TypeError, match="not a string"):
            metric("x", "right")
    with pytest.raises(ValueError, match="Did you mean 'rouge_gm'"):
        score("rouge-gm", SCROLLS)
    with pytest.raises(ValueError, match="Known: f1"):
        chance("zzz", SCROLLS, LABELS)
    with pytest.raises(ValueError, match="without answers"):
        score("f1", [])


def test_importing_metrics_does_not_import_rouge_score():
    code = "import sys, longfire.evaluation.metrics; sys.exit(any(m in sys.modules for m in ('rouge_score', 'nltk')))"
    assert subprocess.run([sys.executable, "-c", code], check=False).returncode == 0
