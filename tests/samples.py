"""Every encoding of the package, with parameters that expose mistakes."""

import torch
from torch import Tensor, nn

from longfire import ENCODINGS, build_encoding
from longfire.encodings import PositionEncoding

HEADS, HEAD_DIM, WIDTH, LENGTH = 3, 8, 24, 64

OPTIONS = {  # sizes that expose mistakes; other encodings use their own example
    "rope_pi": {"trained_length": 16, "target_length": 64},
    "yarn": {"trained_length": 16, "target_length": 64},
    "fire": {"init_L": 20.0},
    "t5": {"num_buckets": 8, "max_distance": 20},
}
NAMES = list(ENCODINGS)
ADDITIVE = [name for name in NAMES if ENCODINGS[name].bias is not PositionEncoding.bias]
RELATIVE = [*(name for name in ADDITIVE if ENCODINGS[name].distance_only), "rope", "rope_pi", "yarn", "nope"]


def make(name: str, dtype: torch.dtype = torch.float32, seed: int = 1, **options) -> PositionEncoding:
    """An encoding whose parameters are all different and large enough to matter."""
    torch.manual_seed(seed)
    encoding = build_encoding(
        name,
        num_heads=HEADS,
        head_dim=HEAD_DIM,
        width=WIDTH,
        max_length=LENGTH,
        **{**ENCODINGS[name].example, **OPTIONS.get(name, {}), **options},
    )
    if name == "t5":
        torch.nn.init.normal_(encoding.table)
    if name == "fire":
        for layer in encoding.linears:
            layer.weight.data *= 2
    return encoding.to(dtype)


def sides(name: str | None, causal: bool) -> dict[str, bool]:
    """The options with which an encoding serves causal attention, or both directions."""
    return {} if causal or name not in ("fire", "t5") else {"bidirectional": True}


def increasing(most: int, shape: tuple[int, ...], device: str = "cpu") -> Tensor:
    """Distinct random positions below `most` that go up along the last dimension."""
    drawn = torch.rand(*shape[:-1], most, device=device).argsort(-1)[..., : shape[-1]]
    return drawn.sort(-1).values


class _Caller(nn.Module):
    def __init__(self, encoding: PositionEncoding) -> None:
        super().__init__()
        self.encoding = encoding

    def forward(self, q: Tensor, k: Tensor) -> Tensor | None:
        return self.encoding.bias(q, k)


def bias_with(encoding: PositionEncoding, parameters: dict[str, Tensor], q: Tensor, k: Tensor) -> Tensor:
    """The bias as a function of the parameters."""
    state = {f"encoding.{name}": value for name, value in parameters.items()}
    return torch.func.functional_call(_Caller(encoding), state, (q, k))
