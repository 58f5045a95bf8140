"""Load a split of a task from a folder, a file, a SCROLLS zip, the hub, or placeholder rows.

Reading from the hub is tested only on local files and folders in the hub's layout.
"""

from collections.abc import Iterable, Iterator
from contextlib import contextmanager
from dataclasses import replace
from pathlib import Path
from typing import Any, NoReturn
from zipfile import ZIP_DEFLATED, ZIP_STORED, BadZipFile, ZipFile

from tqdm import tqdm

from longfire.data.files import refuse_irregular
from longfire.data.readers import LineReader, read_rows
from longfire.data.source import ReadLog
from longfire.tasks.parse import hub_rows, parse_example
from longfire.tasks.placeholder import (
    PLACEHOLDER,
    PLACEHOLDER_ROWS,
    is_placeholder,
    placeholder_rows,
    warn_former_name,
)
from longfire.tasks.suites import Example, Task
from longfire.validation import at_least

ENDINGS = (".jsonl", ".jsonl.gz", ".jsonl.zst")
SPLITS = ("train", "validation", "test")
HUB = "hub"

Rows = Iterator[tuple[str, Any]]
"""Location and content of each row."""


class SplitNotFoundError(FileNotFoundError):
    """The data has no such split of a task."""

    def __init__(self, message: str, split: str) -> None:
        super().__init__(message)
        self.split = split


def load_examples(task: Task, source: str | Path | None, split: str, *, limit: int | None = None) -> list[Example]:
    """The examples of one split, in the order of its rows; rows with the same id are references of one example.

    Args:
        task: which task.
        source: a folder with `TASK/SPLIT.jsonl` (or .jsonl.gz, .jsonl.zst), optionally inside a folder named after the
            suite, or with the splits themselves; one such file; a zip as SCROLLS distributes them; "hub" or None for
            the Hugging Face hub; "placeholder" for the rows of `longfire.tasks.placeholder`.
        split: "train" or "validation".
        limit: stop reading after this many examples. References of one example must then be adjacent.
    """
    if limit is not None:
        at_least("limit", limit, 1)
    rows: Rows = iter(
        tqdm(_rows(task, source, split), f"{task.name} {split}", unit="row", delay=3, leave=False, disable=None)
    )
    examples = _merge_references(task, rows, limit)
    if not examples:
        raise ValueError(f"{source or HUB} has no rows of {task.name} in the {split} split.")
    return examples


def _merge_references(task: Task, rows: Rows, limit: int | None) -> list[Example]:
    found: dict[str, Example] = {}
    first_seen: dict[str, str] = {}
    documents: dict[str, str] = {}  # many questions share a document, which may be a megabyte long
    for where, row in rows:
        example = parse_example(task, row, where)
        known = found.get(example.id)
        if known is None:
            if len(found) == limit:
                break
            found[example.id] = replace(example, document=documents.setdefault(example.document, example.document))
            first_seen[example.id] = where
        elif (known.question, known.document) != (example.question, example.document):
            raise ValueError(
                f"{where} has the same id as {first_seen[example.id]}, {example.id!r}, but a different input. Rows "
                "that share an id are answers to one question; give other questions their own id."
            )
        else:
            found[example.id] = replace(known, references=(*known.references, *example.references))
    return list(found.values())


def _rows(task: Task, source: str | Path | None, split: str) -> Rows:
    if source is None or str(source) == HUB:
        return _hub_rows(task, split)
    if is_placeholder(source):
        warn_former_name(source)
        if split not in PLACEHOLDER_ROWS:
            available = _available(PLACEHOLDER_ROWS)
            raise SplitNotFoundError(f"{PLACEHOLDER} has no {split} split of {task.name}. {available}", split)
        return placeholder_rows(task, split)
    path = Path(source).expanduser()
    if path.is_dir():
        return _file_rows(_find_split(task, path, split), task, split)
    if not path.exists():
        raise FileNotFoundError(
            f"there is no file or folder {source}. Check the path, or pass '{HUB}' for the Hugging Face hub."
        )
    refuse_irregular(path)
    if not path.name.lower().endswith((*ENDINGS, ".zip")):
        raise ValueError(f"{path} has an unknown file type. Known: {', '.join(ENDINGS)}, .zip.")
    name = path.name.split(".")[0]
    if name in SPLITS and name != split:
        raise ValueError(f"{path} is the {name} split by its name, but {split} is needed. Pass the folder instead.")
    return _file_rows(path, task, split)


