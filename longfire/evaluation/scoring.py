"""The loss of each token under any Hugging Face causal model, without (tokens × vocabulary) logits.

Most models are a decoder and a linear head, so the loss is computed from the two in blocks of tokens. Some transform
their logits (Gemma's soft cap, Cohere's scale, an adapter or a hook on the head); a few probe tokens detect that.
"""

from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import Any

import torch
from torch import Tensor, nn

from longfire.custom_ops import is_plain_linear
from longfire.model import loss
from longfire.model.inspection import find_encodings
from longfire.model.loss import logit_losses, token_losses
from longfire.validation import at_least

HEAD = "hidden states and the head, in blocks of tokens"
REPLAY = "hidden states and the rest of the model after its decoder, in blocks of tokens"
WHOLE = "all logits of a sequence at once, because they cannot be recomputed from the decoder's output"
"""How logits are computed."""
PROBE = 8
"""Number of probe tokens."""


class Scorer:
    """Token losses of a model, in one forward pass. `way` is how its logits are computed."""

    def __init__(self, model: Any) -> None:
        self.model = model
        self.decoder: Any = model.get_decoder()
        self.head: Any = model.get_output_embeddings()
        with torch.no_grad():
            self.way, self.V = self._find_way()
        self._scores: Callable[[Tensor, int], Tensor] = {
            HEAD: self._by_head, REPLAY: self._by_replay, WHOLE: self._by_logits
        }[self.way]  # fmt: skip

    @torch.no_grad()
    def __call__(self, ids: Tensor, first: int = 1) -> Tensor:
        """Losses (B, T − first), at least in float32, of tokens `first`, …, T − 1 of ids (B, T)."""
        return self._scores(ids.to(self.model.device), first)

    def _by_head(self, ids: Tensor, first: int) -> Tensor:
        hidden, targets = self._hidden(ids)[:, first - 1 : -1], ids[:, first:]
        flat = hidden.reshape(-1, hidden.shape[-1])
        targets = targets.to(hidden.device)
        return token_losses(flat, self.head.weight, targets.reshape(-1), self.head.bias).view(targets.shape)

    def _by_replay(self, ids: Tensor, first: int) -> Tensor:
        hidden, targets = self._hidden(ids)[:, first - 1 : -1], ids[:, first:]
        tokens = max(1, loss.BLOCK // (self.V * len(ids)))
        blocks = zip(hidden.split(tokens, 1), targets.split(tokens, 1), strict=True)
        return torch.cat([_losses(self._replay(states, chosen), chosen) for states, chosen in blocks], dim=1)

    def _by_logits(self, ids: Tensor, first: int) -> Tensor:
        rows = max(1, loss.BLOCK // (self.V * ids.shape[1]))
        batches = ids.split(rows)
        return torch.cat([_losses(self._logits(batch)[:, first - 1 : -1], batch[:, first:]) for batch in batches])

    def _logits(self, ids: Tensor) -> Tensor:
        logits: Tensor = self.model(input_ids=ids, use_cache=False).logits
        return logits

    def _hidden(self, ids: Tensor) -> Tensor:
        outputs = self.decoder(input_ids=ids, use_cache=False)
        self.outputs: Any = type(outputs)
        hidden: Tensor = outputs.last_hidden_state
        return hidden

    def _replay(self, hidden: Tensor, ids: Tensor) -> Tensor:
        """The model's logits (B, T, V) for decoder outputs (B, T, C). Only the shape of ids matters."""
        with replaced_outputs(self.decoder, self.outputs(last_hidden_state=hidden)):
            return self._logits(ids)

    def _find_way(self) -> tuple[str, int]:
        """How to compute logits, and the size of the vocabulary."""
        length = min(PROBE, (position_limit(self.model) or (PROBE, ""))[0])
        ids = torch.arange(length, device=self.model.device)[None] % self.model.get_input_embeddings().num_embeddings
        logits = self._logits(ids).float()
        V = logits.shape[-1]
        if self.decoder is None or self.decoder is self.model:
            return WHOLE, V
        try:
            hidden = self._hidden(ids)
            replayed = self._replay(hidden, ids).float()
            magnified = 64 * hidden  # a soft cap shows on large logits
            expected = self._replay(magnified, ids).float()
        except Exception:  # a foreign model may run any code, but its own logits are right
            return WHOLE, V
        if not _close(replayed, logits, torch.finfo(hidden.dtype).eps):
            return WHOLE, V
        linear = is_plain_linear(self.head) and self.head.weight.shape[0] == V
        if linear and torch.allclose(self.head(magnified).float(), expected, rtol=0, atol=0, equal_nan=True):
            return HEAD, V
        return REPLAY, V


def _close(actual: Tensor, expected: Tensor, eps: float) -> bool:
    """Whether logits agree up to rounding."""
    if actual.shape != expected.shape:
        return False
    error = (actual.to(expected.device) - expected).abs().max()
    return bool(error <= max(1e-4, 2 * eps) * expected.abs().max())


@contextmanager
def replaced_outputs(decoder: Any, outputs: Any) -> Iterator[None]:
    """Make the decoder return these outputs without running, within a block."""
    original = vars(decoder).get("forward")
    decoder.forward = lambda *_, **__: outputs
    try:
        yield
    finally:
        del decoder.forward
        if original is not None:
            decoder.forward = original


@contextmanager
def evaluating(model: Any) -> Iterator[None]:
    """Evaluation mode within a block."""
    training = model.training
    model.eval()
    try:
        yield
    finally:
        model.train(training)


def position_limit(model: Any) -> tuple[int, str] | None:
    """The size and the name of a model's smallest table of positions; None without one.

    Checked beforehand, because on a GPU a position beyond the table breaks the CUDA context.
    """
    limits = [
        (e.max_length, f"its encoding, {type(e).__name__}") for e in find_encodings(model) if e.max_length is not None
    ]
    words = model.get_input_embeddings()
    for name, module in model.named_modules():
        last = name.rpartition(".")[2]
        if isinstance(module, nn.Embedding) and module is not words and ("pos" in last or last == "wpe"):
            limits.append((module.num_embeddings - int(getattr(module, "offset", 0)), name))
    return min(limits, default=None)


def check_position_limit(model: Any, length: int) -> None:
    """Refuse a length that the model has no positions for."""
    at_least("the length", length, 1)
    if (limit := position_limit(model)) is not None and length > limit[0]:
        raise ValueError(
            f"the model has {limit[0]} learned positions ({limit[1]}), too few for {length} tokens. Use at most "
            f"{limit[0]} tokens, or a model that extrapolates."
        )


def check_vocabulary(model: Any, largest: int, found: str, remedy: str) -> None:
    """Refuse a token outside the vocabulary, which would break the CUDA context on a GPU."""
    known = model.get_input_embeddings().num_embeddings
    if largest >= known:
        raise ValueError(f"{found} token {largest}, but the model's vocabulary has {known} tokens. {remedy}")


def _losses(logits: Tensor, targets: Tensor) -> Tensor:
    """(B, T, V) and (B, T) → (B, T)."""
    flat = logits.reshape(-1, logits.shape[-1])
    return logit_losses(flat, targets.reshape(-1).to(logits.device)).view(targets.shape)
