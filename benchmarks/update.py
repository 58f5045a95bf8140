"""Compact the records in results/, and generate the pictures and the tables of README.md, docs/ and this folder."""

import json
import re
import shutil
import tempfile
from collections.abc import Callable, Sequence
from functools import partial
from pathlib import Path
from typing import Any

from longfire.lab.entry import Entry, LengthEntry, TaskEntry
from longfire.report.model_speed import forward_markdown, model_figures, model_table, plot_model

from longfire.atomic_io import write_whole
from longfire.commands.downstream import PAPERS
from longfire.evaluation.learned import ANTI_LOCAL, LOCAL
from longfire.lab.reported import TABLES, reported
from longfire.lab.tables import ENTRIES
from longfire.provenance import kernel_hash
from longfire.report.biases import plot_biases
from longfire.report.claims.names import OURS
from longfire.report.claims.page import claims_markdown
from longfire.report.compare import SPREAD, comparison_tables
from longfire.report.compare_plot import plot_compare
from longfire.report.contexts import plot_contexts
from longfire.report.description import description
from longfire.report.downstream_markdown import downstream_markdown
from longfire.report.explore import QUERIES, effects, effects_table, plot_effects
from longfire.report.failures import failures
from longfire.report.reproduce import (
    NO_NUMBERS,
    PAPERS_MODELS,
    heading,
    papers_table,
    theorem_table,
)
from longfire.report.significance import RULE
from longfire.report.speed import figures_table, speed_table
from longfire.report.speed_plot import plot_speed
from longfire.report.stamp import stamp
from longfire.report.summary import join_words, lines_of, over_seeds
from longfire.report.table import Table, markdown_table
from longfire.report.tasks import tasks_markdown
from longfire.report.verdict import verdict
from longfire.tasks import SUITES

ROOT = Path(__file__).resolve().parents[1]
RESULTS = ROOT / "results"
DOWNSTREAM, REPRODUCE = "downstream", "reproduce"
BY_LENGTH = [entry for entry in ENTRIES.values() if type(entry) is LengthEntry]
"""The paper's tables and figures of perplexity."""
UNTRAINED: dict[str, tuple[str, Callable[[dict[str, Any]], str]]] = {
    "theorem": ("theorem", lambda record: theorem_table(record).markdown()),
    "speed": ("h200-model", lambda record: f"{captioned(forward_markdown(record), record)}\n\n{FORWARD_PART}"),
}
"""The records of what is not trained, and what shows them."""
TASKS = {
    "qmsum": "QMSum: questions on meetings",
    "squality": "SQuALITY: questions on stories, answered at length",
    "glue": "GLUE and SuperGLUE",
    "glue-ablation": "GLUE and SuperGLUE without the logarithm or the threshold",
    "narrative-qa": "NarrativeQA by context",
}
"""Records of checkpoints on tasks, and what they are headed with."""
PICTURES = {"narrative-qa": "images/narrative-qa-small.png"}
"""Of scores by length, beside docs/results.md."""
COMPARED = {
    "encodings": "images/encodings-small.png",
    "encodings-base": "images/encodings-base.png",
    "encodings-128": "images/encodings-128.png",
    "start-horizon": "images/start-horizon.png",
    "start-horizon-base": "images/start-horizon-base.png",
    "horizon-tiny": "images/horizon-tiny.png",
}
"""Pictures of comparisons."""
MEASURED = {"h200-attention": "images/attention-h200.png", "h200-model": "images/model-h200.png"}
"""Pictures of speed."""
STARTS = "images/encodings.png"
"""What `longfire explore` draws, of no record: it is of the tables that it prints."""
FORWARD_PART = (
    "This is the forward part of `longfire bench model`, which `longfire reproduce speed` measures alone. " + NO_NUMBERS
) + "\n\n![Forward, training and decoding of the base model on an H200](images/model-h200.png)"
ON_TASKS = (
    "Scores are among the [results](results.md), which say what was run: smaller models, fewer steps, and not "
    "everywhere the data or the tasks that the paper fine-tuned on. `glue-ablation` is as `longfire reproduce` has it "
    "at the scale small; the others were made by `longfire finetune` and `evaluate`, with other steps and lengths."
)
SHOWN = (OURS, "fire", "kerple_log", "kerple_power", "alibi")
"""What README.md shows of a comparison: FIRE as we train it, as published, and what it fell behind."""
SIZES = {"ours": "encodings", "ours-base": "encodings-base"}
"""Its tables, and of which records."""
SECTION = """
## Fine-tuned on long documents, questions and GLUE

Checkpoints that were pretrained in short sequences, then fine-tuned on tasks and tested, as `longfire finetune` and
`longfire evaluate` recorded it in `results/downstream/`; [Downstream tasks](tasks.md) says how. Scores are 0 … 100, and
more is better. A 95 % interval says how far other questions would move a score, not how far another seed of training
would.

“Paper, base” is the paper's figure for the same encoding: 125M parameters, pretrained on C4 in sequences of 2,048
tokens, fine-tuned on the whole datasets in 25,000 steps, the best model of a run on the validation split. The scores of
a small-scale run can be compared with each other, and not with the paper's.
"""


