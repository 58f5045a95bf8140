"""Records of measurements: how they survive an interruption, and how much text a ranking needs."""

from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import Any

Save = Callable[[dict[str, Any]], object]
FEW_DOCUMENTS, FEW_TOKENS = 10, 30_000
"""With less held-out text than this, the ranking of encodings may differ on other documents."""


@contextmanager
def interruptible(record: dict[str, Any], save: Save) -> Iterator[None]:
    """Mark a record as `interrupted` until the block ends, then save it. Ctrl-C ends the block early.

    A record without any rows or runs is not saved: it would overwrite an earlier one with nothing.
    """
    record["interrupted"] = True
    try:
        yield
        del record["interrupted"]
    except KeyboardInterrupt:
        pass
    if record.get("rows") or record.get("runs"):
        save(record)
