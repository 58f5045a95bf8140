"""Answer a task's questions by greedy decoding.

Prompts are batched by length, longest first, with left padding. Memory is bounded: keys and values of `batch_tokens`
tokens, logits of the last token only, and no (prompt × prompt) tensor, because prompts that need a padding mask are
prefilled in chunks.
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
from longfire.evaluation.scoring import check_position_limit, check_vocabulary, evaluating
from longfire.model.generate import quiet_transformers
from longfire.tasks import Example, Task, prompt_ids
from longfire.validation import at_least

BATCH_TOKENS = {"cuda": 1 << 18, "cpu": 1 << 14}
"""Default number of prompt and answer tokens per batch."""
MAX_MASK_ENTRIES = 1 << 28
"""Maximum size of a padded batch's attention mask (batch × queries × keys), above which prefilling is chunked."""

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
    """The model's answers, in the order of the examples.

    Args:
        model: A transformers causal language model, on its device and in its precision.
        tokenizer: The model's tokenizer.
        task: Sets the maximum length of answers.
        examples: Questions of the task.
        length: Maximum tokens of prompt and answer; documents are truncated to fit.
        batch_tokens: Tokens per batch, at least one question. Halved when memory runs out.
        progress: Show progress bars if stderr is a terminal.
        save: Called with each answer, as a dictionary, as soon as it is generated, longest prompts first.
    """
    check_position_limit(model, length)
    if length <= task.max_answer:
        raise ValueError(
            f"a length of {length} tokens leaves no room for a prompt, since answers of {task.name} may take "
            f"{task.max_answer}. Pass a greater length."
        )
    if batch_tokens is None:
        batch_tokens = BATCH_TOKENS["cuda" if model.device.type == "cuda" else "cpu"]
    at_least("the tokens in a batch", batch_tokens, 1)
    hidden = None if progress else True
    with tqdm(examples, f"{task.name}: prompts", unit="prompt", leave=False, disable=hidden) as shown:
        room = length - task.max_answer
        prompts = [np.array(prompt_ids(example, tokenizer, room), np.int32) for example in shown]
    largest = max((int(ids.max()) for ids in prompts if ids.size), default=0)
    check_vocabulary(model, largest, "the tokenizer produced", "Use the tokenizer the model was trained with.")
    ends = _end_tokens(model, tokenizer)
    answered: dict[int, Answered] = {}
    with (
        _generating(model, _greedy(model, tokenizer, task.max_answer, ends)),
        tqdm(total=len(prompts), desc=f"{task.name}: answers", unit="answer", leave=False, disable=hidden) as bar,
    ):
        for index, ids in _generate(model, prompts, task.max_answer, batch_tokens):
            one, text = examples[index], _decode(tokenizer, ids, ends)
            answered[index] = Answered(one.id, text, one.references, one.group, len(prompts[index]), one.options)
            if save is not None:
                save(prediction_line(answered[index]))
            bar.update()
    return [answered[index] for index in range(len(examples))]


def prediction_line(one: Answered) -> dict[str, Any]:
    """A line of a predictions file. Omits the options, which belong to the question."""
    return {name: value for name, value in asdict(one).items() if name != "options"}


def write_predictions(path: Path, answered: Sequence[Answered]) -> None:
    """Write predictions as JSON lines, atomically."""
    write_whole(path, "".join(json.dumps(prediction_line(one)) + "\n" for one in answered))


def _end_tokens(model: Any, tokenizer: PreTrainedTokenizerFast) -> set[int]:
    """End-of-text tokens of the tokenizer, which training uses, and of the checkpoint."""
    checkpoint = model.generation_config.eos_token_id
    tokens = [tokenizer.eos_token_id, *(checkpoint if isinstance(checkpoint, list) else [checkpoint])]
    return {int(token) for token in tokens if token is not None}


def _greedy(model: Any, tokenizer: PreTrainedTokenizerFast, max_answer: int, ends: set[int]) -> GenerationConfig:
    padding = tokenizer.pad_token_id
    if padding is None or padding >= model.get_input_embeddings().num_embeddings:
        padding = min(ends, default=0)  # masked, so any token works
    return GenerationConfig(
        max_new_tokens=max_answer,
        do_sample=False,
        num_beams=1,
        use_cache=getattr(model.config, "random_positions", None) is None,
        eos_token_id=sorted(ends) or None,
        pad_token_id=padding,
    )


@contextmanager
def _generating(model: Any, config: GenerationConfig) -> Iterator[None]:
    """Evaluation mode with only this generation config, within a block.

    `generate` would otherwise merge the checkpoint's settings (temperature, repetition penalty) into its arguments.
    Layers compiled for training run eagerly, because compiling for each sequence length would take longer than
    generating.
    """
    before = model.generation_config
    compiled = any(module._compiled_call_impl is not None for module in model.modules())
    with ExitStack() as stack:
        stack.enter_context(evaluating(model))
        stack.enter_context(quiet_transformers())
        if compiled:
            stack.enter_context(torch.compiler.set_stance("force_eager"))
        model.generation_config = config
        try:
            yield
        finally:
            model.generation_config = before


def _generate(
    model: Any, prompts: Sequence[Ids], max_answer: int, batch_tokens: int
) -> Iterator[tuple[int, list[int]]]:
    """Yield (index, continuation) for each prompt, longest first."""
    order = sorted(range(len(prompts)), key=lambda index: -len(prompts[index]))
    done = 0
    while done < len(order):
        tokens = len(prompts[order[done]]) + max_answer
        batch = order[done : done + max(1, batch_tokens // tokens)]
        try:
            continuations = _continue(model, [prompts[index] for index in batch])
        except torch.OutOfMemoryError:
            if len(batch) == 1:
                raise
            batch_tokens = len(batch) // 2 * tokens
            continue
        yield from zip(batch, continuations, strict=True)
        done += len(batch)


@torch.no_grad()
def _continue(model: Any, prompts: Sequence[Ids]) -> list[list[int]]:
    """The continuations of a batch of prompts, padded on the left."""
    B, T = len(prompts), max(len(ids) for ids in prompts)
    ids = torch.full((B, T), model.generation_config.pad_token_id)
    mask = torch.zeros_like(ids)
    for row, prompt in enumerate(prompts):
        ids[row, T - len(prompt) :] = torch.from_numpy(prompt)
        mask[row, T - len(prompt) :] = 1
    options = {}
    if not mask.all() and B * T * T > MAX_MASK_ENTRIES:
        options["prefill_chunk_size"] = max(1, MAX_MASK_ENTRIES // (B * T))
    out = model.generate(ids.to(model.device), attention_mask=mask.to(model.device), **options)
    continuations: list[list[int]] = out[:, T:].tolist()
    return continuations


def _decode(tokenizer: PreTrainedTokenizerFast, ids: list[int], ends: set[int]) -> str:
    """The text before the end token."""
    length = next((i for i, token in enumerate(ids) if token in ends), len(ids))
    text = tokenizer.decode(ids[:length], skip_special_tokens=True, clean_up_tokenization_spaces=False)
    return str(text).strip()
