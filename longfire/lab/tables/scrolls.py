"""Table 1, base models: SCROLLS, each task by itself, fine-tuned at four times the training length."""

from longfire.lab.entry import BASELINES, TaskEntry

ENTRY = TaskEntry(
    "scrolls",
    "Table 1",
    "SCROLLS, base models fine-tuned at four times the training length",
    (*BASELINES, "fire", "fire-s"),
    task="scrolls",
)
