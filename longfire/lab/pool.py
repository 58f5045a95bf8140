"""Run tasks in several processes, one core each.

On Ctrl-C every task can clean up; a killed process costs only its own task an attempt; no worker outlives its parent.
"""

import multiprocessing
import os
import pickle
import signal
import sys
import threading
import traceback
from collections import Counter
from collections.abc import Callable, Hashable, Iterator, Sequence
from contextlib import contextmanager, suppress
from multiprocessing.connection import wait
from typing import Any, TypeVar

import torch
from tqdm import tqdm
from transformers.utils.logging import disable_progress_bar

Shared = TypeVar("Shared")
Task = TypeVar("Task", bound=Hashable)
Result = TypeVar("Result")

MAX_ATTEMPTS = 2
"""A task fails once its process has died this many times."""


class Worker:
    """A process that works on one task after another, as they arrive on its pipe, and sends the results back."""

    def __init__(self, work: Callable[[Any, Any], Any], shared: Any) -> None:
        context = multiprocessing.get_context("spawn")
        self.pipe, theirs = context.Pipe()
        self.process = context.Process(target=_serve, args=(theirs, work, shared))
        with _ignored_interrupts():  # inherited: only the parent handles Ctrl-C
            self.process.start()
        theirs.close()  # so that the pipe ends with the process

    def begin(self, task: Any) -> None:
        with suppress(BrokenPipeError):  # killed while idle: its pipe has ended
            self.pipe.send(task)


def run_in_processes(
    work: Callable[[Shared, Task], Result],
    shared: Shared,
    tasks: Sequence[Task],
    jobs: int,
    *,
    tick: Callable[[list[Task]], None] = lambda unfinished: None,
) -> Iterator[tuple[Task, Result | None]]:
    """Yield each task with its result as it finishes; the result is None if its process died twice.

    Args:
        work: called as `work(shared, task)`. Must be importable, because processes are spawned.
        shared: sent to each process once.
        tasks: independent tasks.
        jobs: number of processes.
        tick: called about twice a second with the unfinished tasks, those that have begun first.
    """
    waiting, deaths = list(tasks), Counter[Task]()
    idle: list[Worker] = []
    busy: dict[Any, tuple[Worker, Task]] = {}  # by pipe
    try:
        while waiting or busy:
            while waiting and len(busy) < jobs:
                idle = [worker for worker in idle if worker.process.is_alive()]
                worker = idle.pop() if idle else Worker(work, shared)
                task = waiting.pop(0)
                worker.begin(task)
                busy[worker.pipe] = worker, task
            for pipe in wait(list(busy), timeout=0.5):
                worker, task = busy[pipe]
                try:
                    result = worker.pipe.recv()
                except (EOFError, OSError):  # the process has ended
                    del busy[pipe]
                    worker.process.join()
                    deaths[task] += 1
                    if deaths[task] < MAX_ATTEMPTS:
                        waiting.insert(0, task)
                    else:
                        yield task, None
                    continue
                idle.append(busy.pop(pipe)[0])
                if isinstance(result, Exception):
                    raise result
                yield task, result
            tick([*(task for _, task in busy.values()), *waiting])
    except BaseException as error:
        _interrupt([worker.process for worker, _ in busy.values()], quietly=isinstance(error, Exception))
        raise
    finally:
        for worker in idle:
            worker.pipe.close()
            worker.process.join()


def _interrupt(processes: Sequence[Any], quietly: bool) -> None:
    """Interrupt running tasks, and wait for them. A second Ctrl-C kills the processes."""
    for process in processes:
        process.terminate()
    if not quietly:
        with suppress(BrokenPipeError):
            tqdm.write("\nlongfire: saving checkpoints; press Ctrl-C again to stop at once.", file=sys.stderr)
    try:
        for process in processes:
            process.join()
    except KeyboardInterrupt:
        for process in processes:
            process.kill()
        raise


@contextmanager
def _ignored_interrupts() -> Iterator[None]:
    if threading.current_thread() is not threading.main_thread():
        yield
        return
    before = signal.signal(signal.SIGINT, signal.SIG_IGN)
    try:
        yield
    finally:
        signal.signal(signal.SIGINT, before)


def _serve(pipe: Any, work: Callable[[Any, Any], Any], shared: Any) -> None:
    """A worker: use one core, draw no progress bars, and exit if the parent does. SIGTERM interrupts the task."""
    signal.signal(signal.SIGTERM, _stop)
    torch.set_num_threads(1)
    disable_progress_bar()
    tqdm.set_lock(threading.RLock())  # tqdm's own lock is a named semaphore, which leaks when the process is killed
    threading.Thread(target=_exit_with_parent, daemon=True).start()
    with suppress(EOFError, KeyboardInterrupt):
        while True:
            task = pipe.recv()
            try:
                pipe.send(work(shared, task))
            except Exception as error:
                pipe.send(_portable(error))


def _portable(error: Exception) -> Exception:
    """The error with its traceback as a note, or one that says the same if it cannot be sent."""
    error.add_note(traceback.format_exc())
    try:
        pickle.loads(pickle.dumps(error))
    except Exception:
        return RuntimeError(traceback.format_exc())
    return error


def _stop(*_: object) -> None:
    signal.signal(signal.SIGTERM, signal.SIG_IGN)  # a scheduler signals every process, and then the parent does again
    raise KeyboardInterrupt


def _exit_with_parent() -> None:
    parent = multiprocessing.parent_process()
    assert parent is not None
    parent.join()
    os._exit(1)
