"""Read and compact the records in results/, and tell which were measured with older kernels."""

import json
from pathlib import Path
from typing import Any

from benchmarks.names import with_display_names
from longfire.lab.tables import ENTRIES, LengthEntry
from longfire.provenance import kernel_hash

ROOT = Path(__file__).resolve().parents[1]
RESULTS = ROOT / "results"
REPRODUCED = [entry for entry in ENTRIES.values() if type(entry) is LengthEntry]
"""The paper's tables and figures on perplexity."""
Record = dict[str, Any]


def read_record(name: str, results: Path = RESULTS) -> Record:
    """The record with this name, from any folder."""
    if (record := find_record(name, results)) is None:
        raise ValueError(f"a page shows {name}, but {results} has no {name}.json. Add the record or remove the block.")
    return record


def find_record(name: str, results: Path = RESULTS) -> Record | None:
    """The record with this name, or None."""
    files = sorted(results.glob(f"*/{name}.json"))
    if len(files) > 1:
        raise ValueError(f"two records have one name: {', '.join(map(str, files))}. Rename one of them.")
    return _read(files[0]) if files else None


def read_all(results: Path = RESULTS) -> dict[str, Record]:
    """All records, by folder and name."""
    files = sorted(results.glob("*/*.json"))
    return {f"{path.parent.name}/{path.stem}": _read(path) for path in files}


def _read(path: Path) -> Record:
    return with_display_names(json.loads(path.read_text(encoding="utf-8")))


def compact(name: str, record: Record) -> str:
    """A record as stored in results/: one line per row or run, and learned biases only if a page draws them."""
    drawn = {entry.name for entry in REPRODUCED if entry.draws_biases}
    return _in_lines({key: value for key, value in record.items() if key != "biases" or name in drawn}) + "\n"


def not_compact(results: Path = RESULTS) -> dict[Path, str]:
    """Files that differ from what `compact` writes, and what they should contain."""
    files = {path: path.read_text(encoding="utf-8") for path in sorted(results.glob("*/*.json"))}
    compacted = {path: compact(path.stem, json.loads(text)) for path, text in files.items()}
    return {path: text for path, text in compacted.items() if text != files[path]}


def outdated(record: Record) -> str:
    """A caption for a performance record if the kernels have changed since it was measured; otherwise empty."""
    provenance = record["provenance"]
    if provenance.get("kernels") == kernel_hash():
        return ""
    where = f"commit {provenance['commit']}" if provenance.get("commit") else "an unknown commit"
    return f"Measured at {where}; not re-measured since the kernels changed."


def _in_lines(value: Any, depth: int = 2) -> str:
    """JSON with one line per item in the outer `depth` levels."""
    if not depth or not value or not isinstance(value, dict | list):
        return json.dumps(value, ensure_ascii=False, separators=(",", ":"))
    if isinstance(value, list):
        return "[\n" + ",\n".join(_in_lines(item, depth - 1) for item in value) + "\n]"
    fields = (f"{json.dumps(key, ensure_ascii=False)}: {_in_lines(item, depth - 1)}" for key, item in value.items())
    return "{\n" + ",\n".join(fields) + "\n}"
