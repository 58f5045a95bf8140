"""The blockwise loss: its value, its gradients, and arguments with Hugging Face's meaning."""

import pytest
import torch
import torch.nn.functional as F
from transformers.loss.loss_utils import ForCausalLMLoss

from longfire.model import loss as module
from longfire.model.loss import IGNORED, linear_cross_entropy
from tests.memory import Largest
from tests.model.models import small_model, tokens
from tests.tolerance import assert_as_accurate

N, C, V = 37, 16, 61


def inputs(dtype=torch.float64, n=N, ignored=0.3):
    hidden, weight = torch.randn(n, C, dtype=torch.float64), torch.randn(V, C, dtype=torch.float64)
    labels = torch.randint(0, V, (n,)).masked_fill(torch.rand(n) < ignored, IGNORED)
    return hidden.to(dtype).requires_grad_(), weight.to(dtype).requires_grad_(), labels


def plain(hidden, weight, labels):
    """All logits at once."""
    logits = hidden @ weight.T
    logits = logits.to(torch.promote_types(logits.dtype, torch.float32))
    return F.cross_entropy(logits, labels, ignore_index=IGNORED, reduction="sum")


def with_gradients(loss, hidden, weight, labels, scale=0.7):
    value = loss(hidden, weight, labels)
    return [value.detach(), *torch.autograd.grad(scale * value, (hidden, weight))]


@pytest.fixture(params=["one block", "blocks of 5 tokens", "a token at a time"])
def _block(request, monkeypatch):
    rows = {"one block": N, "blocks of 5 tokens": 5, "a token at a time": 0}[request.param]
    monkeypatch.setattr(module, "BLOCK", rows * V)


@pytest.mark.usefixtures("_block")
@pytest.mark.parametrize(("n", "ignored"), [(N, 0.0), (N, 0.3), (1, 0.0)])
@pytest.mark.parametrize("dtype", [torch.float64, torch.float32])
def test_loss_and_gradients(dtype, n, ignored):
    given = inputs(dtype, n, ignored)
    found, expected = with_gradients(linear_cross_entropy, *given), with_gradients(plain, *given)
    torch.testing.assert_close(found, expected)
    assert {result.dtype for result in found} == {dtype}


@pytest.mark.usefixtures("_block")
def test_bfloat16_is_as_accurate_as_eager():
    low = inputs(torch.bfloat16)
    hidden, weight, labels = low
    exact = [x.detach().double().requires_grad_() for x in (hidden, weight)]
    found, eager = with_gradients(linear_cross_entropy, *low), with_gradients(plain, *low)
    truth = with_gradients(plain, *exact, labels)
    assert [x.dtype for x in found] == [torch.float32, torch.bfloat16, torch.bfloat16]
    for what, *three in zip(("loss", "hidden", "weight"), found, eager, truth, strict=True):
        assert_as_accurate(*three, what=what)


def test_first_and_last_label():
    hidden, weight, _ = inputs(ignored=0.0)
    for label in (0, V - 1):
        labels = torch.full((N,), label)
        torch.testing.assert_close(linear_cross_entropy(hidden, weight, labels), plain(hidden, weight, labels))


@pytest.mark.parametrize("label", [-1, V])
def test_labels_outside_the_vocabulary_are_refused(label):
    hidden, weight, labels = inputs()
    labels[5] = label
    with pytest.raises(ValueError, match=f"label {label} is outside the vocabulary of 61 tokens"):
        linear_cross_entropy(hidden, weight, labels)


@pytest.mark.parametrize("n", [1, N])
def test_all_labels_ignored(n):
    hidden, weight, labels = inputs(n=n)
    assert not any(x.any() for x in with_gradients(linear_cross_entropy, hidden, weight, labels.fill_(IGNORED)))


def test_large_logits_do_not_overflow():
    hidden, weight, labels = inputs(torch.float32)
    found = with_gradients(lambda h, w, y: linear_cross_entropy(1e4 * h, w, y), hidden, weight, labels)
    assert all(torch.isfinite(x).all() for x in found)
    torch.testing.assert_close(found[0], plain(1e4 * hidden, weight, labels).detach())


@pytest.mark.parametrize("learns", ["hidden", "weight"])
def test_either_may_be_frozen(learns):
    hidden, weight, labels = inputs()
    chosen = hidden if learns == "hidden" else weight
    expected = torch.autograd.grad(plain(hidden, weight, labels), chosen)
    (weight if learns == "hidden" else hidden).requires_grad_(False)
    torch.testing.assert_close(torch.autograd.grad(linear_cross_entropy(hidden, weight, labels), chosen), expected)