def compare_markdown(record: dict[str, Any], known: Sequence[str] = ()) -> str:
    """A comparison for a page that already has the sentences in `known`."""
    rule = "by the test above" if RULE in known else RULE
    tables = [table.markdown() for table in comparison_tables(record, rule=rule)]
    how = " ".join(sentence for sentence in description(record) if sentence not in known)
    return "\n\n".join(filter(None, [verdict(record), *tables, *failures(record), how]))


def reproduced_markdown(record: dict[str, Any], paper: list[dict[str, Any]], known: Sequence[str] = ()) -> str:
    """The same for a page that already has the sentences in `known`."""
    theirs = papers_table(paper)
    return f"{compare_markdown(record, known)}\n\n{theirs.markdown() if theirs else NO_NUMBERS}"


def shared_description(records: Sequence[dict[str, Any]]) -> list[str]:
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


def shared_notes(records: Sequence[dict[str, Any]]) -> list[str]:
    """Sentences that apply to a page of several reproductions, to be said once."""
    return [*shared_description(records), SPREAD, PAPERS_MODELS]


def learned_table(record: dict[str, Any], encoding: str = "fire") -> Table | None:
    """FIRE's learned c and L by layer, and how many heads look near or far: mean ± deviation over seeds."""
    lines = [line for line in lines_of(record) if line.encoding == encoding]
    runs = [run["learned"] for line in lines for run in line.runs if "learned" in run]
    if not runs:
        return None
    rows = []
    for layers in zip(*runs, strict=True):
        c, L = ([layer[key] for layer in layers if layer[key] is not None] for key in ("c", "L"))
        near = [sum(look < LOCAL for look in layer["look_back"]) for layer in layers]
        far = [sum(look > ANTI_LOCAL for look in layer["look_back"]) for layer in layers]
        means = [over_seeds(c, 3), over_seeds(L, 0), over_seeds(near, 1), over_seeds(far, 1)]
        rows.append([str(layers[0]["layer"] + 1), *means])
    trained = record["setting"]["trained_length"]
    note = (
        f"c is that of ψ(x) = log(c·x + 1); L is the threshold in tokens (training length {trained:,}). A head's "
        "look-back is the mean distance it attends to if all keys are alike, from the last query of "
        f"{trained:,} tokens, relative to a head without a bias. A head looks near below {LOCAL} and far above "
        f"{ANTI_LOCAL}."
    )
    columns = ["layer", "c", "L", f"heads that look near (below {LOCAL})", f"far (above {ANTI_LOCAL})"]
    return Table(columns, rows, notes=[note])


def compacted(name: str, record: dict[str, Any]) -> str:
    """A record as results/ keeps it: without learned biases that no page draws, and a line for each row or run.

    A record is small that way, and a diff still shows which run changed.
    """
    drawn = {entry.name for entry in BY_LENGTH if entry.draws_biases}
    return in_lines({key: value for key, value in record.items() if key != "biases" or name in drawn}) + "\n"


