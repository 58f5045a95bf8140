"""An example as tokens: question, blank line, document, cue, answer, end of text.

Each part is tokenised by itself, so that the answer's tokens are the same wherever the document is cut. Parts begin
with the space that divides them from what is before. Tokenizers in GPT-2's manner split there anyway: the tokens of an
example that is not cut are those of its whole text.
"""

from collections import OrderedDict
from typing import Any
from weakref import WeakKeyDictionary

import numpy as np
import numpy.typing as npt
from tqdm import tqdm
from transformers import PreTrainedTokenizerFast

from longfire.data.tokenizers import encoder
from longfire.tasks.task import Example

CUE = "\n\nAnswer:"
"""Ends every prompt. A space and the answer come after it."""
BLANK = "\n\n"
IGNORED = -100
"""The label of what is not to be learned, as in Hugging Face models."""
MOST_TOKENS = 4_000_000
"""So many tokens of documents are kept, since many questions are on one."""

Ids = npt.NDArray[np.int32]


def prompt_ids(example: Example, tokenizer: PreTrainedTokenizerFast, room: int) -> list[int]:
    """Question, document and cue in at most `room` tokens; the document is cut from its end."""
    ids: list[int] = _prompt(example, _parts_of(tokenizer), room, 0).tolist()
    return ids


def answer_ids(text: str, tokenizer: PreTrainedTokenizerFast) -> list[int]:
    """The answer with the space before it, and the end of text."""
    ids: list[int] = _parts_of(tokenizer).answer(text).tolist()
    return ids


def training_row(
    example: Example,
    reference: str,
    tokenizer: PreTrainedTokenizerFast,
    length: int,
    max_answer: int | None = None,
) -> dict[str, list[int]]:
    """`input_ids` and `labels`, as long as each other: prompt and answer, and only the answer is to be learned.

    Args:
        example: The question and its document.
        reference: The answer to learn; never cut.
        tokenizer: With an end of text.
        length: Of prompt and answer, at most.
        max_answer: Room to keep for an answer even where this one is shorter, so that documents are cut where they are
            when answers of so many tokens are generated.
    """
    row = _row(example, reference, _parts_of(tokenizer), length, max_answer or 0)
    return {name: ids.tolist() for name, ids in row.items()}


def training_rows(
    examples: list[Example], tokenizer: PreTrainedTokenizerFast, length: int, progress: bool = False
) -> list[dict[str, Ids]]:
    """A row for each reference of each example, as `training_row` makes it, in arrays of 32 bits."""
    parts = _parts_of(tokenizer)
    shown = tqdm(examples, "tokenising", unit="example", disable=None if progress else True)
    return [_row(example, reference, parts, length, 0) for example in shown for reference in example.references]


class _Parts:
    """One tokenizer's view of the parts of an example; documents are remembered, the latest ones."""

    def __init__(self, tokenizer: PreTrainedTokenizerFast) -> None:
        if tokenizer.eos_token_id is None:
            raise ValueError("the tokenizer has no token that ends a text. Set its eos_token.")
        self.encode = encoder(tokenizer, np.int32)
        self.end = np.array([tokenizer.eos_token_id], np.int32)
        self.cue = self.ids(CUE)
        self.documents: OrderedDict[tuple[str, str], Ids] = OrderedDict()
        self.held = 0

    def ids(self, text: str) -> Ids:
        if not text:
            return np.empty(0, np.int32)
        ids: Ids = next(iter(self.encode([text.encode()])))
        return ids

    def answer(self, text: str) -> Ids:
        return np.concatenate([self.ids(f" {text.strip()}"), self.end])

    def document(self, example: Example) -> Ids:
        """With the blank line before it where there is a question."""
        if not example.document:
            return self.ids("")
        before = BLANK if example.question else ""
        key = (before, example.document)
        known = self.documents.get(key)
        if known is None:
            known = self.documents[key] = self.ids(before + example.document)
            self.held += len(known)
            while self.held > MOST_TOKENS and len(self.documents) > 1:
                self.held -= len(self.documents.popitem(last=False)[1])
        else:
            self.documents.move_to_end(key)
        return known


_KNOWN: WeakKeyDictionary[Any, _Parts] = WeakKeyDictionary()


def _parts_of(tokenizer: PreTrainedTokenizerFast) -> _Parts:
    parts = _KNOWN.get(tokenizer)
    if parts is None:
        parts = _KNOWN[tokenizer] = _Parts(tokenizer)
    return parts


def _prompt(example: Example, parts: _Parts, room: int, kept: int) -> Ids:
    """At most `room` less `kept` tokens."""
    question = parts.ids(example.question)
    left = room - kept - len(question) - len(parts.cue)
    if left < 0:
        answer = f", the answer {kept}" if kept else ""
        raise ValueError(
            f"example {example.id}: the question takes {len(question)} tokens, the cue {len(parts.cue)}{answer}: "
            f"{room - left} together, where there is room for {room}. None of them is ever cut: give a length of at "
            f"least {room - left}, or leave the example out."
        )
    return np.concatenate([question, parts.document(example)[:left], parts.cue])


def _row(example: Example, reference: str, parts: _Parts, length: int, reserved: int) -> dict[str, Ids]:
    if not reference.strip():
        raise ValueError(f"example {example.id}: the reference is empty. There is nothing to learn; leave it out.")
    answer = parts.answer(reference)
    prompt = _prompt(example, parts, length, max(len(answer), reserved))
    unseen = np.full(len(prompt), IGNORED, np.int32)
    return {"input_ids": np.concatenate([prompt, answer]), "labels": np.concatenate([unseen, answer])}
