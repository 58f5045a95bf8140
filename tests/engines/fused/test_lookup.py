"""Attention at any positions, against the reference."""

import pytest
import torch

from longfire import FIRE, KerpleLog, attention, attention_plan, random_positions
from longfire.encodings import DistanceBias
from longfire.engines.fused import engine, lookup
from longfire.engines.fused.layout import LookupLayout, lookup_layout
from longfire.engines.fused.zones import TILE
from longfire.engines.layout import Span
from tests.engines.fused.cases import Wave, both, close, device, small_t5, two_sided_t5
from tests.engines.fused.test_segments import packed


def scattered(B, length, step=3):
    """Increasing positions with gaps, of their own for each sequence."""
    return torch.randint(1, step + 1, (B, length), device=device).cumsum(1) + 7


@pytest.fixture
def calls(monkeypatch):
    """The calls that the kernels served."""
    served, forward = [], lookup.forward
    monkeypatch.setattr(lookup, "forward", lambda call: served.append(call) or forward(call))
    return served


CASES = {
    # encoding, T, S, and what differs from causal attention of all keys
    "one pair": (small_t5, 1, 1, {}),
    "gaps": (lambda heads: KerpleLog(heads).to(device), 129, 129, {}),
    "last queries": (small_t5, 30, 111, {"mask": 0.8}),
    "more queries than keys": (small_t5, 70, 33, {"mask": 0.8}),
    "window": (small_t5, 130, 130, {"window": 5}),
    "window beyond the keys": (small_t5, 63, 63, {"window": 1 << 40}),
    "both sides": (two_sided_t5, 63, 63, {"causal": False, "mask": 0.5}),
    "both sides, window": (two_sided_t5, 40, 130, {"causal": False, "window": 30}),
    "documents": (small_t5, 111, 111, {"rows": ([1, 5, 64, 41], [100, 11]), "mask": 0.8}),
    "documents, window, last queries": (small_t5, 20, 111, {"rows": ([3, 108], [100, 11]), "window": 9}),
    "documents, both sides": (two_sided_t5, 111, 111, {"rows": ([1, 5, 64, 41], [100, 11]), "causal": False}),
}


@pytest.mark.parametrize("case", CASES)
def test_as_the_reference(case, calls):
    """Output and all gradients, of heads that share keys."""
    torch.manual_seed(0)
    make, T, S, options = CASES[case]
    options = dict(options)
    positions = scattered(2, max(T, S))
    where = {"q_positions": positions[:, -T:], "k_positions": positions[:, -S:]}
    if S == 1:
        where = {"q_positions": positions + 3, "k_positions": positions}
    if "mask" in options:
        where["key_mask"] = torch.rand(2, S, device=device) < options.pop("mask")
    if "rows" in options:
        where["segment_ids"] = packed(*options.pop("rows"))
    q, k, v = torch.randn(2, 2, T, 16, device=device), *torch.randn(2, 2, 1, S, 16, device=device)
    close(*both(make(2), q, k, v, **where, **options), tolerance=2e-6)
    assert len(calls) == 1


def test_positions_shared_by_all_sequences(calls):
    """As `random_positions` draws them; and padding in the middle, and left padding, both ways."""
    q, k, v = torch.randn(3, 2, 1, 70, 24, device=device)
    shared = random_positions(1, 70, 500)[0].to(device)
    key_mask = torch.ones(2, 70, dtype=torch.bool, device=device)
    key_mask[:, 30:40] = False
    left = torch.tensor([[0] * 5 + list(range(65))] * 2, device=device)
    after_padding = torch.arange(70, device=device).expand(2, -1) >= 5
    for positions, mask, causal in ((shared, None, True), (shared, key_mask, True), (left, after_padding, False)):
        where = {"q_positions": positions, "k_positions": positions, "key_mask": mask, "causal": causal}
        close(*both(two_sided_t5(1), q, k, v, **where), tolerance=2e-6)
    assert len(calls) == 3


def test_queries_that_see_nothing():
    """Are 0, and so are their gradients."""
    q, k, v = (x.requires_grad_() for x in torch.randn(3, 1, 1, 40, 16, device=device))
    positions = scattered(1, 40)
    key_mask = torch.arange(40, device=device)[None] >= 9
    where = {"q_positions": positions, "k_positions": positions, "key_mask": key_mask}
    out = attention(q, k, v, small_t5(), **where, impl="fused")
    gradients = torch.autograd.grad(out.square().sum(), (q, k, v))
    assert (out[:, :, :9] == 0).all()
    assert all((gradient[:, :, :9] == 0).all() for gradient in gradients)
    assert all((gradient[:, :, 9:] != 0).any() for gradient in gradients)


def test_a_window_of_one_key():
    q, k, v = torch.randn(3, 1, 1, 63, 16, device=device)
    positions = scattered(1, 63)
    out = attention(q, k, v, small_t5(), q_positions=positions, k_positions=positions, window=1, impl="fused")
    torch.testing.assert_close(out, v)


def test_half_precision():
    q, k, v = torch.randn(3, 1, 2, 70, 16, device=device).half()
    positions = scattered(1, 70)
    where = {"q_positions": positions, "k_positions": positions}
    encoding = small_t5(2)
    tensors = [x.requires_grad_() for x in (q, k, v)]
    out = attention(*tensors, encoding, **where, impl="fused")
    found = (out, *torch.autograd.grad(out.float().square().sum(), [*tensors, *encoding.parameters()]))
    exact = [x.detach().double().requires_grad_() for x in tensors]
    out = attention(*exact, encoding.double(), **where, impl="reference")
    close(found, (out, *torch.autograd.grad(out.square().sum(), [*exact, *encoding.parameters()])), tolerance=4e-3)


