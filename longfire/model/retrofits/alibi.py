"""Models with ALiBi: their FIRE is ALiBi, by the theorem, until it is trained."""

from typing import Any

from longfire.encodings.alibi import alibi_slopes
from longfire.model.retrofits.common import FireCausalLM


class FireFromALiBi(FireCausalLM):
    """The same logits up to the training length.

    Bloom and MPT build their slopes in two ways and come to the same ones. MPT's `alibi_bias_max` has no part in it in
    transformers, so it has none here.
    """

    @classmethod
    def changes_for(cls, config: Any, training_length: int, options: dict[str, Any]) -> dict[str, Any]:
        """FIRE that equals the model's ALiBi."""
        if options:
            raise TypeError(
                f"retrofit takes no {', '.join(options)} for {config.model_type}: its FIRE equals its ALiBi, by the "
                f"theorem, and that decides all options of FIRE."
            )
        slopes = alibi_slopes(config.num_attention_heads)
        return {"position_encoding": {"theorem": {"name": "alibi", "slopes": slopes}, "max_length": training_length}}
