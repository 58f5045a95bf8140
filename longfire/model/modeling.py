"""The decoder: GPT-3's architecture (pre-norm, GELU, tied embeddings) with any position encoding.

It calls the encoding's three hooks (embed, rotate, bias) and never checks which encoding it has.
Shapes: B batch, H query heads, G key heads, T queries, S keys, D head size, C width, V vocabulary.
"""

from collections.abc import Sequence
from typing import Any

import torch
import torch.nn.functional as F
from torch import Tensor, nn
from torch.distributed import ProcessGroup
from transformers import Cache, DynamicCache
from transformers import initialization as init
from transformers.modeling_layers import GradientCheckpointingLayer
from transformers.modeling_outputs import BaseModelOutputWithPast
from transformers.utils.generic import merge_with_config_defaults
from transformers.utils.output_capturing import capture_outputs

from longfire.encodings import PositionEncoding
from longfire.engines import PreparedBias, prepare_rows
from longfire.model.attention import active_encoding, attend, update_cache
from longfire.model.configuration import LongfireConfig
from longfire.model.inputs import LONGFIRE, Layout, find_layout, split_layout
from longfire.model.loading import EncodingModel
from longfire.model.packing import take_packing

OPTIONS = ("is_causal", "output_attentions", "output_hidden_states", "return_dict")
"""Keyword arguments of a call that transformers handles."""


class LongfireAttention(nn.Module):
    """Self-attention with a position bias."""

    def __init__(self, config: LongfireConfig, layer_idx: int, encoding: PositionEncoding | None) -> None:
        super().__init__()
        self.config, self.layer_idx = config, layer_idx
        self.num_heads, self.num_kv_heads = config.num_attention_heads, config.num_key_value_heads or 1
        self.head_dim, self.scaling = config.head_dim, config.head_dim**-0.5
        self.num_key_value_groups = self.num_heads // self.num_kv_heads  # transformers' sdpa reads these two
        self.is_causal = config.is_causal
        self.qkv_proj = nn.Linear(config.hidden_size, (self.num_heads + 2 * self.num_kv_heads) * self.head_dim)
        self.out_proj = nn.Linear(config.hidden_size, config.hidden_size)
        self.position_encoding = encoding  # None: the layers share one

    def forward(
        self,
        hidden: Tensor,  # (B, T, C)
        layout: Layout,
        past_key_values: Cache | None = None,
        given: PositionEncoding | PreparedBias | None = None,
    ) -> tuple[Tensor, Tensor | None]:
        B, T, C = hidden.shape
        bias = active_encoding(self.position_encoding) if given is None else given
        encoding = bias.encoding if isinstance(bias, PreparedBias) else bias
        assert encoding is not None
        heads = [self.num_heads, self.num_kv_heads, self.num_kv_heads]
        qkv = self.qkv_proj(hidden).view(B, T, sum(heads), self.head_dim).split(heads, dim=2)
        q, k, v = (x.transpose(1, 2) for x in qkv)  # (B, H, T, D), (B, G, T, D), (B, G, T, D)
        q, k = encoding.rotate(q, layout.queries), encoding.rotate(k, layout.queries)
        k, v = update_cache(past_key_values, self.layer_idx, k, v, layout)  # (B, G, S, D)
        out, weights = attend(  # (B, T, H, D)
            self,
            (q, k, v),
            bias if encoding.has_bias else None,
            layout,
            window=self.config.attention_window,
            scaling=self.scaling,
            dropout=self.config.attention_dropout if self.training else 0.0,
        )
        return self.out_proj(out.reshape(B, T, C)), weights


class LongfireLayer(GradientCheckpointingLayer):
    """Pre-norm attention and MLP, each with a residual connection."""

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
        expanded = F.gelu(self.up_proj(self.mlp_norm(hidden)), approximate="tanh")  # (B, T, 4C)
        hidden = hidden + self.dropout(self.down_proj(expanded))
        return hidden


class LongfirePreTrainedModel(EncodingModel):
    """Loading, saving and initialisation."""

    config: LongfireConfig
    config_class = LongfireConfig
    base_model_prefix = "model"
    supports_gradient_checkpointing = True
    has_other_kind = True
    _no_split_modules = ["LongfireLayer"]  # noqa: RUF012
    _skip_keys_device_placement = ["past_key_values"]  # noqa: RUF012
    _can_record_outputs = {"hidden_states": LongfireLayer, "attentions": LongfireAttention}  # noqa: RUF012

    def gradient_checkpointing_enable(
        self, gradient_checkpointing_kwargs: Any = None, *rest: Any, **options: Any
    ) -> None:
        """As in transformers, but refuses reentrant checkpointing of a shared bias."""
        if self.config.share_position_encoding and (gradient_checkpointing_kwargs or {}).get("use_reentrant"):
            raise ValueError("a shared position encoding needs use_reentrant=False, the default.")
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
        if isinstance(module, LongfireLayer):  # scaled down with the depth of the residual stream, as in GPT-2
            for linear in (module.attention.out_proj, module.down_proj):
                init.normal_(linear.weight, std=std / (2 * self.config.num_hidden_layers) ** 0.5)


