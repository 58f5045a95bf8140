"""Sample a bias for the kernels: the encoding's own values at a few positions."""

from dataclasses import dataclass, field, replace

import torch
from torch import Tensor

from longfire.encodings import PositionEncoding
from longfire.engines.fused.reference import interpolated
from longfire.engines.fused.zones import BLOCK, LONG, LONGEST, Zones

MOST_KEYS = 1 << 20
"""Keys that an interpolated bias can serve: offsets of nodes within a head are 32-bit."""


@dataclass(frozen=True, eq=False)
class SampledBias:
    """Sampled once for all layers that share it; their gradients add up in `samples`."""

    samples: Tensor  # (A, H, E), H for both sides
    zones: Zones  # without a window: the samples serve any
    _expanded: dict[tuple[bool, float, int | None], tuple[Tensor, ...]] = field(default_factory=dict)

    @property
    def heads(self) -> int:
        return self.samples.shape[1] // self.zones.sides

    def for_causal(self) -> "SampledBias":
        """Its keys up to the query alone."""
        if self.zones.causal:
            return self
        return SampledBias(self.samples[:, : self.heads].contiguous(), replace(self.zones, causal=True))

    def numbers(self, window: int | None) -> tuple[int, int, int, int, bool, bool]:
        """The zones in a window as arguments of an operator."""
        zones = self.zones
        return zones.keys, zones.first, zones.smooth or 0, window or 0, zones.causal, zones.by_distance

    def expanded(
        self, relative: bool, scale: float, window: int | None, keep: bool | None = None
    ) -> tuple[Tensor, ...]:
        """The form that the kernels read, computed on the first call.

        `keep` caches it for the next layer. Default: unless compiling, because one graph may serve many layers.
        """
        found = self._expanded.get((relative, scale, window))
        if found is None:
            from longfire.engines.fused.ops import expand_bias

            found = expand_bias(self.samples.detach(), *self.numbers(window), relative, scale)
            if keep or (keep is None and not torch.compiler.is_compiling()):
                self._expanded[relative, scale, window] = found
        return found


def compute_dtype(q: Tensor) -> torch.dtype:
    """The precision of q, or autocast's."""
    device = q.device.type
    return torch.get_autocast_dtype(device) if torch.is_autocast_enabled(device) else q.dtype


def refuses(encoding: PositionEncoding, keys: int) -> str | None:
    """Why the kernels cannot take an encoding's bias for this many keys; None if they can."""
    name = type(encoding).__name__
    if encoding.distance_only:
        return None
    if encoding.smooth_beyond is None:
        return (
            f"{name} declares neither distance_only nor smooth_beyond, so its bias can neither be tabulated by distance"
            f" nor be interpolated (smooth_beyond=128 would allow that)"
        )
    if not _can_sample(encoding, keys):
        last = _whole_blocks(keys) - 1
        return f"it samples {name}'s bias up to position {last}, but max_length is {encoding.max_length}"
    if keys > MOST_KEYS:
        return f"it interpolates {name}'s bias for up to {MOST_KEYS:,} keys, not {keys:,}"
    return None


def interpolates(encoding: PositionEncoding, keys: int, window: int | None, dtype: torch.dtype) -> bool:
    """Whether the kernels interpolate an encoding's bias.

    Otherwise every pair reads it from a table: exact, and faster if few keys are seen or nothing is learned.
    """
    if not encoding.distance_only:
        return True
    smooth = encoding.bounded and encoding.smooth_beyond is not None
    if not smooth or dtype == torch.float32 or keys > LONGEST or not _can_sample(encoding, keys):
        return False
    seen = keys if window is None else min(keys, window)
    return seen >= LONG and any(parameter.requires_grad for parameter in encoding.parameters())


def _can_sample(encoding: PositionEncoding, keys: int) -> bool:
    """Whether `max_length` allows samples of an interpolated bias."""
    return encoding.max_length is None or encoding.max_length >= _whole_blocks(keys)


