"""Positions from the mask, the cache and position ids, and refusals."""

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st
from transformers import DynamicCache

from longfire.model import retrofit
from longfire.model.attention import IMPLEMENTATIONS
from longfire.model.inputs import count_positions, find_positions
from tests.model.models import NAMES, options_of, small_model, tokens
from tests.model.test_generation import left_padded, logits
from tests.model.test_packing import packed_documents
from tests.model.test_retrofit import original


def place(mask=None, ids=None, past=0, T=None):
    """Positions of the last T tokens of a batch."""
    mask = None if mask is None else torch.tensor(mask)
    ids = None if ids is None else torch.tensor(ids)
    B, total = mask.shape if mask is not None else (ids.shape[0] if ids is not None else 2, past + (T or ids.shape[1]))
    T = total - past
    return find_positions(torch.empty(B, T, 4), past, total, mask, ids)


MASKS = {
    "nothing hidden": ([1, 1, 1, 1, 1, 1], [0, 1, 2, 3, 4, 5]),
    "padding on the left": ([0, 0, 1, 1, 1, 1], [0, 0, 0, 1, 2, 3]),
    "padding on the right": ([1, 1, 1, 1, 0, 0], [0, 1, 2, 3, 4, 5]),
    "on both sides": ([0, 1, 1, 1, 0, 0], [0, 0, 1, 2, 3, 4]),
    "a hole": ([1, 1, 0, 0, 1, 1], [0, 1, 1, 1, 2, 3]),
    "padding and a hole": ([0, 1, 0, 1, 1, 0], [0, 0, 0, 1, 2, 3]),
    "the last token alone": ([0, 0, 0, 0, 0, 1], [0, 0, 0, 0, 0, 0]),
    "nothing kept": ([0, 0, 0, 0, 0, 0], [0, 1, 2, 3, 4, 5]),
}


@pytest.mark.parametrize(("mask", "positions"), MASKS.values(), ids=MASKS)
def test_positions_by_a_mask(mask, positions):
    assert count_positions(torch.tensor([mask]).bool()).tolist() == [positions]
    here = place([mask, [1] * 6])
    assert here.queries.expand(2, -1).tolist() == here.keys.expand(2, -1).tolist() == [positions, [0, 1, 2, 3, 4, 5]]
    assert here.in_order == all(mask)
    kept = None if all(mask) else [[bool(kept) for kept in mask], [True] * 6]
    assert (None if here.key_mask is None else here.key_mask.tolist()) == kept


@pytest.mark.parametrize("past", [1, 3, 5])
@pytest.mark.parametrize("mask", [mask for mask, _ in MASKS.values()], ids=MASKS)
def test_with_a_cache_the_queries_are_the_last(mask, past):
    whole, here = place([mask, [1] * 6]), place([mask, [1] * 6], past=past)
    assert torch.equal(here.queries, whole.queries[..., past:])
    assert torch.equal(here.keys, whole.keys)
    assert here.in_order == whole.in_order


def test_without_a_mask_all_is_in_order():
    here = place(T=4, past=3)
    assert (here.queries.tolist(), here.keys.tolist()) == ([3, 4, 5, 6], [0, 1, 2, 3, 4, 5, 6])
    assert here.in_order
    assert here.key_mask is None


@pytest.mark.parametrize("filler", [0, 1, -1])
def test_position_ids(filler):
    assert place(ids=[[0, 1, 2, 3]]).in_order
    moved = place(ids=[[5, 6, 7, 8], [0, 2, 4, 6]])
    assert moved.queries.tolist() == moved.keys.tolist() == [[5, 6, 7, 8], [0, 2, 4, 6]]
    assert not moved.in_order
    # libraries give padding 0, 1 or −1
    padded = place([[0, 0, 1, 1, 1, 1], [1] * 6], ids=[[filler, filler, 0, 1, 2, 3], [0, 1, 2, 3, 4, 5]])
    assert padded.queries.tolist() == [[0, 0, 0, 1, 2, 3], [0, 1, 2, 3, 4, 5]]
    # with a cache and no mask, they reveal the padding
    cached = place(ids=[[3], [1]], past=3)
    assert cached.keys.tolist() == [[0, 1, 2, 3], [0, 0, 0, 1]]
    assert cached.queries.tolist() == [[3], [1]]
    assert cached.key_mask.tolist() == [[True] * 4, [False, False, True, True]]


