"""Sliding windows: in transformers, in the model and in retrofits."""

from functools import partial

import pytest
import torch
import transformers as hf
from transformers import masking_utils

import longfire
from longfire import FIRE
from longfire.model import attention
from longfire.model.attention import IMPLEMENTATIONS
from longfire.model.inputs import EVALUATION_SEED
from tests.model.decoders import WINDOW, tiny
from tests.model.models import small_model, tokens
from tests.model.test_architectures import retrofitted
from tests.model.test_generation import STATIC, generated, left_padded, logits
from tests.model.test_masked import encoder
from tests.model.test_packing import apart, packed_documents

KINDS = {
    "fire": partial(small_model, "fire"),
    "fire-s": partial(small_model, "fire", share_position_encoding=True),
    "rope": partial(small_model, "rope"),
    "encoder": partial(encoder, "fire"),
}
GAPS = [0, 1, 10, 11, 20, 21, 30, 31, 40, 41, 50, 60]


@pytest.mark.parametrize("causal", [True, False])
@pytest.mark.parametrize("window", [1, 3, 40])
def test_transformers_windows(window, causal):
    """Both ways, they see one token more on each side than ours of the same number."""
    q, k, v = torch.randn(3, 1, 4, 9, 8, generator=torch.Generator().manual_seed(0)).double()
    fire, index = FIRE(4, init_L=4, bidirectional=not causal).double(), torch.arange(9)
    kind = "causal" if causal else "bidirectional"
    sees = getattr(masking_utils, f"sliding_window_{kind}_mask_function")(window)
    bias = fire(index, index).masked_fill(~sees(0, 0, index[:, None], index), -torch.inf)
    ours = window if causal else window + 1
    found = longfire.attention(q, k, v, fire, causal=causal, window=ours)
    assert torch.allclose(found, longfire.attention(q, k, v, bias, causal=False))


@pytest.mark.parametrize("implementation", IMPLEMENTATIONS)
@pytest.mark.parametrize("kind", KINDS)
def test_a_window_is_a_mask_of_positions(kind, implementation):
    """In order after padding, and with gaps."""
    ids, where = tokens(2, 12), torch.tensor([[0, 0, 0, *range(9)], GAPS])
    mask, distance = left_padded(ids, 3, row=0), where[:, :, None] - where[:, None, :]
    near = distance.abs() <= 4 if kind == "encoder" else (distance >= 0) & (distance < 4)
    dense = (near & mask.bool()[:, None] | torch.eye(12).bool())[:, None]
    options = {"position_ids": where, "use_cache": False}
    expected = logits(KINDS[kind]("eager"), ids, attention_mask=dense, **options)
    model = KINDS[kind](implementation, sliding_window=4)
    found = logits(model, ids, attention_mask=mask, **options)
    assert torch.allclose(found[mask.bool()], expected[mask.bool()], atol=2e-4)
    model.train()(ids, attention_mask=mask.flip(1), labels=ids).loss.backward()  # the last padding sees nothing
    assert all(p.grad is None or p.grad.isfinite().all() for p in model.parameters())


@pytest.mark.parametrize("implementation", IMPLEMENTATIONS)
@pytest.mark.parametrize("kind", ["fire", "fire-s", "rope"])
def test_a_cache_changes_nothing(kind, implementation):
    """It keeps all keys, so that tokens may be masked anywhere."""
    model, ids = KINDS[kind](implementation, sliding_window=4), tokens(2, 15)
    mask = left_padded(ids, 3)
    mask[0, 5:9] = 0
    whole, kept = logits(model, ids, attention_mask=mask), mask.bool()
    for cache in (hf.DynamicCache(config=model.config), hf.StaticCache(model.config, max_cache_len=20)):
        parts = []
        for start, end in ((0, 9), (9, 10), (10, 13), (13, 14), (14, 15)):
            given = {"attention_mask": mask[:, :end], "past_key_values": cache, "use_cache": True}
            parts.append(logits(model, ids[:, start:end], **given))
        assert torch.allclose(torch.cat(parts, 1)[kept], whole[kept], atol=2e-4)
    mask = left_padded(ids, 3)
    alone = [generated(model, part, use_cache=False, new=5) for part in (ids[:1], ids[1:, 3:])]
    for cache in ({}, STATIC):
        assert torch.equal(generated(model, ids, attention_mask=mask, new=5, **cache), torch.cat(alone))


@pytest.mark.parametrize("implementation", IMPLEMENTATIONS)
def test_packed_documents(implementation):
    ids, position_ids, documents = packed_documents()
    for kind in ("fire", "fire-s", "encoder"):
        model = KINDS[kind](implementation, sliding_window=4)
        packed = logits(model, ids, position_ids=position_ids, use_cache=False)
        assert torch.allclose(packed, apart(model, documents), atol=2e-4)


