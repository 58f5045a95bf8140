"""Which room may import which, and what importing the library costs."""

import ast
import subprocess
import sys
import time
from pathlib import Path

import pytest

import longfire

PACKAGE = Path(longfire.__file__).parent

ROOMS = """
validation:
atomic_io:
complete_folder: atomic_io
custom_ops:
provenance:
encodings: validation custom_ops
theorem: validation encodings
engines: validation custom_ops encodings
parallel: encodings engines
model: validation custom_ops encodings theorem engines parallel
data: validation atomic_io complete_folder
tasks: validation data
training: validation atomic_io complete_folder provenance encodings parallel model data tasks
evaluation: validation atomic_io provenance custom_ops encodings theorem engines model data tasks
bench: validation atomic_io provenance encodings engines model evaluation
lab: validation atomic_io complete_folder provenance encodings theorem engines model data tasks training evaluation
report: validation atomic_io provenance encodings theorem engines model tasks evaluation bench
commands: validation atomic_io encodings engines model data tasks training evaluation bench lab report
cli: commands
__main__: cli
"""
MAY_IMPORT = {room: set(known.split()) for room, known in (line.split(":") for line in ROOMS.strip().splitlines())}
TORCH_ALONE = {"validation", "custom_ops", "encodings", "theorem", "engines", "parallel"}
KERNELS = {
    PACKAGE / "encodings" / "kernels" / "fire_kernels.py",
    *(PACKAGE / "engines" / "fused" / f"{name}.py" for name in ("tiles", "bias_kernels", "bias_grad")),
    *(PACKAGE / "engines" / "fused" / f"{name}.py" for name in ("forward", "backward", "lookup", "decode")),
}
"""Files that import Triton, themselves imported only when their kernels run."""


def rooms():
    for path in sorted(PACKAGE.rglob("*.py")):
        room = path.relative_to(PACKAGE).parts[0].removesuffix(".py")
        if room != "__init__":
            yield room, path


def imports(path):
    for node in ast.walk(ast.parse(path.read_text())):
        if isinstance(node, ast.Import):
            yield from (alias.name for alias in node.names)
        elif isinstance(node, ast.ImportFrom):
            assert node.level == 0, f"{path}: imports are absolute here"
            yield node.module or ""


def test_every_room_is_listed():
    assert {room for room, _ in rooms()} == set(MAY_IMPORT)


@pytest.mark.parametrize(("room", "path"), list(rooms()), ids=lambda value: getattr(value, "name", value))
def test_imports_point_one_way(room, path):
    for name in imports(path):
        top, _, rest = name.partition(".")
        if top == "longfire" and rest:
            other = rest.split(".")[0]
            assert other == room or other in MAY_IMPORT[room], f"{path} imports {name}"
        elif top not in sys.stdlib_module_names and top != "longfire" and room in TORCH_ALONE:
            allowed = {"torch", "triton"} if path in KERNELS else {"torch"}
            assert top in allowed, f"{path} imports {name}; this room may import torch only"


def test_encodings_do_not_know_each_other():
    """Except FIRE, which can start as ALiBi and has a kernel."""
    shared = {"base", "positions", "registry"}
    known_to = {"fire": {"alibi", "kernels"}}
    for path in (PACKAGE / "encodings").glob("*.py"):
        known = {name.split(".")[2] for name in imports(path) if name.startswith("longfire.encodings.")}
        if path.stem not in {"__init__", *shared}:
            assert known <= shared | known_to.get(path.stem, set()), path


def run(code):
    return subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True).stdout


def test_import_is_light():
    loaded = run("import sys, longfire; print(*sys.modules)").split()
    assert not {"torch", "transformers", "datasets", "matplotlib"} & set(loaded)


def test_the_library_imports_only_torch():
    code = "import sys, longfire; longfire.FIRE, longfire.attention, longfire.theorem.as_fire; print(*sys.modules)"
    loaded = set(run(code).split())
    assert "torch" in loaded
    assert not {"triton", "transformers", "datasets", "matplotlib"} & loaded


def test_help_is_fast():
    took = []
    for _ in range(3):  # best of three, in case the machine is busy
        start = time.perf_counter()
        shown = subprocess.run(
            [sys.executable, "-m", "longfire", "--help"], capture_output=True, text=True, check=True
        ).stdout
        took.append(time.perf_counter() - start)
        assert "explore" in shown
    assert min(took) < 0.8


def test_the_model_is_an_attribute(monkeypatch):
    """Imported on first use; everything else works without transformers."""
    monkeypatch.delattr(longfire, "model", raising=False)
    assert longfire.model.LongfireConfig.model_type == "longfire"
    code = """
import sys
sys.modules["transformers"] = None
import longfire
help(longfire)
from longfire import *
try:
    longfire.model
except ModuleNotFoundError as error:
    print(error)
"""
    assert run(code).endswith("longfire.model needs transformers: pip install 'longfire[model]'\n")


def test_public_names():
    for name in longfire.__all__:
        assert getattr(longfire, name) is not None
    assert set(longfire.__all__) <= set(dir(longfire))
    with pytest.raises(AttributeError, match=r"longfire has no 'fire'. Did you mean 'FIRE'"):
        _ = longfire.fire
