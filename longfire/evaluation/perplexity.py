"""Perplexity by length for any Hugging Face model: one forward pass per window, natural log, no sliding window.

paper    Documents are cut into windows of each length n, and their tokens 1 … n − 1 are scored. Longer windows come
         from fewer documents, and their loss averages over 1 … n − 1 tokens of context.
paired   Windows of N tokens, the longest length. At length n the model reads the last n tokens of each window, and the
         last `scored` of them are scored: the same tokens at all lengths, with n − scored … n − 1 tokens of context.

        window   ························································   N tokens
        n = N    ················································SSSSSSSS
        n                                ························SSSSSSSS   S: scored

Differences between lengths are then measured on the same tokens, far more precisely than the losses themselves.
"""

import math
import sys
import time
from collections.abc import Callable, Sequence
from typing import Any

import numpy as np
import numpy.typing as npt
import torch
from tqdm import tqdm

from longfire.data import TokenSplit
from longfire.evaluation.bootstrap import by_unit, mean_interval
from longfire.evaluation.scoring import Scorer, check_position_limit, check_vocabulary, evaluating
from longfire.evaluation.windows import Windows, find_windows
from longfire.validation import at_least, error_summary, one_of

PROTOCOLS = ("paper", "paired")
BATCH_TOKENS = {"cuda": 1 << 16, "cpu": 1 << 13}
"""Default tokens per forward pass; at least one window."""
LENGTHS = (512, 1024, 2048, 4096, 8192)
MULTIPLES = (1, 2, 4, 8, 16)


def default_lengths(trained_length: int | None) -> tuple[int, ...]:
    """512 … 8192 as in the paper; for models trained at less than 512, 1, 2, 4, 8 and 16 times the training length."""
    if trained_length is None or trained_length >= LENGTHS[0]:
        return LENGTHS
    return tuple(trained_length * multiple for multiple in MULTIPLES)


