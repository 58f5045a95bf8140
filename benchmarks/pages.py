"""Generate the blocks of README.md, docs/ and benchmarks/README.md.

A block is between `<!-- name -->` and `<!-- end -->`. The name is listed in `block`, or it is a record in results/
followed by `-figures` (the main numbers, as Markdown) or `-table` (the whole performance record, as text).
"""

import re
from collections.abc import Callable, Sequence
from pathlib import Path

from benchmarks.claims_page import claims_markdown
from benchmarks.markdown import (
    architectures_markdown,
    comparison_markdown,
    learned_markdown,
    reproduction_markdown,
    shared_description,
    tasks_markdown,
)
from benchmarks.pictures import COMPARISONS, CONTEXTS, FIVE, LAYOUTS, is_of_model, picture_of
from benchmarks.results import REPRODUCED, RESULTS, Record, find_record, outdated, read_all, read_record
from benchmarks.speed_markdown import attention_figures, forward_markdown, model_figures, speed_line
from benchmarks.task_markdown import downstream_markdown
from longfire.commands.downstream import PAPERS
from longfire.lab.reported import TABLES, reported
from longfire.lab.tables import ENTRIES, TaskEntry
from longfire.report.compare import comparison_tables, scored_text
from longfire.report.reproduce import NO_NUMBERS, PAPERS_MODELS, theorem_table
from longfire.report.speed import machine, missing, ratio_table, speed_table
from longfire.report.summary import join_words, lengths_of, seeds_of
from longfire.report.table import Table
from longfire.tasks import SUITES

PAGES = (
    "README.md",
    "benchmarks/README.md",
    "docs/results.md",
    "docs/speed.md",
    "docs/log.md",
    "docs/tables.md",
    "docs/claims.md",
    "docs/tasks.md",
    "docs/retrofit.md",
    "longfire/engines/fused/README.md",
)
BLOCK = re.compile(r"<!-- ([\w-]+) -->\n.*?<!-- end -->", re.DOTALL)
TASK_RECORDS = {
    "qmsum": "QMSum: questions on meetings",
    "squality": "SQuALITY: questions on stories, answered at length",
    "glue": "GLUE and SuperGLUE",
    "glue-ablation": "GLUE and SuperGLUE without the logarithm or the threshold",
    "narrative-qa": "NarrativeQA by context length",
}
"""Task records, and their headings in docs/results.md."""
ON_TASKS = (
    "Scores and settings are in the [results](results.md): smaller models, fewer steps, and not always the paper's "
    "data or fine-tuning tasks. `glue-ablation` was run with `longfire reproduce` at scale small, the others with "
    "`longfire finetune` and `evaluate` with other steps and lengths."
)
LAYOUTS_PICTURE = "![Time of each layout relative to its baseline][layouts]"
"""The page that shows it says where the picture is: the README is also a page of docs/."""
MODEL_PICTURE = "![Forward, training and decoding of the base model on an H200](images/model-h200.png)"


def with_blocks(page: str, results: Path = RESULTS) -> str:
    """The page with every block regenerated. A block `method` has the sentences that its comparisons share."""
    names = BLOCK.findall(page)
    known = shared_method(names, results) if "method" in names else []
    return BLOCK.sub(lambda match: f"<!-- {match[1]} -->\n{block(match[1], results, known)}\n<!-- end -->", page)


def shared_method(names: Sequence[str], results: Path) -> list[str]:
    """Sentences on method that most comparisons of a page share."""
    records = [read_record(name.removesuffix("-figures"), results) for name in names if name.endswith("-figures")]
    return shared_description([record for record in records if "runs" in record])


def block(name: str, results: Path = RESULTS, known: Sequence[str] = ()) -> str:
    """The content of a block."""
    special: dict[str, Callable[[], str]] = {
        "architectures": architectures_markdown,
        "claims": lambda: claims_block(results),
        "tables": lambda: tables_block(results),
        "tasks": tasks_markdown,
        "method": lambda: " ".join(known),
        "speed": lambda: speed_block(read_record("h200-attention", results)),
        "layouts": lambda: layouts_block(results),
        "results": lambda: five_encodings(read_record("encodings", results)),
    }
    if name in special:
        return special[name]()
    record_name, _, kind = name.rpartition("-")
    if kind not in ("figures", "table"):
        raise ValueError(
            f"nothing generates the block {name!r}. Remove it from the page, or add it to benchmarks/pages.py."
        )
    record = read_record(record_name, results)
    return full_table(record) if kind == "table" else figures(record_name, record, known)


def figures(name: str, record: Record, known: Sequence[str] = ()) -> str:
    """The main numbers of a record."""
    if "runs" in record:
        return comparison_markdown(record, COMPARISONS.get(name, ""), known)
    if "kind" in record["setting"]:
        return downstream_markdown(record, {table: reported(table) for table in PAPERS}, CONTEXTS.get(name, ""))
    return captioned(model_figures(record) if is_of_model(record) else attention_figures(record), record)


def full_table(record: Record) -> str:
    """A performance record as a fenced text table, with a caption below its first line if it is outdated."""
    table = speed_table(record)
    if caption := outdated(record):
        table = table.replace("\n", f"\n{caption}\n", 1)
    return f"```\n{table}\n```"


