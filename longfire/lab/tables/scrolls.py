"""Table 1: SCROLLS, each task by itself, fine-tuned at four times the training length."""

from longfire.lab.entry import BASELINES, TaskEntry

ENTRY = TaskEntry(
    "scrolls",
    "Table 1",
    "SCROLLS, fine-tuned at four times the training length",
    (*BASELINES, "fire", "fire-s"),
    task="scrolls",
)
