"""`longfire generate` against the model's own `generate`."""

import io
import os
import re
import signal
import subprocess
import sys

import pytest
import torch
from tokenizers import Tokenizer, decoders, models, pre_tokenizers
from transformers import LlamaConfig, LlamaForCausalLM, PreTrainedTokenizerFast

from longfire.cli import main
from longfire.model.generate import GenerationSetting, TextStream, generate
from tests.model.checkpoints import byte_tokenizer, save_checkpoint

PROMPT = "Once upon"


@pytest.fixture(scope="module")
def saved(tmp_path_factory):
    folder = tmp_path_factory.mktemp("checkpoint")
    return folder, *save_checkpoint(folder, max_position_embeddings=16)


def command(folder, *options, prompt=PROMPT):
    return ["generate", str(folder), "--prompt", prompt, "--device", "cpu", *options]


def text_of(model, tokenizer, prompt=PROMPT, new=40, **options):
    ids = tokenizer(prompt, return_tensors="pt")["input_ids"]
    out = model.generate(ids, max_new_tokens=new, pad_token_id=0, **{"do_sample": False, **options})
    return tokenizer.decode(out[0, ids.shape[1] :], skip_special_tokens=True)


@pytest.mark.parametrize("cache", ["dynamic", "static", "none"])
def test_greedy_text_past_the_training_length(saved, cache, capsys):
    folder, model, tokenizer = saved
    assert main(command(folder, "--max-new-tokens", "40", "--cache", cache)) == 0
    shown = capsys.readouterr()
    assert shown.out == text_of(model, tokenizer) + "\n"
    speed = r"9 prompt tokens, \d+ new, first after [\d.e-]+ s, then [\d.e+]+ tokens/s"
    assert re.fullmatch(rf"{speed}; cpu, float32, attention longfire \(\w+\), encoding fire\n", shown.err)


def test_sampling(saved, capsys):
    folder, model, tokenizer = saved

    def sampled(*options):
        assert main(command(folder, "--max-new-tokens", "30", *options)) == 0
        return capsys.readouterr().out

    greedy, hot = sampled(), ("--temperature", "3")
    assert sampled(*hot, "--seed", "1") == sampled(*hot, "--seed", "1")
    assert sampled(*hot, "--seed", "1") != sampled(*hot, "--seed", "2")
    assert sampled(*hot, "--top-k", "1") == sampled(*hot, "--top-p", "1e-6") == greedy
    # by default from the whole vocabulary, not from transformers' top 50
    setting = GenerationSetting(PROMPT, max_new_tokens=400, temperature=1e4)
    ids = tokenizer(PROMPT, return_tensors="pt")["input_ids"]
    out = model.generate(ids, **setting.options(), min_new_tokens=400, pad_token_id=0)
    assert out.unique().numel() > 100


def test_prompts_from_files(saved, tmp_path, capsys, monkeypatch):
    folder, model, tokenizer = saved
    expected = text_of(model, tokenizer, "Été\n", new=8) + "\n"
    (tmp_path / "prompt.txt").write_text("Été\n\n", encoding="utf-8")
    monkeypatch.setattr(sys, "stdin", io.StringIO("Été\n\n"))
    for path in (str(tmp_path / "prompt.txt"), "-"):
        assert main(["generate", str(folder), "--max-new-tokens", "8", "--device", "cpu", "--prompt-file", path]) == 0
        assert capsys.readouterr().out == expected


def test_learned_positions_end(tmp_path, capsys):
    save_checkpoint(tmp_path, "learned", max_position_embeddings=16, eos_token_id=None)
    assert main(command(tmp_path, "--max-new-tokens", "9")) == 2
    shown = capsys.readouterr()
    assert "16 positions, too few for 9 prompt tokens and 9 new ones" in shown.err
    assert shown.out == ""
    assert main(command(tmp_path, "--max-new-tokens", "8")) == 0  # the last token is not read again
    assert ", encoding learned" in capsys.readouterr().err


def test_another_librarys_model(tmp_path, capsys):
    tokenizer = byte_tokenizer()
    shape = {"hidden_size": 16, "intermediate_size": 32, "num_hidden_layers": 1, "num_attention_heads": 2}
    LlamaForCausalLM(LlamaConfig(vocab_size=len(tokenizer), **shape)).save_pretrained(tmp_path)
    tokenizer.save_pretrained(tmp_path / "words")
    capsys.readouterr()
    options = ["--tokenizer", str(tmp_path / "words"), "--dtype", "bfloat16", "--max-new-tokens", "1"]
    assert main(command(tmp_path, *options)) == 0
    report = capsys.readouterr().err
    assert re.fullmatch(r"9 prompt tokens, 1 new, first .* s; cpu, bfloat16, .* encoding llama's own\n", report)


