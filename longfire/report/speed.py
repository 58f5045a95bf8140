"""Speed measurements as a table."""

from typing import Any

from longfire.report.table import text_table


def speed_table(record: dict[str, Any]) -> str:
    """Encodings (and engines) down, lengths across: milliseconds and megabytes."""
    lengths = record["setting"]["lengths"]
    cells = {(row["encoding"], row["engine"], row["n"]): row for row in record["rows"]}
    lines = []
    for name, engine in dict.fromkeys((name, engine) for name, engine, _ in cells):
        row = [cells[name, engine, n] for n in lengths]
        lines.append(
            [name, engine or "", *(_number(one, "ms") for one in row), *(_number(one, "peak_mb") for one in row)]
        )
    hardware, versions = record["provenance"]["hardware"], record["provenance"]["versions"]
    about = (
        f"{record['setting']['subject']}, {record['setting']['heads']} heads of {record['setting']['head_dim']}, one "
        f"sequence, forward, float32; {hardware['cpu']}, {hardware['threads']} threads, torch {versions['torch']}"
    )
    header = ["encoding", "engine", *(f"ms, n={n}" for n in lengths), *(f"MB, n={n}" for n in lengths)]
    return f"{about}\n\n{text_table(header, lines, left=2)}{_not_run(record)}"


def _number(row: dict[str, Any], key: str) -> str:
    return f"{row[key]:,.1f}" if key in row else "–"


def _not_run(record: dict[str, Any]) -> str:
    lines = [
        f"{row['encoding']} {row['engine'] or ''} n={row['n']}: {row['not run']}"
        for row in record["rows"]
        if "not run" in row
    ]
    return "".join(f"\n– {line}" for line in lines)
