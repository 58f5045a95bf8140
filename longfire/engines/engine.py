"""The interface of an attention engine."""

from collections.abc import Callable

import torch
from torch import Tensor, nn

from longfire.encodings import PositionEncoding
from longfire.engines.request import Request


class Engine:
    """A way to compute attention."""

    name: str
    dense = False
    """Whether it allocates tensors of (heads × queries × keys)."""
    replays = False
    """Whether CUDA graphs can capture it."""

    def interpolates(self, encoding: PositionEncoding, keys: int, window: int | None, dtype: torch.dtype) -> bool:
        """Whether the bias that it adds is interpolated between samples of the encoding's."""
        return False

    def refuses(self, request: Request) -> str | None:
        """Why this engine cannot serve the request; None if it can."""
        return None

    def declines(self, request: Request) -> str | None:
        """Why `auto` should prefer another engine, although this one can serve the request."""
        return None

    def describe(self, request: Request) -> str:
        """How this engine serves the request, in a few words."""
        raise NotImplementedError

    def error(self, request: Request) -> float:
        """Measure the largest difference between the bias that it adds and the encoding's own."""
        return 0.0

    def run(self, request: Request) -> Tensor:
        """(B, H, T, D)."""
        raise NotImplementedError


class CallAround(nn.Module):
    """A call that uses an encoding, as a module around it, so that functional_call can replace the parameters."""

    def __init__(self, encoding: PositionEncoding | None, call: Callable[[], Tensor]) -> None:
        super().__init__()
        self.encoding, self.call = encoding, call

    def forward(self) -> Tensor:
        return self.call()
