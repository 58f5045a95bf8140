"""Packed documents, windows and both directions on the dense engines, against a loop over numbers."""

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from torch._dynamo.testing import CompileCounterWithBackend

from longfire import attention, attention_plan, build_encoding, prepare_bias, random_positions
from longfire.engines import chunked
from longfire.engines.layout import segment_positions
from longfire.engines.request import Request
from tests.engines.oracle import by_hand, random
from tests.samples import HEADS, make, sides

ENGINES = ["reference", "sdpa", "chunked"]


@pytest.fixture(autouse=True)
def _small_chunks(monkeypatch):
    monkeypatch.setattr(chunked, "_rows", lambda request: 20)


def segments(length: int, parts: int, rows: int = 2) -> torch.Tensor:
    """Rows of documents of random lengths; ids need not be consecutive."""
    cuts = torch.rand(rows, length).argsort(-1) < parts - 1
    return (2 * cuts.long()).cumsum(-1)


def documents(segment_ids: torch.Tensor):
    """Row and slice of each document."""
    for row, ids in enumerate(segment_ids.tolist()):
        for one in sorted(set(ids)):
            start = ids.index(one)
            yield row, slice(start, start + ids.count(one))


def with_gradients(q, k, v, encoding, impl, **options):
    inputs = [tensor.detach().requires_grad_() for tensor in (q, k, v)]
    learned = [] if encoding is None else list(encoding.parameters())
    out = attention(*inputs, encoding, impl=impl, **options)
    weight = torch.randn(out.shape, generator=torch.Generator().manual_seed(7), dtype=out.dtype)
    return [out, *torch.autograd.grad(out, inputs + learned, weight, allow_unused=True, materialize_grads=True)]


@pytest.mark.parametrize("impl", ENGINES)
@given(data=st.data())
@settings(max_examples=15)
def test_by_hand(impl, data):
    """Segments, windows, masks, positions and grouped heads in any combination."""
    S = data.draw(st.integers(1, 9), "S")
    T = data.draw(st.integers(1, S), "T")
    causal = data.draw(st.booleans(), "causal")
    q, k, v = random(2, HEADS, data.draw(st.sampled_from([1, HEADS]), "G"), T, S)
    options = {"causal": causal, "window": data.draw(st.sampled_from([None, 1, 2, 5, 100]), "window")}
    if data.draw(st.booleans(), "segments"):
        options["segment_ids"] = segments(S, data.draw(st.integers(1, S), "parts"))
    if data.draw(st.booleans(), "mask"):
        options["key_mask"] = torch.rand(2, S) < 0.7
    ids = options.get("segment_ids")
    positions = torch.arange(S).expand(2, S) if ids is None else segment_positions(ids)
    if data.draw(st.booleans(), "positions"):
        positions = random_positions(2, S, 12)
        options |= {"q_positions": positions[:, S - T :], "k_positions": positions}
    where = positions[:, S - T :], positions
    kerple = make("kerple_log", torch.float64)
    expected = by_hand(q, k, v, kerple.bias(*where).detach(), *(one.tolist() for one in where), **oracle(options))
    torch.testing.assert_close(attention(q, k, v, kerple, impl=impl, **options), expected)


def oracle(options: dict) -> dict:
    return {name: value for name, value in options.items() if not name.endswith("positions")}


