"""`longfire retrofit` on the command line."""

import importlib.util
import json

import pytest
from transformers import T5Config

from longfire.cli import main
from longfire.model import retrofit
from longfire.training import recovery
from tests.model.checkpoints import byte_tokenizer, save_checkpoint
from tests.model.decoders import tiny
from tests.report.browser import a_browser, curves, looking_at, overflow
from tests.training.runs import at_step, raises

SMALL = ["--steps", "4", "--batch", "2", "--length", "16", "--test-tokens", "256", "--lengths", "16", "64"]


@pytest.fixture
def place(texts, tmp_path, monkeypatch):
    """The working directory: a model with a tokenizer, and texts."""
    monkeypatch.chdir(tmp_path)
    tokenizer = byte_tokenizer()
    tiny("Llama", vocab_size=len(tokenizer), max_position_embeddings=16).save_pretrained("llama")
    tokenizer.save_pretrained("llama")
    return tmp_path


def command(*more, model="llama"):
    return main(["retrofit", model, "out", "--corpus", "texts", *more])


def test_the_report(place, capsys):
    assert command(*SMALL, "--lora", "--evaluate-at", "2") == 0
    shown, progress = capsys.readouterr()
    record = json.loads((place / "out" / "retrofit.json").read_text())
    original, converted, _, last = [run["perplexity"]["rows"] for run in record["runs"]]
    values = [rows[0]["log_perplexity"] for rows in (last, original, converted)]
    gap = f"{abs(values[0] - values[1]):.2f} nats {'worse' if values[0] > values[1] else 'better'} than the original"
    assert " ".join(shown.split()).startswith(
        f"At the training length (16 tokens) the retrofit is {gap} ({values[0]:.2f} against {values[1]:.2f}) after 128 "
        f"tokens of recovery; at 4× that length (64) it is "
    )
    assert f"Before recovery, at 16 tokens, it was {abs(values[2] - values[1]):.2f} nats" in " ".join(shown.split())
    assert "FIRE after 4 steps" in shown
    rows = record["runs"][-1]["perplexity"]["rows"]
    assert f"Tokens scored: {rows[0]['tokens']:,} from {rows[0]['documents']} document" in shown
    assert "(LoRA of rank 16)" in shown
    assert "out: testing original\n16 tokens: log perplexity" in progress
    assert "out: step 4 of 4" in progress
    assert main(["evaluate", "perplexity", "out", "--corpus", "texts", "--lengths", "16", "--device", "cpu"]) == 0
    with a_browser() as browser, looking_at(browser, place / "out" / "report.html", width=400) as page:
        assert page.inner_text(".verdict").startswith("At the training length (16 tokens) the retrofit is ")
        labels = ["Original", "FIRE, before recovery", "FIRE after 2 steps", "FIRE after 4 steps"]
        assert [*curves(page, "#perplexity")] == [*curves(page, "#positions")] == labels
        assert [*curves(page, "#losses")] == labels[-1:]
        assert page.locator("#losses .legend").count() == 0  # the others have no training
        assert overflow(page) <= 0


def test_ctrl_c(place, capsys):
    """In a test of the original, nothing is shown; in training, the tests so far are. The same command resumes."""
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr("longfire.lab.retrofit.perplexity_by_length", raises(KeyboardInterrupt))
        assert command(*SMALL) == 130
    assert not capsys.readouterr().out
    assert not (place / "out" / "retrofit.json").exists()
    with at_step(2, raises(KeyboardInterrupt)):
        assert command(*SMALL) == 130
    shown, progress = capsys.readouterr()
    assert "Interrupted: the same command resumes." in " ".join(shown.split())
    assert "out/model" not in shown
    assert (
        "longfire: stopped; there is no checkpoint yet.\nlongfire: to resume: longfire retrofit llama out" in progress
    )
    assert command(*SMALL) == 0


def test_lengths_without_text_are_left_out(place, capsys):
    assert command("--steps", "1", "--batch", "2", "--length", "256", "--test-tokens", "512") == 0
    assert "No held-out document has 1,024 tokens: not tested there." in " ".join(capsys.readouterr().out.split())
    assert json.loads((place / "out" / "retrofit.json").read_text())["setting"]["lengths"] == [64, 256, 512]


