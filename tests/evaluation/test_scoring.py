"""Token losses of any model match those from all logits at once, without materialising them."""

import pytest
import torch
import torch.nn.functional as F
from transformers import LlamaForCausalLM

from longfire.evaluation.scoring import HEAD, REPLAY, WHOLE, Scorer, position_limit, replaced_outputs
from longfire.model import loss
from longfire.model.loss import IGNORED, logit_losses, token_losses
from tests.evaluation.foreign_models import (
    DOCUMENTS,
    MODELS,
    V,
    evaluate,
    gemma,
    gpt2,
    llama,
    opt,
    plain_losses,
    split_of,
    whole_pieces,
)
from tests.memory import Largest
from tests.model.models import small_model, tokens


@pytest.mark.parametrize("name", MODELS)
def test_as_a_plain_loop(name):
    make, way = MODELS[name]
    model, split = make(), split_of(*DOCUMENTS)
    record = evaluate(model, split)
    assert record["logits"] == way
    for row in record["rows"]:
        windows = whole_pieces(split, row["length"])
        assert row["sequences"] == len(windows)
        assert row["tokens"] == len(windows) * (row["length"] - 1)
        assert row["log_perplexity"] == pytest.approx(plain_losses(model, windows).double().mean().item(), rel=2e-6)


def test_token_losses_are_cross_entropy_to_the_last_bit(monkeypatch):
    hidden, weight, bias = torch.randn(37, 16), torch.randn(V, 16), torch.randn(V)
    labels = torch.randint(0, V, (37,))
    labels[3] = IGNORED
    expected = F.cross_entropy(F.linear(hidden, weight, bias), labels, reduction="none")
    assert torch.equal(token_losses(hidden, weight, labels, bias), expected)
    assert token_losses(hidden.double(), weight.double(), labels).dtype == torch.float64
    assert token_losses(hidden.bfloat16(), weight.bfloat16(), labels).dtype == torch.float32
    assert token_losses(hidden[:0], weight, labels[:0]).shape == (0,)
    monkeypatch.setattr(loss, "BLOCK", 5 * V)  # a few tokens at a time
    torch.testing.assert_close(token_losses(hidden, weight, labels, bias), expected)


def test_token_losses_by_the_kernel():
    """On a CPU, in Triton's interpreter."""
    pytest.importorskip("triton")
    from longfire.model.kernels.cross_entropy import losses_and_gradient

    if torch.cuda.is_available():
        pytest.skip("there is no interpreter beside a GPU; GPU tests run the kernel itself")
    logits, labels = torch.randn(7, V), torch.randint(0, V, (7,))
    labels[2] = IGNORED
    torch.testing.assert_close(losses_and_gradient(logits.clone(), labels, False), logit_losses(logits, labels))


@pytest.mark.parametrize("make", [small_model, gemma], ids=["head", "replay"])
def test_logits_are_never_all_in_memory(make, monkeypatch):
    many, n = 50021, 256
    monkeypatch.setattr(loss, "BLOCK", 4 * many)
    model = small_model(vocab_size=many) if make is small_model else gemma()
    if make is gemma:
        model.resize_token_embeddings(many)
    split = split_of(2 * n)
    with Largest() as made:
        (row,) = evaluate(model, split, lengths=(n,))["rows"]
    assert made.elements < n * many / 4
    assert row["log_perplexity"] == pytest.approx(plain_losses(model, whole_pieces(split, n)).mean().item(), rel=1e-5)
    with Largest() as made:
        plain_losses(model, whole_pieces(split, n))
    assert made.elements >= n * many / 4  # it would be noticed


def test_a_soft_cap_counts():
    """Even if the logits of the probe tokens are far below it."""
    model = gemma(final_logit_softcapping=3.0)
    with torch.no_grad():
        model.lm_head.weight.mul_(1e-3)
    assert Scorer(model).way == REPLAY
    assert Scorer(gemma(final_logit_softcapping=None)).way == HEAD


class NoDecoder(LlamaForCausalLM):
    def get_decoder(self):
        return self


class Closed(LlamaForCausalLM):
    """Refuses a replaced decoder."""

    def forward(self, input_ids=None, **options):
        if "forward" in vars(self.model):
            raise TypeError("not my decoder")
        return super().forward(input_ids, **options)


