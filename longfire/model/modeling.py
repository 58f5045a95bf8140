"""The decoder: GPT-3's shape (pre-norm, GELU, tied embeddings) with any position encoding.

It calls an encoding's three hooks, embed, rotate and bias, and never asks which encoding it has.
"""

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import torch
import torch.nn.functional as F
from torch import Tensor, nn
from transformers import Cache, DynamicCache, GenerationMixin
from transformers import initialization as init
from transformers.masking_utils import create_causal_mask
from transformers.modeling_layers import GradientCheckpointingLayer
from transformers.modeling_outputs import BaseModelOutputWithPast, CausalLMOutputWithPast
from transformers.utils.generic import can_return_tuple, merge_with_config_defaults
from transformers.utils.output_capturing import capture_outputs

from longfire.custom_ops import is_plain_linear
from longfire.encodings import PositionEncoding
from longfire.engines import PreparedBias
from longfire.model import attention
from longfire.model.checkpoints import RefusesOtherEncodings
from longfire.model.configuration import LongfireConfig
from longfire.model.loss import IGNORED, linear_cross_entropy, logits_cross_entropy
from longfire.model.positions import Positions, find_positions


class LongfireAttention(nn.Module):
    """Causal self-attention with a position bias."""

    def __init__(self, config: LongfireConfig, layer_idx: int, encoding: PositionEncoding | None) -> None:
        super().__init__()
        self.config, self.layer_idx = config, layer_idx
        self.num_heads, self.head_dim = config.num_attention_heads, config.head_dim
        self.scaling = self.head_dim**-0.5
        self.is_causal = True
        self.qkv_proj = nn.Linear(config.hidden_size, 3 * config.hidden_size)
        self.out_proj = nn.Linear(config.hidden_size, config.hidden_size)
        self.position_encoding = encoding
        """None where the layers share one."""

    def forward(
        self,
        hidden: Tensor,  # (B, T, C)
        positions: Positions,
        attention_mask: Tensor | None = None,
        past_key_values: Cache | None = None,
        prepared: "Prepared | None" = None,
    ) -> tuple[Tensor, Tensor | None]:
        B, T, C = hidden.shape
        encoding = self.position_encoding if prepared is None else prepared.encoding
        assert encoding is not None
        bias = (encoding if encoding.has_bias else None) if prepared is None else prepared.bias
        qkv = self.qkv_proj(hidden).view(B, T, 3, self.num_heads, self.head_dim)
        q, k, v = (x.transpose(1, 2) for x in qkv.unbind(2))  # (B, H, T, D)
        q, k = encoding.rotate(q, positions.queries), encoding.rotate(k, positions.queries)
        k, v = attention.cached(past_key_values, self.layer_idx, k, v, positions)
        out, weights = attention.attend(
            self,
            self.config._attn_implementation,
            (q, k, v),
            attention_mask,
            bias,
            positions,
            scaling=self.scaling,
            dropout=self.config.attention_dropout if self.training else 0.0,
        )
        return self.out_proj(out.reshape(B, T, C)), weights


@dataclass(frozen=True, eq=False)
class Prepared:
    """A layer's encoding, or that of all, and its bias in this forward pass, made before the first layer."""

    encoding: PositionEncoding
    bias: PreparedBias | None
    """None: it has none."""


class LongfireLayer(GradientCheckpointingLayer):
    """Attention and MLP, each before a norm and added to the stream."""

    def __init__(self, config: LongfireConfig, layer_idx: int, encoding: PositionEncoding | None) -> None:
        super().__init__()
        C = config.hidden_size
        self.attention_norm = nn.LayerNorm(C, eps=config.layer_norm_eps)
        self.attention = LongfireAttention(config, layer_idx, encoding)
        self.mlp_norm = nn.LayerNorm(C, eps=config.layer_norm_eps)
        self.up_proj = nn.Linear(C, 4 * C)
        self.down_proj = nn.Linear(4 * C, C)
        self.dropout = nn.Dropout(config.resid_dropout)

    def forward(self, hidden: Tensor, **options: Any) -> Tensor:
        attended, _ = self.attention(self.attention_norm(hidden), **options)
        hidden = hidden + self.dropout(attended)
        expanded = F.gelu(self.up_proj(self.mlp_norm(hidden)), approximate="tanh")
        hidden = hidden + self.dropout(self.down_proj(expanded))
        return hidden


