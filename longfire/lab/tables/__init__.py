"""The paper's tables and figures, and its theorem, a file each."""

from longfire.lab.entry import Entry
from longfire.lab.tables import (
    activation,
    biases,
    depth,
    final_activation,
    glue,
    glue_ablation,
    glue_large,
    narrative_qa,
    perplexity_512,
    perplexity_base,
    perplexity_large,
    scrolls,
    scrolls_large,
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
        scrolls_large,
        narrative_qa,
        glue,
        glue_large,
        biases,
        speed,
        sharing,
        transform,
        glue_ablation,
        transform_baselines,
        depth,
        activation,
        final_activation,
        perplexity_512,
    )
}
"""By name, in the paper's order."""
