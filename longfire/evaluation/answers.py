"""A model's answers to a task's questions: the most likely tokens, one after the other, until the end of text.

Prompts of about the same length go together, the longest first, padded on the left. What a batch holds is bounded: keys
and values of `batch_tokens` tokens, the logits of the last token alone, and no (prompt × prompt) tensor: where prompts
are padded, attention may need a mask of that shape, so they are read in pieces then.
"""

import json
from collections.abc import Callable, Iterator, Sequence
from contextlib import ExitStack, contextmanager
from dataclasses import asdict
from pathlib import Path
from typing import Any

import numpy as np
import numpy.typing as npt
import torch
from tqdm import tqdm
from transformers import GenerationConfig, PreTrainedTokenizerFast

from longfire.atomic_io import write_whole
from longfire.evaluation.metrics import Answered
from longfire.evaluation.scoring import evaluating, position_limit
from longfire.model.generate import quiet_transformers
from longfire.model.inspection import check_length
from longfire.tasks import Example, Task, prompt_ids
from longfire.validation import at_least

BATCH_TOKENS = {"cuda": 1 << 18, "cpu": 1 << 14}
"""Of prompts and answers in a batch, unless given; one question at least."""
MASK = 1 << 28
"""Entries of the mask (batch × queries × keys) of a padded batch, at most: so many queries are read at a time."""

Ids = npt.NDArray[np.int32]


def answer(
    model: Any,
    tokenizer: PreTrainedTokenizerFast,
    task: Task,
    examples: Sequence[Example],
    *,
    length: int,
    batch_tokens: int | None = None,
    progress: bool = True,
    save: Callable[[dict[str, Any]], object] | None = None,
) -> list[Answered]:
    """What the model answers to each example, in their order.

    Args:
        model: a causal model of transformers, on the device and in the precision that it shall run in.
        tokenizer: the model's.
        task: which says how many tokens an answer may have.
        examples: of the task.
        length: of prompt and answer together, at most, in tokens; documents are cut to fit.
        batch_tokens: in a batch, and one question at least. It is made less where memory does not suffice.
        progress: show bars, where stderr is a terminal.
        save: called with each answer, as a dictionary, as soon as it is there: the longest prompts come first.
    """
    new = task.max_answer
    _check_length(model, task, length)
    if batch_tokens is None:
        batch_tokens = BATCH_TOKENS["cuda" if model.device.type == "cuda" else "cpu"]
    at_least("the tokens in a batch", batch_tokens, 1)
    off = None if progress else True
    with tqdm(examples, f"{task.name}: prompts", unit="prompt", leave=False, disable=off) as shown:
        prompts = [np.array(prompt_ids(example, tokenizer, length - new), np.int32) for example in shown]
    _check_vocabulary(model, prompts)
    ends = _ends(model, tokenizer)
    order = sorted(range(len(prompts)), key=lambda index: -len(prompts[index]))
    answered: dict[int, Answered] = {}
    with (
        _answering(model, _greedy(model, tokenizer, new, ends)),
        tqdm(total=len(order), desc=f"{task.name}: answers", unit="answer", leave=False, disable=off) as bar,
    ):
        for index, ids in _generated(model, prompts, order, new, batch_tokens):
            one, text = examples[index], _text(tokenizer, ids, ends)
            answered[index] = Answered(one.id, text, one.references, one.group, len(prompts[index]), one.options)
            if save is not None:
                save(as_line(answered[index]))
            bar.update()
    return [answered[index] for index in range(len(examples))]


def as_line(one: Answered) -> dict[str, Any]:
    """For a file of predictions: without the options, which are the question's."""
    return {name: value for name, value in asdict(one).items() if name != "options"}


def write_predictions(path: Path, answered: Sequence[Answered]) -> None:
    """As JSON, a line each; whoever reads the file meanwhile sees the old one or all of the new."""
    write_whole(path, "".join(json.dumps(as_line(one)) + "\n" for one in answered))


def _check_length(model: Any, task: Task, length: int) -> None:
    """Before anything runs: whether there is room for a prompt, and whether the model has positions for it all."""
    at_least("the length", length, 1)
    if length <= task.max_answer:
        raise ValueError(
            f"a length of {length} tokens leaves no room for a prompt: {task.name}'s answers may take "
            f"{task.max_answer} of them. Give a greater length."
        )
    check_length(model, length)
    if (limit := position_limit(model)) is not None and length > limit[0]:
        raise ValueError(
            f"the model has {limit[0]} learned positions ({limit[1]}), and a length of {length} tokens was asked for. "
            f"Take at most {limit[0]}, or a model whose positions go on."
        )


