"""The interface of an attention engine."""

import torch
from torch import Tensor

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
