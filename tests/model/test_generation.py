"""Generation gives the same tokens with every cache and without one, padded and alone, and past the training length."""

import pytest
import torch
from transformers import DynamicCache, StaticCache

from longfire.model.attention import IMPLEMENTATIONS
from tests.model.models import NAMES, small_model, tokens

STATIC = {"cache_implementation": "static", "disable_compile": True}


def logits(model, ids, **options):
    with torch.no_grad():
        return model(ids, **options).logits


def generated(model, ids, new=8, **options):
    options = {"do_sample": False, "max_new_tokens": new, "pad_token_id": 0, **options}
    return model.generate(ids, **options)[:, ids.shape[1] :]


def left_padded(ids, padding=4, row=1):
    """A mask that hides the first tokens of one row."""
    mask = torch.ones_like(ids)
    mask[row, :padding] = 0
    return mask


@pytest.mark.parametrize("name", NAMES)
def test_tokens_vary_and_depend_on_position(name):
    """Otherwise the tests below would prove little."""
    model = small_model(name)
    assert generated(model, tokens(6, 9), new=12).unique().numel() > 12
    if name != "nope":
        ids = tokens(1, 16)
        swapped = ids[:, [3, 1, 2, 0, *range(4, 16)]]  # without positions, the last token would hardly notice
        assert (logits(model, ids)[:, -1] - logits(model, swapped)[:, -1]).abs().max() > 0.1


@pytest.mark.parametrize("share", [False, True])
@pytest.mark.parametrize("name", NAMES)
def test_implementations_agree(name, share):
    found = [logits(small_model(name, i, share_position_encoding=share), tokens(2, 33)) for i in IMPLEMENTATIONS]
    assert all(torch.allclose(one, found[-1], atol=2e-4) for one in found)


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
    assert torch.allclose(logits(model, ids, attention_mask=left_padded(ids, 5))[1:, 5:], alone, atol=2e-4)
    right = ids.clone()
    right[1] = ids[1].roll(-5)
    mask = left_padded(ids, 5).flip(1)
    assert torch.allclose(logits(model, right, attention_mask=mask)[1:, :12], alone, atol=2e-4)


@pytest.mark.parametrize("implementation", IMPLEMENTATIONS)
@pytest.mark.parametrize("name", NAMES)
def test_generate_in_padded_batches_with_every_cache(name, implementation):
    model, ids = small_model(name, implementation), tokens(2, 11)
    expected = torch.cat([generated(model, part, use_cache=False) for part in (ids[:1], ids[1:, 4:])])
    for cache in ({"use_cache": False}, {}, STATIC, {"prefill_chunk_size": 3}):
        assert torch.equal(generated(model, ids, attention_mask=left_padded(ids), **cache), expected)


@pytest.mark.parametrize("name", [name for name in NAMES if name != "learned"])
def test_beyond_the_training_length(name):
    """Nothing is cropped: changing the first of 60 tokens changes the logits of the last."""
    model, ids = small_model(name, max_position_embeddings=16), tokens(1, 60)
    assert torch.equal(generated(model, ids), generated(model, ids, use_cache=False))
    changed = ids.clone()
    changed[0, 0] = (ids[0, 0] + 1) % 61
    assert not torch.equal(logits(model, ids)[:, -1], logits(model, changed)[:, -1])


@pytest.mark.parametrize("name", ["fire", "alibi", "rope", "learned"])
def test_beams(name):
    model, ids = small_model(name), tokens(2, 9)
    options = {"num_beams": 3}
    expected = torch.cat([generated(model, part, **options, use_cache=False) for part in (ids[:1, 3:], ids[1:])])
    for cache in ({"use_cache": False}, {}, STATIC):
        assert torch.equal(generated(model, ids, attention_mask=left_padded(ids, 3, 0), **options, **cache), expected)


def test_sampling_depends_on_the_generator_alone():
    model, ids = small_model(), tokens(2, 9)

    def sampled(seed, **options):
        torch.manual_seed(seed)
        return generated(model, ids, do_sample=True, top_k=8, **options)

    assert torch.equal(sampled(0), sampled(0))
    assert torch.equal(sampled(0), sampled(0, use_cache=False))
    assert not torch.equal(sampled(0), sampled(1))


@pytest.mark.parametrize(
    ("name", "implementation"),
    [*(("fire", i) for i in IMPLEMENTATIONS), ("rope", "longfire"), ("t5", "longfire"), ("sinusoidal", "longfire")],
)
def test_a_compiled_step_with_a_static_cache(name, implementation):
    window = 6 if name == "fire" else None
    model = small_model(name, implementation, sliding_window=window, num_hidden_layers=1)
    ids = tokens(2, 9)
    mask = left_padded(ids)
    expected = generated(model, ids, attention_mask=mask, new=4, use_cache=False)
    torch.compiler.reset()
    cache = StaticCache(model.config, max_cache_len=16)
    out, seen, found = ids, ids, []
    step = torch.compile(model, fullgraph=True, backend="eager")
    with torch.no_grad():
        for number in range(4):
            inputs = model.prepare_inputs_for_generation(
                seen,
                past_key_values=cache,
                attention_mask=mask,
                position_ids=(mask.cumsum(1) - 1).clamp(min=0)[:, -seen.shape[1] :],
            )
            run = model if number == 0 else step
            found.append(run(**inputs, use_cache=True).logits[:, -1:])
            seen = found[-1].argmax(-1)
            out, mask = torch.cat([out, seen], 1), torch.cat([mask, torch.ones_like(seen)], 1)
    assert torch.equal(out[:, 9:], expected)
    whole = logits(model, out[:, :-1], attention_mask=mask[:, :-1])
    assert torch.allclose(torch.cat(found, 1), whole[:, 8:], atol=1e-5)
