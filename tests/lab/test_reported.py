"""The paper's numbers."""

import pytest

from longfire.evaluation.metrics import average
from longfire.lab.reported import reported


@pytest.mark.parametrize(("table", "columns"), [("scrolls", 7), ("narrative_qa", 7), ("glue", 15)])
def test_averages_match_their_rows(table, columns):
    """To the last printed digit."""
    rows = reported(table)
    keys = [key for key in rows[0] if key not in ("size", "encoding", "label", "extended_to", "average")]
    assert len(keys) == columns
    for row in rows:
        own = average(row, keys)
        assert own is None or row["average"] is None or abs(own - row["average"]) <= 0.006, row


def test_single_numbers():
    scrolls = {(row["size"], row["encoding"]): row for row in reported("scrolls")}
    assert scrolls["base", "fire"]["contract_nli"] == 82.93
    assert scrolls["large", "alibi"]["average"] == 16.58
    assert len(scrolls) == 15
    glue = {(row["size"], row["encoding"]): row for row in reported("glue")}
    assert glue["large", "fire"]["wsc"] == 72.12
    assert (glue["base", "fire-s"]["average"], glue["base", "fire-s"]["cb"]) == (71.04, None)
    stretched = [row for row in reported("narrative_qa") if row["encoding"] == "rope_pi"]
    assert [(row["extended_to"], row["32768"]) for row in stretched] == [(8192.0, 0.623), (32768.0, 6.767)]
    with pytest.raises(ValueError, match="Did you mean 'glue'"):
        reported("gleu")
