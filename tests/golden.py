"""Values that a refactoring must not change, recorded before it began.

python -m tests.golden > tests/golden.json      record
python -m pytest tests/golden.py              check
"""

import hashlib
import json
import os
import subprocess
import sys
import tempfile
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[1]
RECORDED = Path(__file__).with_name("golden.json")
MEASURED_AGAIN = ("bench", "tests")
"""Folders of results/ with records of speed or test runs, which are measured again."""


def longfire(*arguments):
    command = [sys.executable, "-m", "longfire", *map(str, arguments)]
    environment = {**os.environ, "OMP_NUM_THREADS": "1", "HF_HUB_OFFLINE": "1"}
    subprocess.run(command, check=True, cwd=ROOT, env=environment, stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL)


def numbers(value):
    """All floats in a record, in order, except times and memory."""
    if isinstance(value, dict):
        skipped = {"provenance", "seconds", "tokens_per_second", "times"}
        return [number for key in value if key not in skipped for number in numbers(value[key])]
    if isinstance(value, list):
        return [number for one in value for number in numbers(one)]
    return [value] if isinstance(value, float) else []


def losses_of_runs(folder):
    return {
        path.parent.name: [json.loads(line)["loss"] for line in path.read_text().splitlines()]
        for path in sorted(folder.glob("**/losses.jsonl"))
    }


def comparison():
    """A short seeded comparison: losses in training and perplexity by length."""
    with tempfile.TemporaryDirectory() as folder:
        labels = ["fire", "fire-s", "rope", "yarn", "kerple_log", "t5"]
        out = ["--out", folder, "--jobs", 1, "--test-tokens", 2048]
        longfire("compare", "--encodings", *labels, "--seeds", 0, "--steps", 12, "--batch", 4, "--length", 64, *out)
        record = json.loads((Path(folder) / "compare.json").read_text())
        perplexities = {run["encoding"]: numbers(run["perplexity"]) for run in record["runs"]}
        return {"losses": losses_of_runs(Path(folder)), "perplexity": perplexities}


def finetuning():
    """Losses of two checkpoints fine-tuned for two steps on placeholder rows."""
    with tempfile.TemporaryDirectory() as folder:
        longfire("reproduce", "narrative-qa", "--scale", "smoke", "--out", folder, "--encodings", "fire", "rope")
        losses = losses_of_runs(Path(folder))
        return [losses[name] for name in sorted(losses)]


def kernels():
    """The fused engine in Triton's interpreter, with gradients, and one query at a time."""
    os.environ["TRITON_INTERPRET"] = "1"
    import torch

    from longfire import FIRE, T5, KerpleLog, Sandwich, attention

    torch.set_num_threads(1)
    found = {}
    encodings = {
        "fire": lambda: FIRE(2, init_L=64.0, smooth_beyond=64),
        "kerple_log": lambda: KerpleLog(2),
        "t5": lambda: T5(2),
        "sandwich": lambda: Sandwich(2, 32),
    }
    for name, make in encodings.items():
        torch.manual_seed(0)
        encoding = make()
        for tokens, queries in ((200, 200), (1500, 1)):
            q, k, v = (torch.randn(1, 2, n, 32, requires_grad=queries > 1) for n in (queries, tokens, tokens))
            with torch.set_grad_enabled(queries > 1):
                result = attention(q, k, v, encoding, impl="fused")
            tensors = [result]
            if queries > 1:
                result.square().sum().backward()
                tensors += [q.grad, k.grad, v.grad, *(weight.grad for weight in encoding.parameters())]
            weights = [torch.linspace(-1, 1, tensor.numel()) for tensor in tensors]
            found[f"{name} {queries}"] = [
                number
                for tensor, weight in zip(tensors, weights, strict=True)
                for number in (tensor.norm().item(), (tensor.flatten() * weight).sum().item())
            ]
    return found


def results():
    """The content of each record of results/."""
    return {
        str(path.relative_to(ROOT)): hashlib.sha256(repr(numbers(json.loads(path.read_text()))).encode()).hexdigest()[
            :16
        ]
        for path in sorted((ROOT / "results").rglob("*.json"))
        if path.relative_to(ROOT / "results").parts[0] not in MEASURED_AGAIN
    }


RECORDINGS = {make.__name__: make for make in (comparison, finetuning, kernels, results)}


def assert_alike(found, recorded):
    if isinstance(recorded, dict):
        assert found.keys() == recorded.keys()
        for key in recorded:
            assert_alike(found[key], recorded[key])
    elif recorded and isinstance(recorded, list) and isinstance(recorded[0], list):
        assert len(found) == len(recorded)
        for one, other in zip(found, recorded, strict=True):
            assert_alike(one, other)
    else:
        assert found == (pytest.approx(recorded, rel=2e-4, abs=1e-5) if isinstance(recorded, list) else recorded)


@pytest.mark.parametrize("name", RECORDINGS)
def test_nothing_moved(name):
    assert_alike(RECORDINGS[name](), json.loads(RECORDED.read_text())[name])


if __name__ == "__main__":
    print(json.dumps({name: make() for name, make in RECORDINGS.items()}, indent=1))
