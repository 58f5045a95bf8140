"""Retrofit and recovery: what is converted, trained, tested and saved."""

import copy

import peft
import pytest
import torch
from transformers import AutoModelForCausalLM

from longfire.lab.retrofit import retrofit_and_recover
from longfire.lab.retrofit_plan import RetrofitPlan
from longfire.model import retrofit
from longfire.model.generate import load_model
from longfire.training.recovery import recovery_recipe
from tests.model.checkpoints import byte_tokenizer, save_checkpoint
from tests.model.decoders import tiny
from tests.model.models import tokens
from tests.training.runs import at_step, losses, raises, same_weights, weights

CHANGES = {"steps": 8, "batch_size": 4, "length": 32, "checkpoint_every": 4, "log_every": 1, "learning_rate": 1e-3}
LENGTHS = (16, 32, 64)


@pytest.fixture(scope="module")
def checkpoints(tmp_path_factory):
    folder = tmp_path_factory.mktemp("checkpoints")
    tokenizer = byte_tokenizer()
    for name, dtype in (("Llama", "float32"), ("Bloom", "float32"), ("Qwen2", "bfloat16")):
        tiny(name, vocab_size=len(tokenizer)).to(getattr(torch, dtype)).save_pretrained(folder / name)
        tokenizer.save_pretrained(folder / name)
    save_checkpoint(folder / "rope", "rope", max_position_embeddings=32)
    return folder


@pytest.fixture(scope="module")
def plan_for(checkpoints, corpus):
    text = {name: value for name, value in corpus.items() if name != "tokenizer"}

    def plan(name, changes=(), **options):
        options = {"training_length": 32, "lengths": LENGTHS, "tokens": 512, "corpus": text, **options}
        return RetrofitPlan(str(checkpoints / name), changes={**CHANGES, **dict(changes)}, **options)

    return plan


def run(plan, out, **options):
    return retrofit_and_recover(plan, out, progress=False, **options)


def perplexities(run):
    return [row["log_perplexity"] for row in run["perplexity"]["rows"]]


@pytest.mark.parametrize("lora", [False, True], ids=["full", "lora"])
def test_an_interrupted_recovery_ends_with_the_same_model(lora, plan_for, tmp_path):
    plan = plan_for("Llama", lora=lora, evaluate_at=[4])
    whole = run(plan, tmp_path / "whole")
    assert [one["stage"] for one in whole["runs"]] == ["original", "step-0", "step-4", "step-8"]
    assert "interrupted" not in whole
    with at_step(6, raises(KeyboardInterrupt)):
        stopped = run(plan, tmp_path / "run")
    assert stopped["interrupted"]
    assert [one["stage"] for one in stopped["runs"]] == ["original", "step-0", "step-4"]
    resumed = run(plan, tmp_path / "run")
    assert losses(tmp_path / "run") == losses(tmp_path / "whole")
    assert same_weights(*(weights(tmp_path / one / "model") for one in ("run", "whole")))
    assert [perplexities(one) for one in resumed["runs"]] == [perplexities(one) for one in whole["runs"]]
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(RetrofitPlan, "load_original", raises(AssertionError("loaded again")))
        assert run(plan, tmp_path / "run")["runs"] == resumed["runs"]
        with pytest.raises(ValueError, match=r"training in .* is past step 6"):
            run(plan_for("Llama", lora=lora, evaluate_at=[6]), tmp_path / "run")
        with pytest.raises(ValueError, match=r"already contains a different run .*seed: 0 there, 1 here"):
            run(plan_for("Llama", {"seed": 1}, lora=lora), tmp_path / "run")


def test_adapters_are_merged_and_saved(plan_for, tmp_path):
    plan = plan_for("Llama", lora=True)
    run(plan, tmp_path)
    merged, _ = load_model(tmp_path, device="cpu")
    original = AutoModelForCausalLM.from_pretrained(plan.source)
    adapted = peft.PeftModel.from_pretrained(retrofit(original, training_length=32), tmp_path / "adapter").eval()
    ids = tokens(2, 13)
    assert torch.allclose(adapted(ids).logits, merged(ids).logits, atol=1e-4)
    frozen = "model.embed_tokens.weight"
    assert torch.equal(merged.get_parameter(frozen), original.get_parameter(frozen))
    counts = plan.parameters
    assert counts["encoding"] < counts["trained"] < counts["all"]


