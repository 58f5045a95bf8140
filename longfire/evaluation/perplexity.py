"""Perplexity by length: one forward pass per sequence, natural log, no sliding window. For any Hugging Face model.

paper    Documents are cut into sequences of each length n, and their tokens 1 … n − 1 are scored. Lengths differ in the
         documents that are long enough and in where the cuts are, and the mean is over all amounts of context.
paired   Windows of N tokens, the longest length. At length n the model reads the last n tokens of each, and the last
         `scored` of them count: the very same tokens at all lengths, with n − scored … n − 1 tokens before them.

        window   ························································   N tokens
        n = N    ················································SSSSSSSS
        n                                ························SSSSSSSS   S: scored

What one length gains over another is then measured on the same words, and far more exactly than either loss.
"""

import math
import sys
import time
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from typing import Any

import numpy as np
import numpy.typing as npt
import torch

from longfire.evaluation.bootstrap import by_unit, mean_interval
from longfire.evaluation.scoring import Scorer, evaluating, position_limit
from longfire.evaluation.sequences import Sequences, Split, find_sequences
from longfire.validation import at_least, one_of

PROTOCOLS = ("paper", "paired")
BATCH_TOKENS = {"cuda": 1 << 16, "cpu": 1 << 13}
"""Tokens in a forward pass, unless given; one sequence at least."""
LENGTHS = (512, 1024, 2048, 4096, 8192)
MULTIPLES = (1, 2, 4, 8, 16)


def default_lengths(trained_length: int | None) -> tuple[int, ...]:
    """512 … 8192 as in the paper; where a model was trained shorter, its length and 2, 4, 8 and 16 times it."""
    if trained_length is None or trained_length >= LENGTHS[0]:
        return LENGTHS
    return tuple(trained_length * multiple for multiple in MULTIPLES)


def perplexity_by_length(
    model: Any,
    split: Split,
    lengths: Sequence[int],
    *,
    protocol: str = "paper",
    tokens: int | None = None,
    scored: int | None = None,
    batch_tokens: int | None = None,
    seed: int = 0,
    progress: bool = True,
    save: Callable[[dict[str, Any]], None] | None = None,
) -> dict[str, Any]:
    """The log perplexity of a model at each length, with 95 % intervals and the loss by position.

    Args:
        model: a causal model of transformers, on the device and in the precision that it shall run in.
        split: of a corpus, tokenised for this model.
        lengths: tokens in a sequence.
        protocol: "paper" or "paired".
        tokens: read at most so many at each length, and one sequence at least; all, unless given. Sequences are drawn.
        scored: of each window, where they are paired; half of the shortest length, unless given.
        batch_tokens: in one forward pass, and one sequence at least. It is halved where memory does not suffice.
        seed: of the sequences that are drawn, and of the bootstrap.
        progress: show a bar for each length, where stderr is a terminal; a line after each, where it is not.
        save: called with the record after each length.

    Returns:
        The record: `rows`, one for each length, with `failed` in place of results where there are none. `to` of a bin
        in `by_position` is not included. `interval` is missing where there is but one sequence, and `interval_over`
        says what was drawn again. Paired rows have their `difference` from the shortest length.
    """
    lengths = sorted({*lengths})
    _check(lengths, protocol, tokens, scored, batch_tokens)
    _check_vocabulary(model, split)
    batch_tokens = batch_tokens or BATCH_TOKENS["cuda" if model.device.type == "cuda" else "cpu"]
    last = scored or lengths[0] // 2
    with evaluating(model):
        scorer = Scorer(model)
        record: dict[str, Any] = {
            "protocol": protocol,
            "logits": scorer.way,
            "batch_tokens": batch_tokens,
            "seed": seed,
            "rows": [],
        }
        base: tuple[int, npt.NDArray[np.float64]] | None = None
        for n in lengths:
            row: dict[str, Any] = {"length": n}
            try:
                if protocol == "paired":
                    sequences = find_sequences(split, lengths[-1], tokens, seed).ends(n, last)
                else:
                    sequences = find_sequences(split, n, tokens, seed)
                sums = _score(scorer, sequences, batch_tokens, progress, row)
            except (RuntimeError, ValueError, IndexError, MemoryError) as error:  # other lengths stand
                row["failed"] = _reason(error)
            else:
                row |= _summary(sequences, sums, seed)
                if protocol == "paired":
                    base = base or (n, sums.sum(1))
                    row |= _difference(sequences, sums.sum(1), base, seed)
            record["rows"].append(row)
            if progress and not sys.stderr.isatty():
                print(_line(row), file=sys.stderr, flush=True)
            if save is not None:
                save(record)
    return record


def _check(lengths: list[int], protocol: str, tokens: int | None, scored: int | None, batch_tokens: int | None) -> None:
    one_of("the protocol", protocol, PROTOCOLS)
    if not lengths:
        raise ValueError("there are no lengths to evaluate at. Give some, such as 512 1024 2048.")
    for n in lengths:
        at_least("a length", n, 2)
    for what, value in (("tokens", tokens), ("scored", scored), ("batch_tokens", batch_tokens)):
        if value is not None:
            at_least(what, value, 1)
    if scored is not None and protocol != "paired":
        raise ValueError(f"scored={scored} is for the protocol 'paired': in {protocol!r} all tokens are scored.")
    if scored is not None and scored >= lengths[0]:
        raise ValueError(
            f"scored={scored} leaves nothing before the first scored token at the shortest length, {lengths[0]}. "
            f"Score at most {lengths[0] - 1}, or leave out the shortest lengths."
        )


