"""Records of measurements that survive an interruption."""

from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import Any

Save = Callable[[dict[str, Any]], object]


@contextmanager
def interruptible(record: dict[str, Any], save: Save) -> Iterator[None]:
    """Mark a record as `interrupted` until the block ends, then save it. Ctrl-C ends the block early."""
    record["interrupted"] = True
    try:
        yield
        del record["interrupted"]
    except KeyboardInterrupt:
        pass
    save(record)
