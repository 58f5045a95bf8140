"""Perplexity by length of a checkpoint on a corpus, as a checked plan."""

import json
from collections.abc import Sequence
from dataclasses import asdict, dataclass
from functools import cached_property
from itertools import count
from pathlib import Path
from typing import Any

from transformers import AutoConfig

from longfire.atomic_io import read_json
from longfire.data import Corpus, is_saved, load_corpus
from longfire.evaluation.held_out import contamination, joined, require_tokenizer
from longfire.evaluation.perplexity import check_options, default_lengths, perplexity_by_length
from longfire.evaluation.record import Save, interruptible
from longfire.model import LongfireConfig
from longfire.model.generate import load_model
from longfire.model.inspection import attention_used, encoding_name
from longfire.model.loading import find_checkpoint
from longfire.provenance import provenance
from longfire.validation import describe_differences, differences, load_without_code, one_of

SPLITS = ("validation", "dev", "train", "all")


@dataclass(frozen=True)
class PerplexityPlan:
    """What to measure. The constructor checks everything that can be checked without loading the model."""

    checkpoint: Path
    corpus: Sequence[str] | None = None
    """Paths, or hub:NAME. None: the Python standard library."""
    field: str | None = None
    validation: Sequence[str] | None = None
    """A separate source of held-out text, if the model was trained with one."""
    split: str = "validation"
    """"all" is for a corpus the model never saw."""
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
        check_options(self.tested_lengths, self.protocol, self.tokens, self.scored, self.batch_tokens)

    @cached_property
    def trained_length(self) -> int | None:
        """The training length of a longfire model; None for others, because their configurations do not say."""
        config = load_without_code(AutoConfig, self.checkpoint, local_files_only=True)
        return int(config.max_position_embeddings) if isinstance(config, LongfireConfig) else None

    @cached_property
    def tested_lengths(self) -> list[int]:
        return list(default_lengths(self.trained_length) if self.lengths is None else self.lengths)

    @cached_property
    def identity(self) -> dict[str, Any]:
        """Everything that determines the numbers, as JSON, without how they are computed."""
        fields = asdict(self) | {"lengths": self.tested_lengths}
        del fields["batch_tokens"], fields["device"]
        identity: dict[str, Any] = json.loads(json.dumps(fields, default=str))
        return identity

    def __str__(self) -> str:
        corpus = "the Python standard library" if self.corpus is None else ", ".join(self.corpus)
        amount = "all tokens" if self.tokens is None else f"at most {self.tokens:,} tokens"
        return (
            f"log perplexity of {self.checkpoint} on {corpus}, {self.split}; protocol {self.protocol}, {amount}; "
            f"lengths {', '.join(map(str, self.tested_lengths))}"
        )

    def record_path(self, out: Path | None, default: Path) -> Path:
        """`out`, or the first of default.json, default-2.json, … without a different record."""
        if out is not None:
            if conflict := self._conflict(out):
                raise ValueError(f"{out} {conflict}. Choose another file with --out, or delete this one.")
            return out
        files = (default.with_name(f"{default.stem}{f'-{n}' if n > 1 else ''}.json") for n in count(1))
        return next(file for file in files if not self._conflict(file))

    def _conflict(self, file: Path) -> str | None:
        """Why a file must not be overwritten; None if it is missing or an earlier record of this plan."""
        if not file.exists():
            return None
        try:
            different = differences(read_json(file)["asked"], self.identity)
        except (ValueError, KeyError):
            return "is not a perplexity record"
        return f"already contains a different record ({describe_differences(different)})" if different else None

    def run(self, save: Save = lambda record: None, progress: bool = True) -> dict[str, Any]:
        """Run `perplexity_by_length`; return its record with setting and provenance, saved after each length."""
        model, tokenizer = load_model(self.checkpoint, self.tokenizer, self.device, self.dtype)
        corpus = self._corpus(tokenizer, progress)
        split = joined(corpus) if self.split == "all" else getattr(corpus, self.split)
        if self.lengths is not None:
            split.pieces(max(self.lengths))  # raises if no document is long enough; default lengths may fail one by one
        record: dict[str, Any] = {
            "provenance": provenance(),
            "asked": self.identity,
            "setting": {
                **self.identity,
                "batch_tokens": self.batch_tokens,
                "device": str(model.device),
                "dtype": str(model.dtype).removeprefix("torch."),
                "attention": attention_used(model, max(self.tested_lengths), cached=False),
                "encoding": encoding_name(model),
                "trained_length": self.trained_length,
                "corpus": corpus.describe(),
            },
            "protocol": self.protocol,
            "rows": [],
            **contamination(self.checkpoint, corpus, split),
        }

        def update(measured: dict[str, Any]) -> None:
            record.update(measured)
            save(record)

        names = ("protocol", "tokens", "scored", "batch_tokens", "seed")
        options = {name: getattr(self, name) for name in names}
        with interruptible(record, save):
            perplexity_by_length(model, split, self.tested_lengths, **options, progress=progress, save=update)
        return record

    def _corpus(self, tokenizer: Any, progress: bool) -> Corpus:
        """Load the corpus in the checkpoint's tokens."""
        saved = is_saved(self.corpus)
        source = None if saved else self.tokenizer or self.checkpoint
        corpus = load_corpus(
            self.corpus, field=self.field, validation=self.validation, tokenizer=source, progress=progress
        )
        if saved:
            require_tokenizer(corpus, tokenizer, self.checkpoint)
        return corpus
