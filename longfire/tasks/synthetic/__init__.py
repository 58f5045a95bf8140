"""Tasks at any length, with known answers: what a model trained on short rows makes of long ones.

>>> task = synthetic_task("copy")
>>> rows = task.rows(1000, task.lengths(40), seed=0)
>>> print(task.decode(rows[0]["input_ids"]))
"""

from longfire.tasks.synthetic.addition import ADDITION
from longfire.tasks.synthetic.chomsky import CHOMSKY
from longfire.tasks.synthetic.mqar import MQAR
from longfire.tasks.synthetic.passkey import PASSKEY, passkey_task
from longfire.tasks.synthetic.strings import STRINGS
from longfire.tasks.synthetic.task import BOS, EOS, IGNORED, PAD, SEP, Rows, SyntheticTask
from longfire.validation import hint

__all__ = [
    "BOS",
    "CHOMSKY",
    "EOS",
    "IGNORED",
    "PAD",
    "SEP",
    "SYNTHETIC",
    "Rows",
    "SyntheticTask",
    "passkey_task",
    "synthetic_task",
]

SYNTHETIC: dict[str, SyntheticTask] = {task.name: task for task in (*STRINGS, *ADDITION, MQAR, PASSKEY, *CHOMSKY)}


def synthetic_task(name: str) -> SyntheticTask:
    """The synthetic task with this name."""
    if name not in SYNTHETIC:
        raise ValueError(f"there is no synthetic task {name!r}. {hint(name, SYNTHETIC)}")
    return SYNTHETIC[name]