@pytest.mark.parametrize("length", [1, 63, 257])
@pytest.mark.parametrize("window", [None, 1, 30])
@pytest.mark.parametrize("causal", [True, False])
@pytest.mark.parametrize("name", ["fire", "t5", "kerple_log"])
def test_engines_agree_with_gradients(name, causal, window, length):
    q, k, v = random(2, 4, 2, length)
    encoding = build_encoding(name, num_heads=4, **sides(name, causal)).double()
    options = {
        "causal": causal,
        "window": window,
        "segment_ids": segments(length, 1 + length // 20),
        "key_mask": torch.rand(2, length) < 0.9,
    }
    expected = with_gradients(q, k, v, encoding, "reference", **options)
    for impl in ("sdpa", "chunked"):
        torch.testing.assert_close(with_gradients(q, k, v, encoding, impl, **options), expected)


@pytest.mark.parametrize("name", ["fire", "alibi"])
@pytest.mark.parametrize("window", [None, 13])
def test_a_segment_alone_equals_the_segment_in_the_pack(name, window):
    q, k, v = random(T=111)
    segment_ids, encoding = segments(111, 7), make(name, torch.float64)
    packed = attention(q, k, v, encoding, impl="reference", segment_ids=segment_ids, window=window)
    for row, tokens in documents(segment_ids):
        alone = [tensor[row : row + 1, :, tokens] for tensor in (q, k, v)]
        out = attention(*alone, encoding, window=window, impl="reference")
        torch.testing.assert_close(packed[row : row + 1, :, tokens], out)


@pytest.mark.parametrize("impl", ENGINES)
@pytest.mark.parametrize("causal", [True, False])
@pytest.mark.parametrize("bias", ["alibi", None])
def test_no_gradient_between_segments(bias, causal, impl):
    q, k, v = (tensor.requires_grad_() for tensor in random(T=63))
    segment_ids = segments(63, 5)
    out = attention(q, k, v, bias and make(bias, torch.float64), segment_ids=segment_ids, causal=causal, impl=impl)
    row, tokens = list(documents(segment_ids))[2]
    inside = torch.zeros(2, 63, dtype=torch.bool)
    inside[row, tokens] = True
    for gradient in torch.autograd.grad(out[row, :, tokens].square().sum(), (q, k, v)):
        assert (gradient.transpose(1, 2)[~inside] == 0).all()
        assert (gradient.transpose(1, 2)[inside] != 0).any()


@pytest.mark.parametrize("impl", ENGINES)
def test_extreme_segments(impl):
    """A hundred documents; one token each; one document; no token at all."""
    encoding = make("fire", torch.float64)
    q, k, v = random(T=111)
    hundred = (torch.arange(111).clamp(max=99)).expand(2, -1)
    single = torch.arange(111).expand(2, -1)
    same = torch.full((2, 111), -5, dtype=torch.int32)
    torch.testing.assert_close(attention(q, k, v, encoding, segment_ids=single, impl=impl), v)
    torch.testing.assert_close(
        attention(q, k, v, encoding, segment_ids=same, impl=impl), attention(q, k, v, encoding, impl="reference")
    )
    out = attention(q, k, v, encoding, segment_ids=hundred, impl=impl)
    torch.testing.assert_close(out[:, :, :99], v[:, :, :99])
    last = attention(q[:, :, 99:], k[:, :, 99:], v[:, :, 99:], encoding, impl="reference")
    torch.testing.assert_close(out[:, :, 99:], last)
    empty = random(T=0)
    assert attention(*empty, encoding, segment_ids=torch.zeros(2, 0, dtype=torch.long), impl=impl).shape[2] == 0


@pytest.mark.parametrize("impl", ENGINES)
def test_extreme_windows(impl):
    q, k, v = random(T=63)
    encoding = make("fire", torch.float64)
    torch.testing.assert_close(attention(q, k, v, encoding, window=1, impl=impl), v)
    whole = attention(q, k, v, encoding, impl="reference")
    for window in (63, 64, 2**70):
        torch.testing.assert_close(attention(q, k, v, encoding, window=window, impl=impl), whole)
    gaps = random_positions(2, 63, 500)
    where = {"q_positions": gaps, "k_positions": gaps}
    torch.testing.assert_close(attention(q, k, v, encoding, window=1, **where, impl=impl), v)


@pytest.mark.parametrize("impl", ENGINES)
@pytest.mark.parametrize("window", [None, 4])
def test_cached_decoding_of_the_last_document(window, impl):
    q, k, v = random(T=30)
    segment_ids, fire = torch.tensor([[0] * 12 + [1] * 18, [3] * 30]), make("fire", torch.float64, init_L=4.0)
    whole = attention(q, k, v, fire, segment_ids=segment_ids, window=window, impl="reference")
    for T in (1, 7):
        last = attention(q[:, :, -T:], k, v, fire, segment_ids=segment_ids, window=window, impl=impl)
        torch.testing.assert_close(last, whole[:, :, -T:])


@pytest.mark.parametrize("impl", ENGINES)
def test_dropout_stays_inside_the_layout(impl):
    q = k = torch.zeros(1, 1, 63, 63)
    v, ids = torch.eye(63)[None, None], segments(63, 4, rows=1)
    weights = attention(q, k, v, dropout_p=0.5, segment_ids=ids, window=9, impl=impl)[0, 0]
    seen = Request(q, k, v, None, None, None, True, None, 0.5, None, 9, ids).visible()[0, 0]
    assert (weights[~seen] == 0).all()
    assert 0.3 < (weights[seen] == 0).float().mean() < 0.7


@pytest.mark.parametrize("impl", ENGINES)
def test_prepared_for_a_layout(impl):
    (q, k, v), ids, fire = random(T=30), segments(30, 4), make("fire", torch.float64)
    positions = segment_positions(ids)
    expected = attention(q, k, v, fire, segment_ids=ids, window=5, impl="reference")
    layout = {"segment_ids": ids, "window": 5}
    for options in ({}, layout, {**layout, "in_order": True}):
        prepared = prepare_bias(fire, positions, positions, **options)
        torch.testing.assert_close(attention(q, k, v, prepared, **layout, impl=impl), expected)
    for other, message in [
        ({**layout, "window": 6}, "prepared for window=5, not 6: pass attention the same window"),
        ({**layout, "window": None}, "prepared for window=5, not None"),
        ({**layout, "segment_ids": 2 * ids + 1}, "prepared for other segment_ids"),
        ({"window": 5}, "prepared for other segment_ids"),
    ]:
        with pytest.raises(ValueError, match=message):
            attention(q, k, v, prepared, **other, impl=impl)
    causal = prepare_bias(make("alibi"), positions, positions)
    with pytest.raises(ValueError, match=r"prepare it with causal=False"):
        attention(q, k, v, causal, causal=False, segment_ids=ids, impl=impl)
    with pytest.raises(ValueError, match=r"in_order=True needs keys at 0…29, after any padding or in each segment"):
        prepare_bias(fire, torch.arange(30), torch.arange(30), in_order=True, segment_ids=ids)
    with pytest.raises(ValueError, match="padding needs in_order=True, and no segment_ids"):
        prepare_bias(fire, positions, positions, in_order=True, segment_ids=ids, padding=torch.tensor([0, 0]))


@pytest.mark.parametrize(
    ("layout", "error", "message"),
    [
        ({"window": 0}, ValueError, r"window \(how many positions a query sees.*\) must be at least 1, not 0"),
        ({"window": 2.5}, TypeError, "window .* must be a whole number, not 2.5"),
        ({"window": True}, TypeError, "window .* must be a whole number, not True"),
        ({"segment_ids": [[0] * 7] * 2}, TypeError, "segment_ids must be an integer tensor, not list"),
        ({"segment_ids": torch.zeros(2, 7)}, TypeError, "segment_ids must be int64 or int32, not torch.float32"),
        ({"segment_ids": torch.zeros(7).long()}, ValueError, r"segment_ids must have shape \(2, 7\), .* not \(7,\)"),
        ({"segment_ids": torch.zeros(2, 7, device="meta").long()}, ValueError, "segment_ids are on meta and q is on"),
        (
            {"segment_ids": torch.tensor([[0] * 7, [0, 0, 1, 1, 0, 0, 0]])},
            ValueError,
            "segment_ids must not decrease along a row.*, but in row 1 0 follows 1. Number the documents",
        ),
    ],
)
def test_bad_layouts(layout, error, message):
    for ask in (attention, attention_plan):
        with pytest.raises(error, match=message):
            ask(*random(), **layout)


def test_positions_must_increase_within_a_segment():
    q, k, v = random()
    positions = torch.tensor([[0, 1, 2, 0, 1, 2, 3], [5, 7, 9, 2, 3, 8, 9]])
    ids = torch.tensor([[0, 0, 0, 1, 1, 1, 1]] * 2)
    where = {"q_positions": positions, "k_positions": positions}
    attention(q, k, v, segment_ids=ids, **where)
    hidden = torch.ones(2, 7, dtype=torch.bool)
    hidden[1, 3] = False
    ids_of_both = torch.tensor([[0, 0, 0, 1, 1, 1, 1], [0, 0, 0, 0, 1, 1, 1]])
    with pytest.raises(
        ValueError, match=r"within each segment, and in sequence 1, position 2 follows 9: .* Number them differently"
    ):
        attention(q, k, v, segment_ids=ids_of_both, **where)
    attention(q, k, v, segment_ids=ids_of_both, key_mask=hidden, **where)
    with pytest.raises(ValueError, match=r"9 queries but only 7 keys.*with segment_ids, they always are"):
        attention(*random(T=9, S=7), segment_ids=ids, q_positions=torch.arange(9), k_positions=torch.arange(7))


def test_a_compiled_graph_checks_segments_and_does_not_recompile():
    (q, k, v), encoding, counter = random(dtype=torch.float32), make("fire"), CompileCounterWithBackend("eager")

    def attend(ids):
        return attention(q, k, v, encoding, segment_ids=ids, window=3)

    torch.compiler.reset()
    compiled = torch.compile(attend, fullgraph=True, backend=counter)
    for parts in (1, 3, 5):
        ids = segments(7, parts)
        torch.testing.assert_close(compiled(ids), attend(ids))
    assert counter.frame_count == 1
    with pytest.raises(RuntimeError, match="segment_ids must not decrease"):
        compiled(torch.tensor([[0, 0, 1, 1, 0, 0, 0]] * 2))


def test_function_transforms():
    q, k, v = random()
    ids = torch.stack([segments(7, 3), segments(7, 2)])
    out = torch.vmap(lambda one: attention(q, k, v, segment_ids=one))(ids)
    torch.testing.assert_close(out[1], attention(q, k, v, segment_ids=ids[1]))
    with pytest.raises(ValueError, match="segment_ids must not decrease"):
        torch.vmap(lambda one: attention(q, k, v, segment_ids=one))(ids.flip(-1) + torch.arange(2)[:, None, None])


def test_chunks_skip_keys_that_are_not_seen(monkeypatch):
    made, T = [], 200
    alibi = make("alibi", torch.float64)
    bias = type(alibi).of_distance

    def counted(self, distance):
        made.append(distance.shape[-1])
        return bias(self, distance)

    monkeypatch.setattr(type(alibi), "of_distance", counted)
    q, k, v = random(T=T)
    for layout, most in [
        ({"window": 10}, 29),
        ({"window": 10, "causal": False}, 38),
        ({"segment_ids": (torch.arange(T) // 20).expand(2, -1)}, 20),
        ({"segment_ids": (torch.arange(T) // 50).expand(2, -1), "causal": False}, 100),
    ]:
        made.clear()
        attention(q, k, v, alibi, **layout, impl="chunked")
        assert max(made) <= most


@pytest.mark.parametrize("bias", ["fire", "alibi", None])
def test_a_decoding_step_reads_its_window_alone(bias):
    q, k, v = random(T=1, S=50, dtype=torch.float32)
    k[:, :, :40], v[:, :, :40] = torch.nan, torch.nan
    encoding = None if bias is None else make(bias)
    out = attention(q, k, v, encoding, window=10)
    last = torch.arange(40, 50)
    positions = {"q_positions": last[-1:], "k_positions": last}
    torch.testing.assert_close(out, attention(q, k[:, :, 40:], v[:, :, 40:], encoding, **positions, impl="reference"))


def test_plans():
    q, k, v = random(dtype=torch.float32)
    for layout in ({"window": 2}, {"segment_ids": segments(7, 2)}):
        assert str(attention_plan(q, k, v, **layout)).startswith("chunked: ")  # on a CPU
    assert attention_plan(q, k, v, window=4).engine == "sdpa"
    alibi = make("alibi")
    for layout in ({"causal": False}, {"window": 3}, {"segment_ids": segments(7, 2)}):
        assert attention_plan(q, k, v, alibi, **layout).engine == "chunked"  # without a GPU
    assert "the mask as a dense tensor" in attention_plan(q, k, v, window=4).why
