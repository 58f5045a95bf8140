"""Generating: with every cache and none, padded and alone, past the training length; and it all agrees."""

import pytest
import torch
from transformers import DynamicCache, StaticCache

from longfire.model.attention import IMPLEMENTATIONS
from tests.model.models import NAMES, small_model, tokens

LONG = [name for name in NAMES if name != "learned"]


def logits(model, ids, **options):
    with torch.no_grad():
        return model(ids, **options).logits


def generated(model, ids, new=12, **options):
    options = {"do_sample": False, "max_new_tokens": new, "pad_token_id": 0, **options}
    return model.generate(ids, **options)[:, ids.shape[1] :]


@pytest.mark.parametrize("name", NAMES)
def test_tokens_vary_and_depend_on_position(name):
    """Or the tests below would say little."""
    model = small_model(name)
    assert generated(model, tokens(6, 9)).unique().numel() > 12
    if name == "nope":
        return
    ids = tokens(1, 16)
    swapped = ids[:, [3, 1, 2, 0, *range(4, 16)]]  # to a last token without positions, almost the same
    assert (logits(model, ids)[:, -1] - logits(model, swapped)[:, -1]).abs().max() > 0.1


@pytest.mark.parametrize("share", [False, True])
@pytest.mark.parametrize("name", NAMES)
def test_implementations_agree(name, share):
    ids = tokens(2, 33)
    found = {i: logits(small_model(name, i, share_position_encoding=share), ids) for i in IMPLEMENTATIONS}
    for implementation in IMPLEMENTATIONS:
        assert torch.allclose(found[implementation], found["eager"], atol=2e-4)


@pytest.mark.parametrize("implementation", IMPLEMENTATIONS)
@pytest.mark.parametrize("name", NAMES)
def test_a_cache_changes_nothing(name, implementation):
    model, ids = small_model(name, implementation), tokens(2, 23)
    whole = logits(model, ids)
    for cache in (DynamicCache(config=model.config), StaticCache(model.config, max_cache_len=40)):
        parts = []
        for start, end in ((0, 9), (9, 10), (10, 17), (17, 18), (18, 23)):
            parts.append(logits(model, ids[:, start:end], past_key_values=cache, use_cache=True))
        assert torch.allclose(torch.cat(parts, 1), whole, atol=2e-4)


@pytest.mark.parametrize("implementation", IMPLEMENTATIONS)
@pytest.mark.parametrize("name", NAMES)
def test_padding_changes_nothing(name, implementation):
    model, ids = small_model(name, implementation), tokens(2, 17)
    alone = logits(model, ids[1:, 5:])
    for left in (True, False):
        padded = ids.clone()
        padded[1] = torch.cat([ids[1, :5], ids[1, 5:]] if left else [ids[1, 5:], ids[1, :5]])
        mask = torch.ones_like(ids)
        mask[1, slice(0, 5) if left else slice(12, 17)] = 0
        found = logits(model, padded, attention_mask=mask)[1:, 5:] if left else None
        found = logits(model, padded, attention_mask=mask)[1:, :12] if found is None else found
        assert torch.allclose(found, alone, atol=2e-4)


@pytest.mark.parametrize("implementation", IMPLEMENTATIONS)
@pytest.mark.parametrize("name", NAMES)
def test_generate_in_padded_batches_with_every_cache(name, implementation):
    model, ids = small_model(name, implementation), tokens(2, 11)
    mask = torch.ones_like(ids)
    mask[1, :4] = 0
    alone = [generated(model, ids[:1], use_cache=False), generated(model, ids[1:, 4:], use_cache=False)]
    expected = torch.cat(alone)
    assert torch.equal(generated(model, ids, attention_mask=mask, use_cache=False), expected)
    assert torch.equal(generated(model, ids, attention_mask=mask), expected)
    static = {"cache_implementation": "static", "disable_compile": True}
    assert torch.equal(generated(model, ids, attention_mask=mask, **static), expected)
    assert torch.equal(generated(model, ids, attention_mask=mask, prefill_chunk_size=3), expected)


@pytest.mark.parametrize("name", LONG)
def test_beyond_the_training_length(name):
    """Nothing is cropped: a token that only the first of 60 tokens differs in is another."""
    model = small_model(name, max_position_embeddings=16)
    ids = tokens(1, 60)
    out = generated(model, ids, new=8)
    assert torch.equal(out, generated(model, ids, new=8, use_cache=False))
    changed = ids.clone()
    changed[0, 0] = (ids[0, 0] + 1) % 61
    assert not torch.equal(logits(model, ids)[:, -1], logits(model, changed)[:, -1])


@pytest.mark.parametrize("name", ["fire", "alibi", "rope", "learned"])
def test_beams(name):
    model, ids = small_model(name), tokens(2, 9)
    mask = torch.ones_like(ids)
    mask[0, :3] = 0
    options = {"num_beams": 3, "attention_mask": mask, "new": 8}
    expected = torch.cat(
        [
            generated(model, ids[:1, 3:], num_beams=3, new=8, use_cache=False),
            generated(model, ids[1:], num_beams=3, new=8, use_cache=False),
        ]
    )
    for cache in ({"use_cache": False}, {}, {"cache_implementation": "static", "disable_compile": True}):
        assert torch.equal(generated(model, ids, **options, **cache), expected)


def test_sampling_is_that_of_the_generator():
    model, ids = small_model(), tokens(2, 9)

    def sampled(seed, **options):
        torch.manual_seed(seed)
        return generated(model, ids, do_sample=True, top_k=8, **options)

    assert torch.equal(sampled(0), sampled(0))
    assert torch.equal(sampled(0), sampled(0, use_cache=False))
    assert not torch.equal(sampled(0), sampled(1))


@pytest.mark.parametrize("implementation", IMPLEMENTATIONS)
@pytest.mark.parametrize("name", ["fire", "rope", "t5", "sinusoidal"])
def test_a_compiled_step_with_a_static_cache(name, implementation):
    model, ids = small_model(name, implementation), tokens(2, 9)
    mask = torch.ones_like(ids)
    mask[1, :4] = 0
    expected = generated(model, ids, attention_mask=mask, new=4)
    torch.compiler.reset()
    cache = StaticCache(model.config, max_cache_len=16)
    out, seen, attention_mask = ids, ids, mask
    step = torch.compile(model, fullgraph=True, backend="eager")
    with torch.no_grad():
        for number in range(4):
            inputs = model.prepare_inputs_for_generation(
                seen,
                past_key_values=cache,
                attention_mask=attention_mask,
                position_ids=(attention_mask.cumsum(1) - 1).clamp(min=0)[:, -seen.shape[1] :],
            )
            run = model if number == 0 else step
            seen = run(**inputs, use_cache=True).logits[:, -1:].argmax(-1)
            out = torch.cat([out, seen], 1)
            attention_mask = torch.cat([attention_mask, torch.ones_like(seen)], 1)
    assert torch.equal(out[:, 9:], expected)
