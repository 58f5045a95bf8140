"""Scores of answers, 0…100: as SCROLLS' official evaluator, SuperGLUE and T5 take them.

f1, exact_match    SQuAD's: lower case, without punctuation and the articles a, an, the, white space joined. The best of
                   the references counts. A text of which nothing is left has an F1 of 0.
rouge_gm           ³√(ROUGE-1 · ROUGE-2 · ROUGE-L), F-measures by rouge-score without stemming. Each of the three is the
                   best over the references, which may be different ones; each is averaged over all examples; and the
                   geometric mean is taken of the three averages, not averaged itself. (ROUGE-L is of the text as one
                   sequence: line breaks, which SCROLLS puts between sentences, count for ROUGE-Lsum alone.)
accuracy           The answer is the label, letter for letter, as T5 compares them: without SQuAD's normalisation, to
                   which not_entailment and notentailment are one. White space around it does not count.
group_exact_match  The share of groups whose examples are all right (MultiRC's answers to a question).

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
    """A question's answer, and the right ones."""

    id: str
    prediction: str
    references: tuple[str, ...]
    """At least one."""
    group: str = ""
    """Of examples that count together, or that are of one document. May be empty."""
    prompt_tokens: int = 0
    """Which the model read before it answered."""
    options: tuple[str, ...] = ()
    """Which the answer is one of, where each question has its own."""

    def __post_init__(self) -> None:
        _check_references(self.references, f"example {self.id!r}")


def f1(prediction: str, references: Sequence[str]) -> float:
    """Of the words that prediction and reference share, each counted as often as it is in both; the best."""
    _check_references(references)
    return max(_f1(normalized(prediction).split(), normalized(reference).split()) for reference in references)


def exact_match(prediction: str, references: Sequence[str]) -> float:
    """100 if the prediction is one of the references once both are normalised, else 0."""
    _check_references(references)
    return 100.0 * (normalized(prediction) in {normalized(reference) for reference in references})


def accuracy(prediction: str, references: Sequence[str]) -> float:
    """100 if the prediction is the label, but for white space around it, else 0."""
    _check_references(references)
    return 100.0 * (prediction.strip() in {reference.strip() for reference in references})


def rouge(prediction: str, references: Sequence[str]) -> dict[str, float]:
    """`rouge1`, `rouge2` and `rougeL`, each the best over the references, and their geometric mean, `rouge_gm`."""
    _check_references(references)
    best = _scorer().score_multi(list(references), prediction)
    found = {kind: 100.0 * float(best[kind].fmeasure) for kind in ROUGE}
    return {**found, "rouge_gm": float(geometric_mean(np.array(list(found.values()))))}


def rouge_gm(prediction: str, references: Sequence[str]) -> float:
    """Of one example. The score of many is not the mean of these: see above."""
    return rouge(prediction, references)["rouge_gm"]


def normalized(text: str) -> str:
    """As SQuAD compares answers."""
    return " ".join(ARTICLES.sub(" ", text.lower().translate(PUNCTUATION)).split())


def score(metric: str, answered: Sequence[Answered], seed: int = 0) -> dict[str, Any]:
    """`score`, `metric`, `examples`, and the score's 95 % `interval`; of ROUGE, its three parts too.

    Args:
        metric: a name in METRICS.
        answered: questions.
        seed: of the bootstrap. It draws groups again where all examples have one, since questions on one document
            depend on each other, and otherwise examples: `interval_over` says which. One alone has no interval: None.
            Where all are wrong, or all right, it is Clopper and Pearson's, since no draw could differ.
    """
    values = _values_of(metric, answered)
    found: dict[str, Any] = {"score": _overall(values), "metric": metric, "examples": len(answered)}
    if metric == "rouge_gm":
        found |= dict(zip(ROUGE, values.mean(1).tolist(), strict=True))
    if metric == "group_exact_match":
        found["groups"] = values.shape[1]
    return found | _interval(values, answered, seed)


def chance(metric: str, answered: Sequence[Answered], choices: Sequence[str]) -> float | None:
    """What one and the same answer to all questions would score, the best there is (the commonest, of labels).

    Where each question has options of its own, that is the one in the same place, counted on from the first again where
    there are fewer. None where there are neither choices nor options.
    """
    one_of("the metric", metric, VALUES)
    all_options = [choices or one.options for one in answered]
    places = range(max(map(len, all_options), default=0) if all(all_options) else 0)
    same = (
        [replace(one, prediction=own[k % len(own)]) for one, own in zip(answered, all_options, strict=True)]
        for k in places
    )
    return max(map(METRICS[metric], same), default=None)


