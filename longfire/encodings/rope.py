"""RoPE: Su et al., RoFormer (2021), with position interpolation (Chen et al. 2023) and YaRN (Peng et al., ICLR 2024).

    the pair (x_k, x_{k+D/2}) of a query or key at position i is rotated by the angle i·ω_k,   ω_k = base^(−2k/D)

Half-split pairs, as in Llama. PI divides every ω_k by s = target / trained length. YaRN divides the slow ones, keeps
the fast ones, blends in between, and scales q and k by 0.1·ln s + 1.
"""

import math
from typing import Any, ClassVar

import torch
from torch import Tensor

from longfire.custom_ops import Operator
from longfire.encodings.base import PositionEncoding, full_precision
from longfire.encodings.positions import check_fit
from longfire.encodings.registry import register
from longfire.validation import at_least, positive


def _rotations(positions: Tensor, frequencies: Tensor, magnitude: float) -> tuple[Tensor, Tensor]:
    """Cosines and sines, each (T, D/2) or (B, T, D/2)."""
    angles = positions[..., None].to(frequencies.dtype) * frequencies
    return angles.cos() * magnitude, angles.sin() * magnitude


def _rotations_fake(positions: Tensor, frequencies: Tensor, magnitude: float) -> tuple[Tensor, Tensor]:
    shape = (*positions.shape, frequencies.shape[0])
    return frequencies.new_empty(shape), frequencies.new_empty(shape)


rotations = Operator("longfire::rotations", _rotations, _rotations_fake)
"""An operator, so that compilers do not recompute them for every head and sequence."""


@register("rope")
class RoPE(PositionEncoding):
    """Rotate queries and keys so that their product depends on the distance (Su et al. 2021).

    The pair (x_k, x_{k+D/2}) at position i is rotated by the angle i·ω_k with ω_k = base^(−2k/D).

    Args:
        head_dim: head size D, even.
        base: base of the geometric frequencies.
    """

    takes = ("head_dim",)
    bidirectional = True
    shown: ClassVar[tuple[str, ...]] = ("head_dim", "base")
    magnitude: float = 1.0
    """Factor of q and k."""

    def __init__(self, head_dim: int, *, base: float = 10000.0) -> None:
        super().__init__()
        at_least("head_dim", head_dim, 2)
        if head_dim % 2:
            raise ValueError(f"head_dim must be even (RoPE rotates pairs), not {head_dim}.")
        positive("base", base)
        if base <= 1:
            raise ValueError(f"base must be above 1, not {base!r}.")
        self.head_dim, self.base = head_dim, base

    def frequencies(self, device: torch.device, dtype: torch.dtype) -> Tensor:
        """ω_k for k = 0…D/2 − 1."""
        return 1.0 / self.base ** (torch.arange(0, self.head_dim, 2, device=device).to(dtype) / self.head_dim)

    def rotate(self, x: Tensor, positions: Tensor) -> Tensor:
        check_fit(positions, x, "B H T D")
        if x.shape[-1] != self.head_dim:
            raise ValueError(f"x has head size {x.shape[-1]}, but {type(self).__name__} has {self.head_dim}.")
        dtype = torch.float64 if x.dtype == torch.float64 else torch.float32
        with full_precision(x.device):
            compute = _rotations if x.shape[-2] == 1 else rotations  # compilers fuse those of a single query
            cos, sin = compute(positions, self.frequencies(x.device, dtype), self.magnitude)
            cos, sin = cos.unsqueeze(-3), sin.unsqueeze(-3)  # (…, 1, T, D/2)
            first, second = x.to(dtype).chunk(2, dim=-1)
            return torch.cat([first * cos - second * sin, second * cos + first * sin], dim=-1).to(x.dtype)


class ScaledRoPE(RoPE):
    """RoPE trained at `trained_length` and extended to `target_length`."""

    shown = (*RoPE.shown, "trained_length", "target_length")
    example: ClassVar[dict[str, Any]] = {"trained_length": 2048, "target_length": 8192}

    def __init__(self, head_dim: int, *, trained_length: int, target_length: int, base: float = 10000.0) -> None:
        super().__init__(head_dim, base=base)
        at_least("trained_length", trained_length, 1)
        at_least("target_length", target_length, trained_length)
        self.trained_length, self.target_length = trained_length, target_length
        self.factor = target_length / trained_length


@register("rope_pi")
class RoPEPI(ScaledRoPE):
    """Position interpolation (Chen et al. 2023): all frequencies divided by target_length / trained_length.

    Args:
        head_dim: head size D, even.
        trained_length: the length RoPE was trained at.
        target_length: the length to extend to.
        base: base of the geometric frequencies.
    """

    title = "RoPE-PI"

    def frequencies(self, device: torch.device, dtype: torch.dtype) -> Tensor:
        return super().frequencies(device, dtype) / self.factor


@register("yarn")
class YaRN(ScaledRoPE):
    """YaRN (Peng et al. 2024): interpolate slow frequencies, keep fast ones, and scale q and k by 0.1·ln s + 1.

    Args:
        head_dim: head size D, even.
        trained_length: the length RoPE was trained at.
        target_length: the length to extend to.
        base: base of the geometric frequencies.
        fast: keep frequencies with at least this many rotations within the trained length (the paper's β).
        slow: interpolate frequencies with at most this many (the paper's α).
    """

    def __init__(
        self,
        head_dim: int,
        *,
        trained_length: int,
        target_length: int,
        base: float = 10000.0,
        fast: float = 32.0,
        slow: float = 1.0,
    ) -> None:
        super().__init__(head_dim, trained_length=trained_length, target_length=target_length, base=base)
        if not fast > slow > 0:
            raise ValueError(f"YaRN needs fast > slow > 0, not fast={fast!r}, slow={slow!r}.")
        self.fast, self.slow = fast, slow
        self.magnitude = 0.1 * math.log(self.factor) + 1.0

    def frequencies(self, device: torch.device, dtype: torch.dtype) -> Tensor:
        original = super().frequencies(device, dtype)
        low, high = math.floor(self._pair_with_rotations(self.fast)), math.ceil(self._pair_with_rotations(self.slow))
        low, high = max(low, 0), min(high, self.head_dim - 1)
        pairs = torch.arange(self.head_dim // 2, device=device).to(dtype)
        kept = 1 - ((pairs - low) / max(high - low, 0.001)).clamp(0, 1)
        return original / self.factor * (1 - kept) + original * kept

    def _pair_with_rotations(self, times: float) -> float:
        """The real k for which ω_k makes this many rotations within the trained length."""
        return self.head_dim * math.log(self.trained_length / (times * 2 * math.pi)) / (2 * math.log(self.base))
