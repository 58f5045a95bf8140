"""The configuration of a longfire model: its shape and its position encoding."""

from dataclasses import fields
from difflib import get_close_matches
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
    "micro": {"num_hidden_layers": 2, "num_attention_heads": 4, "hidden_size": 128},
    "tiny": {"num_hidden_layers": 4, "num_attention_heads": 4, "hidden_size": 128},
    "mini": {"num_hidden_layers": 6, "num_attention_heads": 6, "hidden_size": 384},
    "small": {"num_hidden_layers": 6, "num_attention_heads": 8, "hidden_size": 512},
    "base": {"num_hidden_layers": 12, "num_attention_heads": 12, "hidden_size": 768},
    # the paper's table says 768, but 24 layers and 16 heads of 64 have 350M parameters only with 1024
    "large": {"num_hidden_layers": 24, "num_attention_heads": 16, "hidden_size": 1024},
}
"""The paper's models, base (125M parameters) and large (350M), and smaller ones to experiment with."""

SET_BY_MODEL = {
    "num_heads": "num_attention_heads",
    "head_dim": "hidden_size ÷ num_attention_heads",
    "width": "hidden_size",
    "max_length": "max_position_embeddings",
}
"""Encoding arguments that the model determines, and the configuration fields they come from."""
WINDOW = "pass sliding_window, the window of all layers"
ROTATION = "pass position_encoding={'name': 'rope', …}"
LENGTH = "pass max_position_embeddings, the training length"
DROPOUT = "pass attention_dropout and resid_dropout"
UNSUPPORTED = {
    **dict.fromkeys(("window", "layer_types", "attention_window"), WINDOW),
    **dict.fromkeys(("rope_theta", "rope_scaling", "rope_parameters"), ROTATION),
    **dict.fromkeys(("training_length", "max_length"), LENGTH),
    **dict.fromkeys(("dropout", "hidden_dropout"), DROPOUT),
    "head_dim": "it is hidden_size ÷ num_attention_heads",
    "intermediate_size": "it is 4 · hidden_size",
    "hidden_act": "it is GELU",
}
"""Fields of other models' configurations that this model would ignore, and what to do."""
TRANSFORMERS = (
    "attn_implementation",
    "auto_map",
    "experts_implementation",
    "model_type",
    "name_or_path",
    "num_labels",
    "output_attentions",
    "quantization_config",
    "torch_dtype",
)
"""What transformers passes besides the fields of its dataclass, private names and token ids."""
FOREIGN = "_foreign"
"""The argument by which `from_dict` hands over what other tools left in a file."""


