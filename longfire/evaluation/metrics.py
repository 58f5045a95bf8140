"""Scores of answers, 0…100, as in SCROLLS' official evaluator, SuperGLUE and T5.

f1, exact_match    SQuAD's: lower-cased, without punctuation and articles, whitespace collapsed; best over the
                   references. Text that normalises to nothing has an F1 of 0.
rouge_gm           ³√(ROUGE-1 · ROUGE-2 · ROUGE-L), F-measures by rouge-score without stemming. Each of the three is the
                   best over the references, averaged over all examples; then the geometric mean of the three averages.
                   (ROUGE-L treats the text as one sequence; line breaks matter to ROUGE-Lsum only.)
accuracy           The answer equals the label, ignoring surrounding whitespace, as in T5. SQuAD's normalisation would
                   confuse not_entailment and notentailment.
group_exact_match  The share of groups whose examples are all correct (MultiRC's answers to a question).

SCROLLS: Shaham et al. 2022, and metrics/ of its dataset on the Hugging Face hub. T5: Raffel et al. 2020.
"""

import re
import string
from collections import Counter
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, replace
from functools import lru_cache, partial
from typing import Any

import numpy as np
import numpy.typing as npt

from longfire.evaluation.bootstrap import by_unit, geometric_interval, geometric_mean
from longfire.validation import one_of

Values = npt.NDArray[np.float64]

ROUGE = ("rouge1", "rouge2", "rougeL")
PUNCTUATION = str.maketrans("", "", string.punctuation)
ARTICLES = re.compile(r"\b(?:a|an|the)\b")


@dataclass(frozen=True)
class Answered:
    """A model's answer to one question, with the references."""

    id: str
    prediction: str
    references: tuple[str, ...]
    """At least one."""
    group: str = ""
    """Equal for examples that are scored together or share a document. May be empty."""
    prompt_tokens: int = 0
    options: tuple[str, ...] = ()
    """Answers to choose from, if they differ by question."""

    def __post_init__(self) -> None:
        _check_references(self.references, f"example {self.id!r}")


def f1(prediction: str, references: Sequence[str]) -> float:
    """F1 over words, counted with multiplicity; best over the references."""
    _check_references(references)
    return max(_f1(normalized(prediction).split(), normalized(reference).split()) for reference in references)


def _f1(predicted: list[str], expected: list[str]) -> float:
    shared = (Counter(predicted) & Counter(expected)).total()
    return 200.0 * shared / (len(predicted) + len(expected)) if shared else 0.0


def exact_match(prediction: str, references: Sequence[str]) -> float:
    """100 if the normalised prediction is one of the normalised references, else 0."""
    _check_references(references)
    return 100.0 * (normalized(prediction) in {normalized(reference) for reference in references})


def accuracy(prediction: str, references: Sequence[str]) -> float:
    """100 if the prediction equals the label, ignoring surrounding whitespace, else 0."""
    _check_references(references)
    return 100.0 * (prediction.strip() in {reference.strip() for reference in references})


def rouge(prediction: str, references: Sequence[str]) -> dict[str, float]:
    """`rouge1`, `rouge2` and `rougeL`, each the best over the references, and their geometric mean, `rouge_gm`."""
    _check_references(references)
    best = _rouge_scorer().score_multi(list(references), prediction)
    scores = {kind: 100.0 * float(best[kind].fmeasure) for kind in ROUGE}
    return {**scores, "rouge_gm": float(geometric_mean(np.array(list(scores.values()))))}


@lru_cache(maxsize=1)
def _rouge_scorer() -> Any:
    from rouge_score.rouge_scorer import RougeScorer

    return RougeScorer(list(ROUGE), use_stemmer=False)


def rouge_gm(prediction: str, references: Sequence[str]) -> float:
    """`rouge_gm` of one example. A task's score is not the mean of these; see the module docstring."""
    return rouge(prediction, references)["rouge_gm"]


def normalized(text: str) -> str:
    """SQuAD's normalisation."""
    return " ".join(ARTICLES.sub(" ", text.lower().translate(PUNCTUATION)).split())


def _check_references(references: Sequence[str], owner: str = "the question") -> None:
    if isinstance(references, str):
        raise TypeError(f"{owner}: references must be a tuple or list, not a string: pass [{references!r}].")
    if not references:
        raise ValueError(f"{owner} has no references to compare an answer with. Remove it.")


def _per_example(metric: Callable[[str, Sequence[str]], float], answered: Sequence[Answered]) -> Values:
    return np.array([[metric(one.prediction, one.references) for one in answered]])  # (1, examples)


def _per_example_rouge(answered: Sequence[Answered]) -> Values:
    scores = [rouge(one.prediction, one.references) for one in answered]
    return np.array([[score[kind] for score in scores] for kind in ROUGE])  # (3, examples)


