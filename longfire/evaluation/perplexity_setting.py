"""Perplexity by length of a checkpoint on a corpus: what is measured, from folders to the record."""

import json
from collections.abc import Callable, Sequence
from dataclasses import asdict, dataclass
from itertools import count
from pathlib import Path
from typing import Any

import numpy as np
import numpy.typing as npt
from transformers import AutoConfig

from longfire.atomic_io import read_json
from longfire.data import Corpus, TokenSplit, is_saved, load_corpus
from longfire.data.corpus import trained_documents
from longfire.evaluation.perplexity import default_lengths, perplexity_by_length
from longfire.model import LongfireConfig
from longfire.model.generate import load_model
from longfire.model.inspection import attention_used, encoding_name
from longfire.model.loading import find_checkpoint
from longfire.provenance import provenance
from longfire.validation import describe_differences, differences, load_without_code, one_of

SPLITS = ("validation", "dev", "train", "all")


@dataclass(frozen=True)
class PerplexitySetting:
    """What is measured."""

    checkpoint: Path
    corpus: Sequence[str] | None = None
    """Paths, or hub:NAME. None: the embedded one."""
    field: str | None = None
    validation: Sequence[str] | None = None
    """A source of its own for validation, if the model was trained with one."""
    split: str = "validation"
    """"all" is for a corpus that no part of was trained on."""
    tokenizer: Path | None = None
    """None: the checkpoint's."""
    lengths: Sequence[int] | None = None
    """None: `default_lengths`."""
    protocol: str = "paper"
    tokens: int | None = None
    scored: int | None = None
    batch_tokens: int | None = None
    seed: int = 0
    device: str | None = None
    dtype: str | None = None

    def __post_init__(self) -> None:
        one_of("the split", self.split, SPLITS)
        object.__setattr__(self, "checkpoint", find_checkpoint(self.checkpoint))

    def __str__(self) -> str:
        corpus = "the embedded corpus" if self.corpus is None else ", ".join(self.corpus)
        most = "all tokens" if self.tokens is None else f"at most {self.tokens:,} tokens"
        return (
            f"log perplexity of {self.checkpoint} on {corpus}, {self.split}; protocol {self.protocol}, {most}; "
            f"lengths {', '.join(map(str, self.lengths or default_lengths(trained_length(self.checkpoint))))}"
        )

    def asked(self) -> dict[str, Any]:
        """All that decides the numbers, as JSON; not how they are computed."""
        lengths = list(self.lengths or default_lengths(trained_length(self.checkpoint)))
        given = {name: str(value) if isinstance(value, Path) else value for name, value in asdict(self).items()}
        del given["batch_tokens"], given["device"]
        asked: dict[str, Any] = json.loads(json.dumps(given | {"lengths": lengths}))
        return asked


def own_record(folder: Path, name: str, setting: PerplexitySetting) -> Path:
    """The first of name.json, name-2.json, … that is free, or an earlier record of the same."""
    for n in count(1):
        file = folder / f"{name}{f'-{n}' if n > 1 else ''}.json"
        try:
            refuse_other_record(file, setting)
        except ValueError:
            continue
        break
    return file


def refuse_other_record(file: Path, setting: PerplexitySetting) -> None:
    """Where a file holds something else than an earlier record of the same, it is not written over."""
    if not file.exists():
        return
    try:
        there = read_json(file)["asked"]
    except (ValueError, KeyError):
        raise ValueError(f"{file} is no record of perplexity. Use another --out, or delete it.") from None
    if other := differences(there, setting.asked()):
        raise ValueError(
            f"{file} holds another record ({describe_differences(other)}). Give another --out, or delete it."
        )


def trained_length(checkpoint: Path) -> int | None:
    """Of a model of ours, whose configuration says it; None of another."""
    config = load_without_code(AutoConfig, checkpoint, local_files_only=True)
    return int(config.max_position_embeddings) if isinstance(config, LongfireConfig) else None


def joined(corpus: Corpus) -> TokenSplit:
    """All splits of a corpus as one."""
    splits = [corpus.train, corpus.dev, corpus.validation]
    lengths = np.concatenate([np.diff(split.starts) for split in splits])
    return TokenSplit(
        name="whole",
        tokens=np.concatenate([split.tokens for split in splits]),
        starts=np.concatenate([[0], np.cumsum(lengths)]),
        bytes=sum(split.bytes for split in splits),
        end=corpus.validation.end,
        contents=corpus.contents,
    )


def corpus_of(setting: PerplexitySetting, tokenizer: Any, progress: bool) -> Corpus:
    """The text in the checkpoint's tokens. Tokens that are made already must be of the same tokenizer."""
    source, own = setting.corpus, setting.validation
    saved = is_saved(source)
    used = None if saved else setting.tokenizer or setting.checkpoint
    corpus = load_corpus(source, field=setting.field, validation=own, tokenizer=used, progress=progress)
    if saved:
        refuse_other_tokens(corpus, tokenizer, setting.checkpoint)
    return corpus


