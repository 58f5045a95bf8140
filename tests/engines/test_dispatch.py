"""Which engine runs, and why."""

import pytest
import torch

from longfire import FIRE, attention, attention_plan, random_positions
from longfire.encodings import ALiBi
from longfire.engines import ENGINES, dispatch
from tests.engines.oracle import random
from tests.samples import ADDITIVE, HEADS, make


def test_plan():
    q, k, v = random()
    mask = torch.ones(2, 7, dtype=torch.bool)
    plan = attention_plan(q, k, v, make("fire"))
    assert plan.engine == "chunked"
    assert "all queries in one chunk" in str(plan)
    assert [reason.split(":")[0] for reason in plan.others] == ["fused"]
    assert f"; not {plan.others[0]}" in str(plan)
    assert str(attention_plan(q, k, v)).endswith("; not chunked: there is no bias to compute in chunks; sdpa is faster")
    assert "the bias as a dense tensor" in str(attention_plan(q, k, v, ALiBi(HEADS), impl="sdpa"))
    for options, why in [
        ({"bias": make("nope")}, "causal, no bias and no mask to build"),
        ({"causal": False}, "no bias and no mask to build"),
        ({"q": q[:, :, -1:]}, "no bias and no mask to build"),
        ({"key_mask": mask}, "no bias, the mask as a dense tensor"),
        ({"q": q[:, :, 3:]}, "no bias, the mask as a dense tensor"),
    ]:
        assert attention_plan(**{"q": q, "k": k, "v": v, **options}).why.endswith(why)
    assert attention_plan(q, k, v, impl="reference").engine == "reference"
    with pytest.raises(ValueError, match="ALiBi has 12 heads"):
        attention_plan(q, k, v, ALiBi(12))


def test_an_engine_that_cannot_serve_says_why(monkeypatch):
    class Picky:
        name = "picky"

        def refuses(self, request):
            return "it takes no keys" if request.k.shape[2] else None

        def describe(self, request):
            return "picky"

        def run(self, request):
            return request.q

    q, k, v = random()
    known = {**ENGINES, "picky": Picky()}
    monkeypatch.setattr(dispatch, "ENGINES", known)
    assert attention_plan(q, k, v).engine == "sdpa"
    with pytest.raises(ValueError, match=r"impl='picky' cannot serve this request \(picky: it takes no keys\)"):
        attention(q, k, v, impl="picky")
    monkeypatch.setattr(dispatch, "ENGINES", {name: known[name] for name in ("picky", "reference")})
    assert attention_plan(q, k, v).engine == "reference"


def test_an_old_name_works_and_warns():
    q, k, v = random()
    with pytest.warns(FutureWarning, match="'blocks' is now 'chunked'") as caught:
        found = attention(q, k, v, ALiBi(HEADS), impl="blocks")
    assert caught[0].filename == __file__
    assert torch.equal(found, attention(q, k, v, ALiBi(HEADS), impl="chunked"))


def test_plan_computes_nothing(monkeypatch):
    monkeypatch.setattr(FIRE, "bias", lambda *_: pytest.fail("the bias was made"))
    attention_plan(*random(), make("fire"))


@pytest.mark.parametrize("name", ADDITIVE)
def test_random_positions_equal_the_reference(name, monkeypatch):
    monkeypatch.setattr("longfire.engines.chunked.CHUNK_ELEMENTS", {"cpu": 0})  # several chunks
    inputs = random(T=40, S=40)
    positions = random_positions(2, 40, 500, generator=torch.Generator().manual_seed(0))
    found = []
    for impl in ("auto", "reference"):
        encoding = make(name, torch.float64)
        q, k, v = (tensor.requires_grad_() for tensor in inputs)
        out = attention(q, k, v, encoding, q_positions=positions, k_positions=positions, impl=impl)
        found.append([out, *torch.autograd.grad(out.square().sum(), [q, k, v, *encoding.parameters()])])
    torch.testing.assert_close(*found)
