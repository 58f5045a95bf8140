"""Sandwich: Chi et al., Dissecting Transformer Length Extrapolation via the Lens of Receptive Field Analysis (2023).

    b(i, j) = c_h · Σ_{k=1…d′} cos( (i − j) / 10000^(k/d′) )

The inner product of two sinusoidal embeddings, scaled by c_h = H / (8h) for each head.
"""

from collections.abc import Sequence

import torch
from torch import Tensor

from longfire.encodings.base import PositionEncoding, at_least_float32, full_precision, per_head
from longfire.encodings.registry import register
from longfire.validation import at_least


@register("sandwich")
class Sandwich(PositionEncoding):
    """A fixed, oscillating decay, b(i, j) = c_h · Σ_k cos((i − j) / 10000^(k/d′)) (Chi et al. 2023).

    Args:
        num_heads: number of attention heads H.
        head_dim: head size D.
        terms: number of cosines d′. Default: D/2.
        scales: c_h of each head. Default: H / (8h) for h = 1…H.
    """

    takes = ("num_heads", "head_dim")
    shown = ("num_heads", "terms")
    distance_only = symmetric = True
    scales: Tensor

    def __init__(
        self, num_heads: int, head_dim: int, *, terms: int | None = None, scales: Sequence[float] | None = None
    ) -> None:
        super().__init__()
        at_least("num_heads", num_heads, 1)
        at_least("head_dim", head_dim, 2)
        self.num_heads = num_heads
        self.terms = head_dim // 2 if terms is None else terms
        at_least("terms", self.terms, 1)
        published = [num_heads / (8 * h) for h in range(1, num_heads + 1)]
        self.start = per_head("scales", published if scales is None else scales, num_heads)
        self.register_buffer("scales", torch.empty(num_heads, dtype=at_least_float32()))
        self.reset_parameters()

    def reset_parameters(self) -> None:
        self.scales.copy_(torch.tensor(self.start, dtype=torch.float64))

    def frequencies(self, device: torch.device) -> Tensor:
        k = torch.arange(1, self.terms + 1, dtype=torch.float64, device=device)
        return 10000.0 ** (-k / self.terms)

    def bias(self, q_positions: Tensor, k_positions: Tensor) -> Tensor:
        self.check(q_positions, k_positions)
        with full_precision(q_positions.device):
            # cos(iω − jω) = cos iω cos jω + sin iω sin jω: one product of two thin matrices
            waves = self._waves(q_positions) @ self._waves(k_positions).mT  # (…, T, S)
            return self.scales.to(waves.dtype)[:, None, None] * waves.unsqueeze(-3)

    def _waves(self, positions: Tensor) -> Tensor:
        angles = positions[..., None] * self.frequencies(positions.device)  # float64: accurate at any position
        return torch.cat([angles.cos(), angles.sin()], dim=-1).to(self.compute_dtype)