def in_lines(value: Any, depth: int = 2) -> str:
    """JSON whose outer `depth` levels have a line for each item."""
    if not depth or not value or not isinstance(value, dict | list):
        return json.dumps(value, ensure_ascii=False, separators=(",", ":"))
    if isinstance(value, list):
        return "[\n" + ",\n".join(in_lines(item, depth - 1) for item in value) + "\n]"
    fields = (f"{json.dumps(key, ensure_ascii=False)}: {in_lines(item, depth - 1)}" for key, item in value.items())
    return "{\n" + ",\n".join(fields) + "\n}"


def not_compact(results: Path = RESULTS) -> dict[Path, str]:
    """Records that are not written as `compacted` writes them, and what they should be."""
    files = {path: path.read_text(encoding="utf-8") for path in sorted(results.glob("*/*.json"))}
    written = {path: compacted(path.stem, json.loads(text)) for path, text in files.items()}
    return {path: text for path, text in written.items() if text != files[path]}


def outdated(record: dict[str, Any]) -> str:
    """The caption of a performance record if it was measured with other kernels than today's; otherwise nothing."""
    made = record["provenance"]
    if made.get("kernels") == kernel_hash():
        return ""
    where = f"commit {made['commit']}" if made.get("commit") else "an unknown commit"
    return f"Measured at {where}; the kernels have changed since."


def captioned(table: str, record: dict[str, Any]) -> str:
    """A table in Markdown, with a caption if its record is outdated."""
    return "\n\n".join(filter(None, (table, outdated(record))))


def result(name: str, results: Path = RESULTS) -> dict[str, Any] | None:
    """The record of this name, in whichever folder it is; one of two is nobody's."""
    files = sorted(results.glob(f"*/{name}.json"))
    if len(files) > 1:
        raise ValueError(f"two records have one name: {', '.join(map(str, files))}. Rename one.")
    return json.loads(files[0].read_text(encoding="utf-8")) if files else None


def shown_record(name: str, results: Path = RESULTS) -> dict[str, Any]:
    """What a page shows has to be there."""
    if (record := result(name, results)) is None:
        raise ValueError(
            f"a page shows {name}, and {results} has no {name}.json. Bring it back, or take the block out."
        )
    return record


def is_of_a_model(record: dict[str, Any]) -> bool:
    """Rather than of attention alone."""
    return bool(record["setting"]["subject"] == "model")


def updated(page: str) -> str:
    """The page with every fenced block after `<!-- name -->` replaced by that result's table."""

    def table(match: re.Match[str]) -> str:
        record = shown_record(match[1])
        shown = model_table(record) if is_of_a_model(record) else speed_table(record)
        if caption := outdated(record):
            shown = shown.replace("\n", f"\n{caption}\n", 1)  # below the line that says what was measured
        return f"<!-- {match[1]} -->\n```\n{shown}\n```"

    return re.sub(r"<!-- ([\w-]+) -->\n```\n.*?```", table, page, flags=re.DOTALL)


def with_figures(page: str, results: Path = RESULTS) -> str:
    """The page with all between `<!-- name-figures -->` and `<!-- end -->` made anew from name.json.

    What is said of checkpoints on tasks is there as long as its record is, and so is the head of their section.
    """

    def figures(match: re.Match[str]) -> str:
        name = match[1]
        if name == DOWNSTREAM:
            shown = SECTION if any(result(one, results) for one in TASKS) else ""
        elif (record := result(name, results) if name in TASKS else shown_record(name, results)) is None:
            shown = ""
        elif "runs" in record:
            shown = f"{compare_markdown(record)}\n"
        elif "kind" in record["setting"]:
            paper = {table: reported(table) for table in PAPERS}
            shown = f"\n### {TASKS.get(name, name)}\n\n{downstream_markdown(record, paper, PICTURES.get(name))}\n"
        else:
            table = model_figures(record) if is_of_a_model(record) else figures_table(record)
            shown = f"{captioned(table, record)}\n"
        return f"<!-- {name}-figures -->\n{shown}<!-- end -->"

    return re.sub(r"<!-- ([\w-]+)-figures -->\n.*?<!-- end -->", figures, page, flags=re.DOTALL)


