"""What a longfire model is: its shape and its position encoding."""

from typing import Any, Self

import torch
from huggingface_hub.dataclasses import strict
from transformers import PreTrainedConfig

from longfire import __version__
from longfire.encodings import ENCODINGS, PositionEncoding, build_encoding
from longfire.encodings.registry import option_names
from longfire.validation import at_least, hint

SIZES: dict[str, dict[str, int]] = {
    "demo": {"num_hidden_layers": 2, "num_attention_heads": 4, "hidden_size": 64},
    "tiny": {"num_hidden_layers": 4, "num_attention_heads": 4, "hidden_size": 128},
    "small": {"num_hidden_layers": 6, "num_attention_heads": 8, "hidden_size": 512},
    "base": {"num_hidden_layers": 12, "num_attention_heads": 12, "hidden_size": 768},
    # the paper's table has 768 here too, with which 24 layers and 16 heads of 64 do not make 350M parameters
    "large": {"num_hidden_layers": 24, "num_attention_heads": 16, "hidden_size": 1024},
}
"""The paper's two models (125M and 350M parameters), one between (23M with a vocabulary of 8,192), one to try out."""

GIVEN = {
    "num_heads": "num_attention_heads",
    "head_dim": "hidden_size ÷ num_attention_heads",
    "width": "hidden_size",
    "max_length": "max_position_embeddings",
}
"""What an encoding is given by the model, so that it is no option here, and the model's name for it."""


@strict
class LongfireConfig(PreTrainedConfig):
    """A decoder of GPT-3's shape with any position encoding. The defaults are the paper's base model.

    Attributes:
        vocab_size: GPT-2's 50,257 tokens rounded up to a multiple of 128, which a GPU multiplies faster.
        hidden_size: the width C.
        num_hidden_layers: decoder layers.
        num_attention_heads: heads H, each of size C / H.
        max_position_embeddings: the training length. It limits nothing but learned absolute positions.
        attention_dropout: of attention weights.
        resid_dropout: of what attention and MLP add.
        position_encoding: `{"name": "fire", …}`: a name and options as `longfire.build_encoding` takes them; or a name.
        share_position_encoding: one encoding for all layers; with FIRE, FIRE-S (`fire-s` on the command line).
        layer_norm_eps: ε of the layer norms.
        initializer_range: standard deviation of the starting weights.
        longfire_version: which wrote it.
    """

    model_type = "longfire"
    keys_to_ignore_at_inference = ["past_key_values"]  # noqa: RUF012 (Trainer adds a list to it)

    vocab_size: int = 50304
    hidden_size: int = 768
    num_hidden_layers: int = 12
    num_attention_heads: int = 12
    max_position_embeddings: int = 2048
    attention_dropout: float | int = 0.0
    resid_dropout: float | int = 0.0
    position_encoding: dict[str, Any] | str | None = None
    share_position_encoding: bool = False
    layer_norm_eps: float = 1e-5
    initializer_range: float = 0.02
    use_cache: bool = True
    bos_token_id: int | None = None
    eos_token_id: int | list[int] | None = None
    pad_token_id: int | None = None
    tie_word_embeddings: bool = True
    longfire_version: str = __version__

    def __post_init__(self, **kwargs: Any) -> None:
        named = "fire" if self.position_encoding is None else self.position_encoding
        self.position_encoding = {"name": named} if isinstance(named, str) else dict(named)
        super().__post_init__(**kwargs)

    def validate_architecture(self) -> None:
        """Called by the base class: refuse what no model could be built from."""
        at_least("num_attention_heads", self.num_attention_heads, 1)
        if self.hidden_size % self.num_attention_heads:
            raise ValueError(
                f"hidden_size must be a multiple of num_attention_heads: {self.hidden_size} cannot be divided among "
                f"{self.num_attention_heads} heads."
            )
        with torch.device("meta"):
            self.build_encoding()

    def save_pretrained(self, *arguments: Any, **options: Any) -> None:
        self.longfire_version = __version__
        super().save_pretrained(*arguments, **options)

    @classmethod
    def of_size(cls, name: str, **changes: Any) -> Self:
        """The configuration of a size in `SIZES`, with other values for what is given."""
        if name not in SIZES:
            raise ValueError(f"there is no size named {name!r}. {hint(name, SIZES)}")
        return cls(**{**SIZES[name], **changes})

    @property
    def head_dim(self) -> int:
        return self.hidden_size // self.num_attention_heads

    def build_encoding(self) -> PositionEncoding:
        """The position encoding that it names, new."""
        options: dict[str, Any] = dict(self.position_encoding or {})  # type: ignore[arg-type]
        if "name" not in options:
            raise ValueError(f"position_encoding needs a name, such as {{'name': 'fire'}}; it is {options!r}.")
        name = options.pop("name")
        refuse_given(name, options)
        return build_encoding(
            name,
            num_heads=self.num_attention_heads,
            head_dim=self.head_dim,
            width=self.hidden_size,
            max_length=self.max_position_embeddings,
            **options,
        )


def refuse_given(name: str, options: dict[str, Any]) -> None:
    """Refuse, as an option of an encoding, what the model gives it."""
    for option, of_model in GIVEN.items():
        if option in options and name in ENCODINGS:
            own = hint(option, known) if (known := option_names(ENCODINGS[name])) else "It has none."
            raise ValueError(f"{option!r} is the model's {of_model} here, and no option of {name!r}. {own}")
