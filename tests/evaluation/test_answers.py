"""Batched, cached generation matches a plain loop over single questions."""

import json
import random
import sys
from dataclasses import replace
from functools import cache

import pytest
import torch
from transformers import GPT2Config, GPT2LMHeadModel, LlamaConfig, LlamaForCausalLM

from longfire.evaluation import answers as module
from longfire.evaluation.answers import answer, write_predictions
from longfire.evaluation.metrics import Answered
from longfire.tasks import Example, Task, prompt_ids
from tests.memory import Largest
from tests.model.checkpoints import byte_tokenizer
from tests.model.models import SHAPE, small_model

TASK = Task("riddles", "Riddles", "scrolls", "f1", 12, ("nobody/riddles", ""))
LENGTH = 96
V = 257


def number_tokenizer():
    """Encodes bytes, and decodes to token numbers, so that no token is lost."""
    tokenizer = byte_tokenizer()
    tokenizer.decode = lambda ids, **_: " ".join(map(str, ids))
    return tokenizer


def letters(count, seed):
    return "".join(random.Random(seed).choices("abcdefgh .", k=count))


def examples_of(*lengths):
    """Examples with different documents of these lengths."""
    return [
        Example(f"r{i}", f"{letters(5 + i, i)}?", letters(n, i), (f"right {i}", "so too"), f"d{i // 2}")
        for i, n in enumerate(lengths)
    ]


EXAMPLES = examples_of(30, 7, 500, 31, 0, 64, 63, 111, 1, 70)
"""Some are truncated to the same length, and one has no document."""


def scaled(model, seed=1):
    """Large weights, so that tokens vary and positions matter."""
    generator = torch.Generator().manual_seed(seed)
    with torch.no_grad():
        for parameter in model.parameters():
            if parameter.ndim > 1:
                parameter.copy_(torch.randn(parameter.shape, generator=generator) * 0.4)
    return model.eval()


def gpt2(positions=128):
    return scaled(GPT2LMHeadModel(GPT2Config(vocab_size=V, n_positions=positions, n_embd=32, n_layer=2, n_head=4)))


def llama():
    shape = {"hidden_size": 32, "intermediate_size": 64, "num_hidden_layers": 2, "num_attention_heads": 4}
    return scaled(LlamaForCausalLM(LlamaConfig(vocab_size=V, **shape, num_key_value_heads=2, eos_token_id=0)))


def longfire(name):
    return lambda: small_model(name, vocab_size=V)


MODELS = {
    **{name: longfire(name) for name in ("fire", "rope", "alibi", "nope", "learned")},
    "gpt2": gpt2,
    "llama": llama,
}


def answered(model, examples=EXAMPLES, length=LENGTH, tokenizer=None, task=TASK, **options):
    return answer(
        model, tokenizer or number_tokenizer(), task, examples, length=length, **{"progress": False, **options}
    )


def texts(*arguments, **options):
    return [one.prediction for one in answered(*arguments, **options)]


@torch.no_grad()
def plain(model, examples=EXAMPLES, length=LENGTH, ends=(0,), new=TASK.max_answer):
    """Answers without batches, padding or a cache."""
    found = []
    for example in examples:
        ids = prompt_ids(example, number_tokenizer(), length - new)
        start = len(ids)
        while len(ids) < start + new:
            token = int(model(torch.tensor([ids], device=model.device), use_cache=False).logits[0, -1].argmax())
            if token in ends:
                break
            ids.append(token)
        found.append(" ".join(map(str, ids[start:])))
    return found


@cache
def usual():
    """The answers of `small_model(vocab_size=V)`."""
    return plain(small_model(vocab_size=V))


@pytest.mark.parametrize("name", MODELS)
def test_answers_match_a_plain_loop(name, monkeypatch):
    model = MODELS[name]()
    expected = plain(model)
    assert len({*expected}) > 5
    assert len({token for text in expected for token in text.split()}) > 12
    for batch_tokens in (None, 1, 300):
        assert texts(model, batch_tokens=batch_tokens) == expected
    monkeypatch.setattr(module, "MAX_MASK_ENTRIES", 10 * 84 * 7)  # 7 queries per chunk, some of them all padding
    assert texts(model) == expected


@pytest.mark.parametrize("whose", ["tokenizer", "checkpoint"])
def test_end_tokens_end_an_answer(whose):
    model, tokenizer = small_model(vocab_size=V), number_tokenizer()
    unended = [text.split() for text in usual()]
    end = int(unended[0][4])
    assert unended[0].index(str(end)) > 0
    if whose == "tokenizer":
        tokenizer.eos_token = tokenizer.convert_ids_to_tokens(end)
        ends = (end,)
    else:
        model.generation_config.eos_token_id = [200, end]
        ends = (0, 200, end)
    expected = plain(model, ends=ends)
    lengths = {len(text.split()) for text in expected}
    assert len(lengths) > 1  # within one batch
    assert max(lengths) <= 12
    assert texts(model, tokenizer=tokenizer) == expected


