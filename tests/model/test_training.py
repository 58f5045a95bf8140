"""Training gives the same gradients compiled, checkpointed and padded, and works with Hugging Face's Trainer."""

import pytest
import torch
from torch._dynamo.testing import CompileCounterWithBackend
from transformers import Trainer, TrainingArguments

from longfire import position_parameters
from longfire.encodings import PositionEncoding
from longfire.model import LongfireForCausalLM
from longfire.model.attention import IMPLEMENTATIONS
from longfire.model.loss import IGNORED
from tests.model.models import NAMES, small_config, small_model, tokens
from tests.model.test_generation import left_padded

LENGTHS = (16, 24, 57)
LEARNED = ["fire", "kerple_log", "kerple_power", "learned", "t5"]


def training_model(name="fire", implementation="longfire", **changes):
    return small_model(name, implementation, **changes).train()


def gradients(model, run, ids, labels=None, **options):
    """The gradient of every parameter by name, and the loss."""
    model.zero_grad()
    loss = run(ids, labels=ids if labels is None else labels, **options).loss
    loss.backward()
    found = {name: parameter.grad for name, parameter in model.named_parameters()}
    model.zero_grad(set_to_none=True)
    return {**found, "loss": loss.detach()}


def assert_same(found, expected):
    """Relative to each tensor's largest gradient; gradients that are 0 by symmetry are only rounding."""
    for name, value in expected.items():
        assert found[name] is not None, name
        largest = max(value.abs().max().item(), 1e-2)
        assert (found[name] - value).abs().max() <= 1e-4 * largest, name


@pytest.mark.parametrize(
    ("name", "share", "checkpointing"),
    [
        ("fire", False, False),
        ("fire", True, False),
        ("rope", False, True),
    ],
)
def test_one_compiled_graph_serves_all_lengths(name, share, checkpointing):
    """Plus one for the first length, before the compiler knows that lengths vary."""
    torch.compiler.reset()
    model = training_model(name, share_position_encoding=share, num_hidden_layers=1)
    counter = CompileCounterWithBackend("aot_eager")
    compiled = torch.compile(model, fullgraph=True, backend=counter)
    expected = {T: gradients(model, model, tokens(2, T)) for T in LENGTHS}
    if checkpointing:
        model.gradient_checkpointing_enable()
    for T in LENGTHS:
        assert_same(gradients(model, compiled, tokens(2, T)), expected[T])
    assert 1 <= counter.frame_count <= 2


@pytest.mark.parametrize("share", [False, True])
@pytest.mark.parametrize("name", NAMES)
def test_checkpointing_recomputes_and_changes_nothing(name, share):
    model, ids = training_model(name, share_position_encoding=share), tokens(2, 17)
    runs, kept = [], []
    for layer in model.model.layers:
        layer.up_proj.register_forward_hook(lambda *_: runs.append(1))

    def counted():
        runs.clear()
        kept.clear()
        with torch.autograd.graph.saved_tensors_hooks(lambda x: kept.append(x.numel()) or x, lambda x: x):
            found = gradients(model, model, ids)
        return found, len(runs), sum(kept)

    expected, plain, much = counted()
    model.gradient_checkpointing_enable()
    found, recomputed, little = counted()
    assert (plain, recomputed) == (2, 4)
    assert little < much / 2
    assert_same(found, expected)
    model.gradient_checkpointing_disable()
    assert counted()[1] == 2


def test_no_dropout_by_default():
    model, ids = training_model(), tokens(2, 17)
    assert (model.config.attention_dropout, model.config.resid_dropout) == (0.0, 0.0)
    with torch.no_grad():
        assert torch.equal(model(ids).logits, model.eval()(ids).logits)


@pytest.mark.parametrize("implementation", IMPLEMENTATIONS)
@pytest.mark.parametrize("dropout", ["attention_dropout", "resid_dropout"])
def test_dropout_acts_only_in_training(dropout, implementation):
    model, ids = small_model(implementation=implementation, **{dropout: 0.5}), tokens(2, 17)
    plain = small_model(implementation=implementation)
    with torch.no_grad():
        assert torch.equal(model(ids).logits, plain(ids).logits)
        model.train()
        first, second = model(ids).logits, model(ids).logits
        assert not torch.allclose(first, second, atol=0.1)
        torch.manual_seed(3)
        third = model(ids).logits
        torch.manual_seed(3)
        assert torch.equal(model(ids).logits, third)


@pytest.mark.parametrize("implementation", IMPLEMENTATIONS)
def test_dropout_keeps_the_mean(implementation):
    """On average, attention's output is the same as without dropout."""
    model, ids = small_model(implementation=implementation, attention_dropout=0.25), tokens(1, 9)
    attention = model.model.layers[0].attention
    seen = []
    attention.register_forward_hook(lambda module, inputs, out: seen.append(out[0]))
    with torch.no_grad():
        model(ids)
        model.train()
        model(ids.expand(400, -1))
    expected, found = seen
    assert (found.mean(0) - expected[0]).abs().max() < 0.25 * expected.abs().max()
    assert (found[0] - expected[0]).abs().max() > 0.25 * expected.abs().max()


