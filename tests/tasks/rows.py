"""One short row of every task: in a file, on the hub, and as an example."""

import gzip
import json
import zipfile
from pathlib import Path

import pyarrow
import pyarrow.parquet
import zstandard

TALE = "A goat lived on a hill.\n\nIt ate the moss, and then it ate the hill."
STORY = "The kettle boiled.\n \n  Nobody came."

SCROLLS = {
    "qasper": ("What did the goat eat?", TALE, "the moss"),
    "contract_nli": ("The goat may be sold.", TALE, "Not mentioned"),
    "qmsum": ("Summarize what was said about moss", TALE, "It was eaten."),
    "narrative_qa": ("Where did it live?", TALE, "On a hill"),
    "summ_screen_fd": ("", TALE, "A goat eats."),
    "gov_report": ("", TALE, "The report is on goats."),
    "quality": ("What was eaten last?\n\n (A) moss\n (B) a kettle\n (C) the hill\n (D) nothing", TALE, "the hill"),
    "squality": ("What happens?", STORY, "Water boils unseen."),
}
"""Question, document, answer."""

BETWEEN = {"quality": "\n\n\n"}

GLUE = {
    row["task"]: (row["columns"], row["question"], row["document"], row["answer"])
    for row in map(json.loads, Path(__file__).with_name("glue_rows.jsonl").read_text().splitlines())
}
"""Columns on the hub; question, document and answer."""

EXPECTED = {**SCROLLS, **{name: row[1:] for name, row in GLUE.items()}}


def local_row(name, number=0):
    """In a local file."""
    question, document, answer = EXPECTED[name]
    if name in SCROLLS:
        text = f"{question}{BETWEEN.get(name, chr(10) * 2)}{document}" if question else document
        return {"id": f"{name}_{number}", "pid": f"{name}_{number}_0", "input": text, "output": answer}
    row = {"id": f"{name}-train-{number}", "task": name, "input": f"{question} {document}", "output": answer}
    row["fields"] = {key: value for key, value in GLUE[name][0].items() if key in ("label", "answers")}
    return {**row, "group": "train-3-5"} if name == "multirc" else row


def write(path, rows):
    """JSON lines, compressed according to the suffix."""
    path.parent.mkdir(parents=True, exist_ok=True)
    lines = "".join(json.dumps(row) + "\n" for row in rows).encode()
    pack = {".gz": gzip.compress, ".zst": zstandard.compress}.get(path.suffix, bytes)
    path.write_bytes(pack(lines))
    return path


def write_zip(path, members):
    """A zip of JSON lines."""
    with zipfile.ZipFile(path, "w", zipfile.ZIP_DEFLATED) as zipped:
        for name, rows in members.items():
            zipped.writestr(name, "".join(json.dumps(row) + "\n" for row in rows))
    return path


def write_hub(root, tables):
    """Tables, `(configuration, split)` → rows, in the layout of a hub dataset."""
    card = ["---", "configs:"]
    for config in dict.fromkeys(config for config, _ in tables):
        splits = [split for other, split in tables if other == config]
        files = [line for split in splits for line in (f"  - split: {split}", f"    path: {config}/{split}.parquet")]
        card += [f"- config_name: {config}", "  data_files:", *files]
    for (config, split), rows in tables.items():
        (root / config).mkdir(parents=True, exist_ok=True)
        pyarrow.parquet.write_table(pyarrow.Table.from_pylist(rows), root / config / f"{split}.parquet")
    (root / "README.md").write_text("\n".join([*card, "---", ""]))
    return root
