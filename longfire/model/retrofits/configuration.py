"""The configuration of a retrofitted model: the base model's, with a longfire encoding in place of its own.

In config.json the base model's fields are nested, and a notice replaces `vocab_size`:

    {"model_type": "longfire_bloom", "position_encoding": {…}, "base_config": {"hidden_size": 1024, …},
     "vocab_size": "this is a longfire_bloom, …"}

so that BloomConfig, which would load the same weights without the encoding, rejects the file.
"""

import copy
import json
from dataclasses import dataclass
from inspect import signature
from typing import Any, Self

import torch
from torch import Tensor, nn

from longfire import __version__
from longfire.encodings import ENCODINGS, T5, NoPE, PositionEncoding, build_encoding
from longfire.model.configuration import encoding_of_shape
from longfire.theorem import as_fire

TOP_LEVEL = ("model_type", "architectures", "dtype", "transformers_version", "position_encoding", "longfire_version")
"""Fields that stay at the top level."""


@dataclass(init=False, repr=False, eq=False)
class FireConfig:
    """Mixin for a base model's configuration.

    `position_encoding` is `{"name": "fire", …}`, or another encoding with a bias, with options of
    `longfire.build_encoding`; or `{"theorem": {"name": "alibi", …}, "max_length": 2048}`: `longfire.theorem.as_fire` of
    that encoding with `max_length` as its `exact_length` (checkpoints keep the older name).
    """

    position_encoding: dict[str, Any] | None = None
    longfire_version: str = __version__

    def encoding_options(self) -> dict[str, Any]:
        """A copy of `position_encoding`, as this part of the model needs it."""
        return copy.deepcopy(self.position_encoding or {})

    def build_encoding(self: Any) -> PositionEncoding:
        """A new encoding for one layer."""
        options = self.encoding_options()
        theorem = options.pop("theorem", None)
        if theorem is None and "name" not in options:
            raise ValueError(
                f"{type(self).__name__} needs a position_encoding, {{'name': 'fire', …}} or {{'theorem': …, "
                f"'max_length': …}}, not {self.position_encoding!r}. longfire.model.retrofit(model, "
                f"training_length=…) adds one to a model."
            )
        if theorem is None:
            chosen = ENCODINGS.get(options["name"])
            if chosen not in (None, NoPE) and chosen.bias is PositionEncoding.bias:
                raise ValueError(
                    f"retrofit needs an encoding with a bias, or 'nope', not {options['name']!r}. Use 'fire'."
                )
            return encoding_of_shape(self, **options)
        exact_length = options.pop("max_length", None)
        if exact_length is None or options:
            raise ValueError(
                f"a position_encoding by the theorem must be {{'theorem': {{'name': …}}, 'max_length': …}}, not "
                f"{self.position_encoding!r}."
            )
        return as_fire(build_encoding(num_heads=self.num_attention_heads, **theorem), exact_length)

    def to_json_string(self, use_diff: bool = True) -> str:
        """The nested form that is saved."""
        fields = json.loads(super().to_json_string(use_diff))  # type: ignore[misc]
        top_level = {key: fields.pop(key) for key in TOP_LEVEL if key in fields}
        kind = top_level["model_type"]
        auto = "AutoModelForSeq2SeqLM" if fields.get("is_encoder_decoder") else "AutoModelForCausalLM"
        notice = f"this is a {kind}, see base_config: import longfire.model, then {auto}.from_pretrained (or its like)"
        # base_config has no model_type, or transformers would parse it as a separate configuration
        return json.dumps({**top_level, "base_config": fields, "vocab_size": notice}, indent=2, sort_keys=True) + "\n"

    @classmethod
    def from_dict(cls, config_dict: dict[str, Any], **options: Any) -> Self:
        """Read the nested form, or the flat one of `to_dict`."""
        fields = dict(config_dict)
        if "base_config" in fields:
            del fields["vocab_size"]
            fields = {**fields.pop("base_config"), **fields}
        return super().from_dict(fields, **options)  # type: ignore[misc,no-any-return]

    def save_pretrained(self, *arguments: Any, **options: Any) -> None:
        """Save with the current longfire version."""
        self.longfire_version = __version__
        super().save_pretrained(*arguments, **options)  # type: ignore[misc]


@dataclass(init=False, repr=False, eq=False)
class T5FamilyConfig(FireConfig):
    """Mixin for a base model's configuration. An encoder's encoding tells keys after the query from keys before it."""

    max_position_embeddings: int | None = None

    @property
    def own_bias(self: Any) -> dict[str, Any]:
        """The base model's bias as `position_encoding`."""
        buckets, distance = self.relative_attention_num_buckets, self.relative_attention_max_distance
        return {"name": "t5", "num_buckets": buckets, "max_distance": distance}

    def encoding_options(self: Any) -> dict[str, Any]:
        """`position_encoding`, with `bidirectional` for an encoder."""
        options = super().encoding_options()
        chosen = options.get("theorem", options)
        known = ENCODINGS.get(chosen.get("name", ""))
        if not self.is_decoder and known is not None and "bidirectional" in signature(known).parameters:
            chosen["bidirectional"] = True
        return options

    def build_encoding(self: Any, table: Tensor | None = None) -> PositionEncoding:
        """A new encoding for one layer; if it continues the base model's bias, with this table (buckets, H)."""
        chosen = self.position_encoding or {}
        theorem = chosen.get("theorem")
        if table is not None and self.own_bias in (chosen, theorem):
            options = {**self.own_bias, "bidirectional": not self.is_decoder}
            del options["name"]
            encoding: Any = T5(self.num_heads, **options).to(table.device)
            at_least_float32 = torch.promote_types(table.dtype, torch.float32)
            encoding.table = nn.Parameter(table.detach().to(at_least_float32), table.requires_grad)
            if theorem is not None:
                encoding = as_fire(encoding, chosen["max_length"]).requires_grad_(table.requires_grad)
        else:
            encoding = super().build_encoding()
        if not self.is_decoder:
            encoding.refuse_causal_only()
        if theorem is not None:
            encoding.linears[0].requires_grad_(False)  # where the steps are has no gradient; their heights have
        return encoding  # type: ignore[no-any-return]
