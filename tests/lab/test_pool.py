"""The process pool: killed processes and orphans. tests/lab/test_compare.py interrupts a whole command."""

import os
import signal
import subprocess
import sys
import time
from pathlib import Path

import pytest

from longfire.lab.pool import run_in_processes


def die(folder, task):
    """Kill this process the first time it gets the task `once`, and whenever it gets `always`."""
    begun = Path(folder) / task
    if task == "always" or (task == "once" and not begun.exists()):
        begun.touch()
        os.kill(os.getpid(), signal.SIGKILL)
    return f"{task} done by {os.getpid()}"


def test_a_killed_process_costs_its_own_task_an_attempt(tmp_path):
    found = dict(run_in_processes(die, tmp_path, ["once", "always", "first", "second"], 1))
    assert found["once"].startswith("once done")
    assert found["always"] is None
    assert found["first"].split()[-1] == found["second"].split()[-1]  # one process after another task's


def refuse(shared, task):
    raise ValueError(f"{shared} {task}")


class UnpickledError(Exception):
    def __init__(self, one, other):
        super().__init__(f"{one} {other}")


def refuse_in_its_own_words(shared, task):
    if task == "result":
        return lambda: task
    raise UnpickledError(shared, task)


@pytest.mark.parametrize(
    ("work", "task", "message"),
    [
        (refuse, "task", "shared task"),
        (refuse_in_its_own_words, "task", r"(?s)UnpickledError: shared task.*TypeError"),
        (refuse_in_its_own_words, "result", "pickle"),
    ],
)
def test_an_error_ends_all_tasks(work, task, message):
    with pytest.raises(Exception, match=message) as caught:
        list(run_in_processes(work, "shared", [task, "other"], 1))
    assert "Traceback" in "".join([str(caught.value), *getattr(caught.value, "__notes__", [])])


def sleep(folder, task):
    (Path(folder) / task).write_text(str(os.getpid()))
    time.sleep(600)


def sleep_in_pool(folder):
    list(run_in_processes(sleep, folder, ["task"], 1))


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
