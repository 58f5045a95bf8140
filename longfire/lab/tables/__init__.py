"""The paper's tables and figures, and its theorem, a file each."""

from longfire.lab.entry import Entry
from longfire.lab.tables import (
    activation,
    biases,
    depth,
    final_activation,
    glue,
    narrative_qa,
    perplexity_512,
    perplexity_base,
    perplexity_large,
    scrolls,
    sharing,
    speed,
    theorem,
    transform,
    transform_baselines,
)

ENTRIES: dict[str, Entry] = {
    table.ENTRY.name: table.ENTRY
    for table in (
        theorem,
        perplexity_base,
        perplexity_large,
        scrolls,
        narrative_qa,
        glue,
        biases,
        speed,
        sharing,
        transform,
        transform_baselines,
        depth,
        activation,
        final_activation,
        perplexity_512,
    )
}
"""By name, in the paper's order."""
