"""Attention: one entry, several engines."""

from longfire.engines.dispatch import ENGINES, RENAMED_ENGINES, AttentionPlan, attention, attention_plan
from longfire.engines.prepared import PreparedBias, prepare_bias, prepare_rows

__all__ = [
    "ENGINES",
    "RENAMED_ENGINES",
    "AttentionPlan",
    "PreparedBias",
    "attention",
    "attention_plan",
    "prepare_bias",
    "prepare_rows",
]