def replaced(page: str, name: str, shown: str) -> str:
    """The page with this between `<!-- name -->` and `<!-- end -->`."""
    made = f"<!-- {name} -->{shown}<!-- end -->"
    return re.sub(rf"<!-- {name} -->\n.*?<!-- end -->", lambda _: made, page, flags=re.DOTALL)


def reproduced(results: Path = RESULTS) -> dict[str, dict[str, Any]]:
    """The records of the paper's tables by length that are there, by name, in their order."""
    files = {entry.name: results / REPRODUCE / f"{entry.name}.json" for entry in BY_LENGTH}
    return {name: json.loads(file.read_text(encoding="utf-8")) for name, file in files.items() if file.is_file()}


def with_tables(page: str, results: Path = RESULTS) -> str:
    """The page with all between `<!-- tables -->` and `<!-- end -->` made anew: every table and figure of the paper."""
    parts = [*tables_by_length(results), *not_there(results), *without_training(results), *on_tasks(results)]
    return replaced(page, "tables", "\n\n".join(["", *parts, ""]))


def tables_by_length(results: Path) -> list[str]:
    """What holds for all, then a section for each."""
    records = reproduced(results)
    said = shared_notes(list(records.values()))
    parts = [" ".join(said), f"Differences are tested by {RULE}."] if records else []
    for entry in (entry for entry in BY_LENGTH if entry.name in records):
        record, paper = records[entry.name], reported(entry.reported) if entry.reported else []
        table = reproduced_markdown(record, paper, [*said, RULE])
        learned = learned_table(record) if entry.draws_biases else None
        title = heading(entry.shows, entry.what, record)
        picture = f"![{title}]({picture_of(entry)})"
        parts += [f"## {title}", table, *([learned.markdown()] if learned else []), picture]
    return parts


def without_training(results: Path) -> list[str]:
    """A section for each that has a record."""
    parts = []
    for name, (record, shown) in UNTRAINED.items():
        if (found := result(record, results)) is not None:
            parts += [f"## {ENTRIES[name].shows}: {ENTRIES[name].what}", shown(found)]
    return parts


def on_tasks(results: Path) -> list[str]:
    """Where each of the paper's tables on tasks is, or that it was not run."""
    entries = [entry for entry in ENTRIES.values() if isinstance(entry, TaskEntry)]
    rows = [[f"`{entry.name}`", entry.shows, entry.what, where_on_tasks(entry, results)] for entry in entries]
    return ["## On tasks", ON_TASKS, markdown_table(["name", "in the paper", "what", "here"], rows, left=4)]


def where_on_tasks(entry: TaskEntry, results: Path) -> str:
    """A link to its record; of a suite that was not run as a whole, to those of its tasks."""
    if result(entry.name, results) is not None:
        return link_to(entry.name)
    own = set(SUITES.get(entry.task, ())) if entry.name == entry.task else set()
    parts = [name for name in TASKS if name in own and result(name, results) is not None]
    return f"of its tasks alone: {', '.join(map(link_to, parts))}" if parts else "not run"


def link_to(name: str) -> str:
    """Where docs/results.md has a record of checkpoints on tasks."""
    title = TASKS.get(name, name)
    words = re.findall(r"\w+", title.lower())
    return f"[{title}](results.md#{'-'.join(words)})"


def not_there(results: Path) -> list[str]:
    """What needs runs that are not there."""
    records = reproduced(results)
    unmade = [ENTRIES[name] for name, (record, _) in UNTRAINED.items() if result(record, results) is None]
    left = [*unmade, *(entry for entry in BY_LENGTH if entry.name not in records)]
    return [f"Not run yet: {named(left)}."] if left else []


def named(entries: Sequence[Entry]) -> str:
    """With what they are in the paper."""
    return join_words([f"`{entry.name}` ({entry.shows})" for entry in entries])


