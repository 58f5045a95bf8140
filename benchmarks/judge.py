"""Judge claims by the records in results/: which record decides, and what it says."""

from collections.abc import Callable, Mapping, Sequence
from dataclasses import replace
from typing import Any

from benchmarks.claims import Claim
from benchmarks.other_operators import equal, faster, few_more_parameters, near_and_far_heads, thresholds_between
from benchmarks.perplexity_operators import alike, lead_grows, lower, rises, stays
from benchmarks.score_operators import (
    best_on_tasks,
    finetuned_on,
    higher,
    score_drops,
    score_stays,
    stretching_costs,
)
from benchmarks.verdicts import FAILS, HOLDS, MISSING, OPEN, Comparison, Finding, summarise
from longfire.report.description import changes_in_rows, changes_to_fire
from longfire.report.summary import Record, join_words, lengths_of, seeds_of
from longfire.report.task_rows import papers_size

Records = Mapping[str, Record]
"""By folder and name, such as reproduce/perplexity-base."""
AND = " + "
"""Joins the names of records that are used together."""
SAME_SETTING = ("trained_length", "protocol", "tokens", "split")
"""Settings that must agree between records used together, besides recipe and corpus."""
OPERATORS: dict[str, Callable[..., Sequence[Comparison] | Finding | None]] = {
    operator.__name__: operator
    for operator in (
        lower, alike, rises, stays, lead_grows,
        higher, best_on_tasks, score_drops, score_stays, stretching_costs,
        equal, faster, few_more_parameters, near_and_far_heads, thresholds_between,
    )
}  # fmt: skip


def judge(claim: Claim, records: Records) -> Finding:
    """Judge by the record with the most seeds, among those that have what the claim needs and are fit to decide."""
    candidates = [(name, record) for name in claim.records if (record := find_record(records, name)) is not None]
    findings = [
        (replace(_capped(finding, record), record=name), record)
        for name, record in candidates
        if (finding := judge_by(claim, record)) is not None
    ]
    measured = [(finding, record) for finding, record in findings if finding.verdict != MISSING]
    if not measured:
        absent = [part for name in claim.records for part in name.split(AND) if part not in records]
        why = claim.needs or ("no record has it" if candidates else f"no record `{absent[0]}`")
        return replace(findings[0][0], record="") if findings else Finding(MISSING, why=why)
    best, own = max(measured, key=lambda one: (not why_unfit(one[1]), _seeds(one[1])))
    notes = [
        f"in `{finding.record}` it {finding.verdict}"
        for finding, record in measured
        if finding.verdict in (HOLDS, FAILS) and finding.verdict != best.verdict
        if not run_identities(record) & run_identities(own)
    ]
    return replace(best, notes=tuple(notes))


def judge_by(claim: Claim, record: Record) -> Finding | None:
    """What one record says, or None if it has no answer."""
    if claim.size and _model_size(record) != claim.size:
        return None
    if claim.tuned_on and record["rows"] and claim.tuned_on not in (tasks := finetuned_on(record)):
        others = join_words([f"`{task}`" for task in tasks]) if tasks else "other tasks"
        return Finding(MISSING, why=f"needs models fine-tuned on `{claim.tuned_on}`; ours were on {others}")
    arguments = {key: value for key, value in claim.test.items() if key != "is"}
    found = OPERATORS[claim.test["is"]](record, **arguments)
    return found if isinstance(found, Finding) or found is None else summarise(found)


def find_record(records: Records, name: str) -> Record | None:
    """A record, or several joined into one. None if one is missing or their settings differ."""
    found = [records[part] for part in name.split(AND) if part in records]
    if len(found) < len(name.split(AND)):
        return None
    joined: Record | None = found[0]
    for other in found[1:]:
        joined = _join(joined, other) if joined is not None else None
    return joined


def why_unfit(record: Record) -> str:
    """Why a record decides nothing: its FIRE is not as published, or it was tested on the tuning split."""
    setting = record.get("setting") or {}
    if "runs" in record:
        fire = f"FIRE {changed}" if (changed := changes_to_fire(setting.get("recipe") or {})) else ""
    else:
        fire = f"not as published: {changed}" if (changed := changes_in_rows(record.get("rows", ()))) else ""
    return ", ".join(filter(None, [fire, "tested on dev" if setting.get("split") == "dev" else ""]))


def run_identities(record: Record) -> set[tuple[Any, ...]]:
    """What identifies a run across records: encoding, seed and scores."""
    runs = [(run, run.get("perplexity", {}).get("rows", ())) for run in record.get("runs", ())]
    return {
        (run["encoding"], run["seed"], *((row["length"], row.get("log_perplexity")) for row in rows))
        for run, rows in runs
        if rows
    }


def _capped(finding: Finding, record: Record) -> Finding:
    """The finding, undecided if the record is not fit to decide."""
    reason = why_unfit(record)
    if not reason or finding.verdict == MISSING:
        return finding
    before = finding.why if finding.verdict == OPEN else ""
    return replace(finding, verdict=OPEN, why=", ".join(filter(None, (reason, before))))


def _model_size(record: Record) -> str:
    if "runs" in record:
        return str((record["setting"].get("recipe") or {}).get("size"))
    return papers_size(record)


def _seeds(record: Record) -> int:
    return len(seeds_of(record)) if "runs" in record else 0


def _join(one: Record, other: Record) -> Record | None:
    a, b = one["setting"], other["setting"]
    recipes = a.get("recipe") or {}, b.get("recipe") or {}
    same = all(recipes[0][key] == recipes[1][key] for key in recipes[0] if key in recipes[1])
    corpora = [(setting.get("corpus") or {}).get("fingerprint") for setting in (a, b)]
    if not same or corpora[0] != corpora[1] or any(a.get(key) != b.get(key) for key in SAME_SETTING):
        return None
    seeds = [seed for seed in seeds_of(one) if seed in seeds_of(other)]
    lengths = [length for length in lengths_of(one) if length in lengths_of(other)]
    known = {run["encoding"] for run in one["runs"]}
    runs = [*one["runs"], *(run for run in other["runs"] if run["encoding"] not in known)]
    kept = [run for run in runs if run["seed"] in seeds]
    return {**one, "setting": {**a, "seeds": seeds, "lengths": lengths}, "runs": kept} if seeds else None
