"""Text from a checkpoint: written as its tokens come, with how fast they came.

Any causal model that transformers' Auto classes know will do, longfire's own among them.
"""

import time
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any, TextIO

import torch
from torch import Tensor
from transformers import AutoModelForCausalLM, AutoTokenizer, PreTrainedTokenizerBase
from transformers.generation.streamers import BaseStreamer
from transformers.utils import logging

from longfire.encodings import ENCODINGS, PositionEncoding
from longfire.engines import attention_plan
from longfire.model.attention import NAME
from longfire.model.checkpoints import found_checkpoint
from longfire.model.extension import furthest
from longfire.validation import at_least, load_without_code, one_of, positive

CACHES: dict[str, dict[str, Any]] = {
    "dynamic": {"use_cache": True},
    "static": {"use_cache": True, "cache_implementation": "static"},
    "none": {"use_cache": False},
}
"""How keys and values of earlier tokens are kept, in transformers' words. It compiles steps on a GPU if static."""
DTYPES = ("bfloat16", "float16", "float32")
TOKENIZER_FILES = ("tokenizer.json", "tokenizer_config.json", "tokenizer.model", "vocab.json", "vocab.txt")


@dataclass(frozen=True)
class Request:
    """What to go on from, for how long, and how tokens are chosen. What is not given is off."""

    prompt: str
    max_new_tokens: int = 128
    temperature: float = 0.0
    """0 takes the most likely token."""
    top_p: float | None = None
    top_k: int | None = None
    seed: int | None = None
    """None: another text each time, if tokens are drawn."""
    cache: str = "dynamic"

    def __post_init__(self) -> None:
        if not self.prompt:
            raise ValueError("the prompt is empty. Give a few words to go on from.")
        at_least("the number of new tokens", self.max_new_tokens, 1)
        positive("the temperature", self.temperature, zero_too=True)
        if self.top_p is not None and not 0 < self.top_p <= 1:
            raise ValueError(f"top-p must be above 0 and at most 1, not {self.top_p}.")
        if self.top_k is not None:
            at_least("top-k", self.top_k, 1)
        if self.temperature == 0 and (self.top_p, self.top_k) != (None, None):
            raise ValueError("top-p and top-k need a temperature above 0: at 0 the most likely token is always taken.")
        one_of("the cache", self.cache, CACHES)

    def options(self) -> dict[str, Any]:
        """For `model.generate`."""
        common = {"max_new_tokens": self.max_new_tokens, "num_beams": 1, **CACHES[self.cache]}
        if self.temperature == 0:
            return {"do_sample": False, **common}
        chosen = {"temperature": self.temperature, "top_p": self.top_p or 1.0, "top_k": self.top_k or 0}
        return {"do_sample": True, **chosen, **common}


@dataclass(frozen=True)
class Report:
    """How it went."""

    prompt_tokens: int
    new_tokens: int
    first_after: float | None
    """Seconds to the first token, the prompt's forward pass in them. None: there was none."""
    tokens_per_second: float | None
    """Of those after the first. None: there was none."""
    device: str
    dtype: str
    attention: str
    encoding: str
    interrupted: bool = False

    def __str__(self) -> str:
        first = "" if self.first_after is None else f", the first after {self.first_after:.3g} s"
        rate = "" if self.tokens_per_second is None else f", then {self.tokens_per_second:.4g} tokens/s"
        how = f"{self.device}, {self.dtype}, attention {self.attention}, encoding {self.encoding}"
        stopped = "; interrupted" if self.interrupted else ""
        return f"{self.prompt_tokens} prompt tokens, {self.new_tokens} new{first}{rate}; {how}{stopped}"


def load(
    checkpoint: Path, tokenizer: Path | None = None, device: str | None = None, dtype: str | None = None
) -> tuple[Any, PreTrainedTokenizerBase]:
    """The model saved in a folder, and its tokenizer.

    Args:
        checkpoint: what `save_pretrained` wrote.
        tokenizer: a folder of its own; the checkpoint's, unless given.
        device: the GPU if there is one, unless given.
        dtype: as saved, unless given.
    """
    where = _device(device)
    if dtype is not None:
        one_of("the dtype", dtype, DTYPES)
    checkpoint = found_checkpoint(checkpoint)
    words = checkpoint if tokenizer is None else tokenizer
    if not words.is_dir():
        raise ValueError(f"there is no folder {words} to take a tokenizer from.")
    if not any((words / name).is_file() for name in TOKENIZER_FILES):
        raise ValueError(
            f"{words} has no tokenizer. tokenizer.save_pretrained({str(words)!r}) puts one there; --tokenizer FOLDER "
            f"names another folder."
        )
    with _without_progress_bar():
        model: Any = load_without_code(AutoModelForCausalLM, checkpoint, dtype=dtype or "auto", local_files_only=True)
    return model.to(where), load_without_code(AutoTokenizer, words, local_files_only=True)


def generate(model: Any, tokenizer: PreTrainedTokenizerBase, request: Request, out: TextIO) -> Report:
    """Write what the model says after the prompt to `out`, as it comes. An interrupt (Ctrl-C) ends it early."""
    stream = Stream(tokenizer, out)
    interrupted = False
    with quiet(), torch.inference_mode():
        inputs = tokenizer(request.prompt, return_tensors="pt", return_token_type_ids=False)
        ids = inputs["input_ids"]
        check_fit(model, ids, request.max_new_tokens)
        if request.seed is not None:
            torch.manual_seed(request.seed)
        attention = attention_used(model, ids.shape[1], cached=request.cache != "none")
        inputs = inputs.to(model.device)
        start = time.perf_counter()
        try:
            model.generate(**inputs, **request.options(), **_end_of_text(model, tokenizer), streamer=stream)
        except KeyboardInterrupt:
            interrupted = True
            stream.end()
    first, last = (stream.times[0], stream.times[-1]) if stream.times else (None, None)
    return Report(
        prompt_tokens=ids.shape[1],
        new_tokens=len(stream.times),
        first_after=None if first is None else first - start,
        tokens_per_second=(len(stream.times) - 1) / (last - first) if first and last and last > first else None,
        device=torch.cuda.get_device_name(model.device) if model.device.type == "cuda" else str(model.device),
        dtype=str(model.dtype).removeprefix("torch."),
        attention=attention,
        encoding=encoding_name(model),
        interrupted=interrupted,
    )


