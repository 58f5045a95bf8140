"""Speed measurements as tables."""

from collections.abc import Sequence
from textwrap import fill
from typing import Any

from longfire.bench.attention_speed import BASELINES, BOTH, FIRE_S, FORWARD, MEMORY, NO_BIAS, RATIOS
from longfire.report.table import text_table, width

LISTING = ("fire", "sdpa")
"""The paper's listing: FIRE's bias as one tensor, given to PyTorch."""

Row = dict[str, Any]


def speed_table(record: dict[str, Any]) -> str:
    """The record of `longfire bench bias` or `longfire bench attention`, for a terminal."""
    return {"bias": bias_table, "attention": attention_table}[record["setting"]["subject"]](record)


def bias_table(record: dict[str, Any]) -> str:
    """Encodings down, lengths across: milliseconds and megabytes."""
    lengths = record["setting"]["lengths"]
    cells = {(row["encoding"], row["n"]): row for row in record["rows"]}
    lines = []
    for name in dict.fromkeys(name for name, _ in cells):
        row = [cells[name, n] for n in lengths]
        lines.append(
            [name, *(_number(cell.get("ms")) for cell in row), *(_number(cell.get("peak_mb")) for cell in row)]
        )
    header = ["encoding", *(f"ms, n={n}" for n in lengths), *(f"MB, n={n}" for n in lengths)]
    setting = record["setting"]
    about = (
        f"bias, {setting['heads']} heads of {setting['head_dim']}, one sequence, forward, float32; {_machine(record)}"
    )
    return f"{about}\n\n{text_table(header, lines)}{_missing(record['rows'])}"


def attention_table(record: dict[str, Any]) -> str:
    """A block for each length: milliseconds, megabytes, and what they are relative to attention without a bias."""
    setting = record["setting"]
    rows = [row for row in record["rows"] if FORWARD in row or "not run" not in row]
    bases = BASELINES[setting["device"]]
    first = bases[0]
    columns: list[tuple[str, Sequence[str]]] = [
        ("forward ms", (FORWARD, "ms")),
        (_ratio_header(first), (RATIOS[first], FORWARD)),
        ("fwd+bwd ms", (BOTH, "ms")),
        *((_ratio_header(base), (RATIOS[base], BOTH)) for base in bases),
        ("MB added", (BOTH, "peak_mb")),
        (_ratio_header(first), (RATIOS[first], MEMORY)),
    ]
    shown = [
        [*_labels(row), *(_number(row.get(part, {}).get(key), ratio="÷" in name) for name, (part, key) in columns)]
        for row in rows
    ]
    lines = text_table(["encoding", "engine", *(name for name, _ in columns)], shown, left=2).splitlines()
    about = (
        f"attention, {setting['heads']} heads of {setting['head_dim']}, causal, {setting['dtype']}; {_machine(record)}"
        f"{'; interrupted' if record.get('interrupted') else ''}"
    )
    table = "\n".join([*lines[:2], *_in_blocks(rows, lines[2:])])
    return f"{about}\n\n{table}{_launching(rows)}{_shared(record)}{_missing(record['rows'])}"


def _launching(rows: Sequence[Row]) -> str:
    """What eager Python adds where times are those of replayed CUDA graphs."""
    added = [
        f"{row['encoding']} n={row['n']} {_number(row[FORWARD]['eager_ms'], ratio=True)}"
        for row in rows
        if "eager_ms" in row.get(FORWARD, {}) and row["encoding"] in (NO_BIAS, "fire") and row["engine"] != "cudnn"
    ]
    if not added:
        return ""
    text = (
        "Without a bias and on engines that a CUDA graph can hold, times are of replayed graphs: the GPU's alone. "
        f"Launched from eager Python, forward takes, in ms: {', '.join(added)}."
    )
    return "\n\n" + fill(text, width())


def _in_blocks(rows: Sequence[Row], lines: Sequence[str]) -> list[str]:
    """The lines of the rows with a title above each length."""
    titled: list[str] = []
    length = None
    for row, line in zip(rows, lines, strict=True):
        if row["n"] != length:
            length = row["n"]
            title = f"n = {length:,}, {row['batch']} sequence{'s' * (row['batch'] > 1)}"
            titled += ["", title] if titled else [title]
        titled.append(line)
    return titled


def _machine(record: dict[str, Any]) -> str:
    hardware, torch = record["provenance"]["hardware"], f"torch {record['provenance']['versions']['torch']}"
    if record["setting"].get("device") == "cuda":
        return f"{hardware['gpu']}, {torch}"
    return f"{hardware['cpu']}, {hardware['threads']} threads, {torch}"


def _labels(row: Row) -> tuple[str, str]:
    """Encoding and engine, as a person calls them."""
    if row["encoding"] == NO_BIAS:
        return NO_BIAS, {"flash": "SDPA flash", "cudnn": "SDPA cuDNN", "sdpa": "SDPA"}[row["engine"]]
    listing = (row["encoding"], row["engine"]) == LISTING
    return row["encoding"], f"{row['engine']} (the listing)" if listing else row["engine"]


def _ratio_header(baseline: str) -> str:
    return "÷ no bias" if baseline == "sdpa" else RATIOS[baseline]


def _number(value: float | None, ratio: bool = False) -> str:
    """With two digits after the point where it is a small ratio."""
    if value is None:
        return "–"
    return f"{value:,.2f}" if value < 10 and ratio else f"{value:,.1f}"


def _shared(record: dict[str, Any]) -> str:
    """What sharing one FIRE among layers saves."""
    found: dict[int, list[str]] = {}
    for row in record["rows"]:
        if row["encoding"] == FIRE_S and BOTH in row.get("÷ not shared", {}):
            found.setdefault(row["n"], []).append(f"{row['engine']} {_number(row['÷ not shared'][BOTH], ratio=True)}")
    if not found:
        return ""
    layers = record["setting"]["shared_layers"]
    ratios = "; ".join(f"n={n} {', '.join(engines)}" for n, engines in found.items())
    text = (
        f"{FIRE_S}: per layer of {layers} with one FIRE, its bias made once. Fwd+bwd ÷ layers with their own: {ratios}."
    )
    return "\n\n" + fill(text, width())


def _missing(rows: Sequence[Row]) -> str:
    """Why cells are empty, by reason."""
    reasons: dict[str, list[Row]] = {}
    for row in rows:
        for what in ("not run", "wrong", "failed"):
            if what in row:
                reason = row[what] if what == "not run" else f"{what}: {row[what]}"
                reasons.setdefault(reason, []).append(row)
    return "".join(
        "\n" + fill(f"– {_cases(found, rows)}: {reason}", width(), subsequent_indent="  ", break_long_words=False)
        for reason, found in reasons.items()
    )


def _cases(found: Sequence[Row], rows: Sequence[Row]) -> str:
    """The rows by name; an engine alone where they are all that it has."""
    names = []
    for row in found:
        whole = (
            "not run" in row
            and row["engine"]
            and all(other in found for other in rows if other["engine"] == row["engine"])
        )
        names.append(row["engine"] if whole else f"{row['encoding']} {row['engine'] or ''}".strip() + f" n={row['n']}")
    return ", ".join(dict.fromkeys(names))