def test_under_autocast():
    """Products in bfloat16, the loss in float32, gradients in the parameters' own precision."""
    hidden, weight, labels = inputs(torch.float32)
    truth = with_gradients(plain, *(x.detach().double().requires_grad_() for x in (hidden, weight)), labels)
    with torch.autocast("cpu", torch.bfloat16):
        found = with_gradients(linear_cross_entropy, hidden, weight, labels)
        eager = with_gradients(plain, hidden, weight, labels)
    assert {x.dtype for x in found} == {torch.float32}
    for what, *three in zip(("loss", "hidden", "weight"), found, eager, truth, strict=True):
        assert_as_accurate(*three, what=what)


def largest_tensor(call):
    with Largest() as made:
        call()
    return made.elements


def test_the_full_logits_never_exist(monkeypatch):
    monkeypatch.setattr(module, "BLOCK", 4 * V)
    given = inputs(n=400)
    assert largest_tensor(lambda: with_gradients(plain, *given)) == 400 * V  # detected
    assert largest_tensor(lambda: with_gradients(linear_cross_entropy, *given)) == 400 * C
    with torch.no_grad():
        assert largest_tensor(lambda: linear_cross_entropy(*given)) <= 400 * C


def test_the_full_logits_never_exist_in_training(monkeypatch):
    monkeypatch.setattr(module, "BLOCK", 4 * 5003)
    model, ids = small_model(vocab_size=5003, tie_word_embeddings=True).train(), tokens(4, 60)
    assert largest_tensor(lambda: model(ids, labels=ids).loss.backward()) == 5003 * 32  # the embeddings' gradient
    assert largest_tensor(lambda: model(ids, labels=ids, skip_logits=False)) == 240 * 5003


def test_second_derivatives_are_refused():
    hidden, weight, labels = inputs()
    value = linear_cross_entropy(hidden, weight, labels)
    with pytest.raises(RuntimeError, match=r"linear_cross_entropy can be differentiated once"):
        torch.autograd.grad(value, (hidden, weight), create_graph=True)


def test_opcheck():
    hidden, weight, labels = inputs()
    tests = ("test_schema", "test_autograd_registration", "test_faketensor", "test_aot_dispatch_dynamic")
    torch.library.opcheck(module._cross_entropy.op, (hidden, weight, labels, True), test_utils=tests)


def test_compiled():
    torch.compiler.reset()
    compiled = torch.compile(linear_cross_entropy, fullgraph=True, backend="aot_eager")
    for n in (N, 20, 33):
        given = inputs(torch.float32, n=n)
        found, expected = with_gradients(compiled, *given), with_gradients(linear_cross_entropy, *given)
        torch.testing.assert_close(found, expected)


@pytest.fixture
def model():
    return small_model()


def some_labels(ids):
    labels = ids.clone()
    labels[0, 3:6] = IGNORED
    labels[1, 0] = IGNORED  # no token predicts it
    return labels


def test_labels_are_shifted_as_hugging_face_does(model):
    ids = tokens(2, 17)
    labels = some_labels(ids)
    out = model(ids, labels=labels)
    torch.testing.assert_close(out.loss, ForCausalLMLoss(out.logits, labels, vocab_size=61))


def test_a_number_of_items_divides_the_sum(model):
    """For gradient accumulation: the number of labels in all batches of a step."""
    ids = tokens(2, 17)
    labels = some_labels(ids)
    for items in (50, torch.tensor(50)):
        out = model(ids, labels=labels, num_items_in_batch=items)
        expected = ForCausalLMLoss(out.logits, labels, vocab_size=61, num_items_in_batch=items)
        torch.testing.assert_close(out.loss, expected)
    counted = (labels[:, 1:] != IGNORED).sum()
    torch.testing.assert_close(out.loss * 50 / counted, model(ids, labels=labels).loss)


def test_shifted_labels(model):
    ids, shifted = tokens(2, 17), tokens(2, 17, seed=5)
    out = model(ids, shift_labels=shifted)
    expected = ForCausalLMLoss(out.logits, None, vocab_size=61, shift_labels=shifted)
    torch.testing.assert_close(out.loss, expected)
    labels = some_labels(ids)
    again = F.pad(labels[:, 1:], (0, 1), value=IGNORED)
    assert torch.equal(model(ids, shift_labels=again).loss, model(ids, labels=labels).loss)
    for other in (labels, shifted):  # Trainer's sequence parallelism passes both, sometimes the same
        assert torch.equal(model(ids, labels=other, shift_labels=shifted).loss, out.loss)


