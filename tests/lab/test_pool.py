"""The process pool: killed processes and orphans. tests/lab/test_compare.py interrupts a whole command."""

import os
import signal
import subprocess
import sys
import time
from concurrent.futures.process import BrokenProcessPool
from pathlib import Path

import pytest

from longfire.lab.pool import run_in_processes


def die_once(folder, task):
    """Kill this process the first time it gets the task `once`."""
    begun = Path(folder) / task
    if task == "once" and not begun.exists():
        begun.touch()
        os.kill(os.getpid(), signal.SIGKILL)
    return f"{task} done"


def test_a_task_whose_process_is_killed_starts_again(tmp_path):
    found = run_in_processes(
        die_once, tmp_path, ["once", "other"], 1, has_begun=lambda task: (tmp_path / task).exists()
    )
    assert dict(found) == {"once": "once done", "other": "other done"}


@pytest.mark.parametrize(
    ("begun", "expected"), [({"bad"}, {"bad": None, "good": 1}), (set(), {"bad": None, "good": None})]
)
def test_a_task_whose_process_dies_twice_fails(begun, expected, monkeypatch):
    """If none had begun, all fail: a script without `if __name__ == "__main__"` must not be retried forever."""

    def run_pool(work, shared, tasks, jobs, tick):
        if "bad" in tasks:
            raise BrokenProcessPool
        yield from ((task, 1) for task in tasks)

    monkeypatch.setattr("longfire.lab.pool._run_pool", run_pool)
    found = run_in_processes(len, None, ["bad", "good"], 2, has_begun=lambda task: task in begun)
    assert dict(found) == expected


def sleep(folder, task):
    (Path(folder) / task).write_text(str(os.getpid()))
    time.sleep(600)


def sleep_in_pool(folder):
    list(run_in_processes(sleep, folder, ["task"], 1, has_begun=bool))


def test_workers_do_not_outlive_a_killed_parent(tmp_path):
    code = f"from tests.lab.test_pool import sleep_in_pool; sleep_in_pool({str(tmp_path)!r})"
    script = tmp_path / "script.py"
    script.write_text(f"if __name__ == '__main__':\n    {code}\n")
    environment = {**os.environ, "PYTHONPATH": os.pathsep.join([str(Path(__file__).parents[2]), *sys.path])}
    with subprocess.Popen([sys.executable, str(script)], env=environment) as parent:
        deadline = time.monotonic() + 90
        while not (tmp_path / "task").exists() and time.monotonic() < deadline:
            time.sleep(0.1)
        parent.kill()
    worker = Path("/proc") / (tmp_path / "task").read_text() / "stat"
    while is_alive(worker) and time.monotonic() < deadline:
        time.sleep(0.1)
    assert not is_alive(worker)


def is_alive(stat):
    try:
        return stat.read_text().rpartition(")")[2].split()[0] != "Z"
    except OSError:
        return False
