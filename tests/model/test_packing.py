"""Documents packed into one row: by position ids, or by the arguments of padding-free collators."""

import pytest
import torch
from torch._dynamo.testing import CompileCounterWithBackend
from transformers import DataCollatorWithFlattening, DynamicCache

from longfire.model import retrofit
from longfire.model.attention import IMPLEMENTATIONS
from longfire.model.inputs import find_positions
from tests.model.models import NAMES, small_model, tokens
from tests.model.test_generation import logits
from tests.model.test_retrofit import original


def packed_documents():
    """Two documents of 10 and 7 tokens in one row, and both alone."""
    ids = tokens(1, 17)
    return ids, torch.cat([torch.arange(10), torch.arange(7)])[None], (ids[:, :10], ids[:, 10:])


def apart(model, documents):
    return torch.cat([logits(model, document) for document in documents], dim=1)


@pytest.mark.parametrize("implementation", IMPLEMENTATIONS)
@pytest.mark.parametrize("name", NAMES)
def test_packed_documents_do_not_see_each_other(name, implementation):
    model, (ids, position_ids, documents) = small_model(name, implementation), packed_documents()
    packed = logits(model, ids, position_ids=position_ids, use_cache=False)
    assert torch.allclose(packed, apart(model, documents), atol=2e-4)


@pytest.mark.parametrize("implementation", IMPLEMENTATIONS)
def test_a_shared_bias_and_a_retrofit(implementation):
    ids, position_ids, documents = packed_documents()
    shared = small_model(implementation=implementation, share_position_encoding=True)
    llama = retrofit(original("Llama"), training_length=64).eval()
    llama.set_attn_implementation(implementation)
    for model in (shared, llama):
        packed = logits(model, ids, position_ids=position_ids, use_cache=False)
        assert torch.allclose(packed, apart(model, documents), atol=2e-4)
        lengths = torch.tensor([0, 10, 17])
        assert torch.equal(logits(model, ids, cu_seq_lens_q=lengths, use_cache=False), packed)


SEGMENTS = {
    "restarts at 0": ([0, 1, 2, 0, 1, 0], None, [0, 0, 0, 1, 1, 2], True),
    "a gap starts none": ([0, 1, 5, 9, 10, 30], None, [0] * 6, None),
    "gaps within documents": ([2, 5, 9, 1, 7, 3], None, [0, 0, 0, 1, 1, 2], False),
    "equal positions": ([0, 1, 1, 2, 2, 3], None, [0, 0, 1, 1, 2, 2], False),
    "documents on both sides of padding": ([0, 1, 2, 0, 0, 1], [1, 1, 1, 0, 1, 1], [1, 1, 1, 1, 2, 2], True),
    "padding on both sides": ([7, 0, 1, 0, 1, 7], [0, 1, 1, 1, 1, 0], [0, 1, 1, 2, 2, 2], True),
    "padding within a document": ([0, 9, 1, 0, 1, 2], [1, 0, 1, 1, 1, 1], [1, 1, 1, 2, 2, 2], False),
}


@pytest.mark.parametrize(("ids", "mask", "segments", "in_order"), SEGMENTS.values(), ids=SEGMENTS)
def test_where_documents_begin(ids, mask, segments, in_order):
    mask = None if mask is None else torch.tensor([mask])
    here = find_positions(torch.empty(1, 6, 4), 0, 6, mask, torch.tensor([ids]))
    if in_order is None:
        assert here.segment_ids is None
    else:
        assert here.segment_ids.tolist() == [segments]
        assert here.in_order == in_order


@pytest.mark.parametrize("implementation", IMPLEMENTATIONS)
@pytest.mark.parametrize(
    ("first", "second"), [([0, 1, 2, 3], [0, 1, 2, 3, 4]), ([3, 4, 9, 20], [1, 2, 30, 31, 40])], ids=["counted", "gaps"]
)
def test_padding_around_a_pack(first, second, implementation):
    model, ids = small_model(implementation=implementation), tokens(1, 12)
    position_ids = torch.tensor([[0, 0, *first, *second, 0]])
    mask = torch.tensor([[0, 0, *[1] * 9, 0]])
    packed = logits(model, ids, position_ids=position_ids, attention_mask=mask, use_cache=False)
    for document in (slice(2, 6), slice(6, 11)):
        alone = logits(model, ids[:, document], position_ids=position_ids[:, document], use_cache=False)
        assert torch.allclose(packed[:, document], alone, atol=2e-4)


@pytest.mark.parametrize("implementation", IMPLEMENTATIONS)
def test_a_cache_is_refused(implementation):
    """The next token would see all documents."""
    model, (ids, position_ids, _) = small_model(implementation=implementation), packed_documents()
    with pytest.raises(ValueError, match=r"packed into one row.* use_cache=False"):
        model(ids, position_ids=position_ids)
    cache = DynamicCache(config=model.config)
    logits(model, ids, past_key_values=cache, use_cache=True)
    with pytest.raises(ValueError, match="do not continue the 17 tokens"):
        model(ids, past_key_values=cache, position_ids=position_ids)