def test_text_ends_before_the_end_token():
    """Without the leading space, the end token and the padding after it."""
    model, tokenizer = small_model(vocab_size=V), byte_tokenizer()
    script = [*tokenizer(" so\n").input_ids, 0]

    def speaks(ids, attention_mask, **_):
        written = torch.tensor([[*script, 5, 5]] * len(ids))
        return torch.cat([ids, written], dim=1)

    model.generate = speaks
    assert texts(model, tokenizer=tokenizer) == ["so"] * len(EXAMPLES)


def test_batches_and_answers_are_bounded(monkeypatch):
    """At most `batch_tokens` tokens in a batch, longest prompts first, and at most `max_answer` in an answer."""
    short = replace(TASK, max_answer=3)
    model, batches, continued = small_model(vocab_size=V), [], module._continue

    def noted(model, prompts):
        batches.append([len(ids) for ids in prompts])
        return continued(model, prompts)

    monkeypatch.setattr(module, "_continue", noted)
    found = answered(model, task=short, length=40, batch_tokens=100)
    assert [one.prediction for one in found] == plain(model, length=40, new=3)
    assert [len(one.prediction.split()) for one in found] == [3] * len(EXAMPLES)
    assert found[2].prompt_tokens == 37 == max(one.prompt_tokens for one in found)  # truncated
    lengths = [n for batch in batches for n in batch]
    assert lengths == sorted(lengths, reverse=True)
    assert all(len(batch) == 1 or len(batch) * (batch[0] + 3) <= 100 for batch in batches)
    assert 1 < len(batches) < len(EXAMPLES)
    assert answered(model, []) == []


def test_answers_come_back_in_order():
    saved = []
    found = answered(small_model(vocab_size=V), batch_tokens=200, save=saved.append)
    by_id = {row["id"]: row for row in saved}
    for one, example in zip(found, EXAMPLES, strict=True):
        assert (one.id, one.references, one.group) == (example.id, example.references, example.group)
        assert one.prompt_tokens == len(prompt_ids(example, number_tokenizer(), LENGTH - 12))
        assert list(by_id[one.id]) == ["id", "prediction", "references", "group", "prompt_tokens"]
        assert Answered(**by_id[one.id]) == one


def test_answers_are_saved_as_they_come(monkeypatch):
    """Longest prompt first; a later error does not lose the answers so far."""
    examples, saved, continued = examples_of(10, 60, 20, 50), [], module._continue

    def twice(model, prompts):
        if len(saved) == 2:
            raise RuntimeError("power cut")
        return continued(model, prompts)

    monkeypatch.setattr(module, "_continue", twice)
    model = small_model(vocab_size=V).train()
    config = model.generation_config
    with pytest.raises(RuntimeError, match="power cut"):
        answered(model, examples, batch_tokens=1, save=saved.append)
    assert [row["id"] for row in saved] == ["r1", "r3"]
    assert model.training
    assert model.generation_config is config


def test_batches_shrink_when_memory_runs_out(monkeypatch):
    model, after, sizes = small_model(vocab_size=V), module._continue, []

    def small(model, prompts):
        sizes.append(len(prompts))
        if len(prompts) > 3:
            raise torch.OutOfMemoryError("no more")
        return after(model, prompts)

    monkeypatch.setattr(module, "_continue", small)
    assert texts(model) == usual()
    assert sizes[:3] == [10, 5, 2]  # and stays small
    assert max(sizes[3:]) <= 3
    monkeypatch.setattr(module, "_continue", lambda *_: (_ for _ in ()).throw(torch.OutOfMemoryError("none at all")))
    with pytest.raises(torch.OutOfMemoryError):
        answered(model)


def test_the_state_of_a_model_does_not_matter_and_is_restored():
    """Generation settings, training mode with dropout, compiled layers."""

    def backend(*_):
        raise AssertionError("a graph was compiled")

    model = small_model(vocab_size=V, resid_dropout=0.5, attention_dropout=0.5).train()
    for layer in model.model.layers:
        layer.compile(backend=backend)
    sampling = {"do_sample": True, "temperature": 5.0, "repetition_penalty": 9.0, "min_new_tokens": 12, "num_beams": 2}
    model.generation_config.update(**sampling)
    before = model.generation_config.to_dict()
    assert texts(model) == usual()
    assert model.generation_config.to_dict() == before
    assert all(part.training for part in model.modules())
    assert all(parameter.grad is None for parameter in model.parameters())


