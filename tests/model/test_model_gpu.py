"""The model on a GPU with the fused engine, compiled and eager."""

import pytest
import torch
import torch.nn.functional as F
from torch._dynamo.testing import CompileCounterWithBackend
from transformers import StaticCache

from longfire import ENCODINGS, attention_plan
from longfire.model.loss import IGNORED, linear_cross_entropy
from tests.model.models import small_model, tokens

pytestmark = pytest.mark.gpu
SHAPE = {"hidden_size": 128, "num_attention_heads": 2, "num_hidden_layers": 3}
BIASED = sorted(name for name, cls in ENCODINGS.items() if cls.bias is not ENCODINGS["nope"].bias)


def gpu_model(name="fire", dtype=torch.bfloat16, implementation="longfire", **changes):
    return small_model(name, implementation, **SHAPE, **changes).to("cuda", dtype)


def distance(found, exact):
    return ((found - exact).double().norm() / exact.double().norm()).item()


@pytest.mark.parametrize("share", [False, True])
@pytest.mark.parametrize("name", BIASED)
def test_fused_is_as_accurate_as_eager(name, share):
    ids = tokens(2, 700).cuda()
    with torch.no_grad():
        exact = gpu_model(name, torch.float64, "eager", share_position_encoding=share)(ids).logits
        eager = gpu_model(name, implementation="eager", share_position_encoding=share)(ids).logits
        model = gpu_model(name, share_position_encoding=share)
        fused = model(ids).logits
    q = torch.empty(1, 2, 700, 64, device="cuda", dtype=torch.bfloat16)
    assert attention_plan(q, q, q, model.model.encodings[0]).engine == "fused"
    assert distance(fused, exact) <= 2 * distance(eager, exact)


@pytest.mark.parametrize("share", [False, True])
@pytest.mark.parametrize("name", ["fire", "kerple_log", "rope"])
def test_a_compiled_training_step_at_many_lengths(name, share):
    """One graph for lengths between two powers of two, and gradients near those of eager mode."""
    torch.compiler.reset()
    model = gpu_model(name, torch.float32, share_position_encoding=share).train()
    counter = CompileCounterWithBackend("aot_eager")
    step = torch.compile(model, fullgraph=True, backend=counter)

    def gradients(run, ids):
        with torch.autocast("cuda", torch.bfloat16):
            loss = run(ids, labels=ids).loss
        loss.backward()
        found = torch.cat([parameter.grad.flatten() for parameter in model.parameters()])
        model.zero_grad()
        return loss.detach(), found

    for number, T in enumerate((600, 700, 777, 900, 1000)):
        ids = tokens(2, T).cuda()
        (loss, found), (expected_loss, expected) = gradients(step, ids), gradients(model, ids)
        assert torch.allclose(loss, expected_loss, rtol=1e-2)
        assert distance(found, expected) < 0.05
        if number == 1:
            graphs = counter.frame_count
    assert counter.frame_count == graphs <= 2


@pytest.mark.parametrize("left", [True, False])
def test_a_compiled_training_step_with_padding(left):
    torch.compiler.reset()
    model = gpu_model("fire").train()
    ids = tokens(2, 300).cuda()
    mask = torch.ones_like(ids)
    mask[1, slice(0, 90) if left else slice(210, 300)] = 0
    labels = ids.masked_fill(mask == 0, IGNORED)
    step = torch.compile(model, fullgraph=True, backend="aot_eager")
    found = step(ids, attention_mask=mask, labels=labels).loss
    expected = model(ids, attention_mask=mask, labels=labels).loss
    assert torch.allclose(found, expected, rtol=1e-2)


@pytest.mark.filterwarnings("ignore:TensorFloat32")
@pytest.mark.parametrize("name", ["fire", "alibi", "rope", "sinusoidal"])
def test_generate(name):
    """Dynamic, static and compiled caches, in a padded batch, give the same tokens (in float32: no near ties)."""
    torch.compiler.reset()
    model = gpu_model(name, torch.float32)
    ids = tokens(2, 150).cuda()
    mask = torch.ones_like(ids)
    mask[1, :40] = 0
    options = {"do_sample": False, "max_new_tokens": 10, "pad_token_id": 0, "attention_mask": mask}
    expected = model.generate(ids, use_cache=False, **options)
    assert torch.equal(model.generate(ids, **options), expected)
    assert torch.equal(model.generate(ids, cache_implementation="static", disable_compile=True, **options), expected)
    assert torch.equal(model.generate(ids, cache_implementation="static", **options), expected)


@pytest.mark.parametrize("compiled", [False, True])
@pytest.mark.parametrize("shared", [False, True])
def test_decoding_far_out(shared, compiled):
    """With enough keys that all layers' biases are interpolated at once; in a padded batch."""
    torch.compiler.reset()
    model = gpu_model("fire", torch.bfloat16, share_position_encoding=shared)
    ids = tokens(2, 2801).cuda()
    mask = torch.ones_like(ids)
    mask[1, :100] = 0
    with torch.no_grad():
        expected = model(ids, attention_mask=mask, use_cache=False).logits[:, -1]
        without = model(ids[:, -1:], use_cache=False).logits[:, -1]
        cache = StaticCache(model.config, max_cache_len=3000)
        model(ids[:, :-1], attention_mask=mask[:, :-1], past_key_values=cache)
        step = torch.compile(model, fullgraph=True, mode="reduce-overhead") if compiled else model
        seen = torch.zeros(2, 1, 1, 3000, dtype=torch.bool, device="cuda")
        seen[:, 0, 0, :2801] = mask.bool()
        positions = mask.cumsum(-1)[:, -1:] - 1
        found = step(ids[:, -1:], attention_mask=seen, position_ids=positions, past_key_values=cache).logits[:, -1]
    assert distance(found, expected) < 0.05
    assert distance(without, expected) > 0.2


