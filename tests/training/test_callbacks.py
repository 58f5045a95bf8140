"""Progress without a terminal, and runs that diverge."""

import re

import pytest

from longfire.training import callbacks, pretrain
from longfire.training.callbacks import DivergedError
from longfire.training.checkpoints import checkpoints
from tests.training.runs import QUIET, RECIPE


def test_progress_in_lines(corpus, tmp_path, monkeypatch, capsys):
    """A line at the start, at every tenth of the run (with or without a loss), and every few seconds."""
    pretrain(RECIPE.but(steps=20, checkpoint_every=50, log_every=8), corpus, tmp_path / "short", tracker="none")
    start, *lines = [line for line in capsys.readouterr().err.splitlines() if line.startswith("short: ")]
    assert start == "short: starting; 20 steps, 2,560 tokens"
    assert [line.partition(",")[0] for line in lines] == [f"short: step {step} of 20" for step in range(2, 21, 2)]
    assert re.search(r"step 8 of 20, loss \d\.\d{3}, [\d,]+ tokens/s, 00:0\d left$", lines[3])
    assert re.search(r"step 10 of 20, [\d,]+ tokens/s, 00:0\d left$", lines[4])
    assert re.search(r"step 20 of 20, loss \d\.\d{3}, [\d,]+ tokens/s$", lines[-1])
    monkeypatch.setattr(callbacks, "LINE_EVERY", 0.0)
    assert all(callbacks.ProgressLines(10**6).is_due(step) for step in (1, 2))


@pytest.mark.parametrize(
    ("nan_after", "changes", "message", "kept"),
    [
        (6, {}, "the loss is nan at step 7 .* training diverged", ["checkpoint-4"]),
        (5, {"log_every": 100}, "nan at step 8", ["checkpoint-4"]),  # checked before it is saved
        (11, {"steps": 11, "log_every": 7}, "not finite after step 11", ["checkpoint-4", "checkpoint-8"]),
    ],
    ids=["at a logged step", "between logged steps", "in the last step"],
)
def test_a_run_that_diverges_ends_with_its_checkpoints_intact(nan_after, changes, message, kept, corpus, tmp_path):
    run = tmp_path / "diverged"
    with pytest.MonkeyPatch.context() as patch:
        rate = lambda self, step: float("nan") if step == nan_after - 1 else 0.01  # noqa: E731
        patch.setattr("longfire.training.recipes.Recipe.lr_ratio", rate)
        with pytest.raises(DivergedError, match=message):
            pretrain(RECIPE.but(encoding="alibi", **changes), corpus, run, **QUIET)
    complete = [folder.name for folder in checkpoints(run) if (folder / "complete.json").exists()]
    assert complete == kept
    assert not (run / "done.json").exists()