def refuse_other_tokens(corpus: Corpus, tokenizer: Any, whose: Path | str) -> None:
    """Tokens that were made by another tokenizer mean nothing to a model."""
    if corpus.tokenizer.get_vocab() != tokenizer.get_vocab():
        raise ValueError(
            f"{corpus.folder} holds tokens of another tokenizer than {whose}'s. Give the text itself instead."
        )


def seen_in_training(
    checkpoint: Path, corpus: Corpus, split: TokenSplit, same_corpus: bool
) -> npt.NDArray[np.bool_] | None:
    """Which documents of a split the model was trained on; None if that is not known.

    By the split where the corpus is the one that it was trained on; by content where the text is another.
    """
    known = trained_documents(checkpoint)
    seen = np.zeros(split.num_documents, bool)
    if same_corpus:
        seen[: {"train": split.num_documents, "whole": corpus.train.num_documents}.get(split.name, 0)] = True
        if known is None or corpus.train.contents is None:
            return seen
        known = np.setdiff1d(known, corpus.train.contents)  # by what it was trained on before
    if known is None or split.contents is None:
        return None
    return seen | np.isin(split.contents, known)


def how_much(seen: npt.NDArray[np.bool_], split: TokenSplit) -> dict[str, int]:
    """Of a split was trained on, for the record."""
    return {
        "documents": int(seen.sum()),
        "of_documents": split.num_documents,
        "tokens": int(np.diff(split.starts)[seen].sum()),
        "of_tokens": split.num_tokens,
    }


def in_words(trained_on: dict[str, int] | None, source: str, same_corpus: bool) -> str | None:
    """What to know about text that may have been trained on; None if there is nothing to know."""
    if trained_on is None:
        return (
            f"the model was trained on {source}. This is another text or another split of it; whether the model has "
            f"seen it is not known. To score the text held out from training, give the same --corpus and --validation."
        )
    if not trained_on["documents"]:
        if same_corpus:
            return None
        return (
            f"the model was trained on {source}. None of those documents is in this text, but only whole documents are "
            f"compared: an excerpt, or the same text divided otherwise, is not recognised."
        )
    share = trained_on["tokens"] / trained_on["of_tokens"]
    return (
        f"the model was trained on {trained_on['documents']:,} of the {trained_on['of_documents']:,} documents of "
        f"this text ({share:.1%} of the tokens). Expect a higher perplexity on text that it has not seen."
    )


def measure_perplexity(
    setting: PerplexitySetting, save: Callable[[dict[str, Any]], None] | None = None, progress: bool = True
) -> dict[str, Any]:
    """The record of `perplexity_by_length` with its setting and provenance. An interrupt ends it early.

    Args:
        setting: what is measured.
        save: called with the record after each length.
        progress: show bars, or lines where there is no terminal.
    """
    model, tokenizer = load_model(setting.checkpoint, setting.tokenizer, setting.device, setting.dtype)
    corpus = corpus_of(setting, tokenizer, progress)
    lengths = setting.lengths or default_lengths(trained_length(setting.checkpoint))
    split = joined(corpus) if setting.split == "all" else getattr(corpus, setting.split)
    if setting.lengths:
        split.pieces(max(lengths))  # an error that says the longest document, before anything is computed
    used = {
        "device": str(model.device),
        "dtype": str(model.dtype).removeprefix("torch."),
        "attention": attention_used(model, max(lengths), cached=False),
        "encoding": encoding_name(model),
    }
    asked = setting.asked()
    shown = asked | {"batch_tokens": setting.batch_tokens} | used | {"corpus": corpus.describe()}
    record: dict[str, Any] = {"provenance": provenance(), "asked": asked, "setting": shown}
    record |= {"protocol": setting.protocol, "rows": []}
    if trained := read_json(setting.checkpoint / "corpus.json"):
        same_corpus = trained["fingerprint"] == corpus.fingerprint
        seen = seen_in_training(setting.checkpoint, corpus, split, same_corpus)
        record["trained_on"] = None if seen is None else how_much(seen, split)
        if note := in_words(record["trained_on"], trained["source"], same_corpus):
            record["note"] = note

    def keep(found: dict[str, Any]) -> None:
        record.update(found)
        if save is not None:
            save(record)

    names = ("protocol", "tokens", "scored", "batch_tokens", "seed")
    options = {name: getattr(setting, name) for name in names}
    try:
        keep(perplexity_by_length(model, split, lengths, **options, progress=progress, save=keep))
    except KeyboardInterrupt:
        keep({"interrupted": True})
    return record