@pytest.mark.parametrize("implementation", IMPLEMENTATIONS)
def test_random_positions(implementation):
    """The window is in positions, of which the model draws the same in every evaluation."""
    ids, windowed = tokens(2, 12), partial(small_model, implementation=implementation, sliding_window=4)
    drawn = longfire.random_positions(2, 12, 60, generator=torch.Generator().manual_seed(EVALUATION_SEED))
    found = logits(windowed(random_positions=60), ids, use_cache=False)
    assert torch.allclose(found, logits(windowed(), ids, position_ids=drawn, use_cache=False), atol=2e-4)
    assert not torch.allclose(found, logits(windowed(), ids, use_cache=False), atol=2e-2)


def test_one_token_and_all_of_them():
    ids = tokens(1, 9)
    one = logits(small_model(sliding_window=1), ids)
    assert torch.allclose(one[:, 5:], logits(small_model(sliding_window=1), ids[:, 5:]), atol=2e-4)
    assert torch.allclose(logits(small_model(sliding_window=9), ids), logits(small_model(), ids), atol=2e-4)


@pytest.mark.parametrize("implementation", ["sdpa", "eager"])
def test_a_mask_by_query_hides_more(implementation):
    """Within the window: it cannot show what the window hides."""
    model, ids = small_model(implementation=implementation, sliding_window=4), tokens(1, 9)
    causal = torch.ones(1, 1, 9, 9, dtype=torch.bool).tril()
    additive = torch.zeros(causal.shape).masked_fill(~causal, torch.finfo(torch.float32).min)
    for mask in (causal, additive):
        assert torch.allclose(logits(model, ids, attention_mask=mask), logits(model, ids), atol=2e-4)


# --- retrofits --------------------------------------------------------------------------------------------------------


def test_positions_with_gaps_in_a_retrofit():
    """A window as long as the row still hides keys."""
    new, ids = retrofitted(tiny("Mistral", sliding_window=12)), tokens(1, 12)
    found = []
    for implementation in IMPLEMENTATIONS:
        new.set_attn_implementation(implementation)
        found.append(logits(new, ids, position_ids=torch.tensor([GAPS]), use_cache=False))
    assert torch.allclose(found[1], found[0], atol=2e-4)
    assert torch.allclose(found[2], found[0], atol=2e-4)


@pytest.mark.parametrize(
    ("name", "implementation", "before"),
    [("Mistral", "sdpa", WINDOW + 2), ("Mistral", "longfire", 3), ("Gemma3", "sdpa", WINDOW + 2)],
)
def test_a_compiled_step_with_a_static_cache(name, implementation, before):
    """Sliding layers have fewer slots, and past the window the last keys alone."""
    layers = {"num_hidden_layers": 1} if name == "Mistral" else {}
    new, ids = retrofitted(tiny(name, **layers)), tokens(2, before + 1)
    new.set_attn_implementation(implementation)
    torch.compiler.reset()
    cache = hf.StaticCache(new.config, max_cache_len=16)
    logits(new, ids[:, :before], past_key_values=cache, use_cache=True)
    step = torch.compile(new, fullgraph=True, backend="eager")
    found = logits(step, ids[:, before:], past_key_values=cache, use_cache=True)
    assert torch.allclose(found, logits(new, ids)[:, before:], atol=2e-4)


def test_holes_that_a_sliding_cache_cannot_serve():
    """A window counts positions and reaches over masked tokens; a sliding cache drops keys by tokens."""
    new, ids = retrofitted(tiny("Mistral")), tokens(1, 14)
    mask = torch.ones_like(ids)
    mask[0, 4:9] = 0
    whole = logits(new, ids, attention_mask=mask)
    for cache in (hf.DynamicCache(), hf.DynamicCache(config=new.config)):
        logits(new, ids[:, :12], attention_mask=mask[:, :12], past_key_values=cache, use_cache=True)
        given = {"attention_mask": mask, "past_key_values": cache, "use_cache": True}
        if cache.is_sliding[0]:
            with pytest.raises(ValueError, match=r"hides tokens between others.*=DynamicCache\(\)"):
                logits(new, ids[:, 12:], **given)
        else:
            assert torch.allclose(logits(new, ids[:, 12:], **given), whole[:, 12:], atol=2e-4)


def test_a_retrofitted_window_on_the_fused_engine(monkeypatch):
    shape = {"num_hidden_layers": 1, "num_attention_heads": 1, "num_key_value_heads": 1}
    new, ids = retrofitted(tiny("Mistral", **shape)), tokens(1, WINDOW + 2)
    expected, windows = logits(new, ids), []

    def fused(request):
        windows.append(request.window)
        return longfire.engines.dispatch.choose(request, "fused")

    monkeypatch.setattr(attention, "choose", fused)
    assert torch.allclose(logits(new, ids), expected, atol=1e-3)
    assert windows == [WINDOW]