def captioned(text: str, record: Record) -> str:
    """The text, with a caption if the record is outdated."""
    return "\n\n".join(filter(None, (text, outdated(record))))


def speed_block(record: Record) -> str:
    """The line on speed in README.md."""
    return speed_line(record) + (" Not re-measured since the kernels changed." if outdated(record) else "")


def layouts_block(results: Path) -> str:
    """Packed documents, windows, both directions and random positions, in the fused engine's README."""
    if (record := find_record(LAYOUTS, results)) is None:
        return "Not measured yet."
    setting = record["setting"]
    what = f"{setting['heads']} heads of {setting['head_dim']}, {setting['dtype']}, commit"
    caption = f"{machine(record)}, {what} {record['provenance']['commit'] or 'unknown'}."
    table = captioned(f"{ratio_table(record).markdown()}\n\n{caption}", record)
    reasons = "\n".join(f"- {reason}" for reason in missing(record["rows"]))
    return "\n\n".join(filter(None, [table, reasons, LAYOUTS_PICTURE]))


def five_encodings(record: Record) -> str:
    """The small table of README.md: five encodings at multiples of the training length."""
    trained, lengths = record["setting"]["trained_length"], lengths_of(record)
    kept = ("encoding", "label", "seed", "perplexity")
    runs = [{key: run[key] for key in kept} for run in record["runs"] if run["encoding"] in FIVE]
    shown = {**record, "runs": sorted(runs, key=lambda run: FIVE.index(run["encoding"]))}
    for run in shown["runs"]:
        run["label"] = {"FIRE": "FIRE (as published)"}.get(run["label"], run["label"])
    (table,) = comparison_tables(shown)
    columns = [f"{n // trained}× ({n:,} tokens)" if n == trained else f"{n // trained}×" for n in lengths]
    note = f"Mean ± standard deviation over {len(seeds_of(record))} seeds. {scored_text(shown)}"
    return Table(["log perplexity at", *columns], table.rows, highlights=table.highlights, notes=[note]).markdown()


def claims_block(results: Path) -> str:
    """All claims, judged by all records."""
    records = read_all(results)
    shown = claims_markdown(records, {table: reported(table) for table in TABLES})
    for name, record in records.items():
        if name.startswith("bench/") and (caption := outdated(record)):
            shown = re.sub(rf"^- `{name}`: .*", rf"\g<0> {caption}", shown, flags=re.MULTILINE)
    return shown


def tables_block(results: Path) -> str:
    """Every table and figure of the paper."""
    records = {entry.name: record for entry in REPRODUCED if (record := find_record(entry.name, results)) is not None}
    known, shown = shared_description(list(records.values())), dict[str, str]()
    for entry in (entry for entry in REPRODUCED if entry.name in records):
        record, paper = records[entry.name], reported(entry.reported) if entry.reported else []
        shown[entry.name] = reproduction_markdown(record, paper, picture_of(entry), known)
        if entry.draws_biases and (learned := learned_markdown(record)):
            shown[entry.name] += f"\n\n{learned}"
    if (theorem := find_record("theorem", results)) is not None:
        shown["theorem"] = theorem_table(theorem).markdown()
    if (speed := find_record("h200-model", results)) is not None:
        shown["speed"] = f"{captioned(forward_markdown(speed), speed)}\n\n{NO_NUMBERS}\n\n{MODEL_PICTURE}"
    parts = [f"## {ENTRIES[name].shows}: {ENTRIES[name].what}\n\n{text}" for name, text in shown.items()]
    every = ("theorem", "speed", *(entry.name for entry in REPRODUCED))
    if missing := [f"`{name}` ({ENTRIES[name].shows})" for name in every if name not in shown]:
        parts.insert(0, f"Not run yet: {join_words(missing)}.")
    parts += ["## On tasks", ON_TASKS, tasks_table(results)]
    return "\n\n".join([*parts, "## Method", " ".join([*known, PAPERS_MODELS])])


def tasks_table(results: Path) -> str:
    """Where to find our version of each of the paper's task tables."""
    entries = [entry for entry in ENTRIES.values() if isinstance(entry, TaskEntry)]
    rows = [[f"`{entry.name}`", entry.shows, entry.what, _where(entry, results)] for entry in entries]
    return Table(["name", "in the paper", "what", "here"], rows, left=4).markdown()


def _where(entry: TaskEntry, results: Path) -> str:
    """A link to the entry's record or, if only some tasks of its suite were run, to theirs."""
    if find_record(entry.name, results) is not None:
        return _link(entry.name)
    own = set(SUITES.get(entry.task, ())) if entry.name == entry.task else set()
    parts = [name for name in TASK_RECORDS if name in own and find_record(name, results) is not None]
    return f"only {', '.join(map(_link, parts))}" if parts else "not run"


def _link(name: str) -> str:
    title = TASK_RECORDS.get(name, name)
    return f"[{title}](results.md#{'-'.join(re.findall(r'[a-z0-9]+', title.lower()))})"
