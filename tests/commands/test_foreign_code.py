"""Code in a checkpoint or tokenizer is never executed, and users are never asked to allow it."""

import ast
import json
from pathlib import Path

import pytest

import longfire
from longfire.cli import main
from longfire.data import CorpusError
from longfire.data.tokenizers import load_tokenizer

AUTO_MAP = {
    "AutoConfig": "own.OwnConfig",
    "AutoModelForCausalLM": "own.OwnModel",
    "AutoTokenizer": ["own.Own", "own.Own"],
}
TRAP = "from pathlib import Path\nPath({!r}).write_text('code from a checkpoint was executed')\n"


@pytest.fixture
def trap(tmp_path, monkeypatch):
    """A checkpoint whose code leaves a mark when executed, and a user who says yes to every question."""
    folder, mark = tmp_path / "checkpoint", tmp_path / "mark"
    folder.mkdir()
    (folder / "own.py").write_text(TRAP.format(str(mark)), encoding="utf-8")
    (folder / "config.json").write_text(json.dumps({"model_type": "own", "auto_map": AUTO_MAP}), encoding="utf-8")
    (folder / "tokenizer_config.json").write_text(json.dumps({"auto_map": AUTO_MAP}), encoding="utf-8")
    (folder / "tokenizer.json").write_text("{}", encoding="utf-8")
    monkeypatch.setattr("builtins.input", lambda *_: "y")
    yield folder
    assert not mark.exists()


@pytest.mark.parametrize(
    "command",
    [
        ["generate", "CHECKPOINT", "--prompt", "a"],
        ["explore", "CHECKPOINT", "--out", "OUT"],
        ["evaluate", "perplexity", "CHECKPOINT"],
        ["evaluate", "rte", "CHECKPOINT", "--data", "OUT", "--out", "OUT"],
        ["finetune", "rte", "CHECKPOINT", "--data", "OUT", "--out", "OUT"],
    ],
)
def test_a_checkpoint(command, trap, tmp_path, capsys):
    places = {"CHECKPOINT": str(trap), "OUT": str(tmp_path / "out")}
    assert main([places.get(word, word) for word in command]) == 2
    assert f"{trap} needs its own Python code" in capsys.readouterr().err


def test_a_tokenizer(trap):
    with pytest.raises(CorpusError, match="needs its own Python code"):
        load_tokenizer(trap)


def test_auto_classes_are_only_loaded_without_code():
    for path in Path(longfire.__file__).parent.rglob("*.py"):
        for node in ast.walk(ast.parse(path.read_text(encoding="utf-8"))):
            called = ast.unparse(node.func) if isinstance(node, ast.Call) else ""
            assert not (called.startswith("Auto") and called.endswith(".from_pretrained")), path