def with_ours(page: str, results: Path = RESULTS) -> str:
    """The page with its tables of FIRE as we train it made anew, on the corpus itself. What one says is said once."""
    said: list[str] = []
    for block, name in SIZES.items():
        if f"<!-- {block} -->" not in page:
            continue
        record = shown_record(name, results)
        runs = [{key: run[key] for key in run if key != "also"} for run in record["runs"] if run["encoding"] in SHOWN]
        shown = {**record, "runs": runs}
        page = replaced(page, block, f"\n{compare_markdown(shown, said)}\n")
        said += [*description(shown), SPREAD, RULE]
    return page


def with_claims(page: str, results: Path = RESULTS) -> str:
    """The page with all between `<!-- claims -->` and `<!-- end -->` made anew from all records."""
    records = {
        f"{path.parent.name}/{path.stem}": json.loads(path.read_text(encoding="utf-8"))
        for path in sorted(results.glob("*/*.json"))
    }
    shown = claims_markdown(records, {table: reported(table) for table in TABLES})
    for name, record in records.items():
        if name.startswith("bench/") and (caption := outdated(record)):
            shown = re.sub(rf"^- `{name}`: .*", rf"\g<0> {caption}", shown, flags=re.MULTILINE)
    return replaced(page, "claims", f"\n{shown}\n")


def with_tasks(page: str) -> str:
    """The page with all between `<!-- tasks -->` and `<!-- end -->` made anew from the tasks themselves."""
    return replaced(page, "tasks", f"\n{tasks_markdown()}\n")


def pictures() -> dict[str, tuple[Any, Callable[[Path], object]]]:
    """Those of records that are there: what each is of, and what draws it."""
    made: dict[str, tuple[Any, Callable[[Path], object]]] = {}
    for name, picture in PICTURES.items():
        if (record := result(name)) is not None:
            made[picture] = record, partial(plot_contexts, record, record["setting"]["tasks"][0])
    for name, picture in COMPARED.items():
        if (record := result(name)) is not None:
            made[picture] = record, partial(draw_lengths, record)
    for name, picture in MEASURED.items():
        if (record := result(name)) is not None:
            made[picture] = record, partial(plot_model if is_of_a_model(record) else plot_speed, record)
    records = reproduced()
    for entry in (entry for entry in BY_LENGTH if entry.name in records):
        record = records[entry.name]
        draw = partial(plot_biases, record["biases"]["fire"]) if entry.draws_biases else partial(draw_lengths, record)
        made[picture_of(entry)] = record, draw
    if is_shown(STARTS):
        shown = {query: effects(query) for query in QUERIES}
        made[STARTS] = [effects_table(query, found) for query, found in shown.items()], partial(plot_effects, shown)
    return made


def is_shown(picture: str) -> bool:
    """By README.md."""
    readme = ROOT / "README.md"
    return readme.exists() and f"(docs/{picture})" in readme.read_text(encoding="utf-8")


def draw_pictures() -> None:
    """All of them, each with a stamp that says of what."""
    for picture, (record, draw) in pictures().items():
        path = ROOT / "docs" / picture
        draw(path)
        stamp(path, record)


def draw_lengths(record: dict[str, Any], path: Path) -> None:
    """Perplexity by length."""
    with tempfile.TemporaryDirectory() as folder:
        shutil.copy(plot_compare(record, Path(folder))[0], path)


def picture_of(entry: LengthEntry) -> str:
    """Beside docs/tables.md."""
    return f"images/{REPRODUCE}-{entry.name}.png"


PAGES: dict[str, Callable[[str], str]] = {
    "README.md": lambda page: with_ours(with_figures(page)),
    "benchmarks/README.md": updated,
    "docs/results.md": with_figures,
    "docs/log.md": with_figures,
    "docs/tables.md": with_tables,
    "docs/claims.md": with_claims,
    "docs/tasks.md": with_tasks,
}
"""And what makes each anew."""

if __name__ == "__main__":
    for path, text in not_compact().items():
        write_whole(path, text)
    draw_pictures()
    for path, change in ((ROOT / name, change) for name, change in PAGES.items() if (ROOT / name).exists()):
        path.write_text(change(path.read_text(encoding="utf-8")), encoding="utf-8")