def test_a_dry_run(place, capsys):
    assert command("--dry-run", "--lora", "--encoding", "fire:init=kerple_log", "--set", "lora_rank=4") == 0
    shown = capsys.readouterr().out
    for expected in (
        "model                    llama (llama)",
        "position_encoding        {'name': 'fire', 'init_L': 4.0, 'init': 'kerple_log'}",
        "training_length          16",
        "lora_rank                4",
        "tokens                   512,000: 1,000 steps of 32 × 16",
        "test lengths             4, 16, 32, 64",
        "output                   out",
    ):
        assert expected in shown
    assert not (place / "out").exists()


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        (["--tokenizer", "bytes"], "--tokenizer bytes: a retrofit keeps the model's tokenizer. Omit the option."),
        (["--corpus", "nowhere"], "there is no file or folder nowhere"),
        (["--encoding", "fir"], "there is no encoding named 'fir'. Did you mean 'fire'"),
        (["--encoding", "fire-s"], "a retrofit gives each layer its own encoding. Omit the -s."),
        (["--encoding", "rope"], "retrofit needs an encoding with a bias, or 'nope', not 'rope'"),
        (["--steps", "-1"], "steps must be at least 0, not -1."),
        (["--evaluate-at", "5", "--steps", "4"], "cannot evaluate at step 5: training ends at step 4."),
        (["--lora", "--set", "lora_rank=0"], "LoRA needs a rank of at least 1"),
        (["--set", "compile=True"], "a retrofit has no compile"),
        (["--steps", "3", "--set", "steps=4"], "steps is given twice: --steps 3 and --set steps=4."),
        (["--set", "horizon=64"], "not a field of the recipe but an option of fire. Write --encoding fire:horizon=64."),
        (["--encoding", "fire:init=alibi", "--set", "horizon=64"], "Write --encoding fire:init=alibi,horizon=64."),
        (["--set", "encoding=alibi"], "Write --encoding alibi without --set."),
        (["--set", "size=base"], "a recipe has no field 'size'"),
        (["--training-length", "0"], "the training length must be at least 1, not 0."),
        (["--lengths", "1"], "a length must be at least 2"),
        (["--lengths", "100000"], "no document of the validation split"),
        (["--length", "40000"], "no document of the validation split"),
        (["--batch", "100000"], "but a step needs 100000. Use more text, a smaller batch or a shorter length."),
    ],
)
def test_refusals(arguments, message, place, capsys):
    assert command(*arguments) == 2
    shown = capsys.readouterr().err.splitlines()[-1]
    assert message in shown
    assert not (place / "out").exists()


def test_refused_models(place, capsys):
    def message(model):
        assert command("--dry-run", model=model) == 2
        return capsys.readouterr().err

    assert "there is no folder ./nowhere" in message("./nowhere")
    assert "there is no folder nowhere, and the Hugging Face hub has no such model within reach" in message("nowhere")
    retrofit(tiny("Llama"), training_length=16).save_pretrained("fired")
    assert "fired has no tokenizer. Save the model's with tokenizer.save_pretrained('fired')" in message("fired")
    byte_tokenizer().save_pretrained("fired")
    assert "this longfire_llama already has an encoding of longfire's." in message("fired")
    T5Config().save_pretrained("t5")
    byte_tokenizer().save_pretrained("t5")
    assert "t5 is an encoder–decoder (t5): its recovery needs" in message("t5")
    tiny("Bloom").save_pretrained("bloom")
    byte_tokenizer().save_pretrained("bloom")
    assert "the configuration of bloom states no training length. Pass --training-length N." in message("bloom")
    save_checkpoint("own")
    assert "this model already has 'fire', which it has learned" in message("own")


def test_without_peft(place, capsys, monkeypatch):
    found = importlib.util.find_spec
    monkeypatch.setattr(recovery, "find_spec", lambda name: None if name == "peft" else found(name))
    assert command("--lora", "--dry-run") == 2
    assert capsys.readouterr().err == "longfire: this command needs peft: pip install peft\n"


def test_several_processes_are_refused(place, capsys, monkeypatch):
    monkeypatch.setenv("WORLD_SIZE", "2")
    assert command() == 2
    assert "retrofit runs in one process" in capsys.readouterr().err
