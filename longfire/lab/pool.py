"""Run tasks in several processes, one core each.

On Ctrl-C every task can clean up; a killed process costs only its own task an attempt; no worker outlives its parent.
"""

import multiprocessing
import os
import signal
import sys
import threading
import time
from collections import Counter
from collections.abc import Callable, Hashable, Iterator, Sequence
from concurrent.futures import FIRST_COMPLETED, Future, ProcessPoolExecutor, wait
from concurrent.futures.process import BrokenProcessPool
from contextlib import contextmanager, suppress
from typing import Any, TypeVar

import torch
from tqdm import tqdm
from transformers.utils.logging import disable_progress_bar

Shared = TypeVar("Shared")
Task = TypeVar("Task", bound=Hashable)
Result = TypeVar("Result")

MAX_ATTEMPTS = 2
"""A task fails once its process has died this many times."""


def run_in_processes(
    work: Callable[[Shared, Task], Result],
    shared: Shared,
    tasks: Sequence[Task],
    jobs: int,
    *,
    has_begun: Callable[[Task], bool],
    tick: Callable[[list[Task]], None] = lambda unfinished: None,
) -> Iterator[tuple[Task, Result | None]]:
    """Yield each task with its result as it finishes; the result is None if its process died twice.

    Args:
        work: called as `work(shared, task)`. Must be importable, because processes are spawned.
        shared: sent to each process once.
        tasks: independent tasks.
        jobs: number of processes.
        has_begun: whether a task had begun; called when a process dies, because the pool does not say whose it was.
        tick: called about twice a second with the unfinished tasks.
    """
    failures: Counter[Task] = Counter()
    waiting = list(tasks)
    while waiting:
        finished: set[Task] = set()
        try:
            for task, result in _run_pool(work, shared, waiting, jobs, tick):
                finished.add(task)
                yield task, result
        except BrokenProcessPool:  # one killed process breaks the whole pool
            unfinished = [task for task in waiting if task not in finished]
            suspects = [task for task in unfinished if has_begun(task)] or unfinished  # never empty, or we might loop
            failures.update(suspects)
            for task in suspects:
                if failures[task] == MAX_ATTEMPTS:
                    finished.add(task)
                    yield task, None
        waiting = [task for task in waiting if task not in finished]


def _run_pool(
    work: Callable[[Shared, Task], Result],
    shared: Shared,
    tasks: Sequence[Task],
    jobs: int,
    tick: Callable[[list[Task]], None],
) -> Iterator[tuple[Task, Result]]:
    pool = ProcessPoolExecutor(
        jobs,
        mp_context=multiprocessing.get_context("spawn"),
        initializer=_start_worker,
        initargs=(os.getpid(), shared),
    )
    try:
        with _ignore_interrupts():  # inherited by the workers: only this process handles Ctrl-C
            waiting: dict[Future[Result], Task] = {pool.submit(_run_task, work, task): task for task in tasks}
        while waiting:
            done, _ = wait(waiting, timeout=0.5, return_when=FIRST_COMPLETED)
            finished = [(waiting.pop(future), future) for future in done]
            tick(list(waiting.values()))
            for task, future in finished:
                yield task, future.result()
    except (KeyboardInterrupt, GeneratorExit, BrokenPipeError):
        _interrupt(pool)
        raise
    finally:
        pool.shutdown(wait=True, cancel_futures=True)


def _interrupt(pool: ProcessPoolExecutor) -> None:
    """Interrupt running tasks, drop the others, and wait. A second Ctrl-C kills the processes."""
    workers = list((pool._processes or {}).values())
    for worker in workers:
        worker.terminate()
    with suppress(BrokenPipeError):
        tqdm.write("\nlongfire: saving checkpoints; press Ctrl-C again to stop at once.", file=sys.stderr)
    try:
        pool.shutdown(wait=True, cancel_futures=True)
    except KeyboardInterrupt:
        for worker in workers:
            worker.kill()
        raise


@contextmanager
def _ignore_interrupts() -> Iterator[None]:
    if threading.current_thread() is not threading.main_thread():
        yield
        return
    before = signal.signal(signal.SIGINT, signal.SIG_IGN)
    try:
        yield
    finally:
        signal.signal(signal.SIGINT, before)


class _Worker:
    """State of a worker process. The first SIGTERM interrupts its task; an idle worker ignores it."""

    shared: Any = None
    busy = stopped = False

    def on_sigterm(self, *_: object) -> None:
        first, self.stopped = not self.stopped, True
        if self.busy and first:
            raise KeyboardInterrupt


_worker = _Worker()


def _start_worker(parent: int, shared: Any) -> None:
    """Use one core, draw no progress bars, and exit if the parent dies."""
    signal.signal(signal.SIGTERM, _worker.on_sigterm)
    _worker.shared = shared
    torch.set_num_threads(1)
    disable_progress_bar()
    tqdm.set_lock(threading.RLock())  # tqdm's own lock is a named semaphore, which leaks when the process is killed

    def watch_parent() -> None:
        while os.getppid() == parent:
            time.sleep(1)
        os._exit(1)

    threading.Thread(target=watch_parent, daemon=True).start()


def _run_task(work: Callable[[Any, Task], Result], task: Task) -> Result:
    _worker.busy = True
    try:
        if _worker.stopped:
            raise KeyboardInterrupt
        return work(_worker.shared, task)
    finally:
        _worker.busy = False
