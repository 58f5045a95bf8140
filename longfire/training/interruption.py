"""Handle Ctrl-C and SIGTERM in training: finish the step, save a checkpoint, then stop."""

import os
import signal
import threading
from contextlib import suppress
from types import TracebackType
from typing import Any

import torch
import torch.distributed as dist
from transformers import TrainerCallback

from longfire.training.processes import is_first

NOTICE = b"\nlongfire: saving a checkpoint after this step. Ctrl-C again stops at once.\n"


class Interruption(TrainerCallback):
    """Context manager: the first signal stops training after the step, with a checkpoint.

    After it, Ctrl-C acts as usual, and SIGTERM is ignored: a scheduler signals every process, and torchrun or a pool
    then signals its workers again. On exit, the first signal is raised again for its previous handler. Several
    processes stop at the same step: they agree where they synchronise anyway, when losses are logged or the model is
    evaluated.
    """

    def __init__(self) -> None:
        self.handlers: dict[int, Any] = {}
        self.received: int | None = None
        self.stopping = False

    def __enter__(self) -> "Interruption":
        self.process = os.getpid()
        if threading.current_thread() is threading.main_thread():
            for number in (signal.SIGINT, signal.SIGTERM):
                if signal.getsignal(number) not in (signal.SIG_IGN, None):
                    self.handlers[number] = signal.signal(number, self.handle)
        return self

    def handle(self, number: int, frame: Any) -> None:
        """Remember the first signal. A forked process, such as a data loader's worker, leaves that to its parent."""
        if os.getpid() != self.process:
            self.restore()
            if number == signal.SIGTERM:
                signal.signal(number, signal.SIG_DFL)
                signal.raise_signal(number)
            return
        if self.received is not None:
            return
        self.received = number
        if signal.SIGINT in self.handlers:  # a second Ctrl-C stops at once
            signal.signal(signal.SIGINT, self.handlers[signal.SIGINT])
        if number == signal.SIGINT and is_first():
            with suppress(OSError):
                os.write(2, NOTICE)  # print is not reentrant

    def restore(self) -> None:
        """Put the previous handlers back."""
        for number, handler in self.handlers.items():
            signal.signal(number, handler)

    def on_step_end(self, args: Any, state: Any, control: Any, **_: Any) -> None:
        if self.received is not None and args.world_size == 1:
            control.should_log = True  # check the loss before saving

    def on_log(self, args: Any, state: Any, control: Any, logs: dict[str, Any] | None = None, **_: Any) -> None:
        if logs and "loss" in logs:
            self.agree(args, control)

    def on_evaluate(self, args: Any, state: Any, control: Any, **_: Any) -> None:
        self.agree(args, control)

    def agree(self, args: Any, control: Any) -> None:
        """Stop here if any process received a signal."""
        self.stopping = self.received is not None
        if args.world_size > 1:
            received = torch.tensor([int(self.stopping)], device=args.device)
            dist.all_reduce(received, dist.ReduceOp.MAX)
            self.stopping = bool(received.item())
        if self.stopping:
            control.should_save = control.should_training_stop = True

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.restore()
        if kind is not None:
            return
        alone = not dist.is_initialized()
        if self.received is not None and (self.stopping or alone):  # else the other processes are finishing
            signal.raise_signal(self.received)
        if self.stopping:  # another process received it
            raise KeyboardInterrupt
