"""EleutherAI's lm-evaluation-harness, through its own command line, on longfire checkpoints."""

import os
import sys
from collections.abc import Sequence


def run_harness(arguments: Sequence[str]) -> int:
    """Run `lm-eval` with these arguments, with longfire's model types registered; the exit status.

    HF_HUB_OFFLINE also takes the metrics library offline, which has a switch of its own. Without it, the harness may
    download what it is asked for by name.
    """
    if offline := os.environ.get("HF_HUB_OFFLINE"):
        os.environ.setdefault("HF_EVALUATE_OFFLINE", offline)
    from lm_eval.__main__ import cli_evaluate

    import longfire.model  # noqa: F401

    before = sys.argv
    sys.argv = ["lm-eval", *arguments]  # where the harness reads them
    try:
        cli_evaluate()
    finally:
        sys.argv = before
    return 0