def swapped(metric: str, answered: Sequence[Answered]) -> float | None:
    """What the same answers would score if each had been given to a question on another document.

    An answer that owes nothing to the document scores as much. Several ways of swapping are averaged. None where all
    questions are on one document.
    """
    n = len(answered)
    scores = []
    for first in dict.fromkeys((n // 4, n // 2, 3 * n // 4)):
        given = []
        for place, one in enumerate(answered):
            others = (answered[(place + first + step) % n] for step in range(n))
            other = next((other for other in others if other.id != one.id and _apart(other, one)), None)
            if other is None:
                return None
            given.append(replace(one, prediction=other.prediction))
        scores.append(METRICS[metric](given))
    return sum(scores) / len(scores)


def _apart(one: Answered, other: Answered) -> bool:
    return not one.group or one.group != other.group


def average(scores: Mapping[str, float | None], tasks: Sequence[str]) -> float | None:
    """The mean over all these tasks, each counted once; None where one is missing."""
    found = [scores.get(task) for task in tasks]
    known = [value for value in found if value is not None]
    return sum(known) / len(known) if known and len(known) == len(found) else None


def _check_references(references: Sequence[str], whose: str = "a question") -> None:
    if isinstance(references, str):
        raise TypeError(f"{whose} has several right answers, as a tuple or list, not one text: [{references!r}].")
    if not references:
        raise ValueError(f"{whose} has no right answers, so nothing can be said of its own. Leave it out.")


def _f1(predicted: list[str], expected: list[str]) -> float:
    shared = (Counter(predicted) & Counter(expected)).total()
    return 200.0 * shared / (len(predicted) + len(expected)) if shared else 0.0


@lru_cache(maxsize=1)
def _scorer() -> Any:
    from rouge_score.rouge_scorer import RougeScorer

    return RougeScorer(list(ROUGE), use_stemmer=False)


def _each(of: Callable[[str, Sequence[str]], float], answered: Sequence[Answered]) -> Values:
    """(1, examples)."""
    return np.array([[of(one.prediction, one.references) for one in answered]])


def _rouge_of_each(answered: Sequence[Answered]) -> Values:
    """(3, examples)."""
    scores = [rouge(one.prediction, one.references) for one in answered]
    return np.array([[found[kind] for found in scores] for kind in ROUGE])


def _groups(answered: Sequence[Answered]) -> Values:
    """(1, groups), in the order in which they come."""
    worst: dict[str, float] = {}
    for one in answered:
        if not one.group:
            raise ValueError(f"example {one.id!r} has no group, and group_exact_match counts whole groups.")
        worst[one.group] = min(worst.get(one.group, 100.0), accuracy(one.prediction, one.references))
    return np.array([list(worst.values())])


VALUES: dict[str, Callable[[Sequence[Answered]], Values]] = {
    "f1": partial(_each, f1),
    "exact_match": partial(_each, exact_match),
    "rouge_gm": _rouge_of_each,
    "accuracy": partial(_each, accuracy),
    "group_exact_match": _groups,
}
"""Of each example (or group) what the score is the mean of; in several rows, the geometric mean of their means."""


def _values_of(metric: str, answered: Sequence[Answered]) -> Values:
    one_of("the metric", metric, VALUES)
    if not answered:
        raise ValueError(f"there are no answered questions to take {metric} of.")
    return VALUES[metric](answered)


def _overall(values: Values) -> float:
    return float(geometric_mean(values.mean(1)))


def _metric(name: str, answered: Sequence[Answered]) -> float:
    return _overall(_values_of(name, answered))


METRICS: dict[str, Callable[[Sequence[Answered]], float]] = {name: partial(_metric, name) for name in VALUES}
"""The score of a list of answered questions, 0…100, by the metric's name."""


def _interval(values: Values, answered: Sequence[Answered], seed: int) -> dict[str, Any]:
    names = [one.group for one in answered]
    over = "groups" if all(names) and len(set(names)) > 1 else "examples"
    units = np.arange(values.shape[1])
    if over == "groups" and values.shape[1] == len(answered):
        units = np.unique(names, return_inverse=True)[1]
    parts = [by_unit(row, units) for row in values]
    interval = geometric_interval([sums for sums, _ in parts], parts[0][1], seed)
    if interval is not None and values.min() == values.max() and values.min() in (0.0, 100.0):
        unseen = 100.0 * (1 - 0.025 ** (1 / len(parts[0][1])))  # so many others may there be, and none be drawn
        interval = (0.0, unseen) if values.min() == 0 else (100.0 - unseen, 100.0)
    if interval is None:
        return {"interval": None}
    return {"interval": [min(max(end, 0.0), 100.0) for end in interval], "interval_over": over}
