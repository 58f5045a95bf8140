"""The records in results/: read, compacted, and checked against today's kernels."""

import json
from pathlib import Path
from typing import Any

from longfire.lab.tables import ENTRIES, LengthEntry
from longfire.provenance import kernel_hash

ROOT = Path(__file__).resolve().parents[1]
RESULTS = ROOT / "results"
REPRODUCED = [entry for entry in ENTRIES.values() if type(entry) is LengthEntry]
"""The paper's tables and figures of perplexity."""
Record = dict[str, Any]


def read_record(name: str, results: Path = RESULTS) -> Record:
    """The record of this name, in whichever folder it is."""
    if (record := find_record(name, results)) is None:
        raise ValueError(f"a page shows {name}, but {results} has no {name}.json. Add the record or remove the block.")
    return record


def find_record(name: str, results: Path = RESULTS) -> Record | None:
    """The same, or None."""
    files = sorted(results.glob(f"*/{name}.json"))
    if len(files) > 1:
        raise ValueError(f"two records have one name: {', '.join(map(str, files))}. Rename one.")
    return json.loads(files[0].read_text(encoding="utf-8")) if files else None


def read_all(results: Path = RESULTS) -> dict[str, Record]:
    """Every record by folder and name."""
    files = sorted(results.glob("*/*.json"))
    return {f"{path.parent.name}/{path.stem}": json.loads(path.read_text(encoding="utf-8")) for path in files}


def compact(name: str, record: Record) -> str:
    """A record as results/ keeps it: a line per row or run, and learned biases only where a page draws them."""
    drawn = {entry.name for entry in REPRODUCED if entry.draws_biases}
    return _in_lines({key: value for key, value in record.items() if key != "biases" or name in drawn}) + "\n"


def not_compact(results: Path = RESULTS) -> dict[Path, str]:
    """Files that are not written as `compact` writes them, and what they should contain."""
    files = {path: path.read_text(encoding="utf-8") for path in sorted(results.glob("*/*.json"))}
    compacted = {path: compact(path.stem, json.loads(text)) for path, text in files.items()}
    return {path: text for path, text in compacted.items() if text != files[path]}


def outdated(record: Record) -> str:
    """A caption for a performance record that was measured with other kernels than today's; otherwise empty."""
    made = record["provenance"]
    if made.get("kernels") == kernel_hash():
        return ""
    where = f"commit {made['commit']}" if made.get("commit") else "an unknown commit"
    return f"Measured at {where}; the kernels have changed since."


def _in_lines(value: Any, depth: int = 2) -> str:
    """JSON with a line per item in its outer `depth` levels."""
    if not depth or not value or not isinstance(value, dict | list):
        return json.dumps(value, ensure_ascii=False, separators=(",", ":"))
    if isinstance(value, list):
        return "[\n" + ",\n".join(_in_lines(item, depth - 1) for item in value) + "\n]"
    fields = (f"{json.dumps(key, ensure_ascii=False)}: {_in_lines(item, depth - 1)}" for key, item in value.items())
    return "{\n" + ",\n".join(fields) + "\n}"
