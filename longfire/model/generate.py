"""Text generation from a checkpoint, streamed as tokens arrive and timed.

Works with any causal model that transformers' Auto classes can load, including longfire's own.
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

from longfire.model.inspection import attention_used, check_length, encoding_name
from longfire.model.loading import find_checkpoint
from longfire.validation import at_least, load_without_code, one_of, positive

CACHES: dict[str, dict[str, Any]] = {
    "dynamic": {"use_cache": True},
    "static": {"use_cache": True, "cache_implementation": "static"},
    "none": {"use_cache": False},
}
"""Key-value caches as options of transformers' `generate`, which compiles decoding with a static one on a GPU."""
DTYPES = ("bfloat16", "float16", "float32")
TOKENIZER_FILES = ("tokenizer.json", "tokenizer_config.json", "tokenizer.model", "vocab.json", "vocab.txt")


@dataclass(frozen=True)
class GenerationSetting:
    """A prompt, how many tokens to generate, and how to sample them."""

    prompt: str
    max_new_tokens: int = 128
    temperature: float = 0.0
    """0: greedy decoding."""
    top_p: float | None = None
    top_k: int | None = None
    seed: int | None = None
    """None: different samples every time."""
    cache: str = "dynamic"

    def __post_init__(self) -> None:
        if not self.prompt:
            raise ValueError("the prompt is empty. Pass a few words to continue.")
        at_least("max_new_tokens", self.max_new_tokens, 1)
        positive("temperature", self.temperature, zero_too=True)
        if self.top_p is not None and not 0 < self.top_p <= 1:
            raise ValueError(f"top_p must be above 0 and at most 1, not {self.top_p}.")
        if self.top_k is not None:
            at_least("top_k", self.top_k, 1)
        if self.temperature == 0 and (self.top_p, self.top_k) != (None, None):
            raise ValueError("top_p and top_k need a temperature above 0: at 0, decoding is greedy.")
        one_of("cache", self.cache, CACHES)

    def options(self) -> dict[str, Any]:
        """For `model.generate`."""
        common = {"max_new_tokens": self.max_new_tokens, "num_beams": 1, **CACHES[self.cache]}
        if self.temperature == 0:
            return {"do_sample": False, **common}
        sampling = {"temperature": self.temperature, "top_p": self.top_p or 1.0, "top_k": self.top_k or 0}
        return {"do_sample": True, **sampling, **common}


@dataclass(frozen=True)
class GenerationReport:
    """Token counts and timings of one generation; `str` formats them in one line."""

    prompt_tokens: int
    times: list[float]
    """Seconds from the start to each new token."""
    environment: str
    interrupted: bool = False

    def __str__(self) -> str:
        new = len(self.times)
        parts = [f"{self.prompt_tokens} prompt tokens, {new} new"]
        if new:
            parts.append(f"first after {self.times[0]:.3g} s")
        if new > 1 and self.times[-1] > self.times[0]:
            parts.append(f"then {(new - 1) / (self.times[-1] - self.times[0]):.4g} tokens/s")
        return f"{', '.join(parts)}; {self.environment}{'; interrupted' if self.interrupted else ''}"


def load_model(
    checkpoint: Path, tokenizer: Path | None = None, device: str | None = None, dtype: str | None = None
) -> tuple[Any, PreTrainedTokenizerBase]:
    """Load a saved model and its tokenizer.

    Args:
        checkpoint: a folder written by `save_pretrained`.
        tokenizer: the tokenizer's folder. Default: the checkpoint.
        device: default: the GPU if there is one.
        dtype: default: the dtype the model was saved in.
    """
    target = _device(device)
    if dtype is not None:
        one_of("dtype", dtype, DTYPES)
    checkpoint = find_checkpoint(checkpoint)
    folder = checkpoint if tokenizer is None else tokenizer
    if not folder.is_dir():
        raise ValueError(f"there is no tokenizer folder {folder}. Check --tokenizer.")
    if not any((folder / name).is_file() for name in TOKENIZER_FILES):
        raise ValueError(
            f"{folder} has no tokenizer. Save one there with tokenizer.save_pretrained({str(folder)!r}), or pass "
            f"another folder with --tokenizer."
        )
    with quiet_transformers(keep_warnings=True):
        model: Any = load_without_code(AutoModelForCausalLM, checkpoint, dtype=dtype or "auto", local_files_only=True)
    return model.to(target), load_without_code(AutoTokenizer, folder, local_files_only=True)


