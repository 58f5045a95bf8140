"""Rows of a downstream record: seeds of one encoding, scores, and the paper's rows for the same encoding."""

from collections.abc import Mapping, Sequence
from statistics import fmean
from typing import Any

from longfire.encodings.registry import SHARED, changed_options
from longfire.evaluation.seeds import with_seed

Record = dict[str, Any]
Row = Mapping[str, Any]
LARGE = 280_000_000
"""Models with at least this many parameters count as the paper's large (350M with a larger vocabulary)."""


def by_label(rows: Sequence[Record]) -> dict[str, list[Record]]:
    """Rows by label; rows with the same label are seeds of one encoding."""
    return {row["label"]: [one for one in rows if one["label"] == row["label"]] for row in rows}


def with_seeds(record: Record) -> Record:
    """The record with the seeds of an encoding in a row, the seed in each label, followed by their mean."""
    rows = []
    for label, same in by_label(record["rows"]).items():
        if len(same) == 1:
            rows += same
            continue
        rows += [{**row, "label": with_seed(row)} for row in same]
        rows.append({**_mean(same), "label": f"{label}, mean of {len(same)}"})
    return {**record, "rows": rows}


def with_means(record: Record) -> Record:
    """The record with a row per encoding: the mean over its seeds, with their range as the interval."""
    rows = [same[0] if len(same) == 1 else _mean(same, ranged=True) for same in by_label(record["rows"]).values()]
    return {**record, "rows": rows}


def seed_count(rows: Sequence[Record]) -> str:
    """The number of seeds: `3`, or `1 to 3` if encodings differ."""
    counts = sorted(map(len, by_label(rows).values()))
    return " to ".join(str(n) for n in dict.fromkeys([*counts[:1], *counts[-1:]]))


def scores_at(row: Row, length: int) -> dict[str, Record]:
    """Scores at a length, by task."""
    return {one["task"]: one for one in row["scores"] if one["length"] == length and "failed" not in one}


def scores_on(row: Row, task: str) -> dict[int, Record]:
    """Scores on a task, by length."""
    return {one["length"]: one for one in row["scores"] if one["task"] == task and "failed" not in one}


def training_lengths(record: Record) -> dict[int, str]:
    """Length → `pretrained`, `fine-tuned` or both, for lengths common to all rows."""
    rows, finetuned_here = record["rows"], record["setting"].get("length")
    lengths = {
        "pretrained": {row["trained_length"] for row in rows},
        "fine-tuned": {finetuned_here or row["finetuned_length"] for row in rows},
    }
    stages: dict[int, str] = {}
    for stage, stage_lengths in lengths.items():
        if len(stage_lengths) == 1 and (length := stage_lengths.pop()) is not None:
            stages[length] = f"{stages[length]} and {stage}" if length in stages else stage
    return stages


def length_header(record: Record, length: int) -> str:
    """`512 (pretrained)`."""
    stage = training_lengths(record).get(length)
    return f"{length:,}" + (f" ({stage})" if stage else "")


def papers_size(record: Row) -> str:
    """The paper's model size closest to a record's: large if all its models are large."""
    return "large" if min((row["parameters"] for row in record["rows"]), default=0) >= LARGE else "base"


def papers_rows(record: Row, paper: Sequence[Row], size: str) -> list[Row]:
    """The paper's rows of a size for the record's encodings."""
    ours = set(map(encoding_of, record["rows"]))
    return [one for one in paper if one["size"] == size and one["encoding"] in ours]


def papers_row(row: Row, paper: Sequence[Row], size: str) -> Row | None:
    """The paper's row for the encoding of a row of ours."""
    return next((one for one in paper if one["size"] == size and one["encoding"] == encoding_of(row)), None)


def papers_lengths(record: Record, paper: Sequence[Row]) -> list[Row]:
    """The paper's rows by length, for the record's encodings and lengths."""
    ours, lengths = {row["encoding"] for row in record["rows"]}, record["setting"]["lengths"]
    return [row for row in paper if row["encoding"] in ours and any(str(n) in row for n in lengths)]


def encoding_of(row: Row) -> str:
    """The encoding with its non-default options: `fire:log=False,threshold=None`."""
    encoding = str(row["encoding"])
    changed = changed_options(encoding.removesuffix(SHARED), row.get("options") or {})
    return f"{encoding}:{','.join(f'{key}={changed[key]}' for key in sorted(changed))}" if changed else encoding


def _mean(rows: Sequence[Record], ranged: bool = False) -> Record:
    """Mean scores over the tests that all rows have."""
    by_row = [{(one["task"], one["length"]): one for one in row["scores"] if "failed" not in one} for row in rows]
    scores = []
    for test, first in by_row[0].items():
        if all(test in row_scores for row_scores in by_row):
            values = [row_scores[test]["score"] for row_scores in by_row]
            ends = [min(values), max(values)] if ranged else None
            about = {key: first[key] for key in ("task", "length", "examples", "groups", "chance") if key in first}
            near = all(row_scores[test].get("near_chance") for row_scores in by_row)
            scores.append({**about, "score": fmean(values), "interval": ends, "near_chance": near})
    return {**rows[0], "parts": [], "scores": scores}