@pytest.mark.parametrize("name", ["fire", "gpt2"])
def test_logits_of_the_last_token_only(name):
    model, shapes = MODELS[name](), []
    model.register_forward_hook(lambda _, __, out: shapes.append(tuple(out.logits.shape)))
    answered(model)
    assert {shape[1] for shape in shapes} == {1}
    assert len(shapes) == 12


@pytest.mark.parametrize("name", ["rope", "llama"])
def test_no_quadratic_mask(name, monkeypatch):
    """Padded prompts are prefilled in chunks."""
    T, examples = 1000, examples_of(1200, 1200, 700)
    monkeypatch.setattr(module, "MAX_MASK_ENTRIES", 3 * T * 64)
    with Largest() as made:
        answered(MODELS[name](), examples, length=T)
    assert made.elements < 3 * T * T / 5
    monkeypatch.setattr(module, "MAX_MASK_ENTRIES", 3 * T * T)
    with Largest() as made:
        answered(MODELS[name](), examples, length=T)
    assert made.elements >= 3 * T * T / 2  # the check above can fail


@pytest.mark.parametrize(("make", "where"), [(longfire("learned"), "Learned"), (gpt2, "wpe")], ids=["ours", "gpt2"])
def test_lengths_without_positions_are_refused_first(make, where):
    model = make()
    model.register_forward_hook(lambda *_: pytest.fail("it ran"))
    with pytest.raises(ValueError, match=rf"128 learned positions \(.*{where}\), too few for 129"):
        answered(model, length=129)
    assert len(texts(make(), length=128)) == len(EXAMPLES)


@pytest.mark.parametrize("name", ["fire", "rope"])
def test_beyond_the_training_length(name):
    model = small_model(name, vocab_size=V, max_position_embeddings=32)
    examples = examples_of(300, 200, 90)
    assert texts(model, examples, length=200) == plain(model, examples, length=200)


def test_predictions_are_json_lines(tmp_path):
    rows = [Answered("a", "naïve\nline\u2028 “x”", ("one", "two"), "g", 7), Answered("b", "", ("\ud800",))]
    path = tmp_path / "new" / "predictions.jsonl"
    write_predictions(path, rows[:1])
    write_predictions(path, rows)
    found = [json.loads(line) for line in path.read_text().splitlines()]
    assert [Answered(**{**row, "references": tuple(row["references"])}) for row in found] == rows
    assert [entry.name for entry in path.parent.iterdir()] == ["predictions.jsonl"]


@pytest.mark.gpu
@pytest.mark.parametrize("name", ["fire", "rope"])
def test_on_a_gpu(name, monkeypatch):
    """Matches a plain loop; long padded prompts in bfloat16 need nothing quadratic."""
    model = small_model(name, vocab_size=V).cuda()
    assert texts(model) == plain(model)
    T = 8192
    monkeypatch.setattr(module, "MAX_MASK_ENTRIES", 1 << 24)
    model = model.bfloat16()
    torch.cuda.reset_peak_memory_stats()
    before = torch.cuda.memory_allocated()
    assert len(texts(model, examples_of(9000, 9000, 5000, 6000), length=T)) == 4
    assert torch.cuda.max_memory_allocated() - before < 4 * T * T


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ({"length": 12}, "leaves no room for a prompt, since answers of riddles may take 12"),
        ({"length": 0}, "length must be at least 1, not 0"),
        ({"length": 20}, "example r0: the question takes"),
        ({"batch_tokens": 0}, "batch must be at least 1"),
        ({"vocab_size": SHAPE["vocab_size"]}, "vocabulary has 61 tokens. Use the tokenizer the model was trained with"),
    ],
)
def test_refusals(options, message):
    model = small_model(vocab_size=options.pop("vocab_size", V))
    model.register_forward_hook(lambda *_: pytest.fail("it ran"))
    with pytest.raises(ValueError, match=message):
        answered(model, **options)


def test_progress_is_shown_on_a_terminal(capsys, monkeypatch):
    model = small_model(vocab_size=V)
    answered(model, EXAMPLES[:1], progress=True)
    assert capsys.readouterr().err == ""
    monkeypatch.setattr(sys.stderr, "isatty", lambda: True)
    answered(model, EXAMPLES[:1], progress=True)
    shown = capsys.readouterr().err
    assert "riddles: prompts" in shown
    assert "riddles: answers:" in shown
    assert "?prompt/s]" in shown  # 10.00s/prompt if slow
    assert "?answer/s]" in shown
