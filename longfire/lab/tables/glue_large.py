"""Figure 3 (right) and Table 13, large models: GLUE and SuperGLUE, one mixture. FIRE-S is not among them."""

from longfire.lab.entry import BASELINES, TaskEntry

ENTRY = TaskEntry(
    "glue-large",
    "Figure 3, Table 13",
    "GLUE and SuperGLUE, one mixture, large models",
    (*BASELINES, "fire"),
    recipe="large",
    task="glue",
)
