"""The result of a comparison in a few sentences: which encodings extrapolate, and which is best."""

import math
from collections.abc import Mapping, Sequence
from statistics import fmean

from longfire.evaluation.record import FEW_DOCUMENTS, FEW_TOKENS
from longfire.report.description import INTERRUPTED, NO_RUNS, extensions
from longfire.report.significance import ENOUGH, FEW, Ranking, ranking
from longfire.report.summary import (
    LISTED,
    Line,
    Record,
    join_words,
    lengths_of,
    lines_of,
    measured_lengths,
    metric_of,
    seeds_of,
    some_names,
    texts_of,
)
from longfire.report.task_verdict import task_verdict

NOTHING, SMALL = 0.005, 0.05
"""Nats: a rise up to the second is small, and none if the line ends at most the first above its start."""
UNTRAINED = 0.65
"""Models above this fraction of a uniform guess's log perplexity (about a unigram model) get no verdict."""


def verdict(record: Record) -> str:
    """The result on the task, or on the corpus and other texts. Barely trained models get no verdict."""
    lines = lines_of(record)
    if not lines:
        return NO_RUNS
    if not (measured := measured_lengths(record)):
        return "No result: every run failed."
    trained = record["setting"]["trained_length"]
    base = max((n for n in measured if n <= trained), default=measured[0])
    parts = task_verdict(record, measured) if metric_of(record).is_accuracy else _too_early(record, base)
    if not parts:
        parts = [
            *_extrapolation(record, lines, base, measured[-1]),
            *_best(record, base, measured[-1]),
            *_best_on_other_texts(record, measured[-1]),
            *_caveats(record, lines, measured[-1]),
        ]
    failed = [line.label for line in lines if not any(line.values(n) for n in measured)]
    parts += [f"No result for {some_names(failed)}."] if failed else []
    parts += [INTERRUPTED] if record.get("interrupted") else []
    return " ".join(parts)


def _too_early(record: Record, base: int) -> list[str]:
    vocabulary = (record["setting"].get("corpus") or {}).get("vocab_size")
    lowest = min((mean for line in lines_of(record) if (mean := line.mean(base)) is not None), default=0.0)
    if not vocabulary or lowest < UNTRAINED * math.log(vocabulary):
        return []
    return [
        f"Too early to tell: the models are barely trained. The best log perplexity at {base:,} tokens is "
        f"{lowest:.2f}; a uniform guess scores {math.log(vocabulary):.2f}."
    ]


def _extrapolation(record: Record, lines: Sequence[Line], base: int, far: int) -> list[str]:
    """How much log perplexity rises from the training length to the longest, by encoding."""
    if far == base:
        return []
    names, rises, ends = _with_extensions(record), dict[str, dict[int, float]](), dict[int, list[str]]()
    for line in lines:
        by_length = _rises(line, base, [n for n in lengths_of(record) if n > base])
        if far in by_length:
            rises[names.get(line.label, line.label)] = by_length
        elif line.values(base):
            ends.setdefault(max(by_length, default=base), []).append(line.label)
    groups = _rise_groups(rises, far)
    trained = record["setting"]["trained_length"]
    multiple = f"{far / trained:.3g}× the training length"
    span = f"Up to {multiple} ({far:,} tokens)" if base == trained else f"From {base:,} to {far:,} tokens ({multiple})"
    return [
        *([f"{span}, {'; '.join(groups)}."] if groups else []),
        *(
            f"{some_names(ended)} ha{'s' if len(ended) == 1 else 've'} no result past {n:,}."
            for n, ended in ends.items()
        ),
    ]