def _whole_blocks(keys: int) -> int:
    return -(-keys // BLOCK) * BLOCK


def sample_bias(
    encoding: PositionEncoding,
    keys: int,
    first: int,
    device: torch.device,
    causal: bool = True,
    tabulate: bool = True,
) -> SampledBias:
    """Sample the encoding's bias for queries first…keys−1. `tabulate`: a bias of the distance, at every distance."""
    zones = Zones.of(encoding, keys, first, causal, tabulate)
    rows, columns = _positions(zones, device)
    samples = _evaluate(encoding, rows, columns)[:, :, 0]
    if not causal:
        samples = torch.cat([samples, _evaluate(encoding, columns, rows)[:, :, :, 0]], 1)
    return SampledBias(samples.float().contiguous(), zones)


def _evaluate(encoding: PositionEncoding, q_positions: Tensor, k_positions: Tensor) -> Tensor:
    bias = encoding(q_positions, k_positions)
    if bias is None:
        raise ValueError(f"{type(encoding).__name__}.bias returned None; it must return a tensor.")
    B, T, S = q_positions.shape[0], q_positions.shape[1], k_positions.shape[1]
    if bias.ndim != 4 or (bias.shape[0], bias.shape[2], bias.shape[3]) != (B, T, S):
        raise ValueError(
            f"{type(encoding).__name__}.bias must be (B, H, T, S) = ({B}, heads, {T}, {S}) for q_positions of shape "
            f"({B}, {T}) and k_positions of shape ({B}, {S}), not {tuple(bias.shape)}."
        )
    return bias


_POSITIONS: dict[tuple[Zones, torch.device], tuple[Tensor, Tensor]] = {}
_CACHE_SIZE = 16
_PINNED: dict[tuple[Zones, torch.device], tuple[Tensor, Tensor]] = {}
"""Positions that CUDA graphs have captured and will read again."""


def _positions(zones: Zones, device: torch.device) -> tuple[Tensor, Tensor]:
    """`Zones.positions`, cached for the next layer and step."""
    if torch.compiler.is_compiling():
        return zones.positions(device)
    found = _POSITIONS.get((zones, device))
    capturing = device.type == "cuda" and torch.cuda.is_current_stream_capturing()
    if found is not None and capturing:
        _PINNED[zones, device] = found
    if found is None:
        with torch.inference_mode(False):  # training may use them next
            found = zones.positions(device)
        plain = all(type(tensor) is Tensor for tensor in found)  # not a tracer's
        if plain and not capturing:
            if len(_POSITIONS) >= _CACHE_SIZE:
                _POSITIONS.pop(next(iter(_POSITIONS)), None)
            _POSITIONS[zones, device] = found
    return found


@torch.no_grad()
def interpolation_error(
    encoding: PositionEncoding, bias: SampledBias, window: int | None = None, rows: int = 64
) -> tuple[float, float]:
    """Largest and root-mean-square difference between the bias that the kernels add and the encoding's own.

    Measured on `rows` evenly spaced queries and the keys before them that they see, then likewise for the other side,
    on keys and the queries before them. Waits for the device.
    """
    zones, device = bias.zones, bias.samples.device
    if zones.exact:
        return 0.0, 0.0
    step = max(1, (zones.keys - zones.first) // rows)
    chosen = torch.arange(zones.keys - 1, zones.first - 1, -step, device=device)
    keys = torch.arange(zones.keys, device=device)
    largest, squares, pairs = 0.0, 0.0, 0
    for side, samples in enumerate(bias.samples.double().chunk(zones.sides, 1)):
        for row in chosen.split(8):
            own = encoding(row, keys) if side == 0 else encoding(keys, row)
            assert own is not None
            own = own if side == 0 else own.mT
            seen = keys <= row[:, None] - side
            if window is not None:
                seen &= row[:, None] - keys < window
            error = (interpolated(samples, zones, row) - own).masked_fill(~seen, 0.0)
            largest = max(largest, error.abs().max().item())
            squares += error.square().sum().item()
            pairs += int(seen.sum()) * error.shape[0]
    return largest, (squares / pairs) ** 0.5