@given(st.lists(st.integers(0, 11), min_size=1, max_size=5), st.integers(0, 11))
def test_left_padding_does_not_change_positions(padding, past):
    length = 12
    mask = [[0] * left + [1] * (length - left) for left in padding]
    here = place(mask, past=past)
    keys, queries = here.keys.expand(len(padding), -1), here.queries.expand(len(padding), -1)
    for left, row, last in zip(padding, keys, queries, strict=True):
        assert row[left:].tolist() == list(range(length - left))
        assert last.tolist() == row[past:].tolist()


@given(st.lists(st.booleans(), min_size=1, max_size=16))
def test_kept_tokens_count_up_from_zero(mask):
    positions = count_positions(torch.tensor([mask]))[0]
    assert (positions >= 0).all()
    assert positions[torch.tensor(mask)].tolist() == list(range(sum(mask)))


@pytest.mark.parametrize(
    ("argument", "remedy"),
    [
        ("segment_ids", "pass position_ids that restart"),
        ("window", "config.sliding_window"),
        ("sliding_window", "config.sliding_window"),
        ("token_type_ids", "return_token_type_ids=False"),
        ("output_attention", "Did you mean 'output_attentions'"),
        ("attn_mask", "Did you mean 'attention_mask'"),
        ("position_id", "Did you mean 'position_ids'"),
    ],
)
def test_arguments_that_would_be_ignored(argument, remedy):
    model, ids = small_model(), tokens(1, 4)
    for call in (model, model.model):
        with pytest.raises(TypeError, match=f"{type(call).__name__} takes no {argument}. .*{remedy}"):
            call(ids, **{argument: torch.zeros(1, 4)})
    assert logits(model, ids, **{argument: None}).isfinite().all()


@pytest.mark.parametrize("implementation", IMPLEMENTATIONS)
def test_a_call_does_not_change_the_direction(implementation):
    model, ids = small_model(implementation=implementation), tokens(1, 4)
    assert torch.equal(logits(model, ids, is_causal=True), logits(model, ids))
    for call in (model, model.model):
        with pytest.raises(ValueError, match=r"is_causal=False is not supported.*LongfireConfig\(is_causal=False\)"):
            call(ids, is_causal=False)
    model.config.is_causal = False
    with pytest.raises(ValueError, match="is_causal=False is not supported"):
        model(ids)


@pytest.mark.parametrize("implementation", IMPLEMENTATIONS)
def test_a_row_that_is_all_padding(implementation):
    model, ids = small_model(implementation=implementation), tokens(2, 9)
    out = logits(model, ids, attention_mask=left_padded(ids, 9))
    assert torch.isfinite(out).all()
    assert torch.allclose(out[:1], logits(model, ids[:1]), atol=2e-4)


@pytest.mark.parametrize("implementation", IMPLEMENTATIONS)
@pytest.mark.parametrize("name", NAMES)
def test_masked_tokens_in_the_middle(name, implementation):
    model, ids = small_model(name, implementation), tokens(1, 17)
    mask = torch.ones_like(ids)
    mask[0, 6:9] = 0
    kept = mask[0].bool()
    assert torch.allclose(logits(model, ids, attention_mask=mask)[:, kept], logits(model, ids[:, kept]), atol=2e-4)


@pytest.mark.parametrize("implementation", IMPLEMENTATIONS)
def test_masks_of_any_dtype(implementation):
    model, ids = small_model(implementation=implementation), tokens(2, 9)
    mask = left_padded(ids, 3)
    expected = logits(model, ids, attention_mask=mask)
    for dtype in (torch.bool, torch.float32, torch.int32):
        assert torch.equal(logits(model, ids, attention_mask=mask.to(dtype)), expected)


