"""The best model of a run: which one is kept, for how long, and after damage."""

import pytest
import torch

from longfire.model import LongfireForCausalLM
from longfire.training.checkpoints import checkpoints
from tests.training.runs import StopError, raises, same_weights
from tests.training.toys import done, scores, tune


def test_the_best_is_kept_and_not_the_last(pretrained, tmp_path):
    """Ties go to the first."""
    seen = {}

    def score(model, step):
        assert not model.training
        assert not torch.is_grad_enabled()
        seen[step] = {name: tensor.clone() for name, tensor in model.state_dict().items()}
        return 7.5 if step in (8, 12) else 1.0

    model = tune(pretrained, tmp_path / "run", score=score)
    assert list(seen) == [4, 8, 12, 16, 20]
    assert (done(tmp_path / "run")["step"], done(tmp_path / "run")["score"]) == (8, 7.5)
    found = LongfireForCausalLM.from_pretrained(model).state_dict()
    assert same_weights(found, seen[8])
    assert not same_weights(found, seen[20])


def test_the_best_of_a_checkpoint_stays_as_long_as_the_checkpoint(pretrained, tmp_path):
    run, found = tmp_path / "run", {}

    def stops(model, step):
        found[step] = [folder.name for folder in checkpoints(run, "best")]
        if step == 16:
            raise StopError
        return float(step)

    with pytest.raises(StopError):
        tune(pretrained, run, score=stops, checkpoint_every=6)
    assert found == {4: [], 8: ["best-4"], 12: ["best-4", "best-8"], 16: ["best-4", "best-12"]}
    assert [folder.name for folder in checkpoints(run)] == ["checkpoint-6", "checkpoint-12"]
    tune(pretrained, run, score=lambda model, step: 1.0, checkpoint_every=6)
    assert done(run)["step"] == 12
    assert scores(run) == {4: 4.0, 8: 8.0, 12: 12.0, 16: 1.0, 20: 1.0}


def test_evaluations_after_the_checkpoint_are_repeated(pretrained, tmp_path):
    """If a checkpoint is damaged, training resumes from the previous one, with its scores and best model."""
    run = tmp_path / "run"

    def stops(model, step):
        if step == 16:
            raise StopError
        return {4: 3.0, 8: 5.0, 12: 7.0}[step]

    with pytest.raises(StopError):
        tune(pretrained, run, score=stops)
    (run / "checkpoint-12" / "trainer_state.json").write_text("cut off")
    (run / "best-5").mkdir()  # never marked as complete
    tune(pretrained, run, score=lambda model, step: 1.0)
    assert scores(run) == {4: 3.0, 8: 1.0, 12: 1.0, 16: 1.0, 20: 1.0}
    assert (done(run)["step"], done(run)["score"]) == (4, 3.0)


def test_a_best_model_that_was_damaged_after_training(pretrained, tmp_path, monkeypatch):
    """Killed while copying, then damaged: the last model is evaluated again."""
    run = tmp_path / "run"

    with monkeypatch.context() as patch:
        patch.setattr("longfire.training.best_checkpoint.BestCheckpoint.copy_best", raises(StopError))
        with pytest.raises(StopError):
            tune(pretrained, run)
    assert checkpoints(run, "best")[-1].name != "best-20"
    for folder in checkpoints(run, "best"):
        (folder / "model.safetensors").write_bytes(b"damaged")
    tune(pretrained, run)
    assert done(run)["step"] == 20


def test_a_nan_score_is_refused(pretrained, tmp_path):
    with pytest.raises(ValueError, match="the score after step 4 is nan"):
        tune(pretrained, tmp_path / "run", score=lambda model, step: float("nan"))
