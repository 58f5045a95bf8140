"""Perplexity by length, as a table."""

from textwrap import fill
from typing import Any

from longfire.report.table import text_table, width


def perplexity_table(record: dict[str, Any]) -> str:
    """A line for each length, and below what failed and why."""
    paired = record["protocol"] == "paired"
    header = ["length", "log perplexity", "95 % interval", *(["longer − shortest", "95 % interval"] if paired else [])]
    rows = [
        [
            f"{row['length']:,}",
            _number(row.get("log_perplexity")),
            _interval(row),
            *([_number(row.get("difference", {}).get("loss"), "+"), _interval(row.get("difference", {}))] * paired),
            _number(row.get("bits_per_byte")),
            f"{row['sequences']:,}" if "sequences" in row else "–",
            f"{row['documents']:,}" if "documents" in row else "–",
            f"{row['tokens']:,}" if "tokens" in row else "–",
        ]
        for row in record["rows"]
    ]
    parts = [
        _title(record),
        *([fill(f"Note: {record['note']}", width())] if "note" in record else []),
        text_table([*header, "bits per byte", "sequences", "documents", "tokens scored"], rows, left=0),
    ]
    parts += [f"– length {row['length']:,}: {row['failed']}" for row in record["rows"] if "failed" in row]
    return "\n".join(parts)


def _title(record: dict[str, Any]) -> str:
    setting = record.get("setting")
    if setting is None:
        return f"protocol {record['protocol']}"
    how = f"{setting['device']}, {setting['dtype']}, attention {setting['attention']}, encoding {setting['encoding']}"
    stopped = "; interrupted" if record.get("interrupted") else ""
    return (
        f"{setting['checkpoint']} on {setting['corpus']['name']}, {setting['split']}; protocol {record['protocol']}; "
        f"{how}{stopped}"
    )


def _number(value: float | None, sign: str = "") -> str:
    return "–" if value is None else f"{value:{sign}.4f}"


def _interval(found: dict[str, Any]) -> str:
    return "{:.4f} … {:.4f}".format(*found["interval"]) if "interval" in found else "–"