def _rise_groups(rises: Mapping[str, Mapping[int, float]], far: int) -> list[str]:
    """Encodings that lose nothing, little or more. `rises` are by length."""
    highest = {label: max(by_length.values()) for label, by_length in rises.items()}
    small = [label for label, rise in highest.items() if rise <= SMALL]
    flat = [label for label in small if rises[label][far] <= NOTHING]
    close = [label for label in small if label not in flat]
    lost = sorted((rise, label) for label, rise in highest.items() if label not in small)
    groups = []
    if flat:
        groups.append(f"{some_names(flat)} lose{'s' * (len(flat) == 1)} nothing")
    if close:
        bound = math.ceil(100 * max(highest[label] for label in close)) / 100
        groups.append(f"{some_names(close)} lose{'s' * (len(close) == 1)} at most {bound:.2f} nats")
    if len(lost) > LISTED:
        (low, least), (high, most) = lost[0], lost[-1]
        groups.append(f"{len(lost)} encodings lose {low:.2f} ({least}) to {high:.2f} nats ({most})")
    elif lost:
        (rise, first), *others = lost
        groups.append(
            join_words([f"{first} loses {rise:.2f} nats", *(f"{label} {rise:.2f}" for rise, label in others)])
        )
    return groups


def _rises(line: Line, base: int, longer: Sequence[int]) -> dict[int, float]:
    """Mean rise of log perplexity from the base length to each longer one, over the seeds that have both."""
    at_base, rises = line.values(base), {}
    for length in longer:
        if changes := [value - at_base[seed] for seed, value in line.values(length).items() if seed in at_base]:
            rises[length] = fmean(changes)
    return rises


def _with_extensions(record: Record) -> dict[str, str]:
    """Names of extended encodings: `YaRN (extended to 2,048)`."""
    extended = extensions([run for run in record["runs"] if "failed" not in run])
    return {label: f"{label} (extended to {to:,})" for (_, to, _), labels in extended.items() for label in labels}


def _best(record: Record, base: int, far: int) -> list[str]:
    """The best encoding at the longest length and, if a different one, at the training length."""
    rankings = [(n, ranked) for n in dict.fromkeys([far, base]) if (ranked := ranking(record, n))]
    if len(rankings) == 2 and rankings[0][1].best == rankings[1][1].best:
        rankings.pop()
    means = {(line.label, n): line.mean(n) for line in lines_of(record) for n, _ in rankings}
    trained = record["setting"]["trained_length"]
    return [
        f"At {'the training length' if n == trained else f'{n:,} tokens'}, {ranked.best} has the lowest log "
        f"perplexity ({means[ranked.best, n]:.3f}){_lead(record, ranked)}."
        for n, ranked in rankings
    ]


def _lead(record: Record, ranked: Ranking) -> str:
    """Whether the best is significantly ahead, and of whom."""
    if len(seeds_of(record)) < ENOUGH:
        return ""
    if not ranked.level and not ranked.behind:
        return "; not tested, because a seed is missing"
    rivals, sign = (ranked.level, ", not significantly") if ranked.level else (ranked.behind, ", significantly")
    if len(rivals) == 1 or (ranked.level and ranked.behind):
        return f"{sign} ahead of {some_names(rivals)}"
    others = "any other" if ranked.level else "all others"
    return f"{sign} ahead of {others}{' with all seeds' * bool(ranked.untested)}"


def _best_on_other_texts(record: Record, far: int) -> list[str]:
    texts: dict[tuple[str, str], list[str]] = {}
    for name, one in list(texts_of(record).items())[1:]:
        if ranked := ranking(one, far):
            texts.setdefault((ranked.best, _lead(one, ranked)), []).append(name)
    return [f"On {join_words(names)}, {best} is lowest{lead}." for (best, lead), names in texts.items()]


def _caveats(record: Record, lines: Sequence[Line], length: int) -> list[str]:
    """Warnings about few seeds and little text."""
    caveats = []
    if len(lines) > 1 and (seeds := len(seeds_of(record))) < ENOUGH:
        caveats.append(f"With {FEW[seeds]}, differences are not tested for significance.")
    rows = [row for line in lines for row in line.rows(length).values()]
    documents, tokens = (max((row.get(key) or 0 for row in rows), default=0) for key in ("documents", "tokens"))
    if 0 < documents < FEW_DOCUMENTS or 0 < tokens < FEW_TOKENS:
        caveats.append("Little text was scored: the result may differ on other documents.")
    return caveats
