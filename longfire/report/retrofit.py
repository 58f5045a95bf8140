"""Report of a retrofit: what it costs within the training length and gains past it, the table, and a page."""

from html import escape
from pathlib import Path
from typing import Any

from longfire.evaluation.record import FEW_DOCUMENTS, FEW_TOKENS
from longfire.report.html import colors_css, section, settings_section, write_page
from longfire.report.metric import fixed
from longfire.report.page import POSITIONS, curves_data, first_steps
from longfire.report.summary import COLORS, SPARE, Record, amount
from longfire.report.table import Table, render_text

TITLE = "Retrofit and recovery"
LEVEL = 0.005
"""Nats: a smaller difference is none."""
LEGEND = "Log perplexity on held-out text; lower is better."


def retrofit_table(record: Record) -> str:
    """The report for a terminal."""
    return render_text([retrofit_verdict(record), _table(record), _method(record)])


def retrofit_verdict(record: Record) -> str:
    """The retrofit against the original: at the training length, at the longest, and right away."""
    runs, trained = record["runs"], record["setting"]["trained_length"]
    if len(runs) < 2:
        return "Not finished: the retrofit was not tested. Run the same command again."
    original, first, last = runs[0], runs[1], runs[-1]
    after = (
        f"after {amount(last['tokens_seen'])} tokens of recovery" if last["step"] else "right away, without training"
    )
    measured = sorted(_losses(last))
    if not measured:
        return "No result: no length could be scored."
    near = max((n for n in measured if n <= trained), default=measured[0])
    whose = "training" if trained == record["setting"]["training_length"] else "recovery's"
    where = f"At the {whose} length ({near:,} tokens)" if near == trained else f"At {near:,} tokens"
    parts = [f"{where} the retrofit {_gap(last, original, near)} {after}."]
    if (far := measured[-1]) > near:
        parts = [f"{parts[0][:-1]}; at {far / trained:.3g}× that length ({far:,}) it {_gap(last, original, far)}."]
    if last["step"] and near in _losses(first):
        parts.append(f"Before recovery, at {near:,} tokens, it {_gap(first, original, near).replace('is', 'was', 1)}.")
    rows = [row for row in last["perplexity"]["rows"] if "tokens" in row]
    if min(row["documents"] for row in rows) < FEW_DOCUMENTS or min(row["tokens"] for row in rows) < FEW_TOKENS:
        parts.append("Little text was scored at some lengths: the result may differ on other documents.")
    if record.get("interrupted"):
        parts.append("Interrupted: the same command resumes.")
    return " ".join(parts)


def _gap(run: dict[str, Any], original: dict[str, Any], length: int) -> str:
    """`is 0.03 nats worse than the original (2.34 against 2.31)`."""
    found, before = _losses(run)[length], _losses(original).get(length)
    if before is None:
        return f"has {found:.2f}, where the original has no result,"
    if abs(found - before) < LEVEL:
        return f"is as good as the original ({found:.2f})"
    side = "worse" if found > before else "better"
    return f"is {abs(found - before):.2f} nats {side} than the original ({found:.2f} against {before:.2f})"


def _losses(run: dict[str, Any]) -> dict[int, float]:
    return {row["length"]: row["log_perplexity"] for row in run["perplexity"]["rows"] if "log_perplexity" in row}


def _label(run: dict[str, Any], record: Record) -> str:
    """`Original`, `FIRE, before recovery`, `FIRE after 1,000 steps`."""
    if run["stage"] == "original":
        return "Original"
    title = record["setting"]["encoding"]
    return f"{title} after {run['step']:,} steps" if run["step"] else f"{title}, before recovery"


def _table(record: Record) -> Table:
    setting = record["setting"]
    lengths = setting["lengths"]
    rows = []
    for run in record["runs"]:
        losses = _losses(run)
        values = [fixed(losses.get(n), 3) for n in lengths]
        rows.append([_label(run, record), f"{run['tokens_seen']:,}", *values])
    shown = record["runs"][-1]["perplexity"]["rows"] if record["runs"] else []
    scored = [
        f"{row['tokens']:,} from {row['documents']:,} document{'s' * (row['documents'] != 1)} at {row['length']:,}"
        for row in shown
        if "tokens" in row
    ]
    failed = [
        f"{_label(run, record)} at {row['length']:,}: {row['failed']}."
        for run in record["runs"]
        for row in run["perplexity"]["rows"]
        if "failed" in row
    ]
    notes = [f"Tokens scored: {'; '.join(scored)}." if scored else "", record.get("note", ""), *failed]
    shaded = 2 + lengths.index(setting["trained_length"]) if setting["trained_length"] in lengths else None
    columns = ["log perplexity", "tokens of recovery", *(f"{n:,}" for n in lengths)]
    return Table(
        columns, rows, notes=list(filter(None, notes)), shaded=shaded, swatches=[f"s{i}" for i in range(len(rows))]
    )


def _method(record: Record) -> str:
    setting = record["setting"]
    recipe, counts = setting["recipe"], setting["parameters"]
    trained = (
        f"{recipe['steps']:,} steps of {recipe['batch_size']} sequences of {recipe['length']:,} tokens trained "
        f"{counts['trained']:,} of {counts['all']:,} parameters"
        f"{' (LoRA of rank {lora_rank})'.format_map(recipe) if recipe['lora_rank'] else ''}"
    )
    return (
        f"{setting['model']} ({setting['model_type']}), retrofitted with {setting['encoding']} for "
        f"{setting['training_length']:,} tokens; {trained if recipe['steps'] else 'no training'}, on "
        f"{setting['corpus']['name']}. Natural log, one forward pass per sequence, the validation split."
    )


def retrofit_page(record: Record, path: Path) -> Path:
    """Write report.html, one self-contained file, and return its path."""
    setting = dict(record["setting"])
    runs = [{"encoding": run["stage"], "label": _label(run, record), **run} for run in record["runs"]]
    labelled = {**record, "runs": runs}
    data = curves_data(labelled)
    data["series"][-1]["strong"] = True
    data["biases"] = []
    first = [COLORS["rope"], COLORS["nope"], *SPARE * len(runs)][: len(runs) - 1]
    blocks = {
        "Recipe": setting.pop("recipe"),
        "Text": setting.pop("corpus"),
        "Retrofit": setting,
        "Hardware and versions": record["provenance"],
    }
    verdict = f'<h1>{TITLE}</h1><p class="verdict">{escape(retrofit_verdict(record))}</p>'
    body = [
        verdict,
        section(data["chart"], "Log perplexity by length", LEGEND),
        f'<div id="numbers">{_table(record).html()}</div>',
        section("method", "How it was run", "", f"<p>{escape(_method(record))}</p>"),
        section("losses", "Training loss", first_steps(data)) if any(one["losses"] for one in data["series"]) else "",
        section("positions", "Loss by position", POSITIONS.format("")),
        settings_section(blocks),
    ]
    style = colors_css({f"s{i}": pair for i, pair in enumerate([*first, COLORS["recommended"]])})
    write_page(path, title=TITLE, body="\n".join(filter(None, body)), data=data, scripts=("report.js",), style=style)
    return path
