"""The model with a language-modelling head: a decoder predicts the next token, an encoder fills in masked ones.

Shapes: B batch, T tokens, C width, V vocabulary.
"""

from typing import Any

import torch.nn.functional as F
from torch import Tensor, nn
from torch.distributed import ProcessGroup
from transformers import Cache, GenerationMixin
from transformers.modeling_outputs import BaseModelOutputWithPast, CausalLMOutputWithPast, MaskedLMOutput
from transformers.utils.generic import can_return_tuple

from longfire.custom_ops import is_plain_linear
from longfire.model.configuration import LongfireConfig
from longfire.model.loading import parameters_of
from longfire.model.loss import IGNORED, linear_cross_entropy, logits_cross_entropy
from longfire.model.modeling import OPTIONS, LongfireModel, LongfirePreTrainedModel
from longfire.model.packing import ARGUMENTS
from longfire.parallel import total

PASSED_ON = (*parameters_of(LongfireModel.forward), *ARGUMENTS, *OPTIONS)
"""Keyword arguments of a call that a head passes on to the model."""


class HeadModel(LongfirePreTrainedModel):
    """The model and its head."""

    _tied_weights_keys = {"lm_head.weight": "model.embed_tokens.weight"}  # noqa: RUF012

    def __init__(self, config: LongfireConfig) -> None:
        super().__init__(config)
        self.model = LongfireModel(config)
        self.lm_head = nn.Linear(config.hidden_size, config.vocab_size, bias=False)
        self.post_init()

    def loss_and_logits(
        self,
        hidden: Any,  # (B, T, C)
        targets: Tensor | None,  # (B, T)
        items: int | Tensor | None,
        skip_logits: bool | None,
        logits_to_keep: int | Tensor = 0,
        group: ProcessGroup | None = None,
    ) -> tuple[Any, Any]:
        """The loss, if there are targets, and the logits (B, T, V), unless they are skipped."""
        loss: Any = None
        logits: Any = None
        if targets is not None:
            if targets.shape != hidden.shape[:2]:
                raise ValueError(
                    f"labels must be {tuple(hidden.shape[:2])}, like the tokens, not {tuple(targets.shape)}."
                )
            if items is None and group is not None:
                items = total((targets != IGNORED).sum(), group)
            loss, logits = token_loss(hidden, self.lm_head, targets, items)
            if self.training if skip_logits is None else skip_logits:
                return loss, None
        kept = slice(-logits_to_keep, None) if isinstance(logits_to_keep, int) else logits_to_keep
        return loss, self.lm_head(hidden[:, kept]) if logits is None else logits[:, kept]


