"""Shared data, checkpoints and results."""

import pytest

from longfire.cli import main
from tests.lab.boxes import record_in, write_boxes
from tests.training.toys import checkpoint

QUICK = ["--recipe", "tiny", "--tracker", "none", "--steps", "6", "--set", "evaluate_every=3", "warmup_steps=1"]


class Place:
    """A folder with data and checkpoints, and commands on them."""

    def __init__(self, root):
        self.root = root
        self.data = write_boxes(root / "data")
        for name in ("fire", "rope", "learned", "alibi"):
            checkpoint(root / name, name)
        checkpoint(root / "shared", "fire", share_position_encoding=True)

    def __truediv__(self, name):
        return self.root / name

    def command(self, kind, task, names, out, *more):
        return [
            kind,
            task,
            *(str(self.root / one) for one in names),
            "--data",
            str(self.data),
            "--out",
            str(out),
            *more,
        ]

    def finetune(self, task, names, out, *more):
        """The exit status."""
        return main(self.command("finetune", task, names, out, *QUICK, *more))

    def evaluate(self, out, *names, length="96", more=()):
        """The record."""
        assert main(self.command("evaluate", "narrative_qa", names, out, "--length", length, *more)) == 0
        return record_in(out)


@pytest.fixture(scope="session")
def place(tmp_path_factory):
    return Place(tmp_path_factory.mktemp("place"))


THREE = ("fire", "shared", "rope:rope_pi=128")
TWO_LENGTHS = ("--test-lengths", "96", "128")


@pytest.fixture(scope="session")
def tuned(place):
    """A results folder: three checkpoints, one extended, fine-tuned on a SCROLLS task and tested at two lengths."""
    assert place.finetune("narrative_qa", THREE, place / "tuned", *TWO_LENGTHS) == 0
    return place / "tuned"


@pytest.fixture(scope="session")
def tested(place):
    """A results folder: two checkpoints tested on all questions without fine-tuning."""
    place.evaluate(place / "tested", "fire", "rope")
    return place / "tested"
