"""A record of many measurements: saved after each, so that an interruption loses none."""

from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import asdict
from typing import Any

from tqdm import tqdm

from longfire.provenance import kernel_hash, provenance

Row = dict[str, Any]
Save = Callable[[dict[str, Any]], object]


@contextmanager
def until_done(record: dict[str, Any], save: Save) -> Iterator[None]:
    """Around the work on a record: until it is done, or where Ctrl-C ends it, the record says that it was interrupted.

    It is saved at the end of both.
    """
    record["interrupted"] = True
    try:
        yield
        del record["interrupted"]
    except KeyboardInterrupt:
        pass
    save(record)


def record_of(
    setting: Any, measure_case: Callable[[Any, Any], Row], add_ratios: Callable[[list[Row]], None], save: Save
) -> dict[str, Any]:
    """Every case of the setting as a row of a record, which is saved after each."""
    made = provenance() | {"kernels": kernel_hash()}
    record: dict[str, Any] = {"provenance": made, "setting": asdict(setting), "rows": []}
    cases = tqdm(setting.cases(), unit="case", desc=f"bench {setting.subject}", disable=None)
    with until_done(record, save), cases as progress:
        for case in progress:
            progress.set_postfix_str(str(case))
            record["rows"].append(measure_case(setting, case))
            add_ratios(record["rows"])
            save(record)
    return record