def perplexity_by_length(
    model: Any,
    split: TokenSplit,
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
    """Log perplexity of a model at each length, with 95 % intervals and the loss by position.

    Args:
        model: a causal language model of transformers, on its device and in its precision.
        split: held-out text, tokenised for this model.
        lengths: tokens per window.
        protocol: "paper" or "paired".
        tokens: maximum tokens at each length, a random sample of at least one window. None: all.
        scored: tokens to score in each paired window. None: half the shortest length.
        batch_tokens: tokens per forward pass, at least one window; halved when memory runs out.
        seed: seed of the sample and the bootstrap.
        progress: show a bar for each length if stderr is a terminal, otherwise print a line after each.
        save: called with the record after each length.

    Returns:
        A record with a row for each length in `rows`; a length without a result has the reason in `failed`. In
        `by_position`, `to` is exclusive. `interval_over` names the resampled unit; a single window has no `interval`.
        Paired rows have the `difference` from the shortest length.
    """
    check_options(lengths, protocol, tokens, scored, batch_tokens)
    lengths = sorted({*lengths})
    largest = int(split.tokens.max(initial=0))
    check_vocabulary(model, largest, "the corpus contains", "Tokenise it with the model's tokenizer.")
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
                    windows = find_windows(split, lengths[-1], tokens, seed).ends(n, last)
                else:
                    windows = find_windows(split, n, tokens, seed)
                sums = _score(scorer, windows, batch_tokens, progress, row)
            except (RuntimeError, ValueError, IndexError, MemoryError) as error:  # other lengths may succeed
                row["failed"] = _reason(error)
            else:
                row |= _summary(windows, sums, seed)
                if protocol == "paired":
                    base = base or (n, sums.sum(1))
                    row |= _difference(windows, sums.sum(1), base, seed)
            record["rows"].append(row)
            if progress and not sys.stderr.isatty():
                print(_line(row), file=sys.stderr, flush=True)
            if save is not None:
                save(record)
    return record


def check_options(
    lengths: Sequence[int], protocol: str, tokens: int | None, scored: int | None, batch_tokens: int | None
) -> None:
    """Refuse invalid options of `perplexity_by_length`."""
    one_of("the protocol", protocol, PROTOCOLS)
    if not lengths:
        raise ValueError("pass at least one length, such as 512 1024 2048.")
    for n in lengths:
        at_least("a length", n, 2)
    for what, value in (("tokens", tokens), ("scored", scored), ("batch_tokens", batch_tokens)):
        if value is not None:
            at_least(what, value, 1)
    if scored is not None and protocol != "paired":
        raise ValueError(f"scored={scored} needs protocol 'paired'; {protocol!r} scores all tokens.")
    if scored is not None and scored >= (shortest := min(lengths)):
        raise ValueError(
            f"scored={scored} leaves no context at the shortest length, {shortest}. Score at most {shortest - 1} "
            "tokens, or drop the shortest lengths."
        )


def _score(
    scorer: Scorer, windows: Windows, batch_tokens: int, progress: bool, row: dict[str, Any]
) -> npt.NDArray[np.float64]:
    """Sums of losses by window and position bin, (M, bins)."""
    M, n = len(windows), windows.length
    check_position_limit(scorer.model, n)
    offsets = [start - windows.first for start, _ in windows.bins()]
    batch, done, sums = max(1, batch_tokens // n), 0, np.empty((M, len(offsets)))
    started = time.perf_counter()
    hidden = None if progress else True
    with tqdm(total=M * n, desc=f"{n:,} tokens", unit=" tokens", unit_scale=True, leave=False, disable=hidden) as bar:
        while done < M:
            ids = windows.ids(done, done + batch)
            try:
                losses = scorer(ids, windows.first).double().cpu().numpy()
            except torch.OutOfMemoryError:
                if batch == 1:
                    raise
                batch //= 2
                continue
            sums[done : done + len(ids)] = np.add.reduceat(losses, offsets, axis=1)
            done += len(ids)
            bar.update(ids.numel())
    row |= {"batch": batch, "seconds": round(time.perf_counter() - started, 3)}
    if not np.isfinite(sums).all():
        raise ValueError(
            f"the loss is not finite in {(~np.isfinite(sums).all(1)).sum()} of {M} windows. If the model is in float16 "
            "or bfloat16, try float32."
        )
    return sums


def _summary(windows: Windows, sums: npt.NDArray[np.float64], seed: int) -> dict[str, Any]:
    """The results at one length."""
    M, split = len(windows), windows.split
    loss = float(sums.sum() / (M * windows.scored))
    result: dict[str, Any] = {
        "log_perplexity": loss,
        **_interval(windows, sums.sum(1), seed),
        "sequences": M,
        "documents": len(np.unique(windows.documents)),
        "tokens": M * windows.scored,
        "digest": windows.digest(),
    }
    if split.bytes:
        result["bits_per_byte"] = loss / math.log(2) * split.num_tokens / split.bytes
    result["by_position"] = [
        {"from": start, "to": end, "loss": float(total / (M * (end - start))), "tokens": M * (end - start)}
        for (start, end), total in zip(windows.bins(), sums.sum(0), strict=True)
    ]
    return result


def _difference(
    windows: Windows, sums: npt.NDArray[np.float64], base: tuple[int, npt.NDArray[np.float64]], seed: int
) -> dict[str, Any]:
    """The difference from the loss of the same tokens at the shortest length, with its interval."""
    shortest, base_sums = base
    if windows.length == shortest:
        return {}
    change = float((sums - base_sums).sum() / (len(windows) * windows.scored))
    return {"difference": {"from_length": shortest, "loss": change, **_interval(windows, sums - base_sums, seed)}}


def _interval(windows: Windows, sums: npt.NDArray[np.float64], seed: int) -> dict[str, Any]:
    """The interval over documents or, for a single document, over windows; empty for a single window."""
    units, over = windows.documents, "documents"
    if units[0] == units[-1]:
        units, over = np.arange(len(sums)), "sequences"
    totals, counts = by_unit(sums, units)
    interval = mean_interval(totals, counts * windows.scored, seed)
    return {} if interval is None else {"interval": list(interval), "interval_over": over}


def _reason(error: Exception) -> str:
    """The error in one line."""
    if isinstance(error, torch.OutOfMemoryError | MemoryError):
        return f"out of memory with one window at a time: {error_summary(error)}"
    return str(error).strip().splitlines()[0] if isinstance(error, ValueError) and str(error) else error_summary(error)


def _line(row: dict[str, Any]) -> str:
    """One line for a finished length."""
    result = row.get("failed") or f"log perplexity {row['log_perplexity']:.4f}, {row['seconds']:.1f} s"
    return f"{row['length']:,} tokens: {result}"
