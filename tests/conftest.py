import gc
import json
import os
import signal
from importlib.util import find_spec
from pathlib import Path

os.environ["OMP_NUM_THREADS"] = "1"  # before importing torch: tiny operations are slower with more threads
os.environ["HF_HUB_OFFLINE"] = "1"

import pytest
import torch
from hypothesis import settings

if not torch.cuda.is_available():
    os.environ["TRITON_INTERPRET"] = "1"  # before importing triton: run kernels on the CPU, slowly

if signal.getsignal(signal.SIGINT) is signal.SIG_IGN:  # shells ignore it in background processes
    signal.signal(signal.SIGINT, signal.default_int_handler)
torch.set_num_threads(1)
settings.register_profile("longfire", deadline=None, max_examples=40, derandomize=True)
settings.load_profile("longfire")


def pytest_addoption(parser):
    parser.addoption("--record", type=Path, help="write the outcome, with hardware and versions, to this JSON file")


def pytest_terminal_summary(terminalreporter, config):
    path = config.getoption("record")
    if path is None:
        return
    from longfire.provenance import provenance

    outcomes = {
        outcome: sorted(report.nodeid for report in terminalreporter.stats.get(outcome, []))
        for outcome in ("failed", "error", "skipped", "passed")
    }
    counts = {outcome: len(tests) for outcome, tests in outcomes.items()}
    not_passed = {outcome: tests for outcome, tests in outcomes.items() if outcome != "passed" and tests}
    record = {"provenance": provenance(), "counts": counts, "not passed": not_passed, "files": config.args}
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_text(json.dumps(record, indent=1) + "\n")


TESTS = Path(__file__).parent
SLOWEST = {
    *(TESTS / "engines" / "fused" / "test_compilation.py", TESTS / "engines" / "test_attention.py"),
    *(TESTS / "lab" / "test_compare.py", TESTS / "lab" / "downstream" / "test_run.py"),
    *(TESTS / "model" / "test_training.py", TESTS / "test_documents.py", TESTS / "test_parallel.py"),
    *(TESTS / "training" / f"test_{name}.py" for name in ("context_parallel", "kill_points", "two_processes")),
}
"""Files that take ten seconds or more. They start first, or one process would have them when the other is done."""


def pytest_configure(config):
    config.option.loadscopereorder = False  # to pytest-xdist, the slowest file is the one with most tests


def pytest_collection_modifyitems(items):
    items.sort(key=lambda item: item.path not in SLOWEST)
    if torch.cuda.is_available():
        return
    for item in items:
        if item.get_closest_marker("gpu"):
            item.add_marker(pytest.mark.skip(reason="needs a CUDA device"))


def pytest_unconfigure():
    gc.unfreeze()


def pytest_sessionstart():
    if os.environ.get("TRITON_INTERPRET") == "1" and find_spec("triton"):
        from tests import interpreter

        interpreter.speed_up()


@pytest.fixture(autouse=True, scope="module")
def _freeze_existing_objects():
    """Exempt modules, tests and compiler caches from garbage collection, which would scan them again and again."""
    gc.collect()
    gc.freeze()


@pytest.fixture(autouse=True)
def _seed():
    torch.manual_seed(0)
