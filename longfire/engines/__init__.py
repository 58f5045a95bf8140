"""Attention: one entry point, several engines."""

from longfire.engines.dispatch import ENGINES, AttentionPlan, attention, attention_plan, engine_name
from longfire.engines.prepared import PreparedBias, prepare_bias, prepare_rows

__all__ = [
    "ENGINES",
    "AttentionPlan",
    "PreparedBias",
    "attention",
    "attention_plan",
    "engine_name",
    "prepare_bias",
    "prepare_rows",
]
