"""Variants of FIRE that we tried against its degradation beyond the training length; docs/log.md has the results.

`python benchmarks/tried.py OPTIONS` is `longfire compare --jobs 1 OPTIONS` with these encodings added.
"""

import math
import random
import sys

import torch
from torch import Tensor, nn

from longfire.cli import main
from longfire.encodings.base import at_least_float32
from longfire.encodings.fire import FIRE
from longfire.encodings.registry import register


class Drawn(FIRE):
    """Base class: draws a random number, the same for all layers, in a share of the training steps.

    Args:
        num_heads: as in FIRE.
        share: of the training steps.
        most: upper limit of the draw, in training lengths.
        fades: steps over which the share falls linearly to 0. None: it stays constant.
        init_L: as in FIRE.
        init: as in FIRE.
        horizon: as in FIRE.
    """

    step: int = 0

    def __init__(
        self,
        num_heads: int,
        *,
        share: float = 0.5,
        most: float = 16.0,
        fades: int | None = None,
        init_L: float = 512.0,
        init: str = "random",
        horizon: int | None = None,
    ) -> None:
        super().__init__(num_heads, init_L=init_L, init=init, horizon=horizon)
        self.share, self.most, self.fades = share, most, fades

    def embed(self, x: Tensor, positions: Tensor) -> Tensor:
        self.step += self.training  # called once per step, before any bias
        return x

    def draw(self) -> float | None:
        """A number in [0, 1), or None in steps without a draw."""
        if not self.training or not self.step:
            return None
        generator = random.Random(self.step)
        share = self.share * (1.0 if self.fades is None else max(0.0, 1 - self.step / self.fades))
        return generator.random() if generator.random() < share else None


@register("fire_random")
class RandomThreshold(Drawn):
    """L is drawn log-uniformly, from half its initial value to `most` training lengths, so f sees other normalisers."""

    title = "FIRE with a random threshold"

    @property
    def L(self) -> Tensor | None:
        L, drawn = super().L, self.draw()
        if L is None or drawn is None:
            return L
        low, high = self.starting_L / 2, self.most * 4 * self.starting_L
        return torch.full_like(L, low * (high / low) ** drawn)


@register("fire_offset")
class RandomOffset(Drawn):
    """All positions are shifted by up to `most` training lengths, as if the sequence started later."""

    title = "FIRE with a random offset"

    def normalized_distance(self, q_positions: Tensor, k_positions: Tensor) -> Tensor:
        drawn = self.draw()
        offset = 0 if drawn is None else round(drawn * self.most * 4 * self.starting_L)
        return super().normalized_distance(q_positions + offset, k_positions + offset)


@register("fire_scale")
class RandomScale(Drawn):
    """All positions are multiplied by up to `most`, as if tokens between them had been dropped."""

    title = "FIRE with a random scale"

    def normalized_distance(self, q_positions: Tensor, k_positions: Tensor) -> Tensor:
        drawn = self.draw()
        times = 1 if drawn is None else round(self.most**drawn)
        return super().normalized_distance(q_positions * times, k_positions * times)


@register("fire_local")
class Local(RandomThreshold):
    """Adds a term of the distance alone, −r₁ log(1 + r₂ (i − j)), with r₁ and r₂ learned per head."""

    title = "FIRE with a local term"

    def __init__(
        self,
        num_heads: int,
        *,
        share: float = 0.0,
        fades: int | None = None,
        init_L: float = 512.0,
        init: str = "random",
        horizon: int | None = None,
    ) -> None:
        super().__init__(num_heads, share=share, fades=fades, init_L=init_L, init=init, horizon=horizon)
        self.r1, self.r2 = (nn.Parameter(torch.empty(num_heads, dtype=at_least_float32())) for _ in range(2))
        self.reset_term()

    def reset_parameters(self) -> None:
        super().reset_parameters()
        if hasattr(self, "r1"):
            self.reset_term()

    @torch.no_grad()
    def reset_term(self) -> None:
        """Start with almost nothing added."""
        self.r1.fill_(0.01)
        self.r2.fill_(1.0)

    def _bias(self, q_positions: Tensor, k_positions: Tensor) -> Tensor:
        distance = (q_positions[..., :, None] - k_positions[..., None, :]).abs().to(self.compute_dtype)
        r1, r2 = self.r1.abs()[:, None, None], self.r2.abs()[:, None, None]
        return super()._bias(q_positions, k_positions) - r1 * torch.log1p(r2 * distance.unsqueeze(-3))


@register("fire_windows")
class Windows(FIRE):
    """Half of the heads start as Kerple-logs of small slopes, half flat up to a window and steep beyond it.

    A head starts as −s·max{0, log((1 + i − j) / (1 + w))}, with a unit per head in every hidden layer. Windows w are 0
    in the first half, and there slopes s are evenly spaced in (0, 1); in the second, slopes go from 3 to 4 and windows
    from as many tokens as it has heads down to 1.
    """

    title = "FIRE with windows"

    def __init__(self, num_heads: int, *, init_L: float = 512.0, horizon: int | None = None) -> None:
        super().__init__(num_heads, init_c=1.0, init_L=init_L, horizon=horizon)

    @torch.no_grad()
    def reset_parameters(self) -> None:
        super().reset_parameters()
        flat = self.num_heads // 2
        steep = self.num_heads - flat
        slopes = torch.cat([(torch.arange(flat) + 0.5) / max(flat, 1), torch.linspace(3, 4, steep)])
        windows = torch.cat([torch.zeros(flat), torch.logspace(math.log2(steep), 0, steep, base=2)])
        first, second, output = self.linears
        heads = torch.arange(self.num_heads)
        farthest = self.psi(torch.tensor([self.starting_L]))
        first.weight[heads], first.bias[heads] = 1.0, -self.psi(windows) / farthest
        second.weight[heads], second.bias[heads] = torch.eye(len(second.weight))[heads], 0.0
        output.weight.zero_()
        output.bias.zero_()
        output.weight[heads, heads] = -slopes * farthest


@register("fire_root")
class Root(FIRE):
    """ψ(x) = √x, closer to linear than the logarithm."""

    title = "FIRE with ψ a root"

    def psi(self, x: Tensor) -> Tensor:
        return torch.sqrt(x) + 0 * self.c  # c exists but is not learned


@register("fire_flat")
class Flat(FIRE):
    """The input is clamped at 1: with a horizon, all distances beyond it share one bias."""

    title = "FIRE flat beyond 1"

    def normalized_distance(self, q_positions: Tensor, k_positions: Tensor) -> Tensor:
        return super().normalized_distance(q_positions, k_positions).clamp(max=1)


if __name__ == "__main__":
    sys.exit(main(["compare", "--jobs", "1", *sys.argv[1:]]))