class LongfirePreTrainedModel(attention.TakesOurAttention, RefusesOtherEncodings):
    """Loading, saving and starting weights."""

    config: LongfireConfig
    config_class = LongfireConfig
    base_model_prefix = "model"
    supports_gradient_checkpointing = True
    _no_split_modules = ["LongfireLayer"]  # noqa: RUF012
    _skip_keys_device_placement = ["past_key_values"]  # noqa: RUF012
    _supports_sdpa = True
    _can_compile_fullgraph = True
    _supports_attention_backend = True
    _keep_in_fp32_modules_strict = ["position_encoding"]  # noqa: RUF012
    _can_record_outputs = {"hidden_states": LongfireLayer, "attentions": LongfireAttention}  # noqa: RUF012

    def gradient_checkpointing_enable(
        self, gradient_checkpointing_kwargs: Any = None, *rest: Any, **options: Any
    ) -> None:
        """As transformers does; a bias that layers share needs the kind that is not reentrant."""
        if self.config.share_position_encoding and (gradient_checkpointing_kwargs or {}).get("use_reentrant"):
            raise ValueError("layers share one position encoding here, so take use_reentrant=False (the default).")
        super().gradient_checkpointing_enable(gradient_checkpointing_kwargs, *rest, **options)

    @torch.no_grad()
    def _init_weights(self, module: nn.Module) -> None:
        std = self.config.initializer_range
        if isinstance(module, PositionEncoding):
            reset_encoding(module)
        elif isinstance(module, nn.LayerNorm):
            init.ones_(module.weight)
            init.zeros_(module.bias)
        elif isinstance(module, nn.Linear | nn.Embedding):
            init.normal_(module.weight, std=std)
            if isinstance(module, nn.Linear) and module.bias is not None:
                init.zeros_(module.bias)
        if isinstance(module, LongfireLayer):  # what is added to the stream, less the more layers add to it
            for linear in (module.attention.out_proj, module.down_proj):
                init.normal_(linear.weight, std=std / (2 * self.config.num_hidden_layers) ** 0.5)


def reset_encoding(encoding: PositionEncoding) -> None:
    """Starting values for those of its tensors that no checkpoint has given theirs."""
    tensors = (*encoding.parameters(), *encoding.buffers())
    loaded = [(tensor, tensor.clone()) for tensor in tensors if getattr(tensor, "_is_hf_initialized", False)]
    encoding.reset_parameters()
    for tensor, value in loaded:
        tensor.copy_(value)


class LongfireModel(LongfirePreTrainedModel):
    """The decoder without its head."""

    def __init__(self, config: LongfireConfig) -> None:
        super().__init__(config)
        encoding = config.build_encoding()
        one = config.share_position_encoding or encoding.scope == "model"
        self.embed_tokens = nn.Embedding(config.vocab_size, config.hidden_size)
        self.position_encoding = encoding if one else None
        """None where each layer has its own."""
        layers = range(config.num_hidden_layers)
        self.layers = nn.ModuleList(LongfireLayer(config, i, None if one else config.build_encoding()) for i in layers)
        self.norm = nn.LayerNorm(config.hidden_size, eps=config.layer_norm_eps)
        self.gradient_checkpointing = False
        self.post_init()

    @property
    def encodings(self) -> list[PositionEncoding]:
        """One, or one for each layer."""
        if self.position_encoding is not None:
            return [self.position_encoding]
        layers: Any = self.layers
        return [layer.attention.position_encoding for layer in layers]

    def compile_layers(self, graphs: bool = False) -> None:
        """Each by itself: they share one compiled graph, which is made in seconds.

        With `graphs` a GPU plays each layer back as a CUDA graph, so that starting kernels costs no time: for training
        with one forward and one backward pass a step, on inputs of one shape.
        """
        for layer in self.layers:
            layer.compile(fullgraph=True, options={"triton.cudagraphs": True} if graphs else None)

    @merge_with_config_defaults  # type: ignore[untyped-decorator]
    @capture_outputs  # type: ignore[untyped-decorator]
    def forward(
        self,
        input_ids: Tensor | None = None,
        attention_mask: Tensor | None = None,
        position_ids: Tensor | None = None,
        past_key_values: Cache | None = None,
        inputs_embeds: Tensor | None = None,
        use_cache: bool | None = None,
        **options: Any,
    ) -> BaseModelOutputWithPast:
        """Tokens or their embeddings (B, T) → what the last layer says of each (B, T, C)."""
        self.refuse_output_attentions(options.get("output_attentions"))
        if (input_ids is None) == (inputs_embeds is None):
            raise ValueError("give input_ids or inputs_embeds, one of the two.")
        hidden = self.embed_tokens(input_ids) if inputs_embeds is None else inputs_embeds
        if use_cache and past_key_values is None:
            past_key_values = DynamicCache(config=self.config)
        mask, positions = masks_and_positions(self.config, hidden, attention_mask, position_ids, past_key_values)
        for encoding in self.encodings:
            hidden = encoding.embed(hidden, positions.queries)
        prepared = self._prepare(positions, hidden[..., : self.config.head_dim])
        for layer, bias in zip(self.layers, prepared, strict=True):
            hidden = layer(
                hidden, positions=positions, attention_mask=mask, past_key_values=past_key_values, prepared=bias
            )
        return BaseModelOutputWithPast(last_hidden_state=self.norm(hidden), past_key_values=past_key_values)

    def _prepare(self, positions: Positions, like: Tensor) -> Sequence[Prepared | None]:
        """For each layer the bias that is made for several at once: None where it makes its own."""
        ours = self.config._attn_implementation == attention.NAME
        one = self.position_encoding
        if one is not None:
            bias = positions.prepare(one, like if ours else None) if one.has_bias else None
            return [Prepared(one, bias)] * len(self.layers)
        rows = positions.prepare_rows(self.encodings, like) if ours else None
        if rows is None:
            return [None] * len(self.layers)
        return [Prepared(row.encoding, row) for row in rows]


