"""Generate docs/claims.md: the counts, a table of claims per section, and the records that decided."""

from collections import Counter
from collections.abc import Sequence

from benchmarks.claims import BEYOND, CLAIMS, Claim, Papers
from benchmarks.judge import AND, Records, find_record, judge, run_identities
from benchmarks.markdown import shared_description
from benchmarks.score_operators import finetuning_length, partial_tasks
from benchmarks.verdicts import FAILS, HOLDS, MISSING, OPEN, VERDICTS, Finding
from longfire.report.description import description
from longfire.report.downstream import describe_tasks
from longfire.report.speed import batch_and_type
from longfire.report.summary import Record, seeds_of
from longfire.report.table import Table
from longfire.report.task_rows import seed_count

Judged = Sequence[tuple[Claim, Finding]]


def claims_markdown(records: Records, papers: Papers) -> str:
    """The generated part of the page."""
    judged = [(claim, judge(claim, records)) for claim in CLAIMS.values()]
    parts = [*_overview(judged)]
    for section in dict.fromkeys(claim.section for claim, _ in judged):
        rows = [_row(claim, finding, records, papers) for claim, finding in judged if claim.section == section]
        parts += [f"## {section}", Table(["claim", "verdict", "in the paper", "here"], rows, left=4).markdown()]
    if used := dict.fromkeys(name for _, found in judged if found.record for name in found.record.split(AND)):
        parts += ["## The records", *_record_list({name: records[name] for name in used})]
    return "\n\n".join(parts)


def _overview(judged: Judged) -> list[str]:
    """Counts of each verdict, in total and by section. A claim that is part of another is not counted."""
    counted = [
        (claim.section, found.verdict) for claim, found in judged if claim.section != BEYOND and not claim.part_of
    ]
    total = Counter(verdict for _, verdict in counted)
    sentence = (
        f"**Of the paper's {len(counted)} claims, {total[HOLDS]} hold here, {total[FAILS]} do not, {total[OPEN]} are "
        f"undecided and {total[MISSING]} were not measured.**"
    )
    by_section = Counter(counted)
    rows = [
        [section, *(str(by_section[section, verdict] or "–") for verdict in VERDICTS)]
        for section in dict.fromkeys(section for section, _ in counted)
    ]
    rows.append(["all", *(str(total[verdict]) for verdict in VERDICTS)])
    bold = [(len(rows) - 1, column) for column in range(len(VERDICTS) + 1)]
    parts = sum(bool(claim.part_of) for claim, _ in judged)
    note = f"Not counted: claims beyond the paper, and {parts} claim that is part of another."
    return [sentence, Table(["", *VERDICTS], rows, highlights=bold, notes=[note]).markdown()]


def _row(claim: Claim, finding: Finding, records: Records, papers: Papers) -> list[str]:
    verdict = f"**{finding.verdict}**" if finding.verdict in (HOLDS, FAILS) else finding.verdict
    verdict = ": ".join(filter(None, [verdict, finding.why, "part of another claim" if claim.part_of else ""]))
    quoted = f"{claim.where}:<br>{claim.quoted(papers, _partial(finding, records))}"
    cells = [claim.says, verdict, quoted, _here(finding, records)]
    return [cell.replace("|", "/").replace(" ± ", "\u00a0±\u00a0") for cell in cells]  # a deviation stays with its mean


def _partial(finding: Finding, records: Records) -> list[str]:
    """The tasks of our mean, if they are fewer than the paper's."""
    record = records.get(finding.record)
    if record is None or "tasks" not in record["setting"]:
        return []
    return partial_tasks(record, finetuning_length(record))


def _here(finding: Finding, records: Records) -> str:
    """Our numbers, then their record."""
    record = find_record(records, finding.record) if finding.record else None
    if record is None:
        return "–"
    notes = [f"`{name}`" for name in finding.record.split(AND)]
    if "runs" in record or "tasks" in record["setting"]:
        seeds = str(len(seeds_of(record))) if "runs" in record else seed_count(record["rows"])
        notes.append("one seed" if seeds == "1" else f"{seeds} seeds")
    elif record["setting"].get("subject") == "model":
        notes.append(batch_and_type(record))
    return "<br>".join([*finding.numbers, f"({', '.join([*notes, *finding.notes])})"])


def _record_list(records: Records) -> list[str]:
    """A description of each record. Sentences that most records share, and shared runs, are stated once."""
    trained = {name: record for name, record in records.items() if "runs" in record}
    common = shared_description(list(trained.values()))
    lines, runs = [], set[object]()
    for name, record in records.items():
        if name not in trained:
            lines.append(f"- `{name}`: {_description(record)} {_provenance(record)}")
            continue
        own = [sentence for sentence in description(trained[name]) if sentence not in common]
        lines.append(f"- `{name}`: {' '.join([*own, *_shared_runs(name, trained), _provenance(record)])}")
        runs |= run_identities(record)
    head = f"These records contain {len(runs)} trained models; a run in several records counts once."
    return [" ".join([head, *common]), "\n".join(lines)] if trained else ["\n".join(lines)]


def _shared_runs(name: str, records: Records) -> list[str]:
    """Which earlier record contains the same runs."""
    own = run_identities(records[name])
    for other in list(records)[: list(records).index(name)]:
        if both := own & run_identities(records[other]):
            return [
                f"The same runs as `{other}`."
                if both == own
                else f"{len(both)} of its {len(own)} runs are also in `{other}`."
            ]
    return []


def _description(record: Record) -> str:
    setting = record["setting"]
    if "tasks" in setting:
        return describe_tasks(record)
    if setting.get("subject") == "model":
        return f"The {setting['size']} model in {setting['dtype']}."
    return f"All positions below {setting['max_length']:,}, in {setting['dtype']}."


def _provenance(record: Record) -> str:
    run = record["provenance"]
    machine = run["hardware"].get("gpu") or run["hardware"]["cpu"]
    return f"{machine}, torch {run['versions']['torch']}, {run['date']}, commit {run['commit']}."
