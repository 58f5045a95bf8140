"""Figure 3 (left) and Table 11: NarrativeQA at growing context."""

from longfire.lab.entry import BASELINES, TaskEntry

ENTRY = TaskEntry(
    "narrative-qa",
    "Figure 3, Table 11",
    "NarrativeQA at growing context",
    (*BASELINES, "fire"),
    task="narrative_qa",
    contexts=(1 / 16, 1 / 4, 1 / 2, 1, 2, 3, 4),
    stretches=(1, 4),
)
