"""Figure 3 (right) and Table 13, base models: GLUE and SuperGLUE, one mixture."""

from longfire.lab.entry import BASELINES, TaskEntry

ENTRY = TaskEntry(
    "glue",
    "Figure 3, Table 13",
    "GLUE and SuperGLUE, one mixture, base models",
    (*BASELINES, "fire", "fire-s"),
    task="glue",
)
