"""Records of many measurements, saved after each so that an interruption loses none."""

from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import Any

Save = Callable[[dict[str, Any]], object]


@contextmanager
def interruptible(record: dict[str, Any], save: Save) -> Iterator[None]:
    """Mark a record as `interrupted` while it is being filled, and save it at the end. Ctrl-C ends the block early."""
    record["interrupted"] = True
    try:
        yield
        del record["interrupted"]
    except KeyboardInterrupt:
        pass
    save(record)