def test_dropout():
    """The same pairs in forward and backward: a directional derivative."""
    q, k, v = torch.randn(3, 1, 1, 70, 16, device=device)
    positions, encoding = scattered(1, 70), Wave(1).to(device)
    kept = []

    def run(v):
        torch.manual_seed(3)
        out = attention(
            q, k, v, encoding, q_positions=positions, k_positions=positions, dropout_p=0.3, impl="fused"
        )  # fmt: skip
        kept.append(out.detach())
        return out

    v.requires_grad_()
    direction = torch.randn_like(v)
    (gradient,) = torch.autograd.grad((run(v) * direction).sum(), v)
    along = torch.randn_like(v)
    change = ((run(v.detach() + along) - run(v.detach())) * direction).sum()  # linear in v
    torch.testing.assert_close((gradient * along).sum(), change, rtol=1e-3, atol=1e-3)
    without = attention(q, k, v, encoding, q_positions=positions, k_positions=positions, impl="fused")
    assert not torch.allclose(kept[0], without, atol=1e-2)


@pytest.mark.filterwarnings("ignore:invalid value:RuntimeWarning")
def test_the_tables_gradient_does_not_depend_on_scale():
    """Its integers are chosen for the size of the gradients: tiny and huge ones lose nothing; infinite ones are NaN."""
    q, k, v = torch.randn(3, 1, 1, 70, 16, device=device)
    positions, encoding = scattered(1, 70), Wave(1).to(device)
    found = []
    for scale in (1.0, 1e-20, 1e20, float("inf")):
        out = attention(q, k, v, encoding, q_positions=positions, k_positions=positions, impl="fused")
        (gradient,) = torch.autograd.grad(out, list(encoding.parameters()), scale * torch.ones_like(out))
        found.append(gradient / scale)
    torch.testing.assert_close(found[1], found[0], rtol=1e-5, atol=1e-6)
    torch.testing.assert_close(found[2], found[0], rtol=1e-5, atol=1e-6)
    assert found[3].isnan().all()


@pytest.mark.parametrize("causal", [True, False])
@pytest.mark.parametrize("window", [None, 40])
def test_tiles_that_do_not_meet_are_skipped(causal, window):
    """Each pair that counts is within reach, and distant tiles are not."""
    q_positions, k_positions = scattered(1, 300)[:, 100:], scattered(1, 300)
    span = Span(q_positions, None), Span(k_positions, None)
    found = lookup_layout(*span, None, causal, window, None)
    distance = q_positions[0, :, None] - k_positions[0]
    seen = torch.ones_like(distance, dtype=torch.bool)
    if causal:
        seen &= distance >= 0
    if window is not None:
        seen &= (distance < window) & ((-distance < window) | torch.tensor(causal, device=device))
    queries, keys = (torch.arange(n, device=device) // TILE for n in seen.shape)
    for rows, columns, meet, reach in (
        (queries, keys, seen, found.seen_by_queries),
        (keys, queries, seen.mT, found.seeing_keys),
    ):
        for tile, (first, end) in enumerate(reach[0].view(-1, 2).tolist()):
            columns_seen = columns[meet[rows == tile].any(0)].unique().tolist()
            assert list(range(first, end)) == columns_seen


def test_what_is_refused(monkeypatch):
    """FIRE's bias is not one of the distance; and a table may be too long to store."""
    q = torch.zeros(1, 1, 9, 16, device=device)
    positions = torch.arange(9, device=device) * 2
    where = {"q_positions": positions, "k_positions": positions, "impl": "fused"}
    with pytest.raises(ValueError, match="do not go up one by one from 0"):
        attention(q, q, q, FIRE(1).to(device), **where)
    attention(q, q, q, small_t5(), **where)
    monkeypatch.setattr(engine, "LARGEST_TABLE", 127)
    with pytest.raises(ValueError, match="do not go up one by one from 0"):
        attention(q, q, q, small_t5(), **where)


class Table(DistanceBias):
    """A learned bias for each of 100 distances."""

    max_length = 100

    def __init__(self):
        super().__init__()
        self.num_heads = 1
        self.table = torch.nn.Parameter(torch.randn(1, 100))

    def of_distance(self, distance):
        return self.table[0][distance.clamp(min=0)]


def test_no_distance_past_max_length_is_sampled(calls):
    encoding, q = Table().to(device), torch.randn(1, 1, 50, 16, device=device)
    positions = torch.arange(50, device=device) * 2
    where = {"q_positions": positions, "k_positions": positions}
    close(*both(encoding, q, q, q, **where), tolerance=2e-6)
    assert len(calls) == 1
    positions[-1] = 100
    with pytest.raises(ValueError, match="do not go up one by one"):
        attention(q, q, q, encoding, **where, impl="fused")


def test_the_plan_says_so():
    q = torch.zeros(1, 1, 9, 16, device=device)
    positions = torch.arange(9, device=device) * 2
    plan = attention_plan(q, q, q, small_t5(), q_positions=positions, k_positions=positions, impl="fused")
    assert "any positions; every pair looks up T5's bias, exactly" in str(plan)
    assert plan.error == 0


def test_random_positions_below_a_limit_are_not_read():
    """A model knows how far positions can be apart, and does not wait for a GPU to tell."""
    positions = scattered(1, 9)
    span = Span(positions, None)
    assert isinstance(lookup_layout(span, span, None, True, None, 4096), LookupLayout)
    assert lookup_layout(span, span, None, True, None, 4096).distances == 4096
    assert lookup_layout(span, span, None, True, None, None).distances == 128