@strict
class LongfireConfig(PreTrainedConfig):
    """A GPT-3-style decoder with any position encoding. The defaults are the paper's base model with FIRE.

    Attributes:
        vocab_size: V. The default is GPT-2's 50,257 rounded up to a multiple of 128 for faster matrix products.
        hidden_size: the width C.
        num_hidden_layers: decoder layers.
        num_attention_heads: heads H, each of size D = C / H.
        num_key_value_heads: heads G of keys and values, where G divides H (grouped-query attention). Default: H.
        max_position_embeddings: the training length. It limits only learned absolute positions.
        attention_dropout: dropout on the attention weights.
        resid_dropout: dropout on the outputs of attention and MLP.
        position_encoding: a name, or `{"name": "fire", …}` with options of `longfire.build_encoding`.
        share_position_encoding: one encoding for all layers; with FIRE this is FIRE-S (`fire-s` on the command line).
        is_causal: False for an encoder, which attends in both directions (`LongfireForMaskedLM`). The position encoding
            must then tell them apart, as FIRE and T5 do with `bidirectional=True`, or be a function of |i − j|.
        sliding_window: a token sees tokens at fewer than this many positions before it, itself included; in an encoder,
            those at up to this many on either side. As in transformers, but in positions, not tokens. None: all.
        random_positions: the range N of randomised positions (Ruoss et al. 2023): each sequence is placed at a sorted
            random sample out of 0…N−1, the same in all layers, in training and in evaluation, unless position_ids are
            passed. In evaluation the seed is fixed: the same batch has the same positions. None: tokens are counted.
        layer_norm_eps: ε of the layer norms.
        initializer_range: standard deviation of the initial weights.
        longfire_version: the version that saved the model.
    """

    model_type = "longfire"
    keys_to_ignore_at_inference = ["past_key_values"]  # noqa: RUF012 (Trainer adds a list to it)

    vocab_size: int = 50304
    hidden_size: int = 768
    num_hidden_layers: int = 12
    num_attention_heads: int = 12
    num_key_value_heads: int | None = None
    max_position_embeddings: int = 2048
    attention_dropout: float | int = 0.0
    resid_dropout: float | int = 0.0
    position_encoding: dict[str, Any] | str | None = None
    share_position_encoding: bool = False
    is_causal: bool = True
    sliding_window: int | None = None
    random_positions: int | None = None
    layer_norm_eps: float = 1e-5
    initializer_range: float = 0.02
    use_cache: bool = True
    bos_token_id: int | None = None
    eos_token_id: int | list[int] | None = None
    pad_token_id: int | None = None
    tie_word_embeddings: bool = True
    longfire_version: str = __version__

    def __post_init__(self, **kwargs: Any) -> None:
        foreign = kwargs.pop(FOREIGN, {})
        kwargs = self._refuse_unknown(kwargs)
        encoding = self.position_encoding
        if encoding is None:
            encoding = {"name": "fire", **({} if self.is_causal else {"bidirectional": True})}
        self.position_encoding = {"name": encoding} if isinstance(encoding, str) else dict(encoding)
        if self.num_key_value_heads is None:
            self.num_key_value_heads = self.num_attention_heads
        self.use_cache = self.use_cache and self.is_causal
        super().__post_init__(**kwargs, **foreign)

    def _refuse_unknown(self, others: dict[str, Any]) -> dict[str, Any]:
        """The fields that transformers sets. Refuses all others that have a value."""
        unknown = {name: value for name, value in others.items() if not self._is_known(name)}
        for name, value in unknown.items():
            if value is None:
                continue
            if name in UNSUPPORTED:
                raise ValueError(f"{name}={value!r} is not supported: {UNSUPPORTED[name]}.")
            if owners := _encodings_with(name):
                raise TypeError(
                    f"{name!r} is an option of {' and '.join(owners)}: pass "
                    f"position_encoding={{'name': {owners[0]!r}, {name!r}: {value!r}}}."
                )
            raise TypeError(f"there is no field {name!r}. {hint(name, LongfireConfig.__annotations__)}")
        return {name: value for name, value in others.items() if name not in unknown}

    @classmethod
    def _is_known(cls, name: str) -> bool:
        own = name in TRANSFORMERS or name in (field.name for field in fields(cls))
        return own or name.startswith("_") or name.endswith("_token_id")

    @classmethod
    def from_dict(cls, config_dict: dict[str, Any], **options: Any) -> Any:
        """As in transformers. Fields that other tools left in a file are kept; misspelt ones are refused."""
        known = [field.name for field in fields(cls)]
        foreign = {
            name: value
            for name, value in config_dict.items()
            if not (cls._is_known(name) or name in UNSUPPORTED or _encodings_with(name))
            and not get_close_matches(name, known, n=1, cutoff=0.85)
        }
        own = {name: value for name, value in config_dict.items() if name not in foreign}
        return super().from_dict({**own, FOREIGN: foreign}, **options)

    def validate_architecture(self) -> None:
        """Called by transformers: refuse configurations that cannot be built."""
        at_least("num_attention_heads", self.num_attention_heads, 1)
        if self.hidden_size % self.num_attention_heads:
            raise ValueError(
                f"hidden_size={self.hidden_size} must be a multiple of num_attention_heads={self.num_attention_heads}."
            )
        at_least("num_key_value_heads", self.num_key_value_heads, 1)
        if self.num_attention_heads % (self.num_key_value_heads or 1):
            raise ValueError(
                f"num_attention_heads={self.num_attention_heads} must be a multiple of "
                f"num_key_value_heads={self.num_key_value_heads}."
            )
        with torch.device("meta"):
            encoding = self.build_encoding()
        if not self.is_causal:
            encoding.refuse_causal_only()
        if self.sliding_window is not None:
            at_least("sliding_window", self.sliding_window, 1)
        if self.random_positions is not None:
            at_least("random_positions", self.random_positions, 1)
            if encoding.max_length is not None and encoding.max_length < self.random_positions:
                raise ValueError(
                    f"random_positions={self.random_positions} exceeds the {encoding.max_length} positions of "
                    f"{type(encoding).__name__}. Use at most {encoding.max_length}, or an encoding without a limit."
                )

    def save_pretrained(self, *arguments: Any, **options: Any) -> None:
        self.longfire_version = __version__
        super().save_pretrained(*arguments, **options)

    @classmethod
    def of_size(cls, name: str, **changes: Any) -> Self:
        """The configuration of a size in `SIZES`, with `changes` applied."""
        if name not in SIZES:
            raise ValueError(f"there is no size named {name!r}. {hint(name, SIZES)}")
        return cls(**{**SIZES[name], **changes})

    @property
    def head_dim(self) -> int:
        return self.hidden_size // self.num_attention_heads

    @property
    def attention_window(self) -> int | None:
        """`sliding_window` as `longfire.attention` counts it."""
        if self.sliding_window is None or self.is_causal:
            return self.sliding_window
        return self.sliding_window + 1

    @property
    def layer_types(self) -> list[str]:
        """For transformers' caches: they keep all keys, of which attention reads those in the window."""
        return ["full_attention"] * self.num_hidden_layers

    def build_encoding(self) -> PositionEncoding:
        """A new instance of the position encoding."""
        options: dict[str, Any] = dict(self.position_encoding or {})  # type: ignore[arg-type]
        if "name" not in options:
            raise ValueError(f"position_encoding needs a name, such as {{'name': 'fire'}}, not {options!r}.")
        return encoding_of_shape(self, **options)


def _encodings_with(option: str) -> list[str]:
    """The names of the encodings that have an option."""
    return [name for name, encoding in ENCODINGS.items() if option in option_names(encoding)]


def encoding_of_shape(config: Any, /, name: str, **options: Any) -> PositionEncoding:
    """A new encoding for a model of this shape. Refuses options that its configuration sets."""
    for option, field in SET_BY_MODEL.items():
        if option in options and name in ENCODINGS:
            known = option_names(ENCODINGS[name])
            remedy = hint(option, known) if known else "It has no options."
            raise ValueError(f"{option!r} is the model's {field}, not an option of {name!r}. {remedy}")
    return build_encoding(
        name,
        num_heads=config.num_attention_heads,
        head_dim=getattr(config, "head_dim", None) or config.hidden_size // config.num_attention_heads,
        width=config.hidden_size,
        max_length=config.max_position_embeddings,
        **options,
    )