class Stream(BaseStreamer):
    """Writes the text of each token when it comes, and keeps when that was. Characters are never written in parts.

    What a token adds is the text of the last few tokens with it, less theirs without it: alone it may read differently
    (the first word of a text has no space before it).
    """

    def __init__(self, tokenizer: PreTrainedTokenizerBase, out: TextIO) -> None:
        self.tokenizer, self.out = tokenizer, out
        self.times: list[float] = []
        self.saw_prompt = False
        self.written: list[int] = []
        """The last tokens whose text is written."""
        self.held: list[int] = []
        """Tokens after them."""

    def put(self, value: Tensor) -> None:
        """Called by transformers: first with the prompt, then with each token."""
        if not self.saw_prompt:
            self.saw_prompt = True
            return
        self.times.append(time.perf_counter())
        self.held += value.flatten().tolist()
        text = self._text_held()
        if text and not text.endswith("\N{REPLACEMENT CHARACTER}"):  # the first bytes of a character
            self._write(text)
            self.written, self.held = self.held, []

    def end(self) -> None:
        """Called by transformers after the last token."""
        self._write(self._text_held() + "\n")
        self.written, self.held = [], []

    def _text_held(self) -> str:
        before, after = (
            str(self.tokenizer.decode(ids, skip_special_tokens=True, clean_up_tokenization_spaces=False))
            for ids in (self.written, self.written + self.held)
        )
        return after[len(before) :]

    def _write(self, text: str) -> None:
        print(text, end="", file=self.out, flush=True)


def check_fit(model: Any, ids: Tensor, new: int) -> None:
    """Refuse a prompt (1, T) that the model has no embeddings or no positions for."""
    if not ids.numel():
        raise ValueError("the prompt has no tokens. Give a few words to go on from.")
    known, largest = model.get_input_embeddings().num_embeddings, int(ids.max())
    if largest >= known:
        raise ValueError(
            f"the tokenizer makes token {largest} of the prompt, and the model knows {known} tokens: it is another "
            f"model's tokenizer. --tokenizer FOLDER names the right one."
        )
    T = ids.shape[1]
    most = furthest(model)
    if most is not None and T + new - 1 > most:  # the last token is not read again
        raise ValueError(
            f"{T} prompt tokens and {new} new ones are more than the {most} positions that this model has: "
            f"its encoding, {encoding_name(model)!r}, ends there. Ask for fewer, or take a model whose encoding goes "
            f"on, such as 'fire'."
        )


def encodings(model: Any) -> list[PositionEncoding]:
    """The position encodings of ours that are in a model: none in a model that has only its own."""
    return [module for module in model.modules() if isinstance(module, PositionEncoding)]


def encoding_name(model: Any) -> str:
    """As `build_encoding` takes it; of a model without one of ours, that it is the model's own."""
    kinds = {type(encoding) for encoding in encodings(model)}
    names = [name for name, cls in ENCODINGS.items() if cls in kinds]
    return ", ".join(names) or f"{model.config.model_type}'s own"


def attention_used(model: Any, tokens: int, cached: bool) -> str:
    """The implementation and, if it is "longfire", the engine that it chooses for a step after so many tokens."""
    config = model.config
    if config._attn_implementation != NAME:
        return str(config._attn_implementation)
    H = config.num_attention_heads
    D = getattr(config, "head_dim", None) or config.hidden_size // H
    G = getattr(config, "num_key_value_heads", None) or H
    like = {"device": model.device, "dtype": model.dtype}
    q = torch.empty(1, H, 1 if cached else tokens, D, **like)
    k = torch.empty(1, G, tokens, D, **like)
    plan = attention_plan(q, k, k, next((encoding for encoding in encodings(model) if encoding.has_bias), None))
    return f"{NAME} ({plan.engine})"


def _device(name: str | None) -> torch.device:
    if name is None:
        return torch.device("cuda" if torch.cuda.is_available() else "cpu")
    try:
        device = torch.device(name)
    except RuntimeError as error:
        raise ValueError(f"there is no device named {name!r}: cpu, cuda and cuda:1 are such names.") from error
    if device.type == "cuda" and (device.index or 0) >= torch.cuda.device_count():
        raise ValueError(f"torch finds {torch.cuda.device_count()} CUDA devices here, and not {name!r}. Take the cpu.")
    return device


def _end_of_text(model: Any, tokenizer: PreTrainedTokenizerBase) -> dict[str, Any]:
    """The tokenizer's last token, where the checkpoint does not say which ends a text."""
    if model.generation_config.eos_token_id is not None or tokenizer.eos_token_id is None:
        return {}
    return {"eos_token_id": tokenizer.eos_token_id}


@contextmanager
def quiet() -> Iterator[None]:
    """Without transformers' reminders, that a prompt is longer than those in training for one."""
    before = logging.get_verbosity()
    logging.set_verbosity_error()
    try:
        yield
    finally:
        logging.set_verbosity(before)


@contextmanager
def _without_progress_bar() -> Iterator[None]:
    shown = logging.is_progress_bar_enabled()
    logging.disable_progress_bar()
    try:
        yield
    finally:
        if shown:
            logging.enable_progress_bar()