def _check_vocabulary(model: Any, prompts: Sequence[Ids]) -> None:
    known = model.get_input_embeddings().num_embeddings
    largest = max((int(ids.max()) for ids in prompts if ids.size), default=0)
    if largest >= known:
        raise ValueError(
            f"the tokenizer makes token {largest} of a prompt, and the model knows {known} tokens: it is another "
            f"model's tokenizer. Give the one that the model was trained with."
        )


def _ends(model: Any, tokenizer: PreTrainedTokenizerFast) -> set[int]:
    """Tokens that end a text, as the tokenizer has it, which training takes them from, or the checkpoint."""
    own = model.generation_config.eos_token_id
    found = [tokenizer.eos_token_id, *(own if isinstance(own, list) else [own])]
    return {int(token) for token in found if token is not None}


def _greedy(model: Any, tokenizer: PreTrainedTokenizerFast, new: int, ends: set[int]) -> GenerationConfig:
    padding = tokenizer.pad_token_id
    if padding is None or padding >= model.get_input_embeddings().num_embeddings:
        padding = min(ends, default=0)  # any token will do, since it is hidden
    return GenerationConfig(
        max_new_tokens=new,
        do_sample=False,
        num_beams=1,
        use_cache=True,
        eos_token_id=sorted(ends) or None,
        pad_token_id=padding,
    )


@contextmanager
def _answering(model: Any, how: GenerationConfig) -> Iterator[None]:
    """In evaluation mode, generating in this way alone, and back.

    What a checkpoint brings (a temperature, a penalty of repetition) would join whatever `generate` is given. Layers
    that are compiled for training run as they are: a graph for each step's length would take longer than they do.
    """
    before = model.generation_config
    compiled = any(module._compiled_call_impl is not None for module in model.modules())
    with ExitStack() as stack:
        stack.enter_context(evaluating(model))
        stack.enter_context(quiet_transformers())
        if compiled:
            stack.enter_context(torch.compiler.set_stance("force_eager"))
        model.generation_config = how
        try:
            yield
        finally:
            model.generation_config = before


def _generated(
    model: Any, prompts: Sequence[Ids], order: Sequence[int], new: int, batch_tokens: int
) -> Iterator[tuple[int, list[int]]]:
    """Indices of prompts, in this order, with the tokens that come after each; the longest prompts come first."""
    done = 0
    while done < len(order):
        each = len(prompts[order[done]]) + new
        batch = order[done : done + max(1, batch_tokens // each)]
        try:
            written = _after(model, [prompts[index] for index in batch])
        except torch.OutOfMemoryError:
            if len(batch) == 1:
                raise
            batch_tokens = len(batch) // 2 * each
            continue
        yield from zip(batch, written, strict=True)
        done += len(batch)


@torch.no_grad()
def _after(model: Any, prompts: Sequence[Ids]) -> list[list[int]]:
    """The tokens after each of a batch of prompts. Those that end before others are filled up."""
    B, T = len(prompts), max(len(ids) for ids in prompts)
    ids = torch.full((B, T), model.generation_config.pad_token_id)
    mask = torch.zeros_like(ids)
    for row, prompt in enumerate(prompts):
        ids[row, T - len(prompt) :] = torch.from_numpy(prompt)
        mask[row, T - len(prompt) :] = 1
    options = {}
    if not mask.all() and B * T * T > MASK:
        options["prefill_chunk_size"] = max(1, MASK // (B * T))
    out = model.generate(ids.to(model.device), attention_mask=mask.to(model.device), **options)
    written: list[list[int]] = out[:, T:].tolist()
    return written


def _text(tokenizer: PreTrainedTokenizerFast, ids: list[int], ends: set[int]) -> str:
    """Up to the end of text."""
    length = next((place for place, token in enumerate(ids) if token in ends), len(ids))
    text = tokenizer.decode(ids[:length], skip_special_tokens=True, clean_up_tokenization_spaces=False)
    return str(text).strip()
