"""The encoder with a language-modelling head, for masked language modelling as in BERT."""

from typing import Any

from torch import Tensor, nn
from transformers.modeling_outputs import BaseModelOutputWithPast, MaskedLMOutput
from transformers.utils.generic import can_return_tuple

from longfire.model.configuration import LongfireConfig
from longfire.model.modeling import LongfireModel, LongfirePreTrainedModel, token_loss


class LongfireForMaskedLM(LongfirePreTrainedModel):
    """`LongfireModel` with `LongfireConfig(is_causal=False)`, and a head that predicts tokens in place."""

    _tied_weights_keys = {"lm_head.weight": "model.embed_tokens.weight"}  # noqa: RUF012

    def __init__(self, config: LongfireConfig) -> None:
        super().__init__(config)
        if config.is_causal:
            raise ValueError("masked language modelling needs LongfireConfig(is_causal=False).")
        self.model = LongfireModel(config)
        self.lm_head = nn.Linear(config.hidden_size, config.vocab_size, bias=False)
        self.post_init()

    @can_return_tuple  # type: ignore[untyped-decorator]
    def forward(
        self,
        input_ids: Tensor | None = None,
        attention_mask: Tensor | None = None,
        position_ids: Tensor | None = None,
        inputs_embeds: Tensor | None = None,
        labels: Tensor | None = None,
        skip_logits: bool | None = None,
        num_items_in_batch: int | Tensor | None = None,
        **options: Any,
    ) -> MaskedLMOutput:
        """Tokens (B, T) → logits (B, T, V) and, with labels, the loss. Arguments as in `LongfireForCausalLM`.

        labels: (B, T), the original tokens where they were masked, −100 elsewhere; they are not shifted.
        """
        outputs: BaseModelOutputWithPast = self.model(
            input_ids, attention_mask=attention_mask, position_ids=position_ids, inputs_embeds=inputs_embeds, **options
        )
        hidden: Any = outputs.last_hidden_state  # (B, T, C)
        loss: Any = None
        logits: Any = None
        if labels is not None:
            loss, logits = token_loss(hidden, self.lm_head, labels, num_items_in_batch)
        if labels is not None and (self.training if skip_logits is None else skip_logits):
            logits = None
        elif logits is None:
            logits = self.lm_head(hidden)  # (B, T, V)
        return MaskedLMOutput(
            loss=loss, logits=logits, hidden_states=outputs.hidden_states, attentions=outputs.attentions
        )