def test_logits_are_skipped_in_training(model):
    ids = tokens(2, 17)
    for training, skip, there in (
        (False, None, True),
        (True, None, False),
        (True, False, True),
        (False, True, False),
    ):
        model.train(training)
        out = model(ids, labels=ids, skip_logits=skip)
        assert (out.logits is not None) == there
        assert out.past_key_values is None
    model.train()
    assert model(ids).logits.shape == (2, 17, 61)  # without labels there is nothing else to return
    assert model(ids, skip_logits=True).logits.shape == (2, 17, 61)


def test_logits_to_keep(model):
    ids = tokens(2, 17)
    with torch.no_grad():
        whole = model(ids).logits
        assert torch.equal(model(ids, logits_to_keep=3).logits, whole[:, -3:])
        torch.testing.assert_close(model(ids, logits_to_keep=torch.tensor([0, 9])).logits, whole[:, [0, 9]])
        some = model(ids, labels=ids, logits_to_keep=1)
    assert some.logits.shape == (2, 1, 61)
    torch.testing.assert_close(some.loss, ForCausalLMLoss(whole, ids, vocab_size=61))


def test_gradients_of_the_whole_model_are_those_of_the_plain_loss(model):
    ids = tokens(2, 17)
    labels = some_labels(ids)
    found = torch.autograd.grad(model.train()(ids, labels=labels).loss, list(model.parameters()))
    expected = torch.autograd.grad(ForCausalLMLoss(model(ids).logits, labels, vocab_size=61), list(model.parameters()))
    torch.testing.assert_close(found, expected, atol=1e-5, rtol=1e-4)


class Adapted(torch.nn.Module):
    """A head with a low-rank adapter, as PEFT wraps one; `weight` is the head's alone."""

    def __init__(self, base):
        super().__init__()
        self.base, self.a, self.b = base, torch.nn.Linear(32, 2, bias=False), torch.nn.Linear(2, 61, bias=False)

    @property
    def weight(self):
        return self.base.weight

    def forward(self, x):
        return self.base(x) + self.b(self.a(x))


def with_bias(model):
    model.lm_head = torch.nn.Linear(32, 61)


def adapted(model):
    model.lm_head = Adapted(model.lm_head)


def replaced(model):
    plain = model.lm_head.forward
    model.lm_head.forward = lambda x: 3 * plain(x)


def with_noise(model):
    """Loss and logits must come from one call."""
    model.lm_head.register_forward_hook(lambda module, inputs, output: output + torch.randn(61))


HEADS = {
    "adapter": adapted,
    "bias": with_bias,
    "forward hook": lambda model: model.lm_head.register_forward_hook(lambda module, inputs, output: 2 * output),
    "pre-hook": lambda model: model.lm_head.register_forward_pre_hook(lambda module, inputs: (2 * inputs[0],)),
    "random hook": with_noise,
    "replaced forward": replaced,
    "parametrisation": lambda model: torch.nn.utils.parametrizations.weight_norm(model.lm_head),
    "subclass": lambda model: setattr(model, "lm_head", type("Own", (torch.nn.Linear,), {})(32, 61)),
}


@pytest.mark.parametrize("head", HEADS)
def test_the_loss_is_that_of_the_logits_whatever_the_head_is(model, head):
    HEADS[head](model)
    ids = tokens(2, 17)
    labels = some_labels(ids)
    out = model(ids, labels=labels)
    expected = ForCausalLMLoss(out.logits, labels, vocab_size=61)
    torch.testing.assert_close(out.loss, expected)
    learning = list(model.lm_head.parameters())
    found = torch.autograd.grad(out.loss, learning, retain_graph=True)
    torch.testing.assert_close(found, torch.autograd.grad(expected, learning), atol=1e-5, rtol=1e-4)
    assert model.train()(ids, labels=labels).logits is None


def test_hooks_on_the_head_are_called(model):
    """A backward hook, and one on all modules."""
    seen, ids = [], tokens(2, 17)
    whole = model(ids, labels=ids).loss
    handle = torch.nn.modules.module.register_module_forward_hook(
        lambda module, inputs, output: 2 * output if module is model.lm_head else None
    )
    try:
        out = model(ids, labels=ids)
    finally:
        handle.remove()
    assert out.loss != whole
    torch.testing.assert_close(out.loss, ForCausalLMLoss(out.logits, ids, vocab_size=61))
    model.lm_head.register_full_backward_hook(lambda module, inner, outer: seen.append(outer[0].shape))
    model.train()(ids, labels=ids).loss.backward()
    assert seen == [(2, 17, 61)]
