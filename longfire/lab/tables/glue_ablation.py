"""Table 3, below: what the logarithm and the threshold do on GLUE and SuperGLUE."""

from longfire.lab.entry import TaskEntry
from longfire.lab.tables import transform

ENTRY = TaskEntry(
    "glue-ablation",
    "Table 3",
    "GLUE and SuperGLUE, FIRE without the logarithm or the threshold",
    transform.ENTRY.encodings,
    task="glue",
)
