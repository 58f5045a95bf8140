"""What a retrofitted model is: the base model's configuration, and the FIRE in place of its position encoding.

In config.json the base model's fields are nested, and its `vocab_size` says where they are:

    {"model_type": "longfire_bloom", "position_encoding": {…}, "base_config": {"hidden_size": 1024, …},
     "vocab_size": "this is a longfire_bloom, …"}

so that BloomConfig, which would make a model without FIRE of the same weights, refuses the file.
"""

import json
from typing import Any, Self

from longfire import __version__
from longfire.encodings import PositionEncoding, build_encoding
from longfire.model.configuration import refuse_given
from longfire.theorem import as_fire

OUTSIDE = ("model_type", "architectures", "dtype", "transformers_version", "position_encoding", "longfire_version")
"""Fields that are not nested."""


class FireConfig:
    """What the configurations of retrofitted models share: each has these bases and fields.

        class FireBloomConfig(FireConfig, BloomConfig):
            model_type = "longfire_bloom"
            position_encoding: dict[str, Any] | None = None
            longfire_version: str = __version__

    `position_encoding` is `{"name": "fire", …}`, options as `longfire.build_encoding` takes them, or
    `{"theorem": {"name": "alibi", …}, "max_length": 2048}`: `longfire.theorem.as_fire` of that encoding,
    with `max_length` as its `exact_length` (checkpoints keep the older name).
    """

    def build_encoding(self: Any) -> PositionEncoding:
        """The FIRE of a layer, new."""
        options = dict(self.position_encoding or {})
        theorem = options.pop("theorem", None)
        if theorem is None and options.get("name") != "fire":
            raise ValueError(
                f"{type(self).__name__} needs a position_encoding, {{'name': 'fire', …}} or {{'theorem': …, "
                f"'max_length': …}}, and has {self.position_encoding!r}. longfire.model.retrofit(model, "
                f"training_length=…) gives a model one."
            )
        num_heads = self.num_attention_heads
        if theorem is None:
            refuse_given("fire", options)
            return build_encoding(num_heads=num_heads, **options)
        max_length = options.pop("max_length", None)
        if max_length is None or options:
            raise ValueError(
                f"position_encoding by the theorem is {{'theorem': {{'name': …}}, 'max_length': …}} and nothing else, "
                f"not {self.position_encoding!r}."
            )
        return as_fire(build_encoding(num_heads=num_heads, **theorem), max_length)

    def to_json_string(self, use_diff: bool = True) -> str:
        """As it is saved: nested."""
        fields = json.loads(super().to_json_string(use_diff))  # type: ignore[misc]
        outside = {key: fields.pop(key) for key in OUTSIDE if key in fields}
        kind = outside["model_type"]
        notice = f"this is a {kind}, see base_config: import longfire.model, then AutoModelForCausalLM.from_pretrained"
        # without a model_type of its own: transformers takes a nested configuration by that
        return json.dumps({**outside, "base_config": fields, "vocab_size": notice}, indent=2, sort_keys=True) + "\n"

    @classmethod
    def from_dict(cls, config_dict: dict[str, Any], **options: Any) -> Self:
        """From what `to_json_string` or `to_dict` wrote."""
        fields = dict(config_dict)
        if "base_config" in fields:
            del fields["vocab_size"]
            fields = {**fields.pop("base_config"), **fields}
        return super().from_dict(fields, **options)  # type: ignore[misc,no-any-return]

    def save_pretrained(self, *arguments: Any, **options: Any) -> None:
        """With the version that wrote it."""
        self.longfire_version = __version__
        super().save_pretrained(*arguments, **options)  # type: ignore[misc]
