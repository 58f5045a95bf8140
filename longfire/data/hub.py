"""Documents from datasets of the Hugging Face hub, streamed: nothing is downloaded that is not read.

The entries below could not be tried where this was written, for want of the hub; what loads them is tested on folders
in the hub's layout.
"""

import logging
from collections.abc import Iterator
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

from longfire.data.intake import CorpusError, Intake, Memory, text_of
from longfire.validation import hint

log = logging.getLogger(__name__)


@dataclass(frozen=True)
class HubEntry:
    """A dataset of the hub: where its text is."""

    path: str
    config: str | None = None
    split: str = "train"
    field: str = "text"
    files: str | None = None
    """For a dataset that would need its own loading script: its JSON files, `{split}` standing for the split."""
    about: str = ""


HUB = {
    "c4": HubEntry("allenai/c4", "en", about="C4, English web text (untried)"),
    "arxiv": HubEntry(
        "EleutherAI/proof-pile-2",
        files="arxiv/{split}/*.jsonl.zst",
        about="LaTeX sources of arXiv papers, as in RedPajama (untried)",
    ),
    "github": HubEntry("codeparrot/codeparrot-clean", field="content", about="Python files from GitHub (untried)"),
    "github-validation": HubEntry(
        "codeparrot/codeparrot-clean-valid", field="content", about="others of them, to test on (untried)"
    ),
}
"""Datasets with a short name: `hub:c4`."""


class Hub:
    """One split of a dataset."""

    def __init__(self, entry: HubEntry, name: str) -> None:
        self.entry = entry
        self.name = name
        self.passed_over = ""
        self.local = Path(entry.path).expanduser().is_dir()
        config = f":{entry.config}" if entry.config else ""
        self.described = f"hub:{entry.path}{config}@{entry.split}"
        self.revision: str | None = None  # on the hub: the commit that is read, once it is known

    def identity(self, memory: Memory) -> Any:
        """The commit on the hub; for a folder in the hub's layout, its files."""
        what: list[Any] = [self.entry.config, self.entry.split, self.entry.field, self.entry.files]
        if self.local:
            root = Path(self.entry.path).expanduser()
            there = sorted(path for path in root.rglob("*") if path.is_file())
            names = [(path.relative_to(root).as_posix(), path) for path in there]
            return [*what, [[name, memory.digest(path)] for name, path in names if not name.startswith(".")]]
        return [*what, self.entry.path, self.revision or self._find_revision(memory)]

    def _find_revision(self, memory: Memory) -> str:
        from huggingface_hub import HfApi

        what = f"revision of hub:{self.entry.path}"
        try:
            self.revision = str(HfApi().dataset_info(self.entry.path).sha)
        except Exception as error:  # a dozen kinds: no network, offline mode, no such name, no right to it
            self.revision = memory.recall(what)
            if self.revision is None:
                raise CorpusError(
                    f"the dataset {self.entry.path} cannot be had from the Hugging Face hub ({_first_line(error)}). "
                    f"Check name, network and HF_TOKEN, or give a local file or folder. Short names: {', '.join(HUB)}."
                ) from error
            log.warning("the hub does not answer; %s is taken as it was when last read", self.described)
        else:
            memory.remember(what, self.revision)
        return self.revision

    def documents(self, intake: Intake) -> Iterator[bytes]:
        """Row after row, as they come."""
        try:
            for number, row in enumerate(self._rows(), 1):
                text = text_of(row, self.entry.field, f"{self.described}, row {number}", intake)
                if text is not None:
                    yield text
        except CorpusError:
            raise
        except Exception as error:  # whatever datasets, its readers and the network raise
            raise CorpusError(f"{self.described} cannot be read ({_first_line(error)}).") from error

    def _rows(self) -> Any:
        from datasets import load_dataset

        entry = self.entry
        split = entry.split
        if entry.files is not None:
            at = Path(entry.path).expanduser() if self.local else f"hf://datasets/{entry.path}@{self.revision}"
            files = f"{at}/{entry.files.format(split=split)}"
            return load_dataset("json", data_files={split: files}, split=split, streaming=True)
        path = str(Path(entry.path).expanduser()) if self.local else entry.path
        return load_dataset(path, entry.config, split=split, streaming=True, revision=self.revision)


def find_hub(written: str, field: str | None) -> Hub:
    """The dataset that `NAME[:CONFIG][@SPLIT]` stands for: a short name, the hub's id, or a folder in its layout."""
    rest, _, split = (written, "", "") if Path(written).expanduser().is_dir() else written.partition("@")
    name, _, config = (rest, "", "") if Path(rest).expanduser().is_dir() else rest.partition(":")
    if not name:
        raise CorpusError(f"'hub:{written}' names no dataset. {hint(name, HUB)}")
    known = HUB.get(name)
    if known is None and "/" not in name and not Path(name).expanduser().is_dir():
        raise CorpusError(f"the hub's datasets are called OWNER/NAME, and {name!r} is no short name. {hint(name, HUB)}")
    entry = known or HubEntry(name)
    changes = {"config": config, "split": split, "field": field}
    entry = replace(entry, **{key: value for key, value in changes.items() if value})
    return Hub(entry, name.rstrip("/").split("/")[-1])


def _first_line(error: Exception) -> str:
    text = str(error).strip().splitlines()
    return text[0] if text else type(error).__name__