@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16])
@pytest.mark.parametrize("V", [61, 5000])
def test_the_loss(dtype, V):
    hidden, weight = torch.randn(300, 64, device="cuda"), torch.randn(V, 64, device="cuda") / 4
    labels = torch.randint(0, V, (300,), device="cuda").masked_fill(torch.rand(300, device="cuda") < 0.2, IGNORED)

    def gradients(dtype, loss):
        inputs = [x.to(dtype).requires_grad_() for x in (hidden, weight)]
        value = loss(*inputs)
        return value, *torch.autograd.grad(value, inputs)

    def plain(hidden, weight):
        return F.cross_entropy((hidden @ weight.T).to(torch.promote_types(hidden.dtype, torch.float32)), labels)

    def ours(hidden, weight):
        return linear_cross_entropy(hidden, weight, labels) / (labels != IGNORED).sum()

    exact = gradients(torch.float64, plain)
    for found, eager, truth in zip(gradients(dtype, ours), gradients(dtype, plain), exact, strict=True):
        assert distance(found, truth) <= 2 * distance(eager, truth) + 1e-6


def test_the_loss_keeps_no_logits():
    hidden = torch.randn(16384, 64, device="cuda", dtype=torch.bfloat16, requires_grad=True)
    weight = torch.randn(50304, 64, device="cuda", dtype=torch.bfloat16, requires_grad=True)
    labels = torch.randint(0, 50304, (16384,), device="cuda")
    torch.cuda.synchronize()
    torch.cuda.reset_peak_memory_stats()
    before = torch.cuda.memory_allocated()
    linear_cross_entropy(hidden, weight, labels).backward()
    logits = 4 * 16384 * 50304
    assert torch.cuda.max_memory_allocated() - before < logits / 4


def test_encodings_stay_in_float32():
    model = gpu_model("fire")
    assert {p.dtype for n, p in model.named_parameters() if "position_encoding" in n} == {torch.float32}


@pytest.mark.parametrize("share", [False, True])
@pytest.mark.parametrize("name", BIASED)
def test_a_training_step_does_not_synchronise(name, share):
    model, ids = gpu_model(name, share_position_encoding=share).train(), tokens(2, 300).cuda()
    model(ids, labels=ids).loss.backward()  # warm-up
    torch.cuda.synchronize()
    before = torch.cuda.get_sync_debug_mode()
    torch.cuda.set_sync_debug_mode("error")
    try:
        model(ids, labels=ids).loss.backward()
    finally:
        torch.cuda.set_sync_debug_mode(before)


@pytest.mark.filterwarnings("ignore:TensorFloat32 tensor cores")
@pytest.mark.parametrize("share", [False, True])
@pytest.mark.parametrize("graphs", [False, True])
@pytest.mark.parametrize("name", ["fire", "t5", "rope"])
def test_training_steps_with_random_positions_and_compiled_layers(name, graphs, share):
    """The losses and gradients of eager mode, with new positions in each step. Compiled steps do not synchronise."""
    torch.compiler.reset()
    ids, found = tokens(4, 96).cuda(), {}
    for compiled in (False, True):
        model = gpu_model(name, torch.float32, random_positions=1000, share_position_encoding=share).train()
        if compiled:
            model.model.compile_layers(graphs=graphs)
        torch.manual_seed(0)
        found[compiled] = []
        for step in range(4):
            if graphs:
                torch.compiler.cudagraph_mark_step_begin()
            if compiled and not graphs and step == 3:
                torch.cuda.synchronize()
                torch.cuda.set_sync_debug_mode("error")
            try:
                loss = model(ids, labels=ids).loss
                loss.backward()
            finally:
                torch.cuda.set_sync_debug_mode("default")
            gradient = torch.cat([parameter.grad.flatten() for parameter in model.parameters()])
            found[compiled].append((loss.detach().clone(), gradient.clone()))
            model.zero_grad()
    for (loss, gradient), (expected_loss, expected) in zip(found[True], found[False], strict=True):
        assert torch.allclose(loss, expected_loss, rtol=1e-2)
        assert distance(gradient, expected) < 0.05
    assert len({loss.item() for loss, _ in found[True]}) == 4


@pytest.mark.parametrize("name", ["fire", "alibi", "kerple_log", "t5", "rope"])
def test_random_positions_repeat_in_evaluation(name):
    model, ids = gpu_model(name, random_positions=1000), tokens(2, 96).cuda()
    mask = torch.ones_like(ids)
    mask[1, :20] = 0
    with torch.no_grad():
        for options in ({}, {"attention_mask": mask}):
            assert torch.equal(model(ids, **options).logits, model(ids, **options).logits)
        assert not torch.equal(model(ids).logits, model(ids, position_ids=torch.arange(96, device="cuda")[None]).logits)
