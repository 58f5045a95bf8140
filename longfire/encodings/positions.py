"""Validate and draw positions: 0-based token indices, integer tensors of shape (T,) or (B, T)."""

import torch
from torch import Tensor
from torch._C._functorch import get_unwrapped, is_functorch_wrapped_tensor, peek_interpreter_stack
from torch._subclasses.fake_tensor import FakeTensor

from longfire.validation import at_least

INTEGERS = (torch.int64, torch.int32)


def can_check_values(tensor: Tensor) -> bool:
    """Whether values may be checked: in eager mode, on plain CPU tensors. Elsewhere that would synchronise or fail."""
    return (
        not torch.compiler.is_compiling()
        and tensor.device.type == "cpu"
        and type(tensor) in (Tensor, torch.nn.Parameter)
        and not is_transformed(tensor)
    )


def is_transformed(tensor: Tensor) -> bool:
    """Whether the tensor is wrapped by vmap, grad or another transform, so that it cannot be read or stored outside.

    False while compiling: compilers trace transforms themselves, but cannot trace this check.
    """
    return not torch.compiler.is_compiling() and is_functorch_wrapped_tensor(tensor)


def in_transform() -> bool:
    """Whether vmap, grad or another transform is active."""
    return not torch.compiler.is_compiling() and peek_interpreter_stack() is not None


def has_values(tensor: Tensor) -> bool:
    """Whether values can be read now, possibly by waiting for a GPU."""
    traced = torch.compiler.is_compiling() or (tensor.is_cuda and torch.cuda.is_current_stream_capturing())
    return not traced and not tensor.is_meta and not isinstance(tensor, FakeTensor)


def strictly_increase(positions: Tensor, kept: Tensor | None) -> Tensor:
    """Whether positions (S,) or (B, S) strictly increase in each row, counting only those `kept` (B, S): one bool."""
    if kept is None:
        return (positions.diff() > 0).all()
    positions = torch.where(kept, positions, -1)  # (B, S)
    before = positions.cummax(-1).values[..., :-1]
    return ((positions[..., 1:] > before) | ~kept[..., 1:]).all()


def unwrapped(tensor: Tensor) -> Tensor:
    """The tensor inside the wrappers of vmap, grad and other transforms."""
    while is_functorch_wrapped_tensor(tensor):
        tensor = get_unwrapped(tensor)
    return tensor


def check_same_device(what: str, tensor: Tensor, other_is: str, other: Tensor) -> None:
    """Refuse tensors on different devices: "`what` on cpu and `other_is` on cuda"."""
    if tensor.device != other.device:
        raise ValueError(f"{what} on {tensor.device} and {other_is} on {other.device}: move them to one device.")


def check_positions(positions: Tensor, name: str = "positions") -> None:
    """Refuse anything but token indices."""
    if not isinstance(positions, Tensor):
        raise TypeError(f"{name} must be an integer tensor, not {type(positions).__name__}: use torch.arange(n).")
    if positions.dtype not in INTEGERS:
        raise TypeError(
            f"{name} are token indices and must be int64 or int32, not {positions.dtype}: convert them with .long()."
        )
    if positions.ndim not in (1, 2):
        raise ValueError(f"{name} must have shape (T,) or (B, T), not {tuple(positions.shape)}.")
    if can_check_values(positions) and positions.numel() and positions.min() < 0:
        raise ValueError(
            f"{name} must not be negative, but the smallest is {int(positions.min())}. Positions are 0-based; put "
            f"padding at any position ≥ 0 and mask it."
        )


def check_pair(q_positions: Tensor, k_positions: Tensor) -> None:
    """Check both, and that they agree in device and batch size."""
    check_positions(q_positions, "q_positions")
    check_positions(k_positions, "k_positions")
    check_same_device("q_positions are", q_positions, "k_positions", k_positions)
    both = q_positions.ndim == k_positions.ndim == 2
    if both and q_positions.shape[0] != k_positions.shape[0] and 1 not in (q_positions.shape[0], k_positions.shape[0]):
        raise ValueError(
            f"q_positions have batch size {q_positions.shape[0]}, but k_positions have {k_positions.shape[0]}."
        )


def check_fit(positions: Tensor, x: Tensor, shape: str) -> None:
    """Check the positions of x's tokens. `shape` names the dimensions of x, such as "B H T D"."""
    check_positions(positions)
    names = shape.split()
    if x.ndim != len(names):
        raise ValueError(f"x must have shape ({', '.join(names)}), not {tuple(x.shape)}.")
    check_shape(positions, "positions", x.shape[0], x.shape[names.index("T")])
    check_same_device("positions are", positions, "x is", x)


def check_shape(positions: Tensor, name: str, batch: int, length: int) -> None:
    """Check that there is one position per token, for each sequence or shared by all."""
    if tuple(positions.shape) not in ((length,), (1, length), (batch, length)):
        raise ValueError(
            f"{name} must have shape ({length},) or ({batch}, {length}), one per token, not {tuple(positions.shape)}."
        )


def last_positions(queries: int, keys: int, device: torch.device) -> Tensor:
    """Positions of the last `queries` of `keys` tokens, as in cached decoding."""
    return torch.arange(keys - queries, keys, device=device)


def random_positions(
    batch: int,
    length: int,
    limit: int,
    *,
    mask: Tensor | None = None,
    generator: torch.Generator | None = None,
    device: torch.device | str | None = None,
) -> Tensor:
    """Randomised positions (Ruoss et al. 2023, arXiv:2305.16843): sorted samples out of 0…limit − 1 → (B, T), int64.

    Each sequence has its own sample, without replacement. Use it for queries and keys alike, in all layers:
    `attention(q, k, v, encoding, q_positions=p, k_positions=p)`.

    Args:
        batch: B.
        length: T, at most `limit`.
        limit: the range, at least as long as the longest sequence to test on.
        mask: (B, T), True for tokens and False for padding. A sample then has as many positions as its sequence has
            tokens; hide padding with the `key_mask` of attention.
        generator: default: torch's own for the device.
        device: default: the generator's, or torch's default device.
    """
    at_least("batch", batch, 0)
    at_least("length", length, 0)
    at_least("limit", limit, 1)
    if length > limit:
        raise ValueError(
            f"limit={limit} positions are too few for length={length} tokens. Pass a limit of at least the longest "
            f"sequence to test on."
        )
    if device is None and generator is not None:
        device = generator.device
    order = torch.randint(2**63 - 1, (batch, limit), generator=generator, device=device)
    drawn = order.topk(length).indices  # (B, T): the first n of them are a sample of n
    if mask is None:
        return drawn.sort().values
    count = mask.cumsum(-1)  # (B, T), tokens so far
    unused = torch.arange(length, device=drawn.device) >= count[:, -1:]
    sample = drawn.masked_fill(unused, limit - 1).sort().values
    return sample.gather(-1, (count - 1).clamp(min=0))


def check_range(length: int, limit: int) -> None:
    """Refuse a sequence with more tokens than there are positions to draw from."""
    at_least("the range of random positions", limit, 1)
    if length > limit:
        raise ValueError(
            f"random positions below {limit} are too few for {length} tokens. Train with random_positions of at least "
            f"the longest sequence to test on, use at most {limit} tokens, or pass positions."
        )