def _find_split(task: Task, root: Path, split: str) -> Path:
    folders = [root / task.suite / task.name, root / task.name, root]
    candidates = [folder / f"{split}{ending}" for folder in folders for ending in ENDINGS]
    for path in (*candidates, root / f"{task.name}.zip"):
        if path.is_file():
            return path
    others = {path.name.split(".")[0] for folder in folders for ending in ENDINGS for path in folder.glob(f"*{ending}")}
    message = (
        f"{root} has no {split} split of {task.name}: looked for {split}.jsonl (.gz, .zst) in "
        f"{', '.join(map(str, folders))}, and for {task.name}.zip. {_available(others & {*SPLITS})}"
    )
    raise SplitNotFoundError(message, split)


def _available(splits: Iterable[str]) -> str:
    return f"Available splits: {', '.join(sorted(splits)) or 'none'}."


def _file_rows(path: Path, task: Task, split: str) -> Rows:
    if path.suffix.lower() != ".zip":
        return read_rows(path, _Strict())
    name = _zip_member(path, task, split)
    return read_rows(path / name, _Strict(), _open_member(path, name))


class _Strict(ReadLog):
    """An unreadable row is always an error."""

    def bad(self, problem: str, remedy: str) -> NoReturn:
        raise ValueError(f"{problem} {remedy}")


def _zip_member(path: Path, task: Task, split: str) -> str:
    """The name of a split's file inside a zip: `qasper/validation.jsonl`."""
    try:
        with ZipFile(path) as zipped:
            names = [name for name in zipped.namelist() if name.endswith(".jsonl") and not name.startswith("__MACOSX")]
    except BadZipFile as error:
        raise ValueError(f"{path} is damaged or not a zip ({error}). Copy or download it again.") from error
    for name in names:
        if Path(name).parts[-2:] in ((task.name, f"{split}.jsonl"), (f"{split}.jsonl",)):
            return name
    available = _available(Path(name).stem for name in names)
    raise SplitNotFoundError(f"{path} does not contain {task.name}/{split}.jsonl. {available}", split)


@contextmanager
def _open_member(path: Path, name: str) -> Iterator[LineReader]:
    with ZipFile(path) as zipped:
        # Python decompresses other methods with unbounded memory
        if zipped.getinfo(name).compress_type not in (ZIP_STORED, ZIP_DEFLATED):
            raise ValueError(f"{path}: {name} is not compressed with deflate. Repack it: zip -Z deflate.")
        with zipped.open(name) as lines:
            yield lines


def _hub_rows(task: Task, split: str) -> Rows:
    dataset, config = task.hub
    where = f"{HUB}:{dataset}:{config}@{split}".replace(":@", "@")
    rows = _hub_zip(task, split) if task.suite == "scrolls" and config else _hub_table(task, split, where)
    for place, columns in rows:
        yield from ((place, row) for row in hub_rows(task, columns, place, split))


def _hub_zip(task: Task, split: str) -> Rows:
    """SCROLLS: `datasets` no longer runs the hub's loading script, so read its zips."""
    from huggingface_hub import hf_hub_download

    dataset, config = task.hub
    name = f"{config}.zip"
    try:
        local = Path(dataset) / name
        path = local if local.is_file() else Path(hf_hub_download(dataset, name, repo_type="dataset"))
    except Exception as error:  # a dozen kinds: no network, offline mode, unknown name, no permission
        _raise_unavailable(f"{name} of {dataset}", error)
    return _file_rows(path, task, split)


def _hub_table(task: Task, split: str, where: str) -> Rows:
    from datasets import load_dataset

    dataset, config = task.hub
    try:
        name = task.hub_validation if split == "validation" else split
        table = load_dataset(dataset, config or None, split=name)
    except Exception as error:
        _raise_unavailable(where, error)
    for number, columns in enumerate(table, 1):
        yield f"{where}, row {number}", columns


def _raise_unavailable(what: str, error: Exception) -> NoReturn:
    first = (str(error).strip().splitlines() or [type(error).__name__])[0]
    raise ValueError(
        f"cannot load {what} from the Hugging Face hub ({first}). Check network, split and HF_TOKEN, or pass a folder "
        "with TASK/SPLIT.jsonl."
    ) from error
