"""Tokenizers: bytes, a BPE trained on the corpus, or one from Hugging Face. Documents end with the eos token."""

import hashlib
import json
import re
from collections.abc import Callable, Iterable, Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
import numpy.typing as npt
from tokenizers import Tokenizer, decoders, models, pre_tokenizers, trainers
from transformers import AutoTokenizer, PreTrainedTokenizerFast

from longfire.data.source import CorpusError
from longfire.validation import at_least, load_without_code

END = "<|endoftext|>"
BPE_SIZE = 8192
BPE_TRAINING_BYTES = 32_000_000
"""A BPE is trained on at most about this much text, spread evenly over the train split."""

Encode = Callable[[list[bytes]], Iterator[npt.NDArray[Any]]]
"""Documents as UTF-8 → their tokens, without eos."""


@dataclass(frozen=True)
class TokenizerPlan:
    """A corpus's tokenizer: identified before the text is read, built once the train split is known."""

    described: str
    identity: Any
    make: Callable[[Callable[[], Iterator[bytes]]], PreTrainedTokenizerFast]
    """Takes a function that returns the train split's documents."""


def plan_tokenizer(name: str | Path, vocab_size: int | None) -> TokenizerPlan:
    """`bytes`, `bpe`, or a folder or hub name of a Hugging Face tokenizer."""
    if not isinstance(name, str | Path):
        raise TypeError(f"tokenizer must be 'bytes', 'bpe', or a folder or hub name, not {name!r}.")
    if name == "bpe":
        size = BPE_SIZE if vocab_size is None else vocab_size
        at_least("vocab_size", size, 257)  # 256 bytes and eos
        return TokenizerPlan(f"bpe of {size}", ["bpe", size], lambda train: trained_bpe(train(), size))
    if vocab_size is not None:
        raise ValueError(f"vocab_size={vocab_size} needs tokenizer='bpe'; {str(name)!r} has its own vocabulary.")
    if name == "bytes":
        return TokenizerPlan("bytes", ["bytes"], lambda train: byte_tokenizer())
    tokenizer = load_tokenizer(name)
    content = f"{tokenizer.eos_token}\n{tokenizer.backend_tokenizer.to_str()}".encode()
    digest = hashlib.blake2b(content, digest_size=16).hexdigest()
    return TokenizerPlan(str(name), ["huggingface", digest], lambda train: tokenizer)


def byte_tokenizer() -> PreTrainedTokenizerFast:
    """Token b is byte b; token 256 is eos."""
    vocabulary = {letter: byte for byte, letter in enumerate(_letters())}
    backend = Tokenizer(models.BPE(vocab=vocabulary, merges=[]))
    backend.add_special_tokens([END])
    return _byte_level(backend)


def trained_bpe(documents: Iterable[bytes], size: int) -> PreTrainedTokenizerFast:
    """A byte-level BPE, smaller than `size` if the text has too few pairs to merge. Token 0 is eos."""
    backend = Tokenizer(models.BPE())
    backend.pre_tokenizer = pre_tokenizers.ByteLevel(add_prefix_space=False)
    trainer = trainers.BpeTrainer(
        vocab_size=size,
        special_tokens=[END],
        initial_alphabet=pre_tokenizers.ByteLevel.alphabet(),
        show_progress=False,
    )
    backend.train_from_iterator((text.decode() for text in documents), trainer)
    return _byte_level(backend)


def load_tokenizer(name: str | Path) -> PreTrainedTokenizerFast:
    """A tokenizer from a folder or the hub. It must be a fast one and have an eos token."""
    try:
        tokenizer: Any = load_without_code(AutoTokenizer, str(name))
    except (OSError, ValueError) as error:
        raise CorpusError(
            f"cannot load tokenizer {str(name)!r} from a folder or the hub: {str(error).strip().splitlines()[0]} "
            "Built in: 'bytes', 'bpe'."
        ) from error
    if not isinstance(tokenizer, PreTrainedTokenizerFast):
        raise CorpusError(f"the tokenizer {str(name)!r} has no fast version (tokenizer.json). Convert it to one.")
    if tokenizer.eos_token is None:
        special = [
            token.content for token in tokenizer.backend_tokenizer.get_added_tokens_decoder().values() if token.special
        ]
        if len(special) != 1:
            raise CorpusError(
                f"the tokenizer {str(name)!r} has no eos_token to end documents with (special tokens: {special}). "
                "Set one and save it."
            )
        tokenizer.eos_token = special[0]
    return tokenizer


