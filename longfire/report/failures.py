"""Failures of a comparison, one line for all seeds, lengths and texts that failed for the same reason."""

import re
from collections.abc import Iterator
from typing import Any

from longfire.report.metric import Metric
from longfire.report.summary import Record, is_number, label_of, lengths_of, metric_of, seeds_of, texts_of

LENGTH = "\x00"
"""Replaces the length in a reason, so that failures at several lengths can be merged."""


def failures(record: Record) -> list[str]:
    """Failed runs, and failed lengths of successful runs."""
    by_reason: dict[tuple[str, str], dict[tuple[int, str], list[int]]] = {}
    for run in record["runs"]:
        for length, text, reason in _failed(run, metric_of(record)):
            by_reason.setdefault((label_of(run), reason), {}).setdefault((length, text), []).append(run["seed"])
    return [
        f"{label}{_where(record, lengths, texts)}{_seeds(record, seeds)}: "
        f"{reason.replace(LENGTH, _listed(record, lengths))}"
        for (label, reason), places in by_reason.items()
        for lengths, texts, seeds in _merged(places)
    ]


def _failed(run: dict[str, Any], metric: Metric) -> Iterator[tuple[int, str, str]]:
    """Yield (length, text, reason), with length 0 for the whole run and an empty text for the corpus."""
    if "failed" in run:
        yield 0, "", f"failed: {_one_line(run['failed'])}"
        return
    for text, result in {"": run.get(metric.test, {}), **run.get("also", {})}.items():
        for row in result.get("rows", ()):
            if not is_number(row.get(metric.key)):
                reason = _one_line(row.get("failed") or "the loss is not a finite number")
                yield row["length"], text, re.sub(rf"\b({row['length']}|{row['length']:,})\b", LENGTH, reason)


def _merged(places: dict[tuple[int, str], list[int]]) -> Iterator[tuple[list[int], list[str], list[int]]]:
    """Yield (lengths, texts, seeds) such that every seed failed at every length on every text."""
    lengths: dict[tuple[str, tuple[int, ...]], list[int]] = {}
    for (length, text), seeds in places.items():
        lengths.setdefault((text, tuple(seeds)), []).append(length)
    texts: dict[tuple[tuple[int, ...], tuple[int, ...]], list[str]] = {}
    for (text, failed_seeds), failed_lengths in lengths.items():
        texts.setdefault((tuple(failed_lengths), failed_seeds), []).append(text)
    yield from ((list(at), names, list(seeds)) for (at, seeds), names in texts.items())


def _where(record: Record, lengths: list[int], texts: list[str]) -> str:
    all_texts = list(texts_of(record))
    at = f" at {_listed(record, lengths)}" if lengths[0] else ""
    if len(texts) == len(all_texts) > 1:
        return f"{at}, on all texts"
    return at if texts == [""] else f" on {', '.join(text or all_texts[0] for text in texts)}{at}"


def _listed(record: Record, lengths: list[int]) -> str:
    """All lengths, or the ends of a contiguous range."""
    between = [n for n in lengths_of(record) if lengths[0] <= n <= lengths[-1]]
    if len(lengths) > 2 and lengths == between:
        return f"{lengths[0]:,} … {lengths[-1]:,}"
    return ", ".join(f"{n:,}" for n in lengths)


def _seeds(record: Record, seeds: list[int]) -> str:
    several = len(seeds_of(record)) > 1
    return f", seed{'s' * (len(seeds) > 1)} {', '.join(map(str, seeds))}" if several else ""


def _one_line(text: object) -> str:
    return " ".join(str(text).split())