def _per_group(answered: Sequence[Answered]) -> Values:
    worst: dict[str, float] = {}
    for one in answered:
        if not one.group:
            raise ValueError(f"group_exact_match needs a group for each example; {one.id!r} has none.")
        worst[one.group] = min(worst.get(one.group, 100.0), accuracy(one.prediction, one.references))
    return np.array([list(worst.values())])  # (1, groups)


VALUES: dict[str, Callable[[Sequence[Answered]], Values]] = {
    "f1": partial(_per_example, f1),
    "exact_match": partial(_per_example, exact_match),
    "rouge_gm": _per_example_rouge,
    "accuracy": partial(_per_example, accuracy),
    "group_exact_match": _per_group,
}
"""Values per example (or group), in rows. The score is the geometric mean of the rows' means."""


def _values(metric: str, answered: Sequence[Answered]) -> Values:
    one_of("the metric", metric, VALUES)
    if not answered:
        raise ValueError(f"cannot compute {metric} without answers.")
    return VALUES[metric](answered)


def _overall(metric: str, answered: Sequence[Answered]) -> float:
    return float(geometric_mean(_values(metric, answered).mean(1)))


METRICS: dict[str, Callable[[Sequence[Answered]], float]] = {name: partial(_overall, name) for name in VALUES}
"""Keyed by name: the score of a list of answers, 0…100."""


def score(metric: str, answered: Sequence[Answered], seed: int = 0) -> dict[str, Any]:
    """`score`, `metric`, `examples`, and the score's 95 % `interval`; for ROUGE also its three parts.

    Args:
        metric: A key of METRICS.
        answered: The answers to score.
        seed: Seed of the bootstrap. It resamples groups if every example has one, because questions on one document
            are dependent, and examples otherwise; `interval_over` says which. A single unit has no interval (None). If
            all answers are wrong, or all correct, the interval is Clopper and Pearson's.
    """
    values = _values(metric, answered)
    result: dict[str, Any] = {
        "score": float(geometric_mean(values.mean(1))),
        "metric": metric,
        "examples": len(answered),
    }
    if metric == "rouge_gm":
        result |= dict(zip(ROUGE, values.mean(1).tolist(), strict=True))
    if metric == "group_exact_match":
        result["groups"] = values.shape[1]
    return result | _interval(values, answered, seed)


def _interval(values: Values, answered: Sequence[Answered], seed: int) -> dict[str, Any]:
    names = [one.group for one in answered]
    over = "groups" if all(names) and len(set(names)) > 1 else "examples"
    units = np.arange(values.shape[1])
    if over == "groups" and values.shape[1] == len(answered):
        units = np.unique(names, return_inverse=True)[1]
    parts = [by_unit(row, units) for row in values]
    interval = geometric_interval([sums for sums, _ in parts], parts[0][1], seed)
    if interval is None:
        return {"interval": None}
    if values.min() == values.max() and values.min() in (0.0, 100.0):
        width = 100.0 * (1 - 0.025 ** (1 / len(parts[0][1])))  # Clopper and Pearson
        interval = (0.0, width) if values.min() == 0 else (100.0 - width, 100.0)
    return {"interval": [min(max(end, 0.0), 100.0) for end in interval], "interval_over": over}


def chance(metric: str, answered: Sequence[Answered], choices: Sequence[str]) -> float | None:
    """The best score of a constant answer, usually the most common label.

    If each question has its own options, a constant answer is a constant position among them (modulo their number).
    None without choices and options.
    """
    one_of("the metric", metric, VALUES)
    options = [choices or one.options for one in answered]
    positions = range(max(map(len, options), default=0) if all(options) else 0)
    constant_answers = (
        [replace(one, prediction=own[k % len(own)]) for one, own in zip(answered, options, strict=True)]
        for k in positions
    )
    return max(map(METRICS[metric], constant_answers), default=None)


def swapped(metric: str, answered: Sequence[Answered]) -> float | None:
    """The score of the same answers swapped between documents, averaged over several swaps.

    Answers that ignore the document lose nothing by it. None if all questions are on one document.
    """
    n = len(answered)
    scores = []
    for shift in dict.fromkeys((n // 4, n // 2, 3 * n // 4)):
        exchanged = []
        for i, one in enumerate(answered):
            others = (answered[(i + shift + step) % n] for step in range(n))
            other = next((other for other in others if other.id != one.id and _different_documents(other, one)), None)
            if other is None:
                return None
            exchanged.append(replace(one, prediction=other.prediction))
        scores.append(METRICS[metric](exchanged))
    return sum(scores) / len(scores)


def _different_documents(one: Answered, other: Answered) -> bool:
    return not one.group or one.group != other.group


def average(scores: Mapping[str, float | None], tasks: Sequence[str]) -> float | None:
    """The mean over these tasks; None if one is missing."""
    known = [value for task in tasks if (value := scores.get(task)) is not None]
    return sum(known) / len(known) if known and len(known) == len(tasks) else None