@pytest.mark.parametrize("implementation", IMPLEMENTATIONS)
@pytest.mark.parametrize("options", [{}, {"return_flash_attn_kwargs": True, "return_seq_idx": True}], ids=str)
def test_flattened_batches_of_transformers(options, implementation):
    model = small_model(implementation=implementation)
    documents = [tokens(1, n)[0].tolist() for n in (5, 1, 9)]
    collate = DataCollatorWithFlattening(return_tensors="pt", **options)
    batch = collate([{"input_ids": document} for document in documents])
    ids, labels = batch.pop("input_ids"), batch.pop("labels")
    expected = apart(model, [torch.tensor([document]) for document in documents])
    assert torch.allclose(logits(model, ids, **batch, use_cache=False), expected, atol=2e-4)
    position_ids = batch.pop("position_ids")
    if options:  # without position ids, the other arguments say where documents begin
        assert torch.allclose(logits(model, ids, **batch, use_cache=False), expected, atol=2e-4)
        by_index = logits(model, ids, seq_idx=batch["seq_idx"], use_cache=False)
        assert torch.allclose(by_index, expected, atol=2e-4)
    model.train()
    assert torch.isfinite(model(ids, position_ids=position_ids, labels=labels).loss)


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ({"max_length_q": 10}, "max_length_q need cu_seq_lens_q"),
        ({"cu_seq_lens_k": torch.tensor([0, 6])}, "cu_seq_lens_k need cu_seq_lens_q"),
        ({"cu_seq_lens_q": torch.tensor([0, 3, 5])}, r"from 0 to the number of tokens, 6, but they are \[0, 3, 5\]"),
        ({"cu_seq_lens_q": torch.tensor([0, 4, 3, 6])}, "must go up from 0"),
        ({"cu_seq_lens_q": torch.tensor([0, 3, 6]), "cu_seq_lens_k": torch.tensor([0, 2, 6])}, "must be equal in self"),
        (
            {"cu_seq_lens_q": torch.tensor([0, 3, 6]), "seq_idx": torch.tensor([[0, 0, 1, 1, 1, 1]])},
            "boundaries of documents in different places",
        ),
        ({"seq_idx": torch.zeros(1, 5).int()}, r"seq_idx must have shape \(B, T\) = \(1, 6\), not \(1, 5\)"),
        (
            {"cu_seq_lens_q": torch.tensor([0, 4, 6]), "position_ids": torch.tensor([[0, 1, 0, 1, 0, 1]])},
            "must increase within each document",
        ),
        ({"cu_seq_lens_q": torch.tensor([0, 6]), "attention_mask": torch.ones(1, 6)}, "Omit attention_mask"),
    ],
)
def test_arguments_that_contradict_each_other(options, message):
    with pytest.raises(ValueError, match=message):
        small_model()(tokens(1, 6), use_cache=False, **options)
    with pytest.raises(ValueError, match=r"all documents in one row, but there are 2 rows"):
        small_model()(tokens(2, 6), use_cache=False, cu_seq_lens_q=torch.tensor([0, 6]))


def test_positions_may_go_on_across_documents():
    """cu_seq_lens_q separates documents, position_ids number their tokens."""
    model, ids = small_model(), tokens(1, 9)
    where = {"position_ids": torch.arange(9)[None], "cu_seq_lens_q": torch.tensor([0, 4, 9])}
    packed = logits(model, ids, use_cache=False, **where)
    alone = logits(model, ids[:, 4:], position_ids=torch.arange(4, 9)[None], use_cache=False)
    assert torch.allclose(packed[:, 4:], alone, atol=2e-4)


@pytest.mark.parametrize("implementation", IMPLEMENTATIONS)
def test_in_a_compiled_graph(implementation):
    """Other documents in the same shape do not compile again."""
    torch.compiler.reset()
    model = small_model(implementation=implementation, num_hidden_layers=1)
    (ids, position_ids, documents), counter = packed_documents(), CompileCounterWithBackend("eager")
    compiled = torch.compile(model, fullgraph=True, backend=counter)
    packed = logits(compiled, ids, position_ids=position_ids, use_cache=False)
    assert torch.allclose(packed, apart(model, documents), atol=2e-4)
    other = torch.cat([torch.arange(3), torch.arange(14)])[None]
    packed = logits(compiled, ids, position_ids=other, use_cache=False)
    assert torch.allclose(packed, apart(model, (ids[:, :3], ids[:, 3:])), atol=2e-4)
    assert counter.frame_count == 1
    with pytest.raises(RuntimeError, match="must number the tokens of attention_mask"):
        compiled(ids, position_ids=position_ids, attention_mask=torch.ones(1, 17), use_cache=False)


def test_a_mask_of_keys_alone_keeps_documents_apart():
    """`generate` passes masks as (B, 1, 1, S); they hide padding and say nothing about documents."""
    model, (ids, position_ids, documents) = small_model(), packed_documents()
    mask = torch.ones(1, 1, 1, 17, dtype=torch.bool)
    packed = logits(model, ids, position_ids=position_ids, attention_mask=mask, use_cache=False)
    assert torch.allclose(packed, apart(model, documents), atol=2e-4)
