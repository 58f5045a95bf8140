"""A corpus: text from anywhere as tokens of three splits, made once and kept."""

import json
import logging
import shutil
from collections.abc import Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import numpy as np
from transformers import AutoTokenizer, PreTrainedTokenizerFast

from longfire.data.build import Plan, token_type
from longfire.data.cache import (
    RECORD,
    Cache,
    DamagedError,
    Notes,
    default_folder,
    read_record,
    short_hash,
    write_record,
)
from longfire.data.embedded import StandardLibrary
from longfire.data.files import READERS, find_files, roots
from longfire.data.hub import find_hub
from longfire.data.intake import CorpusError, Source
from longfire.data.splits import SPLITS, Hashes
from longfire.data.token_split import TokenSplit
from longfire.data.tokenizers import plan_tokenizer
from longfire.validation import at_least, load_without_code

log = logging.getLogger(__name__)

MOST_DOCUMENTS = 1_000_000
"""A model's folder has the hashes of so many training documents at most: 8 MB."""

Written = str | Path | Sequence[str | Path]


@dataclass(frozen=True, eq=False)
class Corpus:
    """Text as tokens: `train`, `dev` for every choice that is tuned, `validation` for claims alone."""

    name: str
    fingerprint: str
    """The same where tokens, documents and tokenizer are the same, wherever the text came from."""
    tokenizer: PreTrainedTokenizerFast = field(repr=False)
    train: TokenSplit
    dev: TokenSplit
    validation: TokenSplit
    built: bool
    """Whether the tokens were made now, not read from the cache."""
    record: dict[str, Any] = field(repr=False)
    folder: Path = field(repr=False)
    """Where the tokens are."""

    @property
    def vocab_size(self) -> int:
        """Tokens of the tokenizer, special ones included."""
        return len(self.tokenizer)

    @property
    def contents(self) -> Hashes | None:
        """Hashes of all documents, split after split; None if some are not known."""
        return _together(self.train.contents, self.dev.contents, self.validation.contents)

    def describe(self) -> dict[str, Any]:
        """What it is, for records: sizes of the splits, how they were divided, what was left out."""
        return {
            "name": self.name,
            "source": self.record["source"],
            "tokenizer": self.record["tokenizer"],
            "vocab_size": self.vocab_size,
            "fingerprint": self.fingerprint,
            "splits": self.record["splits"],
            "divided": self.record["divided"],
            "skipped": self.record["skipped"],
            "empty": self.record["empty"],
            "passed_over": self.record.get("passed_over", ""),  # which tokens saved long ago do not say
            "also_in_validation": self.record["also_in_validation"],
        }

    def save(self, folder: str | Path) -> Path:
        """A folder with all of it, sealed, that `load_corpus` takes as a source where the text itself is not."""
        folder = Path(folder)
        if folder.exists() and any(folder.iterdir()):
            raise ValueError(f"{folder} is not empty. Choose another folder for the tokens, or delete that one.")
        shutil.copytree(self.folder, folder, dirs_exist_ok=True, ignore=shutil.ignore_patterns(RECORD))
        write_record(folder, {**self.record, "name": self.name})
        return folder

    def save_description(self, folder: Path, source: Path | None = None) -> None:
        """Beside a model trained on it: corpus.json says what it is, corpus.npy has the training documents' hashes.

        Those of `source` too, the checkpoint that training went on from. Where some are not known, or there are more
        than MOST_DOCUMENTS, no corpus.npy is written.
        """
        (folder / "corpus.json").write_text(json.dumps(self.describe(), indent=1) + "\n", encoding="utf-8")
        before = [] if source is None else [trained_documents(source)]
        contents = _together(self.train.contents, *before)
        if contents is not None and len(every := np.unique(contents)) <= MOST_DOCUMENTS:
            np.save(folder / "corpus.npy", every)

    def save_tokenizer(self, folder: str | Path) -> None:
        """Where AutoTokenizer finds it."""
        self.tokenizer.save_pretrained(folder)


