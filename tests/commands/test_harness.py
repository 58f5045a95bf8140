"""`longfire evaluate --harness` on a longfire checkpoint, offline, with local files."""

import json
import os
import subprocess
import sys
from pathlib import Path

import pytest
import torch

from longfire.cli import main
from tests.model.checkpoints import save_checkpoint

TASKS = Path(__file__).parents[1] / "data" / "harness"
DOCUMENTS = [json.loads(line) for line in (TASKS / "facts.jsonl").read_text().splitlines()]

WITHOUT_OTHER_TASKS = """
import sys
from functools import partial
import lm_eval.tasks
from longfire.cli import main
lm_eval.tasks.TaskManager = partial(lm_eval.tasks.TaskManager, include_defaults=False)
sys.exit(main())
"""
"""The command, but the harness does not read its own 14,000 tasks first."""


@pytest.fixture(scope="module")
def evaluated(tmp_path_factory):
    """The model, its tokenizer, the results, and the answers to each document by task."""
    pytest.importorskip("lm_eval")
    folder = tmp_path_factory.mktemp("harness")
    model, tokenizer = save_checkpoint(folder / "checkpoint", max_position_embeddings=16)
    names = ["facts_choice", "facts_perplexity", "facts_written"]
    model_args = f"pretrained={folder / 'checkpoint'},max_length=64,dtype=float32"
    harness = ["run", "--model", "hf", "--model_args", model_args, "--tasks", ",".join(names), "--include_path", "."]
    out = ["--device", "cpu", "--output_path", str(folder / "out"), "--log_samples"]
    done = subprocess.run(
        [sys.executable, "-c", WITHOUT_OTHER_TASKS, "evaluate", "--harness", *harness, *out],
        cwd=TASKS,
        env={**os.environ, "HF_HUB_OFFLINE": "1", "HF_HOME": str(folder / "cache")},
        capture_output=True,
        text=True,
        check=False,
    )
    assert done.returncode == 0, done.stdout + done.stderr
    assert "facts_choice" in done.stdout
    (results,) = (folder / "out").rglob("results_*.json")
    answers = {}
    for name in names:
        (path,) = (folder / "out").rglob(f"samples_{name}_*.jsonl")
        rows = [json.loads(line) for line in path.read_text().splitlines()]
        answers[name] = sorted(rows, key=lambda row: row["doc_id"])
    return model, tokenizer, json.loads(results.read_text())["results"], answers


def log_probability(model, tokenizer, context, continuation):
    """Σ log p of the continuation's tokens."""
    before, after = tokenizer(context).input_ids, tokenizer(continuation).input_ids
    before = before or [tokenizer.eos_token_id]
    with torch.no_grad():
        logits = model(torch.tensor([before + after])).logits[0, len(before) - 1 : -1]
    return logits.log_softmax(-1)[torch.arange(len(after)), after].sum().item()


def test_choices(evaluated):
    model, tokenizer, results, answers = evaluated
    right = []
    for document, answer in zip(DOCUMENTS, answers["facts_choice"], strict=True):
        expected = [log_probability(model, tokenizer, document["question"], " " + c) for c in document["choices"]]
        assert [float(answer["resps"][i][0][0]) for i in range(len(expected))] == pytest.approx(expected, rel=1e-4)
        right.append(expected.index(max(expected)) == document["answer"])
    assert results["facts_choice"]["acc,none"] == pytest.approx(sum(right) / len(right))


def test_perplexity_of_whole_texts(evaluated):
    """Texts longer than the training length, 16, are not truncated."""
    model, tokenizer, results, _ = evaluated
    texts = [f"{document['question']} {document['choices'][document['answer']]}." for document in DOCUMENTS]
    assert max(map(len, texts)) > 16
    nats = -sum(log_probability(model, tokenizer, "", text) for text in texts)
    bits = nats / torch.tensor(2.0).log().item() / sum(len(text.encode()) for text in texts)
    assert results["facts_perplexity"]["bits_per_byte,none"] == pytest.approx(bits, rel=1e-4)


def test_generated_answers(evaluated):
    model, tokenizer, results, answers = evaluated
    for document, answer in zip(DOCUMENTS, answers["facts_written"], strict=True):
        ids = tokenizer(document["question"], return_tensors="pt").input_ids
        out = model.generate(ids, max_new_tokens=8, do_sample=False, pad_token_id=0)[0, ids.shape[1] :]
        assert answer["resps"][0][0] == tokenizer.decode(out, skip_special_tokens=True).split(".")[0]
    assert results["facts_written"]["exact_match,none"] == 0


def test_evaluate_without_a_subject_is_an_error(capsys):
    assert main(["evaluate"]) == 2
    assert "longfire evaluate --harness run --model hf" in capsys.readouterr().err


def test_the_harness_parses_its_arguments(capsys, monkeypatch):
    pytest.importorskip("lm_eval")
    monkeypatch.setattr("lm_eval.__main__.setup_logging", lambda: None)
    before = list(sys.argv)
    with pytest.raises(SystemExit, match="0"):
        main(["evaluate", "--harness", "run", "--help"])
    assert "usage: lm-eval run" in capsys.readouterr().out
    with pytest.raises(SystemExit, match="2"):
        main(["evaluate", "--harness", "run", "--no-such-option"])
    assert sys.argv == before
