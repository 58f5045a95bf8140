"""Table 1, large models: SCROLLS. FIRE-S is not among them."""

from longfire.lab.entry import BASELINES, TaskEntry

ENTRY = TaskEntry(
    "scrolls-large",
    "Table 1",
    "SCROLLS, large models fine-tuned at four times the training length",
    (*BASELINES, "fire"),
    recipe="large",
    task="scrolls",
)
