"""Ctrl-C and SIGTERM in training: the step is ended and a checkpoint saved first."""

import os
import signal
import threading
from contextlib import suppress
from types import TracebackType
from typing import Any

import torch
import torch.distributed as dist
from transformers import TrainerCallback

NOTICE = b"\nlongfire: saving a checkpoint after this step. Ctrl-C again stops at once.\n"


class Interruption(TrainerCallback):
    """Within it the first signal ends training after a step, with a checkpoint; a second is as it was before.

    On leaving, a signal that was held back is raised again, for whoever handled it before. Several processes agree
    where they wait for each other anyway, when losses are logged or the model is judged: all stop at the same step.
    """

    def __init__(self) -> None:
        self.before: dict[int, Any] = {}
        self.heard: int | None = None
        self.ends = False

    def __enter__(self) -> "Interruption":
        self.process = os.getpid()
        if threading.current_thread() is threading.main_thread():
            for number in (signal.SIGINT, signal.SIGTERM):
                if signal.getsignal(number) not in (signal.SIG_IGN, None):
                    self.before[number] = signal.signal(number, self.hear)
        return self

    def hear(self, number: int, frame: Any) -> None:
        """A process that was forked from this one, such as a reader of the data, is ended by this one alone."""
        self.restore()
        if os.getpid() != self.process:
            if number == signal.SIGTERM:
                signal.signal(number, signal.SIG_DFL)
                signal.raise_signal(number)
            return
        self.heard = number
        if number == signal.SIGINT and int(os.environ.get("RANK", "0")) == 0:
            with suppress(OSError):
                os.write(2, NOTICE)  # a signal may come while something else is printed, where print would fail

    def restore(self) -> None:
        """Signals are handled as before."""
        for number, handler in self.before.items():
            signal.signal(number, handler)

    def on_step_end(self, args: Any, state: Any, control: Any, **_: Any) -> None:
        if self.heard is not None and args.world_size == 1:
            control.should_log = True  # nothing is saved before it was looked at

    def on_log(self, args: Any, state: Any, control: Any, logs: dict[str, Any] | None = None, **_: Any) -> None:
        if logs and "loss" in logs:
            self.agree(args, control)

    def on_evaluate(self, args: Any, state: Any, control: Any, **_: Any) -> None:
        self.agree(args, control)

    def agree(self, args: Any, control: Any) -> None:
        """Stop here if any process was told to."""
        self.ends = self.heard is not None
        if args.world_size > 1:
            heard = torch.tensor([int(self.ends)], device=args.device)
            dist.all_reduce(heard, dist.ReduceOp.MAX)
            self.ends = bool(heard.item())
        if self.ends:
            control.should_save = control.should_training_stop = True

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.restore()
        if kind is not None:
            return
        alone = not dist.is_initialized()
        if self.heard is not None and (self.ends or alone):  # others that did not hear it deliver the model now
            signal.raise_signal(self.heard)
        if self.ends:  # heard by another process
            raise KeyboardInterrupt