@pytest.mark.parametrize("share", [False, True])
@pytest.mark.parametrize("name", NAMES)
def test_all_position_parameters_are_found_and_learn(name, share):
    model = training_model(name, share_position_encoding=share)
    own = {key: parameter for key, parameter in model.named_parameters() if "position_encoding" in key}
    found = position_parameters(model)
    assert sorted(map(id, found)) == sorted(map(id, own.values()))
    assert bool(found) == (name in LEARNED)
    each = len(list(model.model.encodings[0].parameters()))
    assert len(found) == each * (1 if share or name == "learned" else 2)
    ids = tokens(2, 33)
    model(ids, labels=ids).loss.backward()
    for key, parameter in own.items():
        assert torch.isfinite(parameter.grad).all(), key
        if not key.endswith("mlp.4.bias"):  # FIRE's last bias is added to all keys alike and changes no weight
            assert parameter.grad.abs().max() > 1e-6, key


@pytest.mark.parametrize("implementation", IMPLEMENTATIONS)
def test_fire_learns_the_same_through_every_implementation(implementation):
    ids = tokens(2, 33)
    models = [training_model("fire", name) for name in (implementation, "eager")]
    found, expected = (gradients(model, model, ids) for model in models)
    assert_same(found, expected)


def test_all_layers_share_their_positions():
    """Public ports draw random positions in every layer. Here nothing is random, even in training."""
    model, ids = training_model(num_hidden_layers=4), tokens(2, 17)
    seen = []
    for layer in model.model.layers:
        layer.register_forward_pre_hook(
            lambda module, inputs, options: seen.append(options["layout"]), with_kwargs=True
        )
    state = torch.get_rng_state()
    model(ids, attention_mask=left_padded(ids, 5), labels=ids)
    assert len(seen) == 4
    assert len({id(layout) for layout in seen}) == 1
    assert torch.equal(torch.get_rng_state(), state)


def test_a_shared_bias_is_computed_once(monkeypatch):
    calls = []
    for name in ("fire", "kerple_log"):
        model, ids = training_model(name, share_position_encoding=True, num_hidden_layers=4), tokens(2, 17)
        cls = type(model.model.encodings[0])
        assert issubclass(cls, PositionEncoding)
        original = cls.bias
        monkeypatch.setattr(
            cls, "bias", lambda self, q, k, original=original: calls.append(len(q)) or original(self, q, k)
        )
        calls.clear()
        model(ids, labels=ids)
        assert sum(calls) == 17


def padded_batch(left):
    """Two sequences of 17 and 12 tokens in one batch, and both alone."""
    ids = tokens(2, 17)
    short = ids[1:, 5:].clone()
    mask = torch.ones_like(ids)
    if left:
        mask[1, :5] = 0
    else:
        ids[1, :12] = short[0]
        mask[1, 12:] = 0
    labels = ids.masked_fill(mask == 0, IGNORED)
    if left:
        labels[1, 5] = IGNORED  # padding would have to predict it
    return ids, mask, labels, (ids[:1], short)


@pytest.mark.parametrize("share", [False, True])
@pytest.mark.parametrize(("name", "compiled"), [*((name, False) for name in NAMES), ("fire", True)])
def test_padding_changes_no_gradient(name, compiled, share):
    torch.compiler.reset()
    model = training_model(name, share_position_encoding=share, num_hidden_layers=1 if compiled else 2)
    run = torch.compile(model, fullgraph=True, backend="aot_eager") if compiled else model
    for left in (True, False):
        ids, mask, labels, alone = padded_batch(left)
        apart = [gradients(model, model, sequence, num_items_in_batch=16 + 11) for sequence in alone]
        expected = {key: apart[0][key] + apart[1][key] for key in apart[0]}
        assert_same(gradients(model, run, ids, labels, attention_mask=mask), expected)


def test_hugging_faces_trainer(tmp_path):
    """Three steps on a sequence in which each token determines the next."""
    model = LongfireForCausalLM(small_config(tie_word_embeddings=True))
    sequence = torch.arange(1, 17).repeat(2)
    data = [{"input_ids": sequence, "labels": sequence, "attention_mask": torch.ones_like(sequence)}] * 24
    arguments = TrainingArguments(
        output_dir=str(tmp_path),
        max_steps=3,
        per_device_train_batch_size=4,
        gradient_accumulation_steps=2,
        learning_rate=1e-2,
        lr_scheduler_type="constant",
        logging_steps=1,
        save_steps=3,
        use_cpu=True,
        report_to="none",
        disable_tqdm=True,
    )
    trainer = Trainer(model, arguments, train_dataset=data, eval_dataset=data[:4])
    trainer.train()
    losses = [entry["loss"] for entry in trainer.state.log_history if "loss" in entry]
    assert len(losses) == 3
    assert losses[0] == pytest.approx(torch.tensor(61.0).log().item(), rel=0.05)  # divided by all tokens of the step
    assert losses[2] < losses[1] < losses[0] - 0.1
    assert trainer.evaluate()["eval_loss"] < losses[2]
    saved = type(model).from_pretrained(tmp_path / "checkpoint-3")
    assert all(torch.equal(a, b) for a, b in zip(saved.parameters(), model.parameters(), strict=True))
