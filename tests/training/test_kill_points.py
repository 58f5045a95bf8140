"""A command killed at any file operation and restarted gives the result of an uninterrupted run (kill_points.py).

Tries a few points of each command; LONGFIRE_KILL_POINTS=all tries all of them in about half an hour.
"""

import json
import os
import subprocess
import sys
from pathlib import Path

COMMANDS = ("pretrain", "finetune", "compare")


def test_killed_at_any_file_operation(tmp_path):
    points = os.environ.get("LONGFIRE_KILL_POINTS", "2")
    command = [sys.executable, "-m", "tests.training.kill_points", str(tmp_path), *(f"{c}={points}" for c in COMMANDS)]
    environment = {**os.environ, "OMP_NUM_THREADS": "1", "TRITON_INTERPRET": "0"}
    done = subprocess.run(command, env=environment, cwd=Path(__file__).parents[2], capture_output=True, text=True)
    assert done.returncode == 0, done.stderr[-3000:]
    found = json.loads(done.stdout)
    assert {command: one["wrong"] for command, one in found.items()} == {command: {} for command in COMMANDS}
    assert all(one["points"] > 100 for one in found.values())