@pytest.mark.parametrize("implementation", IMPLEMENTATIONS)
@pytest.mark.parametrize("name", [name for name in NAMES if name not in ("nope", "sinusoidal", "learned")])
def test_only_fire_notices_a_shift_of_all_positions(name, implementation):
    encoding = options_of(name, **({"init_L": 8.0} if name == "fire" else {}))
    model, ids = small_model(name, implementation, position_encoding=encoding), tokens(1, 17)
    plain, shifted = logits(model, ids), logits(model, ids, position_ids=torch.arange(17)[None] + 40)
    if name == "fire":
        assert not torch.allclose(shifted, plain, atol=0.1)
    else:
        assert torch.allclose(shifted, plain, atol=2e-3)


def masks_by_query():
    """4-D masks (1, 1, T, S) of the packed documents: boolean, float and integer."""
    document = torch.arange(17) >= 10
    seen = ((document[:, None] == document) & torch.ones(17, 17).tril().bool())[None, None]
    return seen, torch.zeros(1, 1, 17, 17).masked_fill(~seen, float("-inf")), seen.long()


@pytest.mark.parametrize("implementation", ["sdpa", "eager"])
def test_packed_documents_by_a_4d_mask(implementation):
    model = small_model(implementation=implementation)
    ids, position_ids, apart = packed_documents()
    *valid, numbers = masks_by_query()
    expected = torch.cat([logits(model, part) for part in apart], dim=1)
    for mask in valid:
        assert torch.allclose(logits(model, ids, position_ids=position_ids, attention_mask=mask), expected, atol=2e-4)
    with pytest.raises(ValueError, match=r"4-D attention mask must be boolean .* not torch\.int64"):
        model(ids, position_ids=position_ids, attention_mask=numbers)
    with pytest.raises(ValueError, match="see later ones"):
        model(ids, attention_mask=torch.ones(1, 1, 1, 17, dtype=torch.bool))


@pytest.mark.parametrize("retrofitted", [False, True])
def test_masks_by_query_are_refused_by_longfire(retrofitted):
    """Reducing them to the first row would hide all keys but the first, or invert a float mask."""
    model = retrofit(original("Llama"), training_length=64).eval() if retrofitted else small_model()
    ids = tokens(1, 17)
    padding = torch.zeros(1, 1, 1, 17)  # additive: nothing is masked
    for mask in (*masks_by_query(), padding):
        with pytest.raises(ValueError, match=r"takes an attention mask of shape \(B, tokens so far\).*'sdpa'\)"):
            model(ids, attention_mask=mask)
    own = torch.ones(1, 1, 1, 17, dtype=torch.bool)
    assert torch.equal(logits(model, ids, attention_mask=own), logits(model, ids))


SHAPES = r"attention_mask must have shape .* = \(1, 6\), 1 for tokens.*, not"
BAD_INPUTS = [
    ({"attention_mask": [[1, 1, 1, 2, 2, 2]]}, "has other values"),  # document numbers
    ({"attention_mask": [[0.0, 0.0, float("-inf"), 0.0, 0.0, 0.0]]}, "has other values"),  # an additive mask
    ({"attention_mask": [[1, 1, 0.5, 1, 1, 1]]}, "has other values"),
    *(({"attention_mask": torch.ones(shape).tolist()}, SHAPES) for shape in ((1, 5), (1, 7), (2, 6), (6,), (1, 6, 6))),
    *(
        ({"position_ids": torch.zeros(shape).long().tolist()}, r"position_ids must have shape \(B, T\) = \(1, 6\), not")
        for shape in ((1, 5), (2, 6), (5,), (1, 6, 1))
    ),
]


@pytest.mark.parametrize("implementation", IMPLEMENTATIONS)
@pytest.mark.parametrize(("options", "message"), BAD_INPUTS)
def test_bad_masks_and_position_ids(options, message, implementation):
    given = {name: torch.tensor(value) for name, value in options.items()}
    with pytest.raises(ValueError, match=message):
        small_model(implementation=implementation)(tokens(1, 6), **given)


