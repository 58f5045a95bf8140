"""The paper's claims checked, as a page."""

from collections import Counter

from longfire.report.claims import BEYOND, GROUPS
from longfire.report.claims.claim import FAILS, HOLDS, VERDICTS, Claim, Finding
from longfire.report.claims.quote import Papers
from longfire.report.claims.rows import fewer_tasks, seeds_in, tuned_length
from longfire.report.claims.runs import AND, Records, record_named, run_keys
from longfire.report.description import description
from longfire.report.downstream import describe_tasks
from longfire.report.model_speed import batch_and_type
from longfire.report.summary import Record, seeds_of

Judged = dict[str, list[tuple[Claim, Finding]]]


def claims_markdown(records: Records, papers: Papers) -> str:
    """How many claims hold; each with the paper's numbers, ours and the verdict; and the records that were used."""
    judged, beyond = (
        {name: [(claim, claim.judged(records)) for claim in claims] for name, claims in groups.items()}
        for groups in (GROUPS, BEYOND)
    )
    parts = [_counted(judged)]
    for name, group in {**judged, **beyond}.items():
        rows = [_row(claim, finding, records, papers) for claim, finding in group]
        parts.append(
            f"## {name}\n\n| claim | in the paper | here | verdict |\n| --- | --- | --- | --- |\n{_lines(rows)}"
        )
    findings = [finding for group in (*judged.values(), *beyond.values()) for _, finding in group]
    used = dict.fromkeys(name for finding in findings if finding.record for name in finding.record.split(AND))
    if used:
        parts.append(f"## The records\n\n{_listed({name: records[name] for name in used})}")
    return "\n\n".join(parts)


def _counted(judged: Judged) -> str:
    """How many have each verdict. What is part of another claim is counted with it."""
    pairs = [pair for group in judged.values() for pair in group]
    counts = Counter(finding.verdict for claim, finding in pairs if not claim.part_of)
    table = "| verdict | claims |\n| --- | --: |\n" + "\n".join(f"| {one} | {counts[one]} |" for one in VERDICTS)
    parts = sum(bool(claim.part_of) for claim, _ in pairs)
    return f"{table}\n\nNot counted: what is beyond the paper, and what is part of another claim ({parts})."


def shared_description(records: list[Record]) -> list[str]:
    """What most of several records have in common, so that a page can say it once."""
    found = [description(record) for record in records if record["runs"]]
    if len(found) < 2:
        return []
    distinct = dict.fromkeys(one for own in found for one in own)
    usual = [one for one in distinct if 2 * sum(one in own for own in found) > len(found)]
    return [
        *usual,
        *(["This applies unless stated otherwise."] if any(one not in own for one in usual for own in found) else []),
    ]


def _listed(records: Records) -> str:
    """What each was, but what all have in common is said once, and so are runs that several have."""
    trained = {name: record for name, record in records.items() if "runs" in record}
    common = shared_description(list(trained.values()))
    lines, runs = [], set[object]()
    for name, record in records.items():
        if name not in trained:
            lines.append(f"- `{name}`: {_done(record)} {_made(record)}")
            continue
        own = [sentence for sentence in description(record) if sentence not in common]
        lines.append(f"- `{name}`: {' '.join([*own, *_same_runs(name, trained), _made(record)])}")
        runs |= run_keys(record)
    if not trained:
        return "\n".join(lines)
    head = f"The models of all of these records are {len(runs)}: runs that several records share are counted once."
    return "\n\n".join([" ".join([head, *common]), "\n".join(lines)])


def _same_runs(name: str, records: Records) -> list[str]:
    """With which of the records before it shares runs."""
    own = run_keys(records[name])
    for other in list(records)[: list(records).index(name)]:
        if both := own & run_keys(records[other]):
            which = "The same runs as" if both == own else f"Of its {len(own)} runs {len(both)} are those of"
            return [f"{which} `{other}`."]
    return []


def _made(record: Record) -> str:
    """Where and when."""
    made = record["provenance"]
    machine = made["hardware"].get("gpu") or made["hardware"]["cpu"]
    return f"{machine}, torch {made['versions']['torch']}, {made['date']}, commit {made['commit']}."


def _done(record: Record) -> str:
    setting = record["setting"]
    if "tasks" in setting:
        return describe_tasks(record)
    if setting.get("subject") == "model":
        return f"The {setting['size']} model in {setting['dtype']}."
    return f"All positions below {setting['max_length']:,}, in {setting['dtype']}."


def _row(claim: Claim, finding: Finding, records: Records, papers: Papers) -> list[str]:
    verdict = f"**{finding.verdict}**" if finding.verdict in (HOLDS, FAILS) else finding.verdict
    parts = [verdict, finding.why, "part of another claim" if claim.part_of else ""]
    quoted = claim.quoted(papers, _tasks(finding, records))
    return [claim.says, f"{claim.where}:<br>{quoted}", _here(finding, records), ": ".join(filter(None, parts))]


def _tasks(finding: Finding, records: Records) -> list[str]:
    """Those that our means are over, where they are fewer than the paper's."""
    record = records.get(finding.record)
    if record is None or "tasks" not in record["setting"]:
        return []
    return fewer_tasks(record, tuned_length(record))


def _here(finding: Finding, records: Records) -> str:
    record = record_named(records, finding.record) if finding.record else None
    if record is None:
        return "–"
    notes = [f"`{name}`" for name in finding.record.split(AND)]
    if "runs" in record:
        seeds = len(seeds_of(record))
        notes.append("one seed" if seeds == 1 else f"{seeds} seeds")
    elif "tasks" in record["setting"]:
        notes.append(seeds_in(record))
    elif record["setting"].get("subject") == "model":
        notes.append(batch_and_type(record))
    return "<br>".join([*finding.numbers, f"({', '.join([*notes, *finding.notes])})"])


def _lines(rows: list[list[str]]) -> str:
    """Of a table. A number stays beside its deviation."""
    cells = ((cell.replace("|", "/").replace(" ± ", "\u00a0±\u00a0") for cell in row) for row in rows)
    return "\n".join(f"| {' | '.join(row)} |" for row in cells)
