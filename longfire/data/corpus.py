"""A corpus: text from anywhere, tokenised once, in three splits."""

import json
import logging
import shutil
from collections.abc import Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import numpy as np
from transformers import AutoTokenizer, PreTrainedTokenizerFast

from longfire.complete_folder import IncompleteError, mark_complete, read_mark, short_hash
from longfire.data.build import CorpusPlan, token_type
from longfire.data.cache import RECORD, FileHashes, TokenCache, default_folder
from longfire.data.embedded import StandardLibrary
from longfire.data.files import existing_paths, find_files
from longfire.data.hub import find_dataset
from longfire.data.readers import READERS
from longfire.data.source import CorpusError, DocumentSource
from longfire.data.splits import SPLITS, Hashes
from longfire.data.token_split import TokenSplit
from longfire.data.tokenizers import plan_tokenizer
from longfire.validation import at_least, load_without_code

log = logging.getLogger(__name__)

MAX_DOCUMENTS = 1_000_000
"""Maximum number of training documents whose hashes are saved with a model: 8 MB."""

Paths = str | Path | Sequence[str | Path]


@dataclass(frozen=True, eq=False)
class Corpus:
    """Text as tokens: `train`, `dev` for tuning, `validation` for reported results only."""

    name: str
    fingerprint: str
    """Equal for equal tokens, documents and tokenizers, wherever the text came from."""
    tokenizer: PreTrainedTokenizerFast = field(repr=False)
    train: TokenSplit
    dev: TokenSplit
    validation: TokenSplit
    built: bool
    """Whether the tokens were built now rather than read from the cache."""
    record: dict[str, Any] = field(repr=False)
    folder: Path = field(repr=False)
    """Where the tokens are."""

    @property
    def vocab_size(self) -> int:
        return len(self.tokenizer)

    @property
    def special_tokens(self) -> dict[str, Any]:
        """For a model's configuration: documents are separated by eos alone."""
        return dict.fromkeys(("eos_token_id", "bos_token_id", "pad_token_id"), self.tokenizer.eos_token_id)

    @property
    def contents(self) -> Hashes | None:
        """Content hashes of all documents, split by split; None if some are unknown."""
        return _all_hashes(self.train.contents, self.dev.contents, self.validation.contents)

    def describe(self) -> dict[str, Any]:
        """For records: the sizes of the splits, how they were divided, what was skipped."""
        return {
            "name": self.name,
            **{key: self.record[key] for key in ("source", "tokenizer")},
            "vocab_size": self.vocab_size,
            "fingerprint": self.fingerprint,
            **{key: self.record[key] for key in ("splits", "divided", "skipped", "empty")},
            "passed_over": self.record.get("passed_over", ""),  # missing in tokens saved by an older version
            "also_in_validation": self.record["also_in_validation"],
        }

    def save(self, folder: str | Path) -> Path:
        """Save tokens, tokenizer and splits to a folder that `load_corpus` can read without the text."""
        folder = Path(folder)
        if folder.exists() and any(folder.iterdir()):
            raise ValueError(f"{folder} is not empty. Choose another folder, or delete it.")
        shutil.copytree(self.folder, folder, dirs_exist_ok=True, ignore=shutil.ignore_patterns(RECORD))
        mark_complete(folder, {**self.record, "name": self.name}, RECORD)
        return folder

    def save_description(self, folder: Path, source: Path | None = None) -> None:
        """Describe the corpus beside a model trained on it: corpus.json, and the documents' hashes in corpus.npy.

        The hashes include those of `source`, the checkpoint that training continued from. If some are unknown, or there
        are more than MAX_DOCUMENTS, no corpus.npy is written.
        """
        (folder / "corpus.json").write_text(json.dumps(self.describe(), indent=1) + "\n", encoding="utf-8")
        before = [] if source is None else [trained_documents(source)]
        contents = _all_hashes(self.train.contents, *before)
        if contents is not None and len(every := np.unique(contents)) <= MAX_DOCUMENTS:
            np.save(folder / "corpus.npy", every)


