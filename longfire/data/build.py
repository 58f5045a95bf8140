"""From documents to files of tokens: read, divided, tokenised."""

from collections.abc import Iterator
from contextlib import ExitStack
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
import numpy.typing as npt
from tqdm import tqdm
from transformers import PreTrainedTokenizerFast

from longfire.data.intake import CorpusError, Intake, Memory, Source
from longfire.data.splits import DEV, SPLITS, VALIDATION, Ranges, TextHeap, divide
from longfire.data.tokenizers import BPE_TRAINING_BYTES, TokenizerPlan, encoder

FORMAT = 2  # of the files; another number makes all caches anew
BATCH = 8_000_000  # bytes of text that are tokenised at once


@dataclass(frozen=True)
class Plan:
    """Everything the tokens of a corpus depend on, and how to make them."""

    source: Source
    validation: Source | None
    tokenizer: TokenizerPlan
    skip_bad: bool
    max_documents: int | None
    progress: bool

    def identity(self, memory: Memory) -> Any:
        """Content and settings as JSON."""
        own = None if self.validation is None else self.validation.identity(memory)
        settings = [FORMAT, VALIDATION, DEV, self.skip_bad, self.max_documents]
        return [settings, self.tokenizer.identity, self.source.identity(memory), own]

    def build(self, folder: Path) -> dict[str, Any]:
        """Write the tokens of all splits and the tokenizer into a folder; returns what is worth knowing about them."""
        intake = Intake(self.skip_bad)
        with ExitStack() as stack:
            own = self._read(self.validation, folder / "validation.text", intake, stack)
            heap = self._read(self.source, folder / "text", intake, stack, refused=own)
            assert heap is not None
            parts = {"validation": VALIDATION, "dev": DEV} if own is None else {"dev": DEV}
            ranges, divided = divide(heap, self.source.described, parts)
            places = {name: (heap, ranges[name]) for name in ranges}
            if own is not None:
                places["validation"] = (own, own.ranges)
            tokenizer = self.tokenizer.make(lambda: self._training_text(*places["train"]))
            tokenizer.save_pretrained(folder / "tokenizer")
            splits = {name: self._tokenise(folder, name, *places[name], tokenizer) for name in SPLITS}
        return {
            "splits": splits,
            "divided": divided,
            "skipped": intake.skipped,
            "reasons": intake.reasons,
            "empty": intake.empty,
            "also_in_validation": intake.refused,
        }

    def _read(
        self, source: Source | None, path: Path, intake: Intake, stack: ExitStack, refused: TextHeap | None = None
    ) -> TextHeap | None:
        """All documents of a source, but for those of the refused heap."""
        if source is None:
            return None
        heap = stack.enter_context(TextHeap(path, () if refused is None else refused.contents))
        bar = stack.enter_context(self._bar(f"reading {source.name}", None))
        for document in source.documents(intake):
            bar.update(len(document))
            if not document.strip():
                intake.empty += 1
            elif not heap.add(document):
                intake.refused += 1
            if len(heap) == self.max_documents:
                break
        heap.close()
        bar.close()
        if not len(heap):
            raise CorpusError(_nothing(source, intake))
        return heap

    def _training_text(self, heap: TextHeap, ranges: Ranges) -> Iterator[bytes]:
        ranges = spread(ranges, BPE_TRAINING_BYTES)
        with self._bar("learning the vocabulary", int(np.diff(ranges).sum())) as bar:
            for text in heap.read(ranges):
                yield text
                bar.update(len(text))

    def _tokenise(
        self, folder: Path, name: str, heap: TextHeap, ranges: Ranges, tokenizer: PreTrainedTokenizerFast
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
                for tokens in encode(list(heap.read(batch))):
                    file.write(tokens.data)
                    file.write(end)
                    lengths.append(len(tokens) + 1)
                bar.update(int(np.diff(batch).sum()))
        starts = np.concatenate([[0], np.cumsum(lengths, dtype=np.int64)])
        np.save(folder / f"{name}.starts.npy", starts)
        np.save(folder / f"{name}.contents.npy", heap.contents_of(ranges))
        return {"documents": len(lengths), "tokens": int(starts[-1]), "bytes": size}

    def _bar(self, what: str, total: int | None) -> Any:
        return tqdm(desc=what, total=total, unit="B", unit_scale=True, disable=None if self.progress else True)


def token_type(tokenizer: PreTrainedTokenizerFast) -> npt.DTypeLike:
    """The smallest that holds every token."""
    return np.uint16 if len(tokenizer) <= 1 << 16 else np.uint32


def batches(ranges: Ranges) -> Iterator[Ranges]:
    """Runs of ranges of about BATCH bytes, at least one range each."""
    number = (np.cumsum(np.diff(ranges).ravel()) - 1) // BATCH
    yield from np.split(ranges, np.flatnonzero(np.diff(number)) + 1)


def spread(ranges: Ranges, limit: int) -> Ranges:
    """Ranges of about `limit` bytes, spread evenly; all of them if they are not more."""
    sizes = np.diff(ranges).ravel()
    share = limit / int(sizes.sum())
    if share >= 1:
        return ranges
    kept, seen, have = [], 0, 0
    for number, size in enumerate(sizes.tolist()):
        seen += size
        if have < share * seen:
            kept.append(number)
            have += size
    return ranges[kept]


def _nothing(source: Source, intake: Intake) -> str:
    found = [f"{intake.empty} empty"] if intake.empty else []
    found += [f"{intake.skipped} that cannot be read"] if intake.skipped else []
    found += [f"{intake.refused} that are in the validation text too"] if intake.refused else []
    reasons = f" ({' '.join(intake.reasons)})" if intake.reasons else ""
    there = f", only documents: {', '.join(found)}{reasons}" if found else ""
    return f"{source.described} holds no text{there}. Give a source with text in it."
