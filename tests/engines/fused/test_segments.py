"""Packed documents: the table of tiles, and the kernels against the reference."""

import pytest
import torch

from longfire import ALiBi, attention, prepare_bias
from longfire.engines.fused import segments
from longfire.engines.fused.segments import NO_TILE, node_bounds, segment_table
from longfire.engines.fused.zones import BLOCK, TILE, Zones
from longfire.engines.layout import segment_positions
from tests.engines.fused.cases import both, close, device, kinked, sloped, small_t5


def packed(*rows):
    """Segment ids of rows of documents, given their lengths."""
    return torch.tensor([[n for n, length in enumerate(row) for _ in range(length)] for row in rows], device=device)


DOCUMENTS = ([1, 5, 640, 3, 67, 284], [1000])


@pytest.mark.parametrize("window", [None, 300])
@pytest.mark.parametrize("readable", [True, False])
def test_table(window, readable, monkeypatch):
    """Every tile of every document once, and room for its nodes; in a compiled graph, more of nothing."""
    monkeypatch.setattr(segments, "has_values", lambda tensor: readable)
    table = segment_table(packed(*DOCUMENTS), 64, window)
    documents = [(0, 0, 1), (0, 1, 6), (0, 6, 646), (0, 646, 649), (0, 649, 716), (0, 716, 1000), (1, 0, 1000)]
    documents.sort(key=lambda place: place[1] - place[2])  # the longest first
    rows = table.segments.tolist()
    assert [tuple(row[:3]) for row in rows[: len(documents)]] == documents
    assert (table.segments[len(documents) :, :3].diff() <= 0).all()  # empty
    assert table.longest == 1000
    assert rows[-1][0] == len(documents)

    begin = torch.zeros(2, dtype=torch.long)
    for row, (_, first, end) in zip(rows, documents, strict=False):
        assert row[3:] == begin.tolist()
        _, *nodes = Zones(end - first, 0, 64, window).sizes
        begin += torch.tensor(nodes)
    assert rows[-1][3:] == begin.tolist()

    tiles = [(number, *row) for number, *row in table.tiles.tolist() if number != NO_TILE]
    expected = [(n, *row) for row in rows[: len(documents)] for n in range(-(-(row[2] - row[1]) // TILE))]
    assert sorted(tiles) == sorted(expected)
    assert [number for number, *_ in tiles] == sorted((number for number, *_ in tiles), reverse=True)


@pytest.mark.parametrize("seed", range(20))
def test_bounds_of_nodes(seed):
    generator = torch.Generator().manual_seed(seed)
    longest = int(torch.randint(1, 6000, (1,), generator=generator))
    lengths = torch.randint(1, longest + 1, (30,), generator=generator)
    lengths[0] = longest
    lengths[15:] = lengths[15:].clamp(max=5 * BLOCK)
    table = segment_table(packed(lengths.tolist()), 64, None)
    bounds = node_bounds(Zones(longest, 0, 64), int(lengths.sum()))
    assert all(total <= bound for total, bound in zip(table.segments[-1, 3:].tolist(), bounds, strict=True))


@pytest.mark.parametrize(
    ("make", "rows", "queries", "window"),
    [
        (small_t5, ([1, 5, 64, 3, 57], [70, 60]), 130, None),
        (small_t5, ([1, 5, 30, 4], [33, 7]), 12, 6),
        (sloped, ([5, 290],), 12, None),  # to the middle zone
    ],
)
def test_segments(make, rows, queries, window):
    ids = packed(*rows)
    B, S = ids.shape
    q, k, v = torch.randn(B, B, queries, 16, device=device), *torch.randn(2, B, 1, S, 16, device=device)
    key_mask = torch.rand(B, S, device=device) < 0.9 if make is small_t5 else None
    close(*both(make(B), q, k, v, segment_ids=ids, window=window, key_mask=key_mask), tolerance=2e-5)


def test_short_documents_are_exact():
    """Every gradient of FIRE, with one bias for several layers."""
    fire, ids = kinked(1), packed([9, 21], [30])
    positions = torch.cat([torch.arange(9), torch.arange(21), torch.arange(30)]).view(2, 30).to(device)
    q, k, v = torch.randn(3, 2, 1, 30, 16, device=device)
    close(*both(fire, q, k, v, segment_ids=ids), tolerance=1e-4)
    prepared = prepare_bias(fire, positions, positions, in_order=True, segment_ids=ids)
    with torch.no_grad():
        close([attention(q, k, v, prepared, segment_ids=ids)], [attention(q, k, v, fire, segment_ids=ids)])


def test_no_gradient_between_documents():
    q, k, v = (tensor.requires_grad_() for tensor in torch.randn(3, 1, 1, 60, 16, device=device))
    out = attention(q, k, v, ALiBi(1).to(device), segment_ids=packed([20, 25, 15]), impl="fused")
    for gradient in torch.autograd.grad(out[:, :, 20:45].square().sum(), (q, k, v)):
        assert (gradient[:, :, :20] == 0).all()
        assert (gradient[:, :, 45:] == 0).all()
        assert (gradient[:, :, 20:45] != 0).any()


def test_a_hundred_documents_of_one_token():
    q, k, v = torch.randn(3, 1, 1, 100, 16, device=device)
    out = attention(q, k, v, small_t5(), segment_ids=packed([1] * 100), impl="fused")
    torch.testing.assert_close(out, v)


@pytest.mark.parametrize("make", [kinked, small_t5])
def test_decoding_in_the_last_document(make):
    encoding, ids = make(2), packed([30, 20], [7, 43])
    q, k, v = (torch.randn(2, heads, n, 16, device=device) for heads, n in ((2, 1), (1, 50), (1, 50)))
    with torch.no_grad():
        for window in (None, 9):
            close(*both(encoding, q, k, v, gradients=False, segment_ids=ids, window=window), tolerance=2e-6)


@pytest.mark.parametrize("make", [kinked, small_t5])
def test_positions_that_count_each_document(make):
    """They may be passed, or the bias be prepared for them, as if they were the default ones; hidden keys have any."""
    encoding, ids = make(2), packed([5, 30, 5])
    positions = segment_positions(ids)
    q, k, v = torch.randn(1, 2, 12, 16, device=device), *torch.randn(2, 1, 1, 40, 16, device=device)
    key_mask = torch.arange(40, device=device)[None] != 20
    layout = {"segment_ids": ids, "key_mask": key_mask, "impl": "fused"}
    expected = attention(q, k, v, encoding, **layout)
    hidden = torch.where(key_mask, positions, 3)
    found = attention(q, k, v, encoding, q_positions=positions[:, 28:], k_positions=hidden, **layout)
    assert torch.equal(found, expected)
    prepared = prepare_bias(encoding, positions[:, 28:], hidden, key_mask=key_mask, segment_ids=ids)
    assert prepared.in_order is True
    assert torch.equal(attention(q, k, v, prepared, **layout), expected)
    for_a_row = prepare_bias(encoding, positions[:, 28:], positions)
    assert torch.equal(attention(q, k, v, for_a_row, **layout), expected)


def test_positions_of_your_own_are_refused():
    q, ids, positions = torch.randn(1, 1, 9, 16, device=device), packed([4, 5]), torch.arange(9, device=device)
    own = segment_positions(ids)
    for queries, keys in ((2 * positions, 2 * positions), (own + 1, own), (own, own + 1)):
        with pytest.raises(ValueError, match="positions that count up from 0 in each segment"):
            attention(q, q, q, kinked(1), q_positions=queries, k_positions=keys, segment_ids=ids, impl="fused")
    assert prepare_bias(kinked(1), 2 * positions, 2 * positions, segment_ids=ids).in_order is False