def load_corpus(
    source: Paths | None = None,
    *,
    field: str | None = None,
    tokenizer: str | Path | None = None,
    vocab_size: int | None = None,
    validation: Paths | None = None,
    cache_dir: str | Path | None = None,
    skip_bad: bool = False,
    max_documents: int | None = None,
    progress: bool = True,
) -> Corpus:
    """Read text, divide it into three splits and tokenise it; later calls read the tokens from a cache.

    Args:
        source: a file of text (.txt, .md, .py, .rst, .tex) or of rows (.jsonl, .jsonl.gz, .jsonl.zst, .parquet), a
            folder of these, a pattern with *, or a list of paths; `hub:NAME[:CONFIG][@SPLIT]` for a dataset of the
            Hugging Face hub, streamed (short names: c4, arxiv, github, all untested); None for the sources and
            documentation of the running Python's standard library. A folder that `Corpus.save` wrote has its own
            tokenizer and splits.
        field: the field that contains the text. Default: `text`, or the short name's own.
        tokenizer: `bytes` (the default), `bpe` (trained on the train split), or a folder or hub name of a Hugging Face
            tokenizer.
        vocab_size: of the BPE. Default: 8192.
        validation: a separate source for validation. Default: about 5 % of the documents, chosen by their content.
            About 2 % of the rest are dev.
        cache_dir: where tokens are cached. Default: $LONGFIRE_CACHE, or ~/.cache/longfire.
        skip_bad: skip and count unreadable documents instead of raising an error.
        max_documents: maximum number of documents to read from each source.
        progress: show bars on a terminal.
    """
    if max_documents is not None:
        at_least("max_documents", max_documents, 1)
    source, validation = single(source), single(validation)
    if is_saved(source) and isinstance(source, str | Path):
        options = {"field": field, "tokenizer": tokenizer, "vocab_size": vocab_size, "validation": validation}
        options["max_documents"] = max_documents
        if unusable := [name for name, value in options.items() if value is not None]:
            raise CorpusError(
                f"{source} contains saved tokens with their own tokenizer and splits: omit {', '.join(unusable)}, or "
                f"pass the text."
            )
        return _open_saved(Path(source))
    plan = CorpusPlan(
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
    cache = TokenCache(root / "tokens")
    hashes = FileHashes(root)
    key = short_hash(plan.identity(hashes))
    hashes.save()

    def build(folder: Path) -> dict[str, Any]:
        content = plan.build(folder)
        if short_hash(plan.identity(hashes)) != key:
            raise CorpusError(f"{described} changed while it was being read. Run the command again.")
        return content

    folder, mark, built = cache.get(key, build)
    record = mark["content"]
    if record["skipped"]:
        message = "%s: skipped %d unreadable documents. %s"
        log.warning(message, plan.source.described, record["skipped"], " ".join(record["reasons"]))
    passed_over = "; ".join(one.passed_over for one in sources if one.passed_over)
    if passed_over and (progress or built):  # once is enough for processes that share a corpus
        log.warning("%s: %s. Known: %s.", described, passed_over, ", ".join(READERS))
    names = {"name": plan.source.name, "source": described, "tokenizer": plan.tokenizer.described}
    return _open(folder, {**mark, "content": {**record, **names, "passed_over": passed_over}}, built)


def _all_hashes(*parts: Hashes | None) -> Hashes | None:
    """All parts concatenated; None if one is unknown."""
    known = [part for part in parts if part is not None]
    return np.concatenate(known) if len(known) == len(parts) else None


def trained_documents(checkpoint: Path) -> Hashes | None:
    """Sorted content hashes of the documents that a model was trained on; None if unknown."""
    file = checkpoint / "corpus.npy"
    try:
        return np.load(file) if file.is_file() else None
    except (ValueError, EOFError) as error:
        raise CorpusError(f"{file} is damaged ({error}). Restore it from a copy, or delete it.") from error


def single(source: Paths | None) -> Paths | None:
    """Unwrap a list of one path."""
    alone = isinstance(source, Sequence) and not isinstance(source, str) and len(source) == 1
    return source[0] if alone else source  # type: ignore[index]


def is_saved(source: Paths | None) -> bool:
    """Whether a source is a folder written by `Corpus.save`."""
    folder = single(source)
    return isinstance(folder, str | Path) and (Path(folder) / RECORD).is_file()


def local_paths(source: Paths | None) -> list[Path]:
    """The files and folders of a source; none for the hub and the embedded text. Refuses missing ones."""
    source = single(source)
    if source is None or (isinstance(source, str) and source.startswith("hub:")):
        return []
    return existing_paths(source)


def _open_saved(folder: Path) -> Corpus:
    try:
        return _open(folder, read_mark(folder, RECORD), built=False)
    except IncompleteError as error:
        raise CorpusError(f"the tokens in {folder} are damaged ({error}): save them again.") from error


def find_source(source: Paths | None, field: str | None) -> DocumentSource:
    """The documents of a source."""
    if source is None:
        return StandardLibrary()
    if isinstance(source, str) and source.startswith("hub:"):
        return find_dataset(source.removeprefix("hub:"), field)
    return find_files(source, field or "text")


def _open(folder: Path, mark: dict[str, Any], built: bool) -> Corpus:
    record, files = mark["content"], mark["files"]
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
    """Hash of tokens, documents and vocabulary. Other files of a tokenizer may contain its path."""
    kept = (".tokens", ".starts.npy", "tokenizer/tokenizer.json")
    return short_hash({name: sums for name, sums in files.items() if name.endswith(kept)})
