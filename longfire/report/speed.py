"""Speed measurements as a table."""

from typing import Any

from longfire.report.table import text_table


def speed_table(record: dict[str, Any]) -> str:
    """Encodings (and engines) down, lengths across: milliseconds and megabytes."""
    lengths = record["setting"]["lengths"]
    cells = {(row["encoding"], row["engine"], row["n"]): row for row in record["rows"]}
    labels = list(dict.fromkeys((name, engine) for name, engine, _ in cells))
    by_engine = any(engine for _, engine in labels)
    lines = []
    for name, engine in labels:
        row = [cells[name, engine, n] for n in lengths]
        label = [name, str(engine)] if by_engine else [name]
        lines.append([*label, *(_number(cell, "ms") for cell in row), *(_number(cell, "peak_mb") for cell in row)])
    header = ["encoding", "engine"] if by_engine else ["encoding"]
    header += [*(f"ms, n={n}" for n in lengths), *(f"MB, n={n}" for n in lengths)]
    setting, made = record["setting"], record["provenance"]
    about = (
        f"{setting['subject']}, {setting['heads']} heads of {setting['head_dim']}, one sequence, forward, float32; "
        f"{made['hardware']['cpu']}, {made['hardware']['threads']} threads, torch {made['versions']['torch']}"
    )
    return f"{about}\n\n{text_table(header, lines, left=1 + by_engine)}{_not_run(record)}"


def _number(row: dict[str, Any], key: str) -> str:
    return f"{row[key]:,.1f}" if key in row else "–"


def _not_run(record: dict[str, Any]) -> str:
    lines = [
        f"{row['encoding']} {row['engine'] or ''} n={row['n']}: {row['not run']}"
        for row in record["rows"]
        if "not run" in row
    ]
    return "".join(f"\n– {line}" for line in lines)
