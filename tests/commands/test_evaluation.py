"""`longfire evaluate perplexity` on the command line."""

import json
import math

import numpy as np
import pytest

from longfire.cli import main, parser
from longfire.data import load_corpus
from longfire.data.splits import content_hash
from longfire.evaluation.perplexity import PROTOCOLS
from longfire.evaluation.scoring import HEAD, Scorer
from tests.commands.conftest import TEXT
from tests.evaluation.foreign_models import evaluate, llama, plain_losses, whole_pieces
from tests.model.checkpoints import byte_tokenizer, save_checkpoint


@pytest.fixture
def checkpoint(tmp_path):
    save_checkpoint(tmp_path / "checkpoint", max_position_embeddings=16)
    return tmp_path / "checkpoint"


def command(checkpoint, texts, *more):
    return main(["evaluate", "perplexity", str(checkpoint), "--corpus", str(texts), "--device", "cpu", *more])


@pytest.fixture
def record_of(checkpoint, texts, tmp_path):
    """Run the command and return its record."""

    def run(*more, status=0, checkpoint=checkpoint, source=texts):
        out = tmp_path / "deep" / "found.json"
        out.unlink(missing_ok=True)
        assert command(checkpoint, source, *more, "--out", str(out)) == status
        return json.loads(out.read_text(encoding="utf-8"))

    return run


@pytest.mark.parametrize("protocol", PROTOCOLS)
def test_the_record_and_the_table(protocol, record_of, capsys):
    record = record_of("--split", "all", "--lengths", "16", "64", "--protocol", protocol)
    assert record["protocol"] == protocol
    assert "interrupted" not in record
    first, last = record["rows"]
    assert [first["length"], last["length"], first["documents"]] == [16, 64, 40]
    setting = record["setting"]
    assert (setting["encoding"], setting["dtype"], setting["split"]) == ("fire", "float32", "all")
    assert setting["corpus"]["fingerprint"]
    assert record["provenance"]["versions"]["torch"]
    shown = capsys.readouterr().out
    assert shown.startswith(f"Log perplexity {first['log_perplexity']:.2f} at 16, {last['log_perplexity']:.2f} at 64 (")
    assert "past the training length.\nScored: " in shown
    assert (
        f"{last['tokens']:,} tokens of {last['documents']} documents at {'each' if protocol == 'paired' else 64}"
        in shown
    )
    assert f"{last['log_perplexity']:.4f}" in shown
    assert ("longer − shortest" in shown) == (protocol == "paired")


def test_the_numbers_are_those_of_a_plain_loop(texts, checkpoint, record_of):
    model, _ = save_checkpoint(checkpoint)
    corpus = load_corpus(texts, tokenizer=checkpoint, progress=False)
    rows = record_of("--split", "train", "--lengths", "32", "64")["rows"]
    for row, same in zip(rows, evaluate(model, corpus.train, lengths=(32, 64))["rows"], strict=True):
        expected = plain_losses(model, whole_pieces(corpus.train, row["length"])).mean().item()
        assert row["log_perplexity"] == pytest.approx(expected, rel=1e-5)
        assert row["log_perplexity"] == pytest.approx(same["log_perplexity"], rel=1e-9)
        per_byte = corpus.train.num_tokens / corpus.train.bytes
        assert row["bits_per_byte"] == pytest.approx(expected / math.log(2) * per_byte, rel=1e-5)


def test_training_text_is_reported(texts, checkpoint, tmp_path, record_of, capsys):
    """By split in the training corpus, by content elsewhere, as far as known."""
    corpus = load_corpus(texts, tokenizer=checkpoint, progress=False)
    corpus.save_description(checkpoint)
    held_out, part = corpus.validation.num_documents + corpus.dev.num_documents, tmp_path / "part"
    part.mkdir()
    for name in ("00.txt", "01.txt", "02.txt", "03.txt"):
        (part / name).write_text((texts / name).read_text() + "\n")
    (part / "new.txt").write_text(TEXT)
    seen = np.isin([content_hash(file.read_bytes()) for file in part.iterdir()], corpus.train.contents).sum()
    assert seen > 0

    def found(source, split):
        record = record_of("--split", split, "--lengths", "32", source=source)
        return record, " ".join(capsys.readouterr().out.split())

    for source, split, documents, of in (
        (texts, "all", 40 - held_out, 40),
        (texts, "train", 40 - held_out, 40 - held_out),
        (part, "all", seen, 5),
    ):
        record, shown = found(source, split)
        trained_on = record["trained_on"]
        assert (trained_on["documents"], trained_on["of_documents"]) == (documents, of)
        assert f"trained on {documents} of these {of} documents" in record["note"]
        assert f"({trained_on['tokens'] / trained_on['of_tokens']:.1%} of the tokens)" in shown
    record, shown = found(texts, "validation")
    assert record["trained_on"]["documents"] == 0
    assert "note" not in record
    (tmp_path / "all").mkdir()
    (tmp_path / "all" / "one.txt").write_text("".join(file.read_text() for file in sorted(texts.iterdir())))
    record, shown = found(tmp_path / "all", "all")  # all trained on, as different documents
    assert record["trained_on"]["documents"] == 0
    assert "not recognised" in shown
    (checkpoint / "corpus.npy").unlink()
    record, shown = found(part, "all")
    assert record["trained_on"] is None
    assert "unknown" in shown
    assert found(texts, "all")[0]["trained_on"]["documents"] == 40 - held_out


