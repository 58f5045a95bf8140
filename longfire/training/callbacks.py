"""What happens beside training: a progress bar, the losses on disk, marks on checkpoints, an end to what diverged."""

import json
import math
import sys
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import torch
from torch import nn
from torch.distributed.tensor import DTensor
from tqdm import tqdm
from transformers import TrainerCallback

from longfire.atomic_io import write_whole
from longfire.training.checkpoints import discard_oldest, mark_complete

LOSSES = "losses.jsonl"
LINE_EVERY = 30.0
"""Seconds, at least, between lines of progress where there is no terminal for a bar."""


class DivergedError(ValueError):
    """The loss is not a number any more."""


class MarkSteps(TrainerCallback):
    """Tells CUDA graphs where a step begins: what the last one left may then be written over."""

    def on_step_begin(self, args: Any, state: Any, control: Any, **_: Any) -> None:
        torch.compiler.cudagraph_mark_step_begin()


class Lines:
    """Progress where there is no terminal for a bar: a line at every tenth of the work and every half minute."""

    def __init__(self, total: int, done: int = 0) -> None:
        self.total, self.tenths, self.said = total, 10 * done // total, time.perf_counter()

    def are_due(self, done: int) -> bool:
        """Whether to print one now; it is taken as printed."""
        tenths, now = 10 * done // self.total, time.perf_counter()
        due = tenths > self.tenths or now - self.said >= LINE_EVERY
        if due:
            self.tenths, self.said = tenths, now
        return due


class Watch(TrainerCallback):
    """Progress with loss, tokens a second and time left; losses.jsonl; and an error where the loss is not finite.

    It acts on the first process alone; all processes see the same loss and stop together.

    Args:
        run: the folder.
        tokens: how many there are in so many steps.
        progress: a bar, where stderr is a terminal; lines, where it is not.
    """

    def __init__(self, run: Path, tokens: Callable[[int], int], progress: bool) -> None:
        self.run, self.tokens, self.progress = run, tokens, progress
        self.bar: Any = None
        self.began = self.first = 0.0
        self.first_step = 0
        self.lines: Lines | None = None

    def on_train_begin(self, args: Any, state: Any, control: Any, **_: Any) -> None:
        self.began, self.first, self.first_step = time.perf_counter(), 0.0, state.global_step
        if not state.is_world_process_zero:
            return
        forget_after(self.run / LOSSES, state.global_step)
        off = None if self.progress else True
        self.bar = tqdm(total=state.max_steps, initial=state.global_step, unit="step", desc=self.run.name, disable=off)
        if self.progress and self.bar.disable:
            self.lines = Lines(state.max_steps, state.global_step)
            begins = f"resumes after step {state.global_step:,}" if state.global_step else "begins"
            self.say(f"{begins}; {state.max_steps:,} steps, {self.tokens(state.max_steps):,} tokens")

    def on_step_end(self, args: Any, state: Any, control: Any, **_: Any) -> None:
        if state.global_step == state.max_steps or state.global_step % args.save_steps == 0:
            control.should_log = True  # nothing is saved before it was looked at
        if not self.first:  # what compiling took is not counted as training
            self.first, self.first_step = time.perf_counter(), state.global_step
        if self.bar is not None:
            self.bar.update(state.global_step - self.bar.n)
            if not control.should_log:
                self.show(state)

    def on_log(self, args: Any, state: Any, control: Any, logs: dict[str, Any] | None = None, **_: Any) -> None:
        if not logs or "loss" not in logs:
            return
        loss, step = logs["loss"], state.global_step
        if not math.isfinite(loss) or not math.isfinite(logs.get("grad_norm", 0.0)):
            raise DivergedError(
                f"the loss is {loss} at step {step} (gradient norm {logs.get('grad_norm')}): training diverged. What "
                f"was saved before is untouched in {self.run}. Lower learning_rate (or position_lr_factor) in a new "
                f"run."
            )
        if self.bar is None:
            return
        rate = self.tokens_per_second(step)
        line = {
            "step": step,
            "loss": loss,
            "lr": logs.get("learning_rate"),
            "grad_norm": logs.get("grad_norm"),
            "tokens": self.tokens(step),
            "tokens/s": rate and round(rate),
        }
        with (self.run / LOSSES).open("a", encoding="utf-8") as file:
            file.write(json.dumps(line) + "\n")
        self.show(state, f", loss {loss:.3f}")

    def show(self, state: Any, loss: str = "") -> None:
        """In the bar or, if one is due, in a line."""
        rate, step = self.tokens_per_second(state.global_step), state.global_step
        speed = f", {rate:,.0f} tokens/s" if rate else ""
        if loss:
            self.bar.set_postfix_str(f"{loss}{speed}".removeprefix(", "))
        if self.lines is not None and self.lines.are_due(step):
            left = (self.tokens(state.max_steps) - self.tokens(step)) / rate if rate else 0
            in_time = f", {tqdm.format_interval(left)} left" if left else ""
            self.say(f"step {step:,} of {state.max_steps:,}{loss}{speed}{in_time}")

    def say(self, what: str) -> None:
        """A line, of this run."""
        print(f"{self.run.name}: {what}", file=sys.stderr, flush=True)

    def on_save(self, args: Any, state: Any, control: Any, model: Any = None, **_: Any) -> None:
        refuse_not_finite(model, f"after step {state.global_step}")
        if state.is_world_process_zero:
            mark_complete(self.run / f"checkpoint-{state.global_step}")
            discard_oldest(self.run, args.save_total_limit or 0)

    def on_train_end(self, args: Any, state: Any, control: Any, **_: Any) -> None:
        self.close()

    def close(self) -> None:
        """End the bar's line, so that what is said next comes after it."""
        if self.bar is not None:
            self.bar.close()

    def tokens_per_second(self, step: int) -> float | None:
        """Since the first step, which compiles, was done."""
        if not self.first or step == self.first_step:
            return None
        return (self.tokens(step) - self.tokens(self.first_step)) / (time.perf_counter() - self.first)

    def leave_out(self, seconds: float) -> None:
        """Time that was not spent on training."""
        if self.first:
            self.first += seconds


def refuse_not_finite(model: nn.Module, when: str) -> None:
    """A model that diverged is neither a checkpoint nor a result."""
    local = {name: p.to_local() if isinstance(p, DTensor) else p for name, p in model.named_parameters()}
    if broken := [name for name, p in local.items() if not torch.isfinite(p).all()]:
        raise DivergedError(f"{', '.join(broken[:3])} are not finite {when}: training diverged. Lower learning_rate.")


def forget_after(file: Path, step: int) -> None:
    """Drop losses of steps that will be done again, and a line that was cut off."""
    if not file.exists():
        return
    kept = [line for line in read_losses(file) if line["step"] <= step]
    write_whole(file, "".join(json.dumps(line) + "\n" for line in kept))


def read_losses(file: Path) -> list[dict[str, Any]]:
    """Every whole line of a losses.jsonl."""
    lines = []
    for text in file.read_text(encoding="utf-8").splitlines():
        try:
            lines.append(json.loads(text))
        except ValueError:
            continue
    return lines
