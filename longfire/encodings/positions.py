"""Positions: 0-based token indices, integer tensors of shape (T,) or (B, T)."""

import torch
from torch import Tensor

INTEGERS = (torch.int64, torch.int32)


def can_check_values(tensor: Tensor) -> bool:
    """Values are looked at in eager mode on plain CPU tensors only: elsewhere a look would synchronise or not trace."""
    return (
        not torch.compiler.is_compiling()
        and tensor.device.type == "cpu"
        and type(tensor) in (Tensor, torch.nn.Parameter)
    )


def check_positions(positions: Tensor, name: str = "positions") -> None:
    """Refuse what are not token indices."""
    if not isinstance(positions, Tensor):
        raise TypeError(f"{name} must be an integer tensor, not {type(positions).__name__}: use torch.arange(n).")
    if positions.dtype not in INTEGERS:
        raise TypeError(
            f"{name} are token indices and must be int64 or int32, not {positions.dtype}: .long() makes them so."
        )
    if positions.ndim not in (1, 2):
        raise ValueError(f"{name} must have shape (T,) or (B, T), not {tuple(positions.shape)}.")
    if can_check_values(positions) and positions.numel() and positions.min() < 0:
        raise ValueError(
            f"{name} must not be negative, but the smallest is {int(positions.min())}. Positions are 0-based; give "
            f"padding any position ≥ 0 and mask it."
        )


def check_pair(q_positions: Tensor, k_positions: Tensor) -> None:
    """Query and key positions that go together: one device, and one batch if both are batched."""
    check_positions(q_positions, "q_positions")
    check_positions(k_positions, "k_positions")
    if q_positions.device != k_positions.device:
        raise ValueError(
            f"q_positions are on {q_positions.device} and k_positions on {k_positions.device}: move them to one device."
        )
    if q_positions.ndim == 2 and k_positions.ndim == 2 and q_positions.shape[0] != k_positions.shape[0]:
        raise ValueError(
            f"q_positions are for a batch of {q_positions.shape[0]} and k_positions for one of {k_positions.shape[0]}."
        )


def last_positions(queries: int, keys: int, device: torch.device) -> Tensor:
    """Positions of the last `queries` of `keys` tokens, as in cached decoding."""
    return torch.arange(keys - queries, keys, device=device)