@pytest.mark.parametrize(
    ("options", "message"),
    [
        (["--prompt", ""], "prompt is empty"),
        (["--prompt", "a", "--max-new-tokens", "0"], "must be at least 1, not 0"),
        (["--prompt", "a", "--temperature", "-1"], "temperature must be at least 0"),
        (["--prompt", "a", "--top-k", "5"], "need a temperature above 0"),
        (["--prompt", "a", "--temperature", "1", "--top-p", "1.5"], "at most 1, not 1.5"),
        (["--prompt", "a", "--device", "gpu"], "no device named 'gpu'"),
        (["--prompt", "a", "--device", "cuda:99"], "'cuda:99'"),
        (["--prompt", "a", "--tokenizer", "nowhere"], "no tokenizer folder nowhere"),
        (["--prompt-file", "nowhere.txt"], "cannot read nowhere.txt (No such file or directory)"),
    ],
)
def test_errors_are_one_line(saved, options, message, capsys):
    assert main(["generate", str(saved[0]), *options]) == 2
    shown = capsys.readouterr().err
    assert message in shown
    assert shown.count("\n") == 1


def test_folders_that_are_not_checkpoints(saved, tmp_path, capsys):
    def error(folder):
        assert main(command(folder, prompt="a")) == 2
        return capsys.readouterr().err

    assert f"there is no folder {tmp_path / 'nowhere'}" in error(tmp_path / "nowhere")
    assert "has no config.json" in error(tmp_path)
    (tmp_path / "recipe.json").write_text("{}")
    assert "unfinished training run" in error(tmp_path)
    (tmp_path / "recipe.json").unlink()
    saved[1].save_pretrained(tmp_path)
    assert f"{tmp_path} has no tokenizer" in error(tmp_path)
    other = Tokenizer(models.WordLevel({"a": 300}, unk_token="a"))
    PreTrainedTokenizerFast(tokenizer_object=other).save_pretrained(tmp_path)
    assert "token 300, but the model's vocabulary has 257" in error(tmp_path)


def test_exactly_one_prompt(saved):
    for options in ([], ["--prompt", "a", "--prompt-file", "b"]):
        with pytest.raises(SystemExit, match="2"):
            main(["generate", str(saved[0]), *options])


class Written(io.StringIO):
    """Records each write, and raises an interrupt after some."""

    def __init__(self, stop_after=None):
        super().__init__()
        self.parts, self.stop_after = [], stop_after

    def write(self, text):
        self.parts += [text] if text else []
        if len(self.parts) == self.stop_after:
            signal.raise_signal(signal.SIGINT)
        return super().write(text)


def test_interrupted(saved):
    _, model, tokenizer = saved
    out = Written(stop_after=3)
    report = generate(model, tokenizer, GenerationSetting(PROMPT, max_new_tokens=40), out)
    assert report.interrupted
    assert 3 <= len(report.times) < 40
    assert str(report).endswith("; interrupted")
    assert text_of(model, tokenizer).startswith(out.getvalue().rstrip("\n\N{REPLACEMENT CHARACTER}"))


def test_control_c(tmp_path):
    """In a subprocess: the text is kept, the report follows, and the exit status is 130."""
    save_checkpoint(tmp_path, eos_token_id=999)  # never generated
    endless = command(tmp_path, "--max-new-tokens", "1000000", "--temperature", "100")
    with subprocess.Popen(
        [sys.executable, "-m", "longfire", *endless],
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        env={**os.environ, "HF_HUB_OFFLINE": "1"},
    ) as process:
        assert process.stdout.read(1)
        process.send_signal(signal.SIGINT)
        _, report = process.communicate(timeout=60)
    assert process.returncode == 130
    assert report.decode().strip().endswith("; interrupted")


def streamed(tokenizer, ids):
    out = Written()
    stream = TextStream(tokenizer, out)
    for value in ([[1, 2, 3]], *([token] for token in ids)):  # the prompt, then each token
        stream.put(torch.tensor(value))
    stream.end()
    return out.parts


def test_characters_are_never_split():
    tokenizer = byte_tokenizer()
    parts = streamed(tokenizer, tokenizer("aé 火🔥.").input_ids)
    assert parts == ["a", "é", " ", "火", "🔥", ".", "\n"]
    cut = tokenizer("ab🔥").input_ids[:-1]
    assert streamed(tokenizer, cut) == ["a", "b", tokenizer.decode(cut)[2:] + "\n"]


def test_words_keep_their_spaces():
    """Also if the tokenizer drops the space before the first word, as Llama's does."""
    words = Tokenizer(models.WordLevel({"▁to": 0, "▁be": 1, "ing": 2}, unk_token="▁to"))
    words.pre_tokenizer, words.decoder = pre_tokenizers.Metaspace(), decoders.Metaspace()
    parts = streamed(PreTrainedTokenizerFast(tokenizer_object=words), [0, 1, 2, 0])
    assert parts == ["to", " be", "ing", " to", "\n"]
