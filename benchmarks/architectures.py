"""The table of decoders that can be retrofitted, for docs/retrofit.md."""

from longfire.model.retrofits.architectures import ALIBI, CLASSES, DECODER_HEADS, DECODERS, Architecture
from longfire.report.table import Table

YES = "✓"


def architectures_markdown() -> str:
    """One row per architecture: what it was, the heads, and what is special."""
    columns = ["architecture", "positions", "causal LM", "sequences", "tokens", "notes"]
    return Table(columns, [_row(architecture) for architecture in DECODERS], left=len(columns)).markdown()


def _row(architecture: Architecture) -> list[str]:
    served = {cls.__name__ for cls in CLASSES}
    prefixes = {architecture.name, architecture.text or architecture.name}
    heads = [YES if {prefix + part for prefix in prefixes} & served else "" for part in DECODER_HEADS]
    positions = "ALiBi" if architecture in ALIBI else "rotary"
    return [architecture.title or architecture.name, positions, *heads, architecture.note]
