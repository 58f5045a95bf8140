"""What encodings do to attention before training."""

import pytest
import torch

from longfire import ENCODINGS
from longfire.encodings import ALiBi
from longfire.report.explore import HEADS, effects, effects_table


@pytest.mark.parametrize("query", [128, 8192])
def test_effects_of_every_encoding(query):
    shown = effects(query)
    assert {effect.name for effect in shown} == {*ENCODINGS, "fire, as kerple_log"}
    assert shown[0].name == "fire"
    for effect in shown:
        assert effect.curves.shape == (HEADS if effect.kind == "bias" else 1, query)
        assert torch.isfinite(effect.curves).all()
    by_name = {effect.name: effect for effect in shown}
    expected = ALiBi(HEADS).bias(torch.tensor([query - 1]), torch.arange(query))[:, 0]
    torch.testing.assert_close(by_name["alibi"].curves, expected)
    assert by_name["rope"].at(0) == pytest.approx(1.0)
    assert by_name["rope"].at(1) < 1.0
    assert by_name["nope"].kind == "nothing"
    table = effects_table(query, shown)
    assert len(table.splitlines()) == len(shown) + 2
    assert [by_name[name].learned for name in ("fire", "alibi", "t5", "rope")] == [True, False, True, False]
