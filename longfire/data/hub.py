"""Hugging Face hub datasets as a source, streamed: only what is read is downloaded.

The short names below are untested, since this was written without access to the hub. Loading is tested on local folders
in the hub's layout.
"""

import logging
from collections.abc import Iterator
from dataclasses import dataclass, replace
from pathlib import Path
from typing import TYPE_CHECKING, Any

from longfire.data.source import CorpusError, DocumentSource, ReadLog, text_of
from longfire.validation import hint

if TYPE_CHECKING:
    from longfire.data.cache import FileHashes

log = logging.getLogger(__name__)


@dataclass(frozen=True)
class HubEntry:
    """Where to find the text of a hub dataset."""

    path: str
    config: str | None = None
    split: str = "train"
    field: str = "text"
    files: str | None = None
    """JSON files of a dataset that otherwise needs a loading script, with `{split}` for the split."""
    about: str = ""


HUB = {
    "c4": HubEntry("allenai/c4", "en", about="C4, English web text (untested)"),
    "arxiv": HubEntry(
        "EleutherAI/proof-pile-2",
        files="arxiv/{split}/*.jsonl.zst",
        about="LaTeX sources of arXiv papers, as in RedPajama (untested)",
    ),
    "github": HubEntry("codeparrot/codeparrot-clean", field="content", about="Python files from GitHub (untested)"),
    "github-validation": HubEntry(
        "codeparrot/codeparrot-clean-valid", field="content", about="held-out Python files from GitHub (untested)"
    ),
}
"""Datasets with a short name: `hub:c4`."""


class HubDataset(DocumentSource):
    """One split of a dataset."""

    def __init__(self, entry: HubEntry, name: str) -> None:
        self.entry = entry
        self.name = name
        self.root = Path(entry.path).expanduser()
        self.is_local = self.root.is_dir()
        config = f":{entry.config}" if entry.config else ""
        self.described = f"hub:{entry.path}{config}@{entry.split}"
        self.revision: str | None = None  # the hub's commit, once known

    def identity(self, hashes: "FileHashes") -> Any:
        """The commit on the hub or, for a local folder in its layout, the files."""
        settings: list[Any] = [self.entry.config, self.entry.split, self.entry.field, self.entry.files]
        if self.is_local:
            paths = sorted(path for path in self.root.rglob("*") if path.is_file())
            names = [(path.relative_to(self.root).as_posix(), path) for path in paths]
            return [*settings, [[name, hashes.digest(path)] for name, path in names if not name.startswith(".")]]
        return [*settings, self.entry.path, self.revision or self._find_revision(hashes)]

    def _find_revision(self, hashes: "FileHashes") -> str:
        from huggingface_hub import HfApi

        key = f"revision of hub:{self.entry.path}"
        try:
            self.revision = str(HfApi().dataset_info(self.entry.path).sha)
        except Exception as error:  # a dozen kinds: no network, offline mode, unknown name, no permission
            self.revision = hashes.recall(key)
            if self.revision is None:
                raise CorpusError(
                    f"cannot load the dataset {self.entry.path} from the Hugging Face hub ({_first_line(error)}). "
                    f"Check name, network and HF_TOKEN, or pass a local file or folder. Short names: {', '.join(HUB)}."
                ) from error
            log.warning("cannot reach the hub; using the last known revision of %s", self.described)
        else:
            hashes.remember(key, self.revision)
        return self.revision

    def documents(self, log: ReadLog) -> Iterator[bytes]:
        try:
            for number, row in enumerate(self._rows(), 1):
                text = text_of(row, self.entry.field, f"{self.described}, row {number}", log)
                if text is not None:
                    yield text
        except CorpusError:
            raise
        except Exception as error:  # datasets, its readers and the network raise many kinds
            raise CorpusError(f"{self.described} cannot be read ({_first_line(error)}).") from error

    def _rows(self) -> Any:
        from datasets import load_dataset

        entry, split = self.entry, self.entry.split
        if entry.files is not None:
            root = self.root if self.is_local else f"hf://datasets/{entry.path}@{self.revision}"
            files = f"{root}/{entry.files.format(split=split)}"
            return load_dataset("json", data_files={split: files}, split=split, streaming=True)
        path = str(self.root) if self.is_local else entry.path
        return load_dataset(path, entry.config, split=split, streaming=True, revision=self.revision)


def find_dataset(spec: str, field: str | None) -> HubDataset:
    """Parse `NAME[:CONFIG][@SPLIT]`; NAME is a short name, a hub id, or a folder in the hub's layout."""
    rest, _, split = (spec, "", "") if Path(spec).expanduser().is_dir() else spec.partition("@")
    name, _, config = (rest, "", "") if Path(rest).expanduser().is_dir() else rest.partition(":")
    if not name:
        raise CorpusError(f"'hub:{spec}' names no dataset. {hint(name, HUB)}")
    known = HUB.get(name)
    if known is None and "/" not in name and not Path(name).expanduser().is_dir():
        raise CorpusError(f"{name!r} is neither OWNER/NAME nor a short name. {hint(name, HUB)}")
    changes = {"config": config, "split": split, "field": field}
    entry = replace(known or HubEntry(name), **{key: value for key, value in changes.items() if value})
    return HubDataset(entry, name.rstrip("/").split("/")[-1])


def _first_line(error: Exception) -> str:
    text = str(error).strip().splitlines()
    return text[0] if text else type(error).__name__