def test_a_model_of_the_users_own(tmp_path, record_of, capsys):
    folder, tokenizer = tmp_path / "llama", byte_tokenizer()
    llama(vocab_size=len(tokenizer)).save_pretrained(folder)
    tokenizer.save_pretrained(folder)
    record = record_of("--split", "train", "--lengths", "32", checkpoint=folder)
    assert (record["logits"], record["setting"]["encoding"]) == (HEAD, "llama's own")
    assert record["rows"][0]["log_perplexity"] > 0
    assert "training length" not in capsys.readouterr().out


def test_a_default_length_may_fail(checkpoint, record_of, capsys):
    save_checkpoint(checkpoint, max_position_embeddings=64)
    record = record_of("--split", "train", "--tokens", "64", status=1)
    assert "– length 1,024: no document of the train split" in capsys.readouterr().out
    assert "log_perplexity" in record["rows"][0]


@pytest.mark.parametrize(
    ("options", "message"),
    [
        (["--lengths", "32", "99999999999"], f"the longest has {len(TEXT * 7) + 5}."),  # before anything is allocated
        (["--lengths", "1"], "a length must be at least 2"),
        (["--scored", "4"], "needs protocol 'paired'"),
    ],
)
def test_refusals(options, message, texts, checkpoint, tmp_path, capsys):
    out = tmp_path / "found.json"
    assert command(checkpoint, texts, "--split", "all", *options, "--out", str(out)) == 2
    assert message in capsys.readouterr().err
    assert not out.exists()


def test_no_checkpoint(texts, tmp_path, capsys):
    assert command(tmp_path / "nothing", texts) == 2
    assert f"there is no folder {tmp_path / 'nothing'}" in capsys.readouterr().err
    assert command(tmp_path, texts) == 2
    assert "config.json" in capsys.readouterr().err


def test_records_do_not_overwrite_each_other(texts, checkpoint, tmp_path, capsys, monkeypatch):
    monkeypatch.chdir(tmp_path)
    texts, options = texts.relative_to(tmp_path), ["--split", "all", "--lengths", "32", "--tokens", "64"]
    for protocol in PROTOCOLS:
        assert command(checkpoint, texts, *options, "--protocol", protocol) == 0
        file = tmp_path / "evaluate" / f"perplexity-checkpoint-{protocol}.json"
        assert json.loads(file.read_text())["protocol"] == protocol
    before = file.read_bytes()
    assert command(checkpoint, texts, *options, "--protocol", "paired", "--batch-tokens", "32") == 0  # the same again
    assert file.read_bytes() != before
    before = file.read_bytes()
    again = [*options, "--protocol", "paired", "--seed", "1"]
    assert command(checkpoint, texts, *again, "--out", str(file)) == 2
    shown = capsys.readouterr().err
    assert "seed: 0" in shown
    assert "--out" in shown
    second = file.with_stem(f"{file.stem}-2")
    for _ in range(2):  # the same again goes to the same file
        assert command(checkpoint, texts, *again) == 0
        assert json.loads(second.read_text())["seed"] == 1
    assert file.read_bytes() == before
    file.write_text("notes")
    assert command(checkpoint, texts, *options, "--protocol", "paired") == 0
    assert file.read_text() == "notes"
    assert file.with_stem(f"{file.stem}-3").exists()


def test_precision_and_default_lengths(record_of):
    record = record_of("--split", "train", "--dtype", "bfloat16", "--tokens", "512")
    assert record["setting"]["dtype"] == "bfloat16"
    assert [row["length"] for row in record["rows"]] == [16, 32, 64, 128, 256]


def test_an_interrupt_keeps_what_was_measured(record_of, capsys, monkeypatch):
    score = Scorer.__call__

    def stopped(self, ids, first=1):
        if ids.shape[1] == 64:
            raise KeyboardInterrupt
        return score(self, ids, first)

    monkeypatch.setattr(Scorer, "__call__", stopped)
    record = record_of("--split", "train", "--lengths", "32", "64", status=130)
    assert record["interrupted"] is True
    assert [row["length"] for row in record["rows"]] == [32]
    assert "interrupted" in capsys.readouterr().out


def test_dry_run(texts, checkpoint, tmp_path, capsys):
    out = tmp_path / "found.json"
    assert command(checkpoint, texts, "--dry-run", "--tokens", "5000", "--out", str(out)) == 0
    shown = capsys.readouterr().out
    assert "at most 5,000 tokens" in shown
    assert "lengths 16, 32, 64, 128, 256" in shown
    assert not out.exists()
    assert not (tmp_path / "cache").exists()


def test_the_harness_takes_all_that_follows():
    given = ["run", "--model", "hf", "perplexity", "--tasks", "x"]
    assert parser().parse_args(["evaluate", "--harness", *given]).harness == given
