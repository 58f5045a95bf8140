"""The paper's claims checked, as a page."""

from collections import Counter

from longfire.report.claims import GROUPS
from longfire.report.claims.claim import FAILS, HOLDS, VERDICTS, Claim, Finding, Papers, Records
from longfire.report.claims.rows import fewer_tasks, seeds_in, tuned_length
from longfire.report.downstream import what_was_done
from longfire.report.summary import Record, changes_to_fire, seeds_of, what_was_run


def claims_markdown(records: Records, papers: Papers) -> str:
    """How many claims hold; each with the paper's numbers, ours and the verdict; and the records that were used."""
    judged = {name: [(claim, claim.judged(records)) for claim in claims] for name, claims in GROUPS.items()}
    findings = [finding for group in judged.values() for _, finding in group]
    counts = Counter(finding.verdict for finding in findings)
    parts = [
        "| verdict | claims |\n| --- | --: |\n" + "\n".join(f"| {one} | {counts[one]} |" for one in VERDICTS),
    ]
    for name, group in judged.items():
        rows = [_row(claim, finding, records, papers) for claim, finding in group]
        parts.append(
            f"## {name}\n\n| claim | in the paper | here | verdict |\n| --- | --- | --- | --- |\n{_lines(rows)}"
        )
    used = dict.fromkeys(finding.record for finding in findings if finding.record)
    if used:
        listed = "\n".join(f"- `{name}`: {about(records[name])}" for name in used)
        parts.append(f"## The records\n\n{listed}")
    return "\n\n".join(parts)


def about(record: Record) -> str:
    """A record in a line: what was run, on what, when."""
    made = record["provenance"]
    machine = made["hardware"].get("gpu") or made["hardware"]["cpu"]
    return f"{_done(record)} {machine}, torch {made['versions']['torch']}, {made['date']}, commit {made['commit']}."


def _done(record: Record) -> str:
    setting = record["setting"]
    if "runs" in record:
        return what_was_run(record)
    if "tasks" in setting:
        return what_was_done(record)
    if setting.get("subject") == "model":
        return f"The {setting['size']} model in {setting['dtype']}."
    return f"All positions below {setting['max_length']:,}, in {setting['dtype']}."


def _row(claim: Claim, finding: Finding, records: Records, papers: Papers) -> list[str]:
    verdict = f"**{finding.verdict}**" if finding.verdict in (HOLDS, FAILS) else finding.verdict
    quoted = claim.quoted(papers, _tasks(finding, records))
    return [claim.says, f"{claim.where}:<br>{quoted}", _here(finding, records), verdict]


def _tasks(finding: Finding, records: Records) -> list[str]:
    """Those that our means are over, where they are fewer than the paper's."""
    record = records.get(finding.record)
    if record is None or "tasks" not in record["setting"]:
        return []
    return fewer_tasks(record, tuned_length(record))


def _here(finding: Finding, records: Records) -> str:
    if not finding.record:
        return "–"
    notes = [f"`{finding.record}`"]
    record = records[finding.record]
    if "runs" in record:
        seeds, changed = len(seeds_of(record)), changes_to_fire(record["setting"].get("recipe") or {})
        notes += ["one seed" if seeds == 1 else f"{seeds} seeds", *([f"FIRE {changed}"] if changed else [])]
    elif "tasks" in record["setting"]:
        notes.append(seeds_in(record))
    return "<br>".join([*finding.numbers, f"({', '.join(notes)})"])


def _lines(rows: list[list[str]]) -> str:
    return "\n".join(f"| {' | '.join(cell.replace('|', '/') for cell in row)} |" for row in rows)