def reset_encoding(encoding: PositionEncoding) -> None:
    """Initialise the tensors that were not loaded from a checkpoint."""
    tensors = (*encoding.parameters(), *encoding.buffers())
    loaded = [(tensor, tensor.clone()) for tensor in tensors if getattr(tensor, "_is_hf_initialized", False)]
    encoding.reset_parameters()
    for tensor, value in loaded:
        tensor.copy_(value)


class LongfireModel(LongfirePreTrainedModel):
    """The decoder without its head."""

    def __init__(self, config: LongfireConfig) -> None:
        super().__init__(config)
        self.causal = config.is_causal
        encoding = config.build_encoding()
        shared = config.share_position_encoding or encoding.scope == "model"
        self.embed_tokens = nn.Embedding(config.vocab_size, config.hidden_size)
        self.position_encoding = encoding if shared else None  # None: one per layer
        self.layers = nn.ModuleList(
            LongfireLayer(config, layer, None if shared else config.build_encoding())
            for layer in range(config.num_hidden_layers)
        )
        self.norm = nn.LayerNorm(config.hidden_size, eps=config.layer_norm_eps)
        self.gradient_checkpointing = False
        self.post_init()

    @property
    def encodings(self) -> list[PositionEncoding]:
        """The shared encoding, or one per layer."""
        if self.position_encoding is not None:
            found = [active_encoding(self.position_encoding)]
        else:
            layers: Any = self.layers
            found = [active_encoding(layer.attention.position_encoding) for layer in layers]
        return [encoding for encoding in found if encoding is not None]

    def compile_layers(self, graphs: bool = False) -> None:
        """Compile each layer separately: they share one graph, which compiles in seconds.

        With `graphs`, each layer runs as a CUDA graph without launch overhead. Use it for training with one forward and
        one backward pass per step on inputs of one shape.
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
        sequence_group: ProcessGroup | None = None,
        **options: Any,
    ) -> BaseModelOutputWithPast:
        """Tokens (B, T) or embeddings (B, T, C) → the last hidden states (B, T, C).

        With `sequence_group`, inputs and outputs are this rank's share of sequences that are split across the group, as
        `longfire.parallel.shard` cuts them. Gradients are then to be summed over its ranks, as DDP and FSDP do.
        """
        packing = take_packing(options)
        self.check_options(options, OPTIONS)
        hidden = self.embed_inputs(input_ids, inputs_embeds)
        if use_cache and past_key_values is None:
            past_key_values = DynamicCache(config=self.config)
        where = (self.config, hidden, attention_mask, position_ids, past_key_values)
        if sequence_group is None:
            layout = find_layout(*where, self.training, packing)
        else:
            if self.training and self.config.resid_dropout:
                raise ValueError(
                    f"resid_dropout must be 0 where a sequence is split across ranks, not {self.config.resid_dropout}: "
                    f"ranks with equal seeds would drop the same units."
                )
            layout = split_layout(*where, packing, sequence_group)
        for encoding in self.encodings:
            hidden = encoding.embed(hidden, layout.queries)
        biases = self._prepare(layout, hidden[..., : self.config.head_dim])
        for layer, given in zip(self.layers, biases, strict=True):
            hidden = layer(hidden, layout=layout, past_key_values=past_key_values, given=given)
        return BaseModelOutputWithPast(last_hidden_state=self.norm(hidden), past_key_values=past_key_values)

    def _prepare(self, layout: Layout, like: Tensor) -> Sequence[PositionEncoding | PreparedBias | None]:
        """For each layer, a bias computed for several at once, or the encoding that all share. None: it has its own."""
        ours, window = self.config._attn_implementation == LONGFIRE, self.config.attention_window
        decodes = ours and window is not None and layout.queries.shape[-1] == 1  # each layer reads few keys
        by_layer = layout.group is not None or decodes
        shared = active_encoding(self.position_encoding)
        if shared is not None:
            prepares = shared.has_bias and not by_layer
            return [layout.prepare(shared, like if ours else None, window) if prepares else shared] * len(self.layers)
        rows = None
        if ours and layout.causal and layout.segment_ids is None and not by_layer:
            rows = prepare_rows(self.encodings, layout.queries, layout.keys, layout.key_mask, like)
        return [None] * len(self.layers) if rows is None else rows