def _check_vocabulary(model: Any, split: Split) -> None:
    """Refuse tokens that the model does not know: on a GPU they would end all that the process does there."""
    known, largest = model.get_input_embeddings().num_embeddings, int(split.tokens.max(initial=0))
    if largest >= known:
        raise ValueError(
            f"the corpus has token {largest}, and the model knows {known} tokens. Make the corpus with the model's own "
            f"tokenizer."
        )


def _score(
    scorer: Scorer, sequences: Sequences, batch_tokens: int, progress: bool, row: dict[str, Any]
) -> npt.NDArray[np.float64]:
    """Sums of losses (M, bins)."""
    M, n = len(sequences), sequences.length
    if (limit := position_limit(scorer.model)) is not None and n > limit[0]:
        raise ValueError(f"the model has {limit[0]} learned positions ({limit[1]}), and {n} are needed.")
    offsets = [start - sequences.first for start, _ in sequences.bins()]
    batch, done, sums = max(1, batch_tokens // n), 0, np.empty((M, len(offsets)))
    begin = time.perf_counter()
    with _bar(M * n, n, progress) as advance:
        while done < M:
            ids = sequences.ids(done, done + batch)
            try:
                losses = scorer(ids, sequences.first).double().cpu().numpy()
            except torch.OutOfMemoryError:
                if batch == 1:
                    raise
                batch //= 2
                continue
            sums[done : done + len(ids)] = np.add.reduceat(losses, offsets, axis=1)
            done += len(ids)
            advance(ids.numel())
    row |= {"batch": batch, "seconds": round(time.perf_counter() - begin, 3)}
    if not np.isfinite(sums).all():
        raise ValueError(
            f"the loss is not a finite number in {(~np.isfinite(sums).all(1)).sum()} of {M} sequences. "
            f"In float16 or bfloat16, try float32."
        )
    return sums


def _summary(sequences: Sequences, sums: npt.NDArray[np.float64], seed: int) -> dict[str, Any]:
    """The results of a length."""
    M, split = len(sequences), sequences.split
    loss = float(sums.sum() / (M * sequences.scored))
    found: dict[str, Any] = {
        "log_perplexity": loss,
        **_interval(sequences, sums.sum(1), seed),
        "sequences": M,
        "documents": len(np.unique(sequences.documents)),
        "tokens": M * sequences.scored,
        "digest": sequences.digest(),
    }
    if split.bytes:
        found["bits_per_byte"] = loss / math.log(2) * split.num_tokens / split.bytes
    found["by_position"] = [
        {"from": start, "to": end, "loss": float(total / (M * (end - start))), "tokens": M * (end - start)}
        for (start, end), total in zip(sequences.bins(), sums.sum(0), strict=True)
    ]
    return found


def _difference(
    sequences: Sequences, sums: npt.NDArray[np.float64], base: tuple[int, npt.NDArray[np.float64]], seed: int
) -> dict[str, Any]:
    """The loss less that of the same tokens at the shortest length, with its own interval."""
    shortest, before = base
    if sequences.length == shortest:
        return {}
    change = float((sums - before).sum() / (len(sequences) * sequences.scored))
    return {"difference": {"from_length": shortest, "loss": change, **_interval(sequences, sums - before, seed)}}


def _interval(sequences: Sequences, sums: npt.NDArray[np.float64], seed: int) -> dict[str, Any]:
    """Over documents where there are several, else over sequences; nothing where there is one."""
    units, over = sequences.documents, "documents"
    if units[0] == units[-1]:
        units, over = np.arange(len(sums)), "sequences"
    totals, counts = by_unit(sums, units)
    interval = mean_interval(totals, counts * sequences.scored, seed)
    return {} if interval is None else {"interval": list(interval), "interval_over": over}


def _reason(error: Exception) -> str:
    """In a line, for a row of the table."""
    if isinstance(error, torch.OutOfMemoryError | MemoryError):
        return f"out of memory with one sequence at a time: {str(error).splitlines()[0] if str(error) else 'no more'}"
    text = str(error).strip().splitlines()
    said = text[0] if text else "no message"
    return said if isinstance(error, ValueError) else f"{type(error).__name__}: {said}"


@contextmanager
def _bar(total: int, n: int, progress: bool) -> Iterator[Callable[[int], object]]:
    """A bar of tokens, on a terminal alone."""
    if not progress:
        yield lambda tokens: None
        return
    from tqdm import tqdm

    with tqdm(total=total, desc=f"{n:,} tokens", unit=" tokens", unit_scale=True, leave=False, disable=None) as bar:
        yield bar.update


def _line(row: dict[str, Any]) -> str:
    """A length that is done, for whoever has no bar."""
    found = row.get("failed") or f"log perplexity {row['log_perplexity']:.4f}, {row['seconds']:.1f} s"
    return f"{row['length']:,} tokens: {found}"