def encoder(tokenizer: PreTrainedTokenizerFast, dtype: npt.DTypeLike) -> Encode:
    """A function from texts to tokens. Special tokens in a text are plain text; nothing is added or truncated."""
    if is_bytes(tokenizer):
        return lambda texts: (np.frombuffer(text, np.uint8).astype(dtype) for text in texts)
    backend = Tokenizer.from_str(tokenizer.backend_tokenizer.to_str())
    backend.no_padding()
    backend.no_truncation()
    backend.encode_special_tokens = True
    return WordCachingEncoder(backend, dtype) if splits_at_spaces(backend) else BatchEncoder(backend, dtype)


class BatchEncoder:
    """Tokenises several documents at once."""

    def __init__(self, backend: Tokenizer, dtype: npt.DTypeLike) -> None:
        self.backend = backend
        self.dtype = dtype

    def __call__(self, texts: list[bytes]) -> Iterator[npt.NDArray[Any]]:
        return self.encode([text.decode() for text in texts])

    def encode(self, texts: list[str]) -> Iterator[npt.NDArray[Any]]:
        encodings = self.backend.encode_batch_fast(texts, add_special_tokens=False)
        return (np.asarray(encoding.ids, self.dtype) for encoding in encodings)


class WordCachingEncoder(BatchEncoder):
    """Returns the same tokens at least three times as fast, by tokenising each word once.

    For tokenizers that split a text before every space that follows something else, whatever the context.
    """

    def __init__(self, backend: Tokenizer, dtype: npt.DTypeLike) -> None:
        super().__init__(backend, dtype)
        self.known: dict[str, bytes] = {}

    def __call__(self, texts: list[bytes]) -> Iterator[npt.NDArray[Any]]:
        rows = [WORDS.findall(text.decode()) for text in texts]
        if len(self.known) > MAX_WORDS:
            self.known.clear()
        new = sorted(set[str]().union(*rows).difference(self.known))
        self.known.update((word, ids.tobytes()) for word, ids in zip(new, self.encode(new), strict=True))
        return (np.frombuffer(b"".join(map(self.known.__getitem__, row)), self.dtype) for row in rows)


WORDS = re.compile(r"[^\S\x1c-\x1f]*[\S\x1c-\x1f]+|[^\S\x1c-\x1f]+")
"""Spaces and what follows them. Only Python treats \\x1c to \\x1f as spaces."""
MAX_WORDS = 3_000_000


def splits_at_spaces(backend: Tokenizer) -> bool:
    """Whether it is a plain byte-level BPE with GPT-2's pattern."""
    parts = json.loads(backend.to_str())
    splitter = parts["pre_tokenizer"] or {}
    return (
        parts["normalizer"] is None
        and (splitter.get("type"), splitter.get("use_regex"), splitter.get("add_prefix_space"))
        == ("ByteLevel", True, False)
        and (parts["model"]["type"], parts["model"]["dropout"]) == ("BPE", None)
        and all(token["special"] for token in parts["added_tokens"])
    )


def is_bytes(tokenizer: PreTrainedTokenizerFast) -> bool:
    """Whether tokens are bytes, so that encoding needs no library."""
    return len(tokenizer) == 257 and tokenizer.backend_tokenizer.to_str() == byte_tokenizer().backend_tokenizer.to_str()


def _byte_level(backend: Tokenizer) -> PreTrainedTokenizerFast:
    backend.pre_tokenizer = pre_tokenizers.ByteLevel(add_prefix_space=False)
    backend.decoder = decoders.ByteLevel()
    tokenizer: PreTrainedTokenizerFast = PreTrainedTokenizerFast(
        tokenizer_object=backend, eos_token=END, pad_token=END, clean_up_tokenization_spaces=False
    )
    return tokenizer


def _letters() -> list[str]:
    """The character that byte-level tokenizers write for each byte: itself if visible, else one from 256 on."""
    seen = {*range(ord("!"), ord("~") + 1), *range(ord("¡"), ord("¬") + 1), *range(ord("®"), ord("ÿ") + 1)}
    others = iter(range(256, 512))
    return [chr(byte if byte in seen else next(others)) for byte in range(256)]