@pytest.mark.parametrize("implementation", IMPLEMENTATIONS)
@pytest.mark.parametrize("how", ["requested", "configured"])
def test_attention_weights_are_returned_or_refused(how, implementation):
    model, ids = small_model(implementation=implementation), tokens(1, 6)
    options = {"output_attentions": True} if how == "requested" else {}
    model.config._output_attentions = not options
    if implementation == "eager":
        weights = model(ids, **options).attentions
        assert [tuple(layer.shape) for layer in weights] == [(1, 4, 6, 6)] * 2
    else:
        with pytest.raises(ValueError, match=f"attn_implementation='{implementation}' cannot return attention weights"):
            model(ids, **options)


@pytest.mark.parametrize("name", [name for name in NAMES if name != "learned"])
def test_position_ids_with_gaps_are_one_document(name):
    """As in training with randomly drawn positions."""
    ids, position_ids = tokens(2, 9), torch.tensor([[0, 2, 3, 7, 8, 9, 20, 21, 30]])
    found = [logits(small_model(name, i), ids, position_ids=position_ids, use_cache=False) for i in IMPLEMENTATIONS]
    assert torch.allclose(found[0], found[2], atol=2e-4)
    assert torch.allclose(found[1], found[2], atol=2e-4)


def test_position_ids_for_all_sequences():
    model, ids = small_model(), tokens(2, 9)
    each = torch.arange(9) * 2
    expected = logits(model, ids, position_ids=each.expand(2, 9))
    for position_ids in (each, each[None]):
        assert torch.equal(logits(model, ids, position_ids=position_ids), expected)


@pytest.mark.parametrize("implementation", IMPLEMENTATIONS)
def test_masks_and_position_ids_must_continue_the_cache(implementation):
    model, ids = small_model(implementation=implementation), tokens(2, 9)
    cache = DynamicCache(config=model.config)
    logits(model, ids, past_key_values=cache, use_cache=True)
    mask = torch.ones(2, 10)
    with pytest.raises(ValueError, match=r"= \(2, 10\), .* not \(2, 1\). Cached tokens count"):
        model(ids[:, :1], past_key_values=cache, attention_mask=mask[:, :1])
    with pytest.raises(ValueError, match=r"the 9 tokens in the cache: in sequence 1 they are \[12\].* at \[9\]"):
        model(ids[:, :1], past_key_values=cache, attention_mask=mask, position_ids=torch.tensor([[9], [12]]))
    model(ids[:, :1], past_key_values=cache, attention_mask=mask, position_ids=torch.tensor([[9], [9]]))


def test_tokens_or_their_embeddings():
    model, ids = small_model(), tokens(2, 9)
    embedded = model.get_input_embeddings()(ids).detach()
    assert torch.equal(logits(model, None, inputs_embeds=embedded), logits(model, ids))
    for given_ids, given_embeddings in ((ids, embedded), (None, None)):
        with pytest.raises(ValueError, match="either input_ids or inputs_embeds"):
            model(given_ids, inputs_embeds=given_embeddings)


@pytest.mark.parametrize("retrofitted", [False, True])
def test_a_sequence_without_a_batch_is_refused(retrofitted):
    model = retrofit(original("Llama"), training_length=64).eval() if retrofitted else small_model()
    ids = tokens(9)
    for name, value in (("input_ids", ids), ("inputs_embeds", model.get_input_embeddings()(ids))):
        with pytest.raises(ValueError, match=rf"{name} must have shape \(B, T.*, not \(9.*pass {name}\[None\]"):
            model(**{name: value})


def test_a_hole_in_a_compiled_graph_is_an_error():
    torch.compiler.reset()
    model = small_model(num_hidden_layers=1)
    compiled = torch.compile(model, fullgraph=True, backend="aot_eager")
    ids, mask = tokens(1, 6), torch.tensor([[1, 1, 0, 0, 1, 1]])
    with torch.no_grad(), pytest.raises(RuntimeError, match="only the ends of a sequence"):
        compiled(ids, attention_mask=mask, use_cache=False)


def test_transformers_context_parallelism_is_refused():
    """It drops masks, and biases with them."""
    assert not small_model().supports_context_parallel
