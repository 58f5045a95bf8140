"""A bias as the kernels take it: values that the encoding itself makes at a few positions."""

from dataclasses import dataclass, field

import torch
from torch import Tensor

from longfire.encodings import PositionEncoding
from longfire.engines.fused.geometry import BLOCK, Geometry, smoothness
from longfire.engines.fused.spec import interpolated


@dataclass(frozen=True, eq=False)
class FusedBias:
    """Made once, used by as many layers as share it; gradients from all of them add up in `values`."""

    values: Tensor  # (A, H, E)
    geometry: Geometry
    kept: dict[tuple[bool, float], tuple[Tensor, ...]] = field(default_factory=dict)

    def expand(self, like: Tensor) -> None:
        """Make what the kernels read for q like this, now."""
        dtype = computed_in(like)
        key = dtype != torch.float32, like.shape[-1] ** -0.5
        self.kept[key] = self._expanded(*key)

    def expanded(self, relative: bool, scale: float) -> tuple[Tensor, ...]:
        """What the kernels read, made for the first layer that asks."""
        found = self.kept.get((relative, scale))
        if found is None:
            found = self._expanded(relative, scale)
            if not torch.compiler.is_compiling():
                self.kept[relative, scale] = found
        return found

    def _expanded(self, relative: bool, scale: float) -> tuple[Tensor, ...]:
        from longfire.engines.fused.ops import expand_bias

        g = self.geometry
        made: tuple[Tensor, ...] = expand_bias(self.values.detach(), g.keys, g.first, g.smooth or 0, relative, scale)
        return made


def computed_in(q: Tensor) -> torch.dtype:
    """The precision of q, or what autocast makes of it."""
    device = q.device.type
    return torch.get_autocast_dtype(device) if torch.is_autocast_enabled(device) else q.dtype


def refuses(encoding: PositionEncoding, keys: int) -> str | None:
    """Why the kernels cannot take the bias of an encoding for so many keys; None if they can."""
    name = type(encoding).__name__
    if encoding.distance_only:
        return None
    if encoding.smooth_beyond is None:
        return (
            f"{name} declares neither distance_only nor smooth_beyond, so its bias can neither be a table of distances "
            f"nor be interpolated (smooth_beyond=128 would allow that)"
        )
    whole_blocks = -(-keys // BLOCK) * BLOCK
    if encoding.max_length is not None and encoding.max_length < whole_blocks:
        return f"it looks at {name}'s bias up to position {whole_blocks - 1}, and max_length is {encoding.max_length}"
    return None


def fused_bias(encoding: PositionEncoding, keys: int, first: int, device: torch.device) -> FusedBias:
    """The encoding's bias for queries first…keys−1."""
    geometry = Geometry(keys, first, None if encoding.distance_only else smoothness(encoding.smooth_beyond or 0))
    q_positions, k_positions = positions(geometry, device)
    bias = encoding(q_positions, k_positions)
    A, E = geometry.row_nodes, geometry.distance_nodes
    if bias is None:
        raise ValueError(f"{type(encoding).__name__}.bias gave None, though the class defines it; it must be a tensor.")
    if bias.ndim != 4 or (bias.shape[0], bias.shape[2], bias.shape[3]) != (A, 1, E):
        raise ValueError(
            f"{type(encoding).__name__}.bias must be (B, H, T, S) = ({A}, heads, 1, {E}) for q_positions of shape "
            f"({A}, 1) and k_positions of shape ({A}, {E}), not {tuple(bias.shape)}."
        )
    return FusedBias(bias[:, :, 0].float().contiguous(), geometry)


_POSITIONS: dict[tuple[Geometry, torch.device], tuple[Tensor, Tensor]] = {}
_KEPT = 16
_PINNED: dict[tuple[Geometry, torch.device], tuple[Tensor, Tensor]] = {}
"""What CUDA graphs have seen: their replays will read it again."""


def positions(geometry: Geometry, device: torch.device) -> tuple[Tensor, Tensor]:
    """`Geometry.positions`, kept for the next layer and the next step."""
    if torch.compiler.is_compiling():
        return geometry.positions(device)
    found = _POSITIONS.get((geometry, device))
    capturing = device.type == "cuda" and torch.cuda.is_current_stream_capturing()
    if found is not None and capturing:
        _PINNED[geometry, device] = found
    if found is None:
        with torch.inference_mode(False):  # training may use them next
            found = geometry.positions(device)
        plain = all(type(tensor) is Tensor for tensor in found)  # not a tracer's
        if plain and not capturing:
            if len(_POSITIONS) >= _KEPT:
                _POSITIONS.pop(next(iter(_POSITIONS)), None)
            _POSITIONS[geometry, device] = found
    return found


@torch.no_grad()
def interpolation_error(encoding: PositionEncoding, bias: FusedBias, rows: int = 64) -> tuple[float, float]:
    """Largest and root-mean-square difference between the bias that the kernels add and the encoding's own.

    Over `rows` queries (all of them if there are no more), spread evenly, and all keys that they see. Looks at values,
    so it waits for the device.
    """
    geometry = bias.geometry
    if geometry.exact:
        return 0.0, 0.0
    count = geometry.keys - geometry.first
    step = max(1, count // rows)
    chosen = torch.arange(geometry.keys - 1, geometry.first - 1, -step, device=bias.values.device)
    keys = torch.arange(geometry.keys, device=bias.values.device)
    largest, squares, pairs = 0.0, 0.0, 0
    for row in chosen.split(8):
        own = encoding(row, keys)
        assert own is not None
        seen = keys <= row[:, None]
        error = (interpolated(bias.values.double(), geometry, row) - own).masked_fill(~seen, 0.0)
        largest = max(largest, error.abs().max().item())
        squares += error.square().sum().item()
        pairs += int(seen.sum()) * error.shape[0]
    return largest, (squares / pairs) ** 0.5
