"""A synthetic task in the place of a corpus: rows to train on, a vocabulary, and a fingerprint."""

import json
from dataclasses import dataclass
from functools import cached_property
from pathlib import Path
from typing import Any

from tokenizers import Regex, Tokenizer, decoders, models, pre_tokenizers
from transformers import PreTrainedTokenizerFast

from longfire.complete_folder import short_hash
from longfire.tasks.synthetic import BOS, EOS, PAD, SyntheticTask, synthetic_task
from longfire.tasks.synthetic.task import SPECIAL

FINGERPRINT_ROWS = 16


@dataclass(frozen=True)
class TaskData:
    """What a model is trained on. It can be pickled: the task is found by name."""

    name: str

    @property
    def task(self) -> SyntheticTask:
        return synthetic_task(self.name)

    @cached_property
    def fingerprint(self) -> str:
        """Equal for tasks that generate the same rows."""
        task = self.task
        longest = task.min_length + FINGERPRINT_ROWS * task.step
        splits = [task.rows(FINGERPRINT_ROWS, task.lengths(longest), 0, split) for split in ("train", "test")]
        return short_hash([self.name, *task.symbols, [rows[i] for rows in splits for i in range(len(rows))]])

    @cached_property
    def tokenizer(self) -> PreTrainedTokenizerFast:
        """One token per symbol. Symbols of several characters are separated by spaces."""
        words = (*SPECIAL, *self.task.symbols)
        backend = Tokenizer(models.WordLevel({word: i for i, word in enumerate(words)}, unk_token=SPECIAL[PAD]))
        if any(len(symbol) > 1 for symbol in self.task.symbols):
            backend.pre_tokenizer = pre_tokenizers.WhitespaceSplit()
        else:
            backend.pre_tokenizer = pre_tokenizers.Split(Regex(r"[\s\S]"), "isolated")
            backend.decoder = decoders.Fuse()
        pad, bos, sep, eos = SPECIAL
        return PreTrainedTokenizerFast(
            tokenizer_object=backend, pad_token=pad, bos_token=bos, sep_token=sep, eos_token=eos
        )

    @property
    def vocab_size(self) -> int:
        return self.task.vocab_size

    @property
    def special_tokens(self) -> dict[str, Any]:
        """For a model's configuration."""
        return {"eos_token_id": EOS, "bos_token_id": BOS, "pad_token_id": PAD}

    def describe(self) -> dict[str, Any]:
        """For records."""
        task = self.task
        return {
            "name": self.name,
            "title": task.title,
            "paper": task.paper,
            "unit": task.unit,
            "vocab_size": self.vocab_size,
            "fingerprint": self.fingerprint,
        }

    def save_description(self, folder: Path, source: Path | None = None) -> None:
        """Describe the task beside a model trained on it."""
        (folder / "task.json").write_text(json.dumps(self.describe(), indent=1) + "\n", encoding="utf-8")
