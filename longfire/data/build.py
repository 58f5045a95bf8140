"""Build a corpus: read documents, divide them into splits, tokenise them."""

from collections.abc import Iterable, Iterator
from contextlib import ExitStack
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
import numpy.typing as npt
from tqdm import tqdm
from transformers import PreTrainedTokenizerFast

from longfire.data.cache import FileHashes
from longfire.data.source import CorpusError, DocumentSource, ReadLog
from longfire.data.splits import DEV, SPLITS, VALIDATION, DocumentFile, Ranges, divide
from longfire.data.tokenizers import BPE_TRAINING_BYTES, TokenizerPlan, encoder

FORMAT = 2
"""Version of the file format. Changing it invalidates all caches."""
BATCH = 8_000_000
"""Bytes of text tokenised per batch."""


@dataclass(frozen=True)
class CorpusPlan:
    """Everything that the tokens of a corpus depend on, and how to build them."""

    source: DocumentSource
    validation: DocumentSource | None
    tokenizer: TokenizerPlan
    skip_bad: bool
    max_documents: int | None
    progress: bool

    def identity(self, hashes: FileHashes) -> Any:
        """Content and settings as JSON."""
        validation = None if self.validation is None else self.validation.identity(hashes)
        settings = [FORMAT, VALIDATION, DEV, self.skip_bad, self.max_documents]
        return [settings, self.tokenizer.identity, self.source.identity(hashes), validation]

    def build(self, folder: Path) -> dict[str, Any]:
        """Write the tokens of all splits and the tokenizer to a folder; returns a description of them."""
        log = ReadLog(self.skip_bad)
        with ExitStack() as stack:
            parts, texts = {"validation": VALIDATION, "dev": DEV}, {}
            excluded: Iterable[int] = ()
            if self.validation is not None:
                held_out = self._read(self.validation, folder / "validation.text", log, stack)
                parts, texts, excluded = {"dev": DEV}, {"validation": (held_out, held_out.ranges)}, held_out.contents
            documents = self._read(self.source, folder / "text", log, stack, excluded)
            ranges, divided = divide(documents, self.source.described, parts)
            texts |= {name: (documents, ranges[name]) for name in ranges}
            tokenizer = self.tokenizer.make(lambda: self._training_text(*texts["train"]))
            tokenizer.save_pretrained(folder / "tokenizer")
            splits = {name: self._tokenise(folder, name, *texts[name], tokenizer) for name in SPLITS}
        return {
            "splits": splits,
            "divided": divided,
            "skipped": log.skipped,
            "reasons": log.reasons,
            "empty": log.empty,
            "also_in_validation": log.in_validation,
        }

    def _read(
        self, source: DocumentSource, path: Path, log: ReadLog, stack: ExitStack, excluded: Iterable[int] = ()
    ) -> DocumentFile:
        """All documents of a source, except those with an excluded content hash."""
        documents = stack.enter_context(DocumentFile(path, excluded))
        bar = stack.enter_context(self._bar(f"reading {source.name}", None))
        for document in source.documents(log):
            bar.update(len(document))
            if not document.strip():
                log.empty += 1
            elif not documents.add(document):
                log.in_validation += 1
            if len(documents) == self.max_documents:
                break
        documents.close()
        bar.close()
        if not len(documents):
            raise CorpusError(_no_text(source, log))
        return documents

    def _training_text(self, documents: DocumentFile, ranges: Ranges) -> Iterator[bytes]:
        ranges = spread(ranges, BPE_TRAINING_BYTES)
        with self._bar("training the tokenizer", int(np.diff(ranges).sum())) as bar:
            for text in documents.read(ranges):
                yield text
                bar.update(len(text))

    def _tokenise(
        self, folder: Path, name: str, documents: DocumentFile, ranges: Ranges, tokenizer: PreTrainedTokenizerFast
    ) -> dict[str, int]:
        dtype = token_type(tokenizer)
        encode = encoder(tokenizer, dtype)
        end = np.array([tokenizer.eos_token_id], dtype).tobytes()
        size = int(np.diff(ranges).sum())
        lengths: list[int] = []
        with (
            (folder / f"{name}.tokens").open("wb", buffering=1 << 20) as file,
            self._bar(f"tokenising {name}", size) as bar,
        ):
            for batch in batches(ranges):
                for tokens in encode(list(documents.read(batch))):
                    file.write(tokens.data)
                    file.write(end)
                    lengths.append(len(tokens) + 1)
                bar.update(int(np.diff(batch).sum()))
        starts = np.concatenate([[0], np.cumsum(lengths, dtype=np.int64)])
        np.save(folder / f"{name}.starts.npy", starts)
        np.save(folder / f"{name}.contents.npy", documents.contents_of(ranges))
        return {"documents": len(lengths), "tokens": int(starts[-1]), "bytes": size}

    def _bar(self, what: str, total: int | None) -> Any:
        return tqdm(desc=what, total=total, unit="B", unit_scale=True, disable=None if self.progress else True)


def token_type(tokenizer: PreTrainedTokenizerFast) -> npt.DTypeLike:
    """The smallest dtype that fits the vocabulary."""
    return np.uint16 if len(tokenizer) <= 1 << 16 else np.uint32


def batches(ranges: Ranges) -> Iterator[Ranges]:
    """Groups of ranges of about BATCH bytes, at least one range each."""
    number = (np.cumsum(np.diff(ranges).ravel()) - 1) // BATCH
    yield from np.split(ranges, np.flatnonzero(np.diff(number)) + 1)


def spread(ranges: Ranges, limit: int) -> Ranges:
    """An evenly spread subset of ranges, about `limit` bytes in total; all of them if they fit."""
    sizes = np.diff(ranges).ravel()
    fraction = limit / int(sizes.sum())
    if fraction >= 1:
        return ranges
    kept, kept_bytes, seen = [], 0, 0
    for number, size in enumerate(sizes.tolist()):
        seen += size
        if kept_bytes < fraction * seen:
            kept.append(number)
            kept_bytes += size
    return ranges[kept]


def _no_text(source: DocumentSource, log: ReadLog) -> str:
    counts = {"empty": log.empty, "unreadable": log.skipped, "also in the validation text": log.in_validation}
    skipped = ", ".join(f"{count} {what}" for what, count in counts.items() if count)
    reasons = f" ({' '.join(log.reasons)})" if log.reasons else ""
    only = f", only documents that are skipped: {skipped}{reasons}" if skipped else ""
    return f"{source.described} contains no text{only}. Pass a source with text."
