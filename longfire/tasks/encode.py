"""An example as tokens: question, blank line, document, cue, answer, end of text.

Parts are tokenised separately, so an answer's tokens do not depend on where the document is truncated. Each part starts
with the whitespace that separates it from the one before. GPT-2-style tokenizers split there anyway: an example that is
not truncated has the tokens of its whole text.
"""

from collections import OrderedDict
from typing import Any
from weakref import WeakKeyDictionary

import numpy as np
import numpy.typing as npt
from tqdm import tqdm
from transformers import PreTrainedTokenizerFast

from longfire.data.tokenizers import encoder
from longfire.tasks.suites import Example

CUE = "\n\nAnswer:"
"""Ends every prompt, followed by a space and the answer."""
BLANK = "\n\n"
IGNORED = -100
"""Label of tokens without a loss, as in Hugging Face models."""
CACHED_TOKENS = 4_000_000
"""Tokens of recent documents to cache, since many questions share a document."""

Ids = npt.NDArray[np.int32]


def prompt_ids(example: Example, tokenizer: PreTrainedTokenizerFast, room: int) -> list[int]:
    """Question, document and cue in at most `room` tokens; the document is truncated at its end."""
    ids: list[int] = _prompt(example, _parts_of(tokenizer), room, 0).tolist()
    return ids


def answer_ids(text: str, tokenizer: PreTrainedTokenizerFast) -> list[int]:
    """The answer with a leading space, and the end of text."""
    ids: list[int] = _parts_of(tokenizer).answer(text).tolist()
    return ids


def training_row(
    example: Example,
    reference: str,
    tokenizer: PreTrainedTokenizerFast,
    length: int,
    max_answer: int | None = None,
) -> dict[str, list[int]]:
    """`input_ids` and `labels` of the same length: prompt and answer, with a loss on the answer only.

    Args:
        example: the question and its document.
        reference: the answer to learn; never truncated.
        tokenizer: must have an end-of-text token.
        length: maximum length of prompt and answer.
        max_answer: reserve room for this many answer tokens, so that documents are truncated as they are in
            generation.
    """
    row = _row(example, reference, _parts_of(tokenizer), length, max_answer or 0)
    return {name: ids.tolist() for name, ids in row.items()}


def training_rows(
    examples: list[Example], tokenizer: PreTrainedTokenizerFast, length: int, progress: bool = False
) -> list[dict[str, Ids]]:
    """A `training_row` for each reference of each example, as int32 arrays."""
    parts = _parts_of(tokenizer)
    shown = tqdm(examples, "tokenising", unit="example", disable=None if progress else True)
    return [_row(example, reference, parts, length, 0) for example in shown for reference in example.references]


class _Parts:
    """Tokenises the parts of examples with one tokenizer, and caches recent documents."""

    def __init__(self, tokenizer: PreTrainedTokenizerFast) -> None:
        if tokenizer.eos_token_id is None:
            raise ValueError("the tokenizer has no end-of-text token. Set its eos_token.")
        self.encode = encoder(tokenizer, np.int32)
        self.end = np.array([tokenizer.eos_token_id], np.int32)
        self.cue = self.ids(CUE)
        self.documents: OrderedDict[tuple[str, str], Ids] = OrderedDict()
        self.cached = 0

    def ids(self, text: str) -> Ids:
        if not text:
            return np.empty(0, np.int32)
        ids: Ids = next(iter(self.encode([text.encode()])))
        return ids

    def answer(self, text: str) -> Ids:
        return np.concatenate([self.ids(f" {text.strip()}"), self.end])

    def document(self, example: Example) -> Ids:
        """The document, after a blank line if there is a question."""
        if not example.document:
            return self.ids("")
        key = (BLANK if example.question else "", example.document)
        if key not in self.documents:
            self.documents[key] = self.ids("".join(key))
            self.cached += len(self.documents[key])
            while self.cached > CACHED_TOKENS and len(self.documents) > 1:
                self.cached -= len(self.documents.popitem(last=False)[1])
        self.documents.move_to_end(key)
        return self.documents[key]


_PARTS: WeakKeyDictionary[Any, _Parts] = WeakKeyDictionary()


def _parts_of(tokenizer: PreTrainedTokenizerFast) -> _Parts:
    if (parts := _PARTS.get(tokenizer)) is None:
        parts = _PARTS[tokenizer] = _Parts(tokenizer)
    return parts


def _prompt(example: Example, parts: _Parts, room: int, reserved: int) -> Ids:
    """The prompt in at most `room - reserved` tokens."""
    question = parts.ids(example.question)
    left = room - reserved - len(question) - len(parts.cue)
    if left < 0:
        answer = f", the answer {reserved}" if reserved else ""
        raise ValueError(
            f"example {example.id}: the question takes {len(question)} tokens, the cue {len(parts.cue)}{answer}, "
            f"{room - left} together, but only {room} fit. None of these is ever truncated: use a length of at least "
            f"{room - left}, or remove the example."
        )
    return np.concatenate([question, parts.document(example)[:left], parts.cue])


def _row(example: Example, reference: str, parts: _Parts, length: int, reserved: int) -> dict[str, Ids]:
    if not reference.strip():
        raise ValueError(f"example {example.id}: the reference is empty, so there is nothing to learn. Remove it.")
    answer = parts.answer(reference)
    prompt = _prompt(example, parts, length, max(len(answer), reserved))
    ignored = np.full(len(prompt), IGNORED, np.int32)
    return {"input_ids": np.concatenate([prompt, answer]), "labels": np.concatenate([ignored, answer])}