def generate(
    model: Any, tokenizer: PreTrainedTokenizerBase, setting: GenerationSetting, out: TextIO
) -> GenerationReport:
    """Stream the model's continuation of the prompt to `out`. Ctrl-C ends it early and keeps what was written."""
    stream = TextStream(tokenizer, out)
    interrupted = False
    with quiet_transformers(), torch.inference_mode():
        inputs = tokenizer(setting.prompt, return_tensors="pt", return_token_type_ids=False)
        ids = inputs["input_ids"]
        _check_prompt(model, ids, setting.max_new_tokens)
        if setting.seed is not None:
            torch.manual_seed(setting.seed)
        attention = attention_used(model, ids.shape[1], cached=setting.cache != "none")
        inputs = inputs.to(model.device)
        end = {}
        if model.generation_config.eos_token_id is None and tokenizer.eos_token_id is not None:
            end = {"eos_token_id": tokenizer.eos_token_id}
        start = time.perf_counter()
        try:
            model.generate(**inputs, **setting.options(), **end, streamer=stream)
        except KeyboardInterrupt:
            interrupted = True
            stream.end()
    device = torch.cuda.get_device_name(model.device) if model.device.type == "cuda" else str(model.device)
    dtype = str(model.dtype).removeprefix("torch.")
    environment = f"{device}, {dtype}, attention {attention}, encoding {encoding_name(model)}"
    return GenerationReport(ids.shape[1], [moment - start for moment in stream.times], environment, interrupted)


class TextStream(BaseStreamer):
    """Writes each token's text as it arrives, never splitting a character, and records the times.

    A token's text is what it adds to the decoded text of the last few tokens: decoded alone, it may differ (the first
    word of a text has no leading space).
    """

    def __init__(self, tokenizer: PreTrainedTokenizerBase, out: TextIO) -> None:
        self.tokenizer, self.out = tokenizer, out
        self.times: list[float] = []
        self.saw_prompt = False
        self.written: list[int] = []  # the last tokens whose text was written
        self.pending: list[int] = []  # tokens since then

    def put(self, value: Tensor) -> None:
        """Called by transformers, first with the prompt, then with each token."""
        if not self.saw_prompt:
            self.saw_prompt = True
            return
        self.times.append(time.perf_counter())
        self.pending += value.flatten().tolist()
        text = self._pending_text()
        if text and not text.endswith("\N{REPLACEMENT CHARACTER}"):  # an incomplete character
            self._write(text)
            self.written, self.pending = self.pending, []

    def end(self) -> None:
        """Called by transformers after the last token."""
        self._write(self._pending_text() + "\n")
        self.written, self.pending = [], []

    def _pending_text(self) -> str:
        before, after = (
            str(self.tokenizer.decode(ids, skip_special_tokens=True, clean_up_tokenization_spaces=False))
            for ids in (self.written, self.written + self.pending)
        )
        return after[len(before) :]

    def _write(self, text: str) -> None:
        print(text, end="", file=self.out, flush=True)


def _check_prompt(model: Any, ids: Tensor, new: int) -> None:
    """Refuse a prompt (1, T) for which the model lacks embeddings or positions."""
    if not ids.numel():
        raise ValueError("the prompt has no tokens. Pass a few words to continue.")
    V, largest = model.get_input_embeddings().num_embeddings, int(ids.max())
    if largest >= V:
        raise ValueError(
            f"the prompt contains token {largest}, but the model's vocabulary has {V}: the tokenizer belongs to "
            f"another model. Pass the right one with --tokenizer."
        )
    T = ids.shape[1]
    check_length(model, T + new - 1, f"{T} prompt tokens and {new} new ones")  # the last token is never fed back


def _device(name: str | None) -> torch.device:
    if name is None:
        return torch.device("cuda" if torch.cuda.is_available() else "cpu")
    try:
        device = torch.device(name)
    except RuntimeError as error:
        raise ValueError(f"there is no device named {name!r}. Use cpu, cuda or cuda:1, for example.") from error
    if device.type == "cuda" and (device.index or 0) >= torch.cuda.device_count():
        raise ValueError(f"there is no {name!r}: torch finds {torch.cuda.device_count()} CUDA devices. Use cpu.")
    return device


@contextmanager
def quiet_transformers(keep_warnings: bool = False) -> Iterator[None]:
    """Silence transformers' progress bars and warnings, such as the one about prompts past the training length."""
    verbosity, progress = logging.get_verbosity(), logging.is_progress_bar_enabled()
    logging.disable_progress_bar()
    if not keep_warnings:
        logging.set_verbosity_error()
    try:
        yield
    finally:
        logging.set_verbosity(verbosity)
        if progress:
            logging.enable_progress_bar()
