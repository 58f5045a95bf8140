"""What failed in a comparison, said once for seeds, lengths and texts that failed alike."""

import re
from collections.abc import Iterator
from typing import Any

from longfire.report.summary import Record, is_number, label_of, lengths_of, seeds_of, texts_of

LENGTH = "\x00"
"""Stands in a reason where that names the length, so that lengths may fail alike."""
Place = tuple[int, str]
"""A length and a text; the corpus's own text is called nothing, and a run that failed has 0 for a length."""


def failures(record: Record) -> list[str]:
    """Runs that failed, and lengths of runs that went well."""
    found: dict[tuple[str, str], dict[Place, list[int]]] = {}
    for run in record["runs"]:
        for length, text, reason in _failed(run):
            found.setdefault((label_of(run), reason), {}).setdefault((length, text), []).append(run["seed"])
    return [
        f"{label}{_where(record, lengths, texts)}{_seeds(record, seeds)}: "
        f"{reason.replace(LENGTH, _listed(record, lengths))}"
        for (label, reason), places in found.items()
        for lengths, texts, seeds in _alike(places)
    ]


def _failed(run: dict[str, Any]) -> Iterator[tuple[int, str, str]]:
    """Length, text and reason."""
    if "failed" in run:
        yield 0, "", f"failed: {_one_line(run['failed'])}"
        return
    for text, of in {"": run.get("perplexity", {}), **run.get("also", {})}.items():
        for row in of.get("rows", ()):
            if not is_number(row.get("log_perplexity")):
                reason = _one_line(row.get("failed") or "the loss is not a finite number")
                yield row["length"], text, re.sub(rf"\b({row['length']}|{row['length']:,})\b", LENGTH, reason)


def _alike(places: dict[Place, list[int]]) -> Iterator[tuple[list[int], list[str], list[int]]]:
    """Lengths, texts and seeds, such that all seeds failed at all of the lengths on all of the texts."""
    lengths: dict[tuple[str, tuple[int, ...]], list[int]] = {}
    for (length, text), seeds in places.items():
        lengths.setdefault((text, tuple(seeds)), []).append(length)
    texts: dict[tuple[tuple[int, ...], tuple[int, ...]], list[str]] = {}
    for (text, which), of in lengths.items():
        texts.setdefault((tuple(of), which), []).append(text)
    yield from ((list(at), names, list(which)) for (at, which), names in texts.items())


def _where(record: Record, lengths: list[int], texts: list[str]) -> str:
    all_texts = list(texts_of(record))
    at = f" at {_listed(record, lengths)}" if lengths[0] else ""
    if len(texts) == len(all_texts) > 1:
        return f"{at}, on all texts"
    named = ", ".join(text or all_texts[0] for text in texts)
    return at if texts == [""] else f" on {named}{at}"


def _listed(record: Record, lengths: list[int]) -> str:
    """The first and the last of several that follow each other."""
    asked = [n for n in lengths_of(record) if lengths[0] <= n <= lengths[-1]]
    if len(lengths) > 2 and lengths == asked:
        return f"{lengths[0]:,} … {lengths[-1]:,}"
    return ", ".join(f"{n:,}" for n in lengths)


def _seeds(record: Record, seeds: list[int]) -> str:
    several = len(seeds_of(record)) > 1
    return f", seed{'s' * (len(seeds) > 1)} {', '.join(map(str, seeds))}" if several else ""


def _one_line(text: object) -> str:
    return " ".join(str(text).split())