class LongfireForCausalLM(HeadModel, GenerationMixin):
    """The decoder with a language-modelling head."""

    def __init__(self, config: LongfireConfig) -> None:
        if not config.is_causal:
            raise ValueError("a causal language model needs is_causal=True. For an encoder use LongfireForMaskedLM.")
        super().__init__(config)

    @can_return_tuple  # type: ignore[untyped-decorator]
    def forward(
        self,
        input_ids: Tensor | None = None,
        attention_mask: Tensor | None = None,
        position_ids: Tensor | None = None,
        past_key_values: Cache | None = None,
        inputs_embeds: Tensor | None = None,
        labels: Tensor | None = None,
        use_cache: bool | None = None,
        logits_to_keep: int | Tensor = 0,
        skip_logits: bool | None = None,
        num_items_in_batch: int | Tensor | None = None,
        **options: Any,
    ) -> CausalLMOutputWithPast:
        """Tokens (B, T) → logits (B, T, V) and, with labels, the loss.

        Args:
            input_ids: (B, T).
            attention_mask: (B, tokens so far), 1 for tokens and 0 for padding.
            position_ids: (B, T), if tokens are not numbered from 0, or instead of drawing random positions.
            past_key_values: the cache that an earlier call returned.
            inputs_embeds: (B, T, C), instead of input_ids.
            labels: (B, T), the input tokens; they are shifted here. −100 is ignored.
            use_cache: return a cache for the next call. Default: the configuration's, but False in training and with
                labels.
            logits_to_keep: return the logits of the last n tokens, or of these indices; 0 means all.
            skip_logits: return only the loss, computed in blocks of tokens so that the full logits never exist (unless
                the head is more than a linear layer: an adapter, a bias, hooks). Default: in training only.
            num_items_in_batch: divisor of the summed loss. Default: the number of labels that are not −100.
            options: `shift_labels`, labels already shifted, used in place of `labels` if both are given, as in
                transformers; output_hidden_states and output_attentions; `sequence_group`, as in `LongfireModel`: the
                loss is then this rank's part of the whole sequences' loss.
        """
        self.check_options(options, ("shift_labels", *PASSED_ON))
        group = options.get("sequence_group")
        shift_labels = options.pop("shift_labels", None)  # as a parameter, Trainer would require it to evaluate
        if group is not None and labels is not None and shift_labels is None:
            raise ValueError(
                "with sequence_group, labels cannot be shifted across the edges of this rank's share: shift them "
                "before longfire.parallel.shard, and pass shift_labels."
            )
        if group is not None and not (isinstance(logits_to_keep, int) and logits_to_keep == 0):
            raise ValueError(
                f"with sequence_group, logits_to_keep={logits_to_keep} would be of this rank's share: omit it, and "
                f"select from longfire.parallel.unshard(logits, 1, group)."
            )
        targets = shift_labels  # (B, T)
        if targets is None and labels is not None:
            targets = F.pad(labels, (0, 1), value=IGNORED)[:, 1:]
        if use_cache is None and (self.training or targets is not None):
            use_cache = False
        outputs: BaseModelOutputWithPast = self.model(
            input_ids,
            attention_mask=attention_mask,
            position_ids=position_ids,
            past_key_values=past_key_values,
            inputs_embeds=inputs_embeds,
            use_cache=use_cache,
            **options,
        )
        loss, logits = self.loss_and_logits(
            outputs.last_hidden_state, targets, num_items_in_batch, skip_logits, logits_to_keep, group
        )
        return CausalLMOutputWithPast(
            loss=loss,
            logits=logits,
            past_key_values=outputs.past_key_values,
            hidden_states=outputs.hidden_states,
            attentions=outputs.attentions,
        )

    def _prepare_position_ids_for_generation(self, *inputs: Any) -> Any:
        """None if every forward pass draws its own."""
        drawn = self.config.random_positions is not None
        return None if drawn else super()._prepare_position_ids_for_generation(*inputs)


class LongfireForMaskedLM(HeadModel):
    """The encoder, `LongfireConfig(is_causal=False)`, with a head that predicts tokens in place, as in BERT."""

    def __init__(self, config: LongfireConfig) -> None:
        if config.is_causal:
            raise ValueError("masked language modelling needs LongfireConfig(is_causal=False).")
        super().__init__(config)

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
        """Tokens (B, T) → logits (B, T, V) and, with labels, the loss. Other arguments as in `LongfireForCausalLM`.

        Args:
            input_ids: (B, T).
            attention_mask: (B, T), 1 for tokens and 0 for padding.
            position_ids: (B, T), if tokens are not numbered from 0.
            inputs_embeds: (B, T, C), instead of input_ids.
            labels: (B, T), the original tokens where they were masked, −100 elsewhere; they are not shifted.
            skip_logits: return only the loss. Default: in training only.
            num_items_in_batch: divisor of the summed loss. Default: the number of labels that are not −100.
            options: output_hidden_states and output_attentions; `sequence_group`, as in `LongfireForCausalLM`.
        """
        self.check_options(options, PASSED_ON)
        inputs = {"attention_mask": attention_mask, "position_ids": position_ids, "inputs_embeds": inputs_embeds}
        outputs: BaseModelOutputWithPast = self.model(input_ids, **inputs, **options)
        loss, logits = self.loss_and_logits(
            outputs.last_hidden_state, labels, num_items_in_batch, skip_logits, group=options.get("sequence_group")
        )
        states = {"hidden_states": outputs.hidden_states, "attentions": outputs.attentions}
        return MaskedLMOutput(loss=loss, logits=logits, **states)


def token_loss(
    hidden: Tensor, head: nn.Module, targets: Tensor, items: int | Tensor | None
) -> tuple[Tensor, Tensor | None]:
    """The mean loss of targets (B, T), or their sum divided by `items`, and the logits if the head was called.

    A plain linear head is not called: the loss is computed from its weight, in blocks.
    """
    logits = None
    targets = targets.reshape(-1).to(hidden.device)
    if is_plain_linear(head) and getattr(head, "bias", None) is None:
        total = linear_cross_entropy(hidden.reshape(-1, hidden.shape[-1]), head.weight, targets)
    else:
        logits = head(hidden)  # (B, T, V)
        total = logits_cross_entropy(logits.flatten(0, 1), targets.to(logits.device))
    if items is None:
        items = (targets != IGNORED).sum()
    return total / (items.to(total.device) if isinstance(items, Tensor) else items), logits
