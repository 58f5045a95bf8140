"""Trainer callbacks: progress, losses on disk, marks on checkpoints, and an error when training diverges."""

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
from longfire.complete_folder import mark_complete
from longfire.training.checkpoints import discard_oldest

LOSSES = "losses.jsonl"
LINE_EVERY = 30.0
"""Maximum seconds between progress lines when there is no terminal."""


class DivergedError(ValueError):
    """The loss or the weights are not finite."""


class MarkCudaGraphSteps(TrainerCallback):
    """Tells CUDA graphs where a step begins, so that they can reuse the previous step's memory."""

    def on_step_begin(self, args: Any, state: Any, control: Any, **_: Any) -> None:
        torch.compiler.cudagraph_mark_step_begin()


class ProgressLines:
    """Progress without a terminal: a line at every tenth of the work and every half minute."""

    def __init__(self, total: int, done: int = 0) -> None:
        self.total, self.tenths, self.last = total, 10 * done // total, time.perf_counter()

    def is_due(self, done: int) -> bool:
        """Whether to print a line now; if so, the caller must print it."""
        tenths, now = 10 * done // self.total, time.perf_counter()
        due = tenths > self.tenths or now - self.last >= LINE_EVERY
        if due:
            self.tenths, self.last = tenths, now
        return due


class TrainingMonitor(TrainerCallback):
    """Shows progress, writes losses.jsonl, marks checkpoints, and raises an error if the loss is not finite.

    Only the first process writes and prints. All processes see the same loss and stop together.
    """

    def __init__(self, run: Path, tokens: Callable[[int], int], progress: bool) -> None:
        """`tokens` returns the tokens in a number of steps."""
        self.run, self.tokens, self.progress = run, tokens, progress
        self.bar: Any = None
        self.first_time = 0.0
        self.first_step = 0
        self.lines: ProgressLines | None = None

    def on_train_begin(self, args: Any, state: Any, control: Any, **_: Any) -> None:
        self.first_time, self.first_step = 0.0, state.global_step
        if not state.is_world_process_zero:
            return
        drop_lines_after(self.run / LOSSES, state.global_step)
        off = None if self.progress else True
        self.bar = tqdm(total=state.max_steps, initial=state.global_step, unit="step", desc=self.run.name, disable=off)
        if self.progress and self.bar.disable:
            self.lines = ProgressLines(state.max_steps, state.global_step)
            start = f"resuming after step {state.global_step:,}" if state.global_step else "starting"
            self.print_line(f"{start}; {state.max_steps:,} steps, {self.tokens(state.max_steps):,} tokens")

    def on_step_end(self, args: Any, state: Any, control: Any, **_: Any) -> None:
        if state.global_step == state.max_steps or state.global_step % args.save_steps == 0:
            control.should_log = True  # check the loss before saving
        if not self.first_time:  # the first step compiles, so the clock starts after it
            self.first_time, self.first_step = time.perf_counter(), state.global_step
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
                f"the loss is {loss} at step {step} (gradient norm {logs.get('grad_norm')}): training diverged. "
                f"Earlier checkpoints in {self.run} are intact. Lower learning_rate or position_lr_factor in a new run."
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
        rate, step = self.tokens_per_second(state.global_step), state.global_step
        speed = f", {rate:,.0f} tokens/s" if rate else ""
        if loss:
            self.bar.set_postfix_str(f"{loss}{speed}".removeprefix(", "))
        if self.lines is not None and self.lines.is_due(step):
            seconds = (self.tokens(state.max_steps) - self.tokens(step)) / rate if rate else 0
            left = f", {tqdm.format_interval(seconds)} left" if seconds else ""
            self.print_line(f"step {step:,} of {state.max_steps:,}{loss}{speed}{left}")

    def print_line(self, text: str) -> None:
        print(f"{self.run.name}: {text}", file=sys.stderr, flush=True)

    def on_save(self, args: Any, state: Any, control: Any, model: Any = None, **_: Any) -> None:
        refuse_non_finite_weights(model, f"after step {state.global_step}")
        if state.is_world_process_zero:
            mark_complete(self.run / f"checkpoint-{state.global_step}")
            discard_oldest(self.run, args.save_total_limit or 0)

    def close(self) -> None:
        """End the bar's line, so that later messages start on a new one."""
        if self.bar is not None:
            self.bar.close()

    def tokens_per_second(self, step: int) -> float | None:
        if not self.first_time or step == self.first_step:
            return None
        return (self.tokens(step) - self.tokens(self.first_step)) / (time.perf_counter() - self.first_time)

    def exclude_time(self, seconds: float) -> None:
        """Exclude time that was not spent training from the speed."""
        if self.first_time:
            self.first_time += seconds


def refuse_non_finite_weights(model: nn.Module, when: str) -> None:
    """Refuse to save a model that diverged."""
    local = {name: p.to_local() if isinstance(p, DTensor) else p for name, p in model.named_parameters()}
    if broken := [name for name, p in local.items() if not torch.isfinite(p).all()]:
        raise DivergedError(f"{', '.join(broken[:3])} are not finite {when}: training diverged. Lower learning_rate.")


def drop_lines_after(file: Path, step: int) -> None:
    """Drop lines of steps that will be repeated, and a truncated last line."""
    if file.exists():
        kept = [line for line in read_losses(file) if line["step"] <= step]
        write_whole(file, "".join(json.dumps(line) + "\n" for line in kept))


def read_losses(file: Path) -> list[dict[str, Any]]:
    """Every complete line of a .jsonl file of losses or scores."""
    lines = []
    for text in file.read_text(encoding="utf-8").splitlines():
        try:
            lines.append(json.loads(text))
        except ValueError:
            continue
    return lines
