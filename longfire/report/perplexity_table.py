"""Report of perplexity by length: the answer in a sentence, the table, the method."""

from typing import Any

from longfire.report.table import Table, render_text

HOLDS = 0.05
"""Maximum rise of log perplexity that still counts as holding, in nats."""

Row = dict[str, Any]


def perplexity_table(record: dict[str, Any]) -> str:
    """The report for a terminal."""
    paired = record["protocol"] == "paired"
    columns = ["length", "log perplexity", "95 % interval", *(["longer − shortest", "95 % interval"] if paired else [])]
    rows = [
        [
            f"{row['length']:,}",
            _number(row.get("log_perplexity")),
            _interval(row),
            *([_number(row.get("difference", {}).get("loss"), "+"), _interval(row.get("difference", {}))] * paired),
            _number(row.get("bits_per_byte")),
            *(f"{row[name]:,}" if name in row else "–" for name in ("documents", "sequences", "tokens")),
        ]
        for row in record["rows"]
    ]
    table = Table([*columns, "bits per byte", "documents", "sequences", "tokens scored"], rows, left=0)
    failures = [f"length {row['length']:,}: {row['failed']}" for row in record["rows"] if "failed" in row]
    note = f"Note: {record['note']}" if "note" in record else ""
    return f"{verdict(record)}\n\n{render_text([table, failures, note, _method(record)])}"


def verdict(record: dict[str, Any]) -> str:
    """`Log perplexity 3.21 at 512, 3.25 at 8,192 (+0.04): holds past the training length.`, and the text scored."""
    rows = [row for row in record["rows"] if "log_perplexity" in row]
    if not rows:
        return "No length could be scored."
    trained = record.get("setting", {}).get("trained_length")
    base, last = next((row for row in rows if row["length"] == trained), rows[0]), rows[-1]
    shown = f"Log perplexity {base['log_perplexity']:.2f} at {base['length']:,}"
    if last is base:
        return f"{shown}.\nScored: {_amount(base)} at {base['length']:,}."
    change = last["log_perplexity"] - base["log_perplexity"]
    where = "past the training length" if trained and base["length"] <= trained < last["length"] else "as length grows"
    shown += (
        f", {last['log_perplexity']:.2f} at {last['length']:,} ({change:+z.2f}): {_trend(change, base, last)} {where}."
    )
    amounts = [f"{_amount(row)} at {row['length']:,}" for row in (base, last)]
    same = _amount(base) == _amount(last)
    return f"{shown}\nScored: {f'{_amount(base)} at each length' if same else '; '.join(amounts)}."


def _trend(change: float, base: Row, last: Row) -> str:
    """The change in words. Not significant if the paired difference has an interval that includes 0."""
    paired = last.get("difference", {})
    low, high = paired.get("interval", (0, 0)) if paired.get("from_length") == base["length"] else (0, 0)
    if abs(change) <= HOLDS:
        return "holds"
    if low < 0 < high:
        return "no significant change"
    return "degrades" if change > 0 else "improves"


def _amount(row: Row) -> str:
    documents = row.get("documents")
    source = f" of {documents:,} document{'s' * (documents != 1)}" if documents else ""
    return f"{row['tokens']:,} tokens{source}"


def _method(record: dict[str, Any]) -> str:
    parts = [f"protocol {record['protocol']}, natural log, one forward pass per sequence"]
    if setting := record.get("setting"):
        part = "all" if setting["split"] == "all" else f"the {setting['split']} split"
        parts = [
            f"{setting['checkpoint']} on {part} of {setting['corpus']['name']}",
            *parts,
            "{device}, {dtype}, attention {attention}, encoding {encoding}".format_map(setting),
        ]
    return "; ".join([*parts, *(["interrupted"] if record.get("interrupted") else [])]) + "."


def _number(value: float | None, sign: str = "") -> str:
    return "–" if value is None else f"{value:{sign}z.4f}"


def _interval(row: Row) -> str:
    return "{:.4f} … {:.4f}".format(*row["interval"]) if "interval" in row else "–"