def masks_and_positions(
    config: Any, x: Tensor, attention_mask: Tensor | None, position_ids: Tensor | None, cache: Cache | None
) -> tuple[Tensor | None, Positions]:
    """The mask as the attention implementation takes it, and where the tokens x (B, T, C) are."""
    T = x.shape[1]
    ours = config._attn_implementation == attention.NAME
    past = 0 if cache is None else cache.get_seq_length()
    slots = past + T if cache is None else cache.get_mask_sizes(T, 0)[0]
    by_token = attention_mask
    if not ours and attention_mask is not None and attention_mask.ndim == 4:  # by query, as it is
        by_token = None
        if not (attention_mask.dtype == torch.bool or attention_mask.is_floating_point()):
            raise ValueError(
                f"a 4-D attention mask is boolean (True is kept) or floating point (added to the logits), not "
                f"{attention_mask.dtype}: attention_mask.bool()."
            )
        if attention_mask.shape[2] != T:
            raise ValueError(
                f"a 4-D attention mask is (B, 1, T, S) with a row for each of the {T} queries, not "
                f"{tuple(attention_mask.shape)}: one row for all would let each see later tokens. For padding give "
                f"(B, tokens so far)."
            )
    positions = find_positions(x, past, slots, by_token, position_ids, packed=not ours)
    if ours:
        return None, positions
    if positions.packed and (by_token is not None or (cache is not None and attention_mask is None)):
        raise ValueError(
            "position_ids begin again within a sequence, as where documents are packed into one row. They are kept "
            "apart where there is neither an attention mask nor a cache: leave it out, and give use_cache=False."
        )
    mask: Any = create_causal_mask(
        config=config,
        inputs_embeds=x,
        attention_mask=attention_mask,
        past_key_values=cache,
        position_ids=None if positions.packed is False else position_ids,  # a gap in them is no new document
    )
    S = positions.keys.shape[-1]
    return mask if mask is None or mask.shape[-1] == S else mask[..., :S], positions


class LongfireForCausalLM(LongfirePreTrainedModel, GenerationMixin):
    """The decoder with a head that predicts the next token."""

    _tied_weights_keys = {"lm_head.weight": "model.embed_tokens.weight"}  # noqa: RUF012

    def __init__(self, config: LongfireConfig) -> None:
        super().__init__(config)
        self.model = LongfireModel(config)
        self.lm_head = nn.Linear(config.hidden_size, config.vocab_size, bias=False)
        self.post_init()

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
            attention_mask: (B, tokens so far): 1 for tokens, 0 for padding.
            position_ids: (B, T), where tokens are not to be counted from 0.
            past_key_values: what earlier calls returned.
            inputs_embeds: (B, T, C) in place of input_ids.
            labels: (B, T), the tokens themselves; they are shifted here. −100 does not count.
            use_cache: return keys and values for the next call. Unless given, as the configuration says, and not where
                there is none: in training and with labels.
            logits_to_keep: only of so many last tokens, or of these; 0 is all.
            skip_logits: return the loss alone. It is made in blocks of tokens, so that the logits of all are never
                there, unless the head is more than a linear layer (an adapter, a bias, hooks). Default: in training.
            num_items_in_batch: what the sum of losses is divided by; the number of labels that count, unless given.
            options: `shift_labels`, labels that are shifted already; for the decoder, output_hidden_states and
                output_attentions.
        """
        shift_labels = options.pop("shift_labels", None)  # as an argument, Trainer would not evaluate without them
        targets = shift_labels if labels is None else F.pad(labels, (0, 1), value=IGNORED)[:, 1:]
        if use_cache is None and (self.training or targets is not None):
            use_cache = False  # there is no next call
        outputs: BaseModelOutputWithPast = self.model(
            input_ids,
            attention_mask=attention_mask,
            position_ids=position_ids,
            past_key_values=past_key_values,
            inputs_embeds=inputs_embeds,
            use_cache=use_cache,
            **options,
        )
        hidden: Any = outputs.last_hidden_state
        loss: Any = None
        logits: Any = None
        made = None
        if targets is not None:
            loss, made = next_token_loss(hidden, self.lm_head, targets, num_items_in_batch)
        if targets is None or not (self.training if skip_logits is None else skip_logits):
            kept = slice(-logits_to_keep, None) if isinstance(logits_to_keep, int) else logits_to_keep
            logits = self.lm_head(hidden[:, kept]) if made is None else made[:, kept]
        return CausalLMOutputWithPast(
            loss=loss,
            logits=logits,
            past_key_values=outputs.past_key_values,
            hidden_states=outputs.hidden_states,
            attentions=outputs.attentions,
        )


def next_token_loss(
    hidden: Tensor, head: nn.Module, targets: Tensor, items: int | Tensor | None
) -> tuple[Tensor, Tensor | None]:
    """The mean loss of targets (B, T), or their sum divided by `items`; and the logits, if the head was called.

    A plain linear head is not: its weight is enough, and the loss is made in blocks.
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