def load_corpus(
    source: Written | None = None,
    *,
    field: str | None = None,
    tokenizer: str | Path | None = None,
    vocab_size: int | None = None,
    validation: Written | None = None,
    cache_dir: str | Path | None = None,
    skip_bad: bool = False,
    max_documents: int | None = None,
    progress: bool = True,
) -> Corpus:
    """Text as tokens in three splits, from the cache where they were made before.

    Args:
        source: a file of text (.txt, .md, .py, .rst, .tex) or of rows (.jsonl, .jsonl.gz, .jsonl.zst, .parquet), a
            folder of these, a pattern with *, a list of paths; `hub:NAME[:CONFIG][@SPLIT]` for a dataset of the Hugging
            Face hub, streamed (short names: c4, arxiv, github, all untried); None for the sources and documentation of
            the running Python's standard library. A folder that `Corpus.save` wrote is taken as it is, with its own
            tokenizer and splits.
        field: which field holds the text; `text` unless a short name of the hub says otherwise.
        tokenizer: `bytes` (if not given), `bpe` (trained on the train split), or a folder or hub name of a Hugging Face
            tokenizer.
        vocab_size: of the BPE; 8192 if not given.
        validation: a source of its own for validation. Without it, about 5 % of the documents, chosen by their content.
            About 2 % of the rest are dev.
        cache_dir: where tokens are kept; $LONGFIRE_CACHE or ~/.cache/longfire if not given.
        skip_bad: count and leave out what cannot be read, instead of an error.
        max_documents: of each source, the first so many.
        progress: bars for long work, on a terminal.
    """
    if max_documents is not None:
        at_least("max_documents", max_documents, 1)
    source, validation = only(source), only(validation)
    if is_saved(source) and isinstance(source, str | Path):
        asked = {"field": field, "tokenizer": tokenizer, "vocab_size": vocab_size, "validation": validation}
        if given := [name for name, value in {**asked, "max_documents": max_documents}.items() if value is not None]:
            raise CorpusError(
                f"{source} holds tokens that are made already, with a tokenizer and splits of their own: leave out "
                f"{', '.join(given)}, or give the text."
            )
        return _saved(Path(source))
    plan = Plan(
        source=find_source(source, field),
        validation=None if validation is None else find_source(validation, field),
        tokenizer=plan_tokenizer("bytes" if tokenizer is None else tokenizer, vocab_size),
        skip_bad=skip_bad,
        max_documents=max_documents,
        progress=progress,
    )
    sources = [one for one in (plan.source, plan.validation) if one is not None]
    described = "; validation: ".join(one.described for one in sources)
    root = Path(cache_dir).expanduser() if cache_dir is not None else default_folder()
    cache = Cache(root / "tokens")
    notes = Notes(root)
    key = short_hash(plan.identity(notes))
    notes.save()

    def build(folder: Path) -> dict[str, Any]:
        content = plan.build(folder)
        if short_hash(plan.identity(notes)) != key:
            raise CorpusError(f"{described} changed while it was read. Run the command again.")
        return content

    folder, sealed, built = cache.get(key, build)
    record = sealed["content"]
    if record["skipped"]:
        what = "%s: %d documents that cannot be read are left out. %s"
        log.warning(what, plan.source.described, record["skipped"], " ".join(record["reasons"]))
    passed_over = "; ".join(one.passed_over for one in sources if one.passed_over)
    if passed_over and (progress or built):  # processes that share a corpus need not all say it
        log.warning("%s: %s. Known: %s.", described, passed_over, ", ".join(READERS))
    own = {"name": plan.source.name, "source": described, "tokenizer": plan.tokenizer.described}
    own["passed_over"] = passed_over
    return _opened(folder, {**sealed, "content": {**record, **own}}, built)


def _together(*parts: Hashes | None) -> Hashes | None:
    """All hashes; None if some are not known."""
    known = [part for part in parts if part is not None]
    return np.concatenate(known) if len(known) == len(parts) else None


def trained_documents(checkpoint: Path) -> Hashes | None:
    """Hashes of the documents that a model was trained on, in order; None if they are not known."""
    file = checkpoint / "corpus.npy"
    try:
        return np.load(file) if file.is_file() else None
    except (ValueError, EOFError) as error:
        raise CorpusError(f"{file} is damaged ({error}). Put it back from a copy, or delete it.") from error


def only(written: Written | None) -> Written | None:
    """A list of one path is that path."""
    alone = isinstance(written, Sequence) and not isinstance(written, str) and len(written) == 1
    return written[0] if alone else written  # type: ignore[index]


def is_saved(source: Written | None) -> bool:
    """Whether it is a folder that `Corpus.save` wrote."""
    folder = only(source)
    return isinstance(folder, str | Path) and (Path(folder) / RECORD).is_file()


def local_paths(source: Written | None) -> list[Path]:
    """The files and folders that a source names, each of them there; none of the hub, and none of the embedded text."""
    source = only(source)
    if source is None or (isinstance(source, str) and source.startswith("hub:")):
        return []
    return roots(source)


def _saved(folder: Path) -> Corpus:
    try:
        return _opened(folder, read_record(folder), built=False)
    except DamagedError as error:
        raise CorpusError(f"the tokens in {folder} are damaged ({error}): save them again.") from error


def find_source(written: Written | None, field: str | None) -> Source:
    """What a source as written stands for."""
    if written is None:
        return StandardLibrary()
    if isinstance(written, str) and written.startswith("hub:"):
        return find_hub(written.removeprefix("hub:"), field)
    return find_files(written, field or "text")


def _opened(folder: Path, sealed: dict[str, Any], built: bool) -> Corpus:
    record, files = sealed["content"], sealed["files"]
    tokenizer: Any = load_without_code(AutoTokenizer, folder / "tokenizer")
    splits = {
        name: TokenSplit(
            name=name,
            tokens=np.memmap(folder / f"{name}.tokens", token_type(tokenizer), "r"),
            starts=np.load(folder / f"{name}.starts.npy"),
            bytes=record["splits"][name]["bytes"],
            end=tokenizer.eos_token_id,
            contents=np.load(folder / f"{name}.contents.npy") if f"{name}.contents.npy" in files else None,
        )
        for name in SPLITS
    }
    return Corpus(
        name=record["name"],
        fingerprint=_fingerprint(files),
        tokenizer=tokenizer,
        built=built,
        record=record,
        folder=folder,
        **splits,
    )


def _fingerprint(files: dict[str, Any]) -> str:
    """Of tokens, documents and vocabulary; a tokenizer's other files may hold the path it came from."""
    kept = (".tokens", ".starts.npy", "tokenizer/tokenizer.json")
    return short_hash({name: sums for name, sums in files.items() if name.endswith(kept)})
