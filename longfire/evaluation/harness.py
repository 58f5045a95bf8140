"""EleutherAI's lm-evaluation-harness, by its own command line, on checkpoints of ours."""

import os
import sys
from collections.abc import Sequence


def run_harness(arguments: Sequence[str]) -> int:
    """Run `lm-eval` with these arguments, none added; the exit status.

    Our model types are registered with transformers first. Where HF_HUB_OFFLINE is set, it holds for the library of
    metrics too, which has a switch of its own; where it is not, the harness may fetch what it is asked for by name.
    """
    if offline := os.environ.get("HF_HUB_OFFLINE"):
        os.environ.setdefault("HF_EVALUATE_OFFLINE", offline)
    from lm_eval.__main__ import cli_evaluate

    import longfire.model  # noqa: F401

    before = sys.argv
    sys.argv = ["lm-eval", *arguments]  # where the harness looks for them
    try:
        cli_evaluate()
    finally:
        sys.argv = before
    return 0