class Scaled(LlamaForCausalLM):
    """Passes its decoder scaled embeddings."""

    def forward(self, input_ids=None, **options):
        embedded = self.model.embed_tokens(input_ids).clamp(min=0)
        return super().forward(inputs_embeds=embedded, **options)


@pytest.mark.parametrize("cls", [NoDecoder, Closed, Scaled])
def test_whole_logits_as_the_last_resort(cls, monkeypatch):
    model, split = cls(llama(initializer_range=0.5).config).eval(), split_of(*DOCUMENTS)
    record = evaluate(model, split)
    assert record["logits"] == WHOLE
    expected = plain_losses(model, whole_pieces(split, 16)).mean().item()
    assert record["rows"][0]["log_perplexity"] == pytest.approx(expected, rel=1e-5)
    monkeypatch.setattr(loss, "BLOCK", 1)  # a sequence at a time
    assert evaluate(model, split)["rows"][0]["log_perplexity"] == pytest.approx(expected, rel=1e-5)


def test_replaying_restores_the_decoder():
    model = llama()
    run, ids = model.model.forward, tokens(1, 4)

    def stopped():
        with replaced_outputs(model.model, "outputs"):
            assert model.model(ids) == "outputs"
            raise RuntimeError("stop")

    with pytest.raises(RuntimeError, match="stop"):
        stopped()
    assert "forward" not in vars(model.model)
    model.model.forward = wrapped = lambda *args, **options: run(*args, **options)  # as accelerate does
    with pytest.raises(RuntimeError, match="stop"):
        stopped()
    assert model.model.forward is wrapped


@pytest.mark.parametrize(
    ("make", "limit", "where"),
    [(gpt2, 32, "transformer.wpe"), (opt, 64, "embed_positions"), (lambda: small_model("learned"), None, "Learned")],
    ids=["gpt2", "opt", "ours"],
)
def test_learned_positions_are_limited(make, limit, where):
    model = make()
    limit = limit or position_limit(model)[0]
    split = split_of(300, 300, 40)
    fits, fails = evaluate(model, split, lengths=(limit, limit + 1))["rows"]
    assert fits["log_perplexity"] > 0
    assert f"{limit} learned positions" in fails["failed"]
    assert where in fails["failed"]
    assert "log_perplexity" not in fails
    with torch.no_grad():
        model(torch.ones(1, limit, dtype=torch.long))
        with pytest.raises((IndexError, ValueError)):
            model(torch.ones(1, limit + 1, dtype=torch.long))


def test_relative_and_rotary_positions_are_not_limited():
    assert [position_limit(model) for model in (llama(), small_model("fire"), small_model("t5"))] == [None] * 3


def test_a_model_in_training_stays_in_training():
    model = small_model(attention_dropout=0.5, resid_dropout=0.5)
    expected = evaluate(model)["rows"][0]["log_perplexity"]
    model.train()
    assert evaluate(model)["rows"][0]["log_perplexity"] == expected
    assert model.training
    model(tokens(1, 8), labels=tokens(1, 8)).loss.backward()


@pytest.mark.gpu
@pytest.mark.parametrize("make", [small_model, llama, gemma], ids=["fire", "llama", "gemma2"])
def test_on_a_gpu(make):
    """As on the CPU; exceeding learned positions leaves the device usable."""
    model, split = make(), split_of(*DOCUMENTS)
    expected = evaluate(model, split)["rows"]
    for row, other in zip(evaluate(model.cuda(), split)["rows"], expected, strict=True):
        assert row["log_perplexity"] == pytest.approx(other["log_perplexity"], rel=1e-2)
    assert "failed" in evaluate(gpt2().cuda(), split, lengths=(16, 64))["rows"][1]
    assert torch.ones(1, device="cuda").item() == 1


@pytest.mark.gpu
def test_long_sequences_on_a_gpu():
    """32,768 tokens of a large vocabulary: their logits alone would take 6.6 GB."""
    model = small_model(vocab_size=50304).bfloat16().cuda()
    torch.cuda.reset_peak_memory_stats()
    (row,) = evaluate(model, split_of(32768), lengths=(32768,))["rows"]
    assert row["tokens"] == 32767
    assert torch.cuda.max_memory_allocated() < 3e9
