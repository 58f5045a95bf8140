"""A record of many measurements: saved after each, so that an interruption loses none."""

from collections.abc import Callable
from dataclasses import asdict
from typing import Any

from tqdm import tqdm

from longfire.provenance import provenance

Row = dict[str, Any]
Save = Callable[[dict[str, Any]], object]


def record_of(
    setting: Any, measure_case: Callable[[Any, Any], Row], add_ratios: Callable[[list[Row]], None], save: Save
) -> dict[str, Any]:
    """Every case of the setting as a row of a record, which is saved after each.

    Until the last row is in, or where Ctrl-C ends it, the record says that it was interrupted.
    """
    record: dict[str, Any] = {"provenance": provenance(), "setting": asdict(setting), "rows": [], "interrupted": True}
    try:
        with tqdm(setting.cases(), unit="case", desc=f"bench {setting.subject}", disable=None) as progress:
            for case in progress:
                progress.set_postfix_str(str(case))
                record["rows"].append(measure_case(setting, case))
                add_ratios(record["rows"])
                save(record)
        del record["interrupted"]
    except KeyboardInterrupt:
        pass
    save(record)
    return record
