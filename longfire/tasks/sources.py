"""Where rows come from: a folder, a file, a zip as SCROLLS has them on the hub, the hub itself, or nowhere.

The hub could not be tried where this was written; what reads it is tested on files and folders in the hub's layout.
"""

from collections.abc import Iterable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any, NoReturn
from zipfile import ZIP_DEFLATED, ZIP_STORED, BadZipFile, ZipFile

from longfire.data.files import refuse_irregular
from longfire.data.readers import LineReader, read_rows
from longfire.data.source import ReadLog
from longfire.tasks.placeholder import MADE_UP, made_up_rows
from longfire.tasks.rows import rows_from_hub
from longfire.tasks.task import Task

ENDINGS = (".jsonl", ".jsonl.gz", ".jsonl.zst")
SPLITS = ("train", "validation", "test")
HUB = "hub"

Rows = Iterator[tuple[str, Any]]
"""Where a row is, and the row."""


def rows_of(task: Task, source: str | Path | None, split: str) -> Rows:
    """The rows of one split, as they come."""
    if source is None or str(source) == HUB:
        return _from_hub(task, split)
    if str(source) == MADE_UP:
        return made_up_rows(task, split)
    path = Path(source).expanduser()
    if path.is_dir():
        return _from_file(_find(task, path, split), task, split)
    if not path.exists():
        raise FileNotFoundError(
            f"there is no file or folder {source}. Check the path, or give '{HUB}' for the Hugging Face hub."
        )
    refuse_irregular(path)
    if not path.name.lower().endswith((*ENDINGS, ".zip")):
        raise ValueError(f"{path} is of no kind that can be read. Known: {', '.join(ENDINGS)}, .zip.")
    named = path.name.split(".")[0]
    if named in SPLITS and named != split:
        raise ValueError(f"{path} is the {named} split by its name, and {split} is asked for. Give the folder instead.")
    return _from_file(path, task, split)


def _find(task: Task, root: Path, split: str) -> Path:
    """The split's file in a folder of suites, of tasks or of one task's splits."""
    folders = [root / task.suite / task.name, root / task.name, root]
    looked_for = [folder / f"{split}{ending}" for folder in folders for ending in ENDINGS]
    looked_for += [root / f"{task.name}.zip"]
    for path in looked_for:
        if path.is_file():
            return path
    there = {
        path.name.removesuffix(ending)
        for folder in folders
        for ending in ENDINGS
        for path in folder.glob(f"*{ending}")
        if path.name.removesuffix(ending) in SPLITS
    }
    raise FileNotFoundError(
        f"{root} has no {split} split of {task.name}: looked for {split}.jsonl (.gz, .zst) in "
        f"{', '.join(map(str, folders))}, and for {task.name}.zip. {_splits_there(there)}"
    )


def _splits_there(found: Iterable[str]) -> str:
    return f"Splits there are: {', '.join(sorted(found)) or 'none'}."


def _from_file(path: Path, task: Task, split: str) -> Rows:
    if path.suffix.lower() != ".zip":
        return read_rows(path, _Strict())
    name = _member(path, task, split)
    return read_rows(path / name, _Strict(), _unzipped(path, name))


class _Strict(ReadLog):
    """Every row counts: one that cannot be read is an error."""

    def bad(self, what: str, remedy: str) -> NoReturn:
        raise ValueError(f"{what} {remedy}")


def _member(path: Path, task: Task, split: str) -> str:
    """The split's name within a zip: `qasper/validation.jsonl`."""
    try:
        with ZipFile(path) as zipped:
            names = [name for name in zipped.namelist() if name.endswith(".jsonl") and not name.startswith("__MACOSX")]
    except BadZipFile as error:
        raise ValueError(f"{path} is damaged or no zip ({error}). Copy or download it again.") from error
    for name in names:
        if Path(name).parts[-2:] in ((task.name, f"{split}.jsonl"), (f"{split}.jsonl",)):
            return name
    raise FileNotFoundError(
        f"{path} has no {task.name}/{split}.jsonl in it. {_splits_there(Path(name).stem for name in names)}"
    )


@contextmanager
def _unzipped(path: Path, name: str) -> Iterator[LineReader]:
    with ZipFile(path) as zipped:
        # Python unpacks the others without a bound on memory
        if zipped.getinfo(name).compress_type not in (ZIP_STORED, ZIP_DEFLATED):
            raise ValueError(
                f"{path}: {name} is compressed by another method than deflate. Pack it again: zip -Z deflate."
            )
        with zipped.open(name) as lines:
            yield lines


def _from_hub(task: Task, split: str) -> Rows:
    dataset, config = task.hub
    where = f"{HUB}:{dataset}:{config}@{split}".replace(":@", "@")
    rows = _from_zip_of(task, split) if task.suite == "scrolls" and config else _table(task, split, where)
    for place, columns in rows:
        yield from ((place, row) for row in rows_from_hub(task, columns, place, split))


def _from_zip_of(task: Task, split: str) -> Rows:
    """SCROLLS: the hub's own loading script is no longer run by `datasets`, so its zips are read here."""
    from huggingface_hub import hf_hub_download

    dataset, config = task.hub
    name = f"{config}.zip"
    try:
        local = Path(dataset) / name
        path = local if local.is_file() else Path(hf_hub_download(dataset, name, repo_type="dataset"))
    except Exception as error:  # a dozen kinds: no network, offline mode, no such name, no right to it
        _cannot_be_had(f"{name} of {dataset}", error)
    return _from_file(path, task, split)


def _table(task: Task, split: str, where: str) -> Rows:
    from datasets import load_dataset

    dataset, config = task.hub
    try:
        name = task.hub_validation if split == "validation" else split
        table = load_dataset(dataset, config or None, split=name)
    except Exception as error:
        _cannot_be_had(where, error)
    for number, columns in enumerate(table, 1):
        yield f"{where}, row {number}", columns


def _cannot_be_had(what: str, error: Exception) -> NoReturn:
    first = (str(error).strip().splitlines() or [type(error).__name__])[0]
    raise ValueError(
        f"{what} cannot be had from the Hugging Face hub ({first}). Check network, split and HF_TOKEN, or "
        "give a folder with TASK/SPLIT.jsonl."
    ) from error