def test_what_is_saved_has_the_original_precision(plan_for, tmp_path):
    for lora in (False, True):
        run(plan_for("Qwen2", {"steps": 2}, lora=lora), tmp_path / str(lora))
        model, _ = load_model(tmp_path / str(lora), device="cpu")
        assert model.lm_head.weight.dtype == torch.bfloat16
        assert {p.dtype for name, p in model.named_parameters() if "position_encoding" in name} == {torch.float32}


@pytest.mark.parametrize("lora", [False, True], ids=["full", "lora"])
def test_saving_memory_changes_no_result(lora, plan_for, tmp_path):
    """Not even what identifies the run."""
    saving = {"gradient_checkpointing": True, "max_tokens_per_device": 64}
    for name, changes in (("plain", {}), ("saving", saving)):
        run(plan_for("Llama", {"steps": 4, **changes}, lora=lora), tmp_path / name)
    expected, found = (losses(tmp_path / name) for name in ("plain", "saving"))
    assert [step[1] for step in found] == pytest.approx([step[1] for step in expected], rel=1e-4)
    run(plan_for("Llama", {"steps": 4}, lora=lora), tmp_path / "saving")


def test_alibi_is_converted_exactly(plan_for, tmp_path):
    """Without steps; the corpus may then be too short for a batch."""
    record = run(plan_for("Bloom", {"steps": 0, "batch_size": 10**6}), tmp_path)
    before, after = (perplexities(one)[:2] for one in record["runs"])
    assert after == pytest.approx(before, abs=1e-4)
    assert (tmp_path / "model" / "config.json").exists()
    assert record["runs"][1]["final_loss"] is None


def test_alibi_recovers_too(plan_for, tmp_path):
    record = run(plan_for("Bloom"), tmp_path)
    assert perplexities(record["runs"][-1])[1] < perplexities(record["runs"][0])[1]


@pytest.mark.parametrize("encoding", [None, "kerple_log", "rope", "yarn:target_length=64"])
def test_longfire_models(encoding, plan_for, tmp_path):
    """A new encoding, the same RoPE as a control, and an extension."""
    record = run(plan_for("rope", {"steps": 4}, encoding=encoding), tmp_path)
    before, converted, _ = map(perplexities, record["runs"])
    assert (converted == before) == (encoding == "rope")
    model, _ = load_model(tmp_path)
    assert model.config.position_encoding["name"] == (encoding or "fire").partition(":")[0]


def test_retrofitting_longfire_models(checkpoints):
    model = AutoModelForCausalLM.from_pretrained(checkpoints / "rope")
    before, ids = copy.deepcopy(model.state_dict()), tokens(2, 13)
    fired = retrofit(model, training_length=32)
    assert (fired.config.position_encoding, fired.training) == ({"name": "fire", "init_L": 8}, False)
    assert not torch.allclose(fired(ids).logits, model(ids).logits, atol=1e-2)
    with torch.no_grad():
        fired.model.embed_tokens.weight.zero_()
    assert same_weights(model.state_dict(), before)
    with pytest.raises(ValueError, match="already has 'fire', which it has learned"):
        retrofit(fired, training_length=32)
    with pytest.raises(TypeError, match=r"yarn:target_length=N"):
        retrofit(model, "yarn", training_length=32)
    with pytest.raises(TypeError, match=r"needs training_length=…"):
        retrofit(model)


def test_the_recipe_follows_from_the_model():
    assert (recovery_recipe(512).length, recovery_recipe(8192).length) == (512, 2048)
    assert recovery_recipe(512, steps=50).warmup_steps == 5
    assert recovery_recipe(512, steps=50, warmup_steps=20).warmup_steps == 20
    with pytest.warns(FutureWarning, match="warmup"):
        assert recovery_recipe(512, steps=50, warmup=20).warmup_steps == 20
    with pytest.raises(ValueError, match="no dropout: the model's own configuration decides"):
        recovery_recipe(512, dropout=0.1)
