"""Encodings × seeds: train each short, test it long, and put them side by side.

    OUT/runs/fire-0/…   a run of its own for each encoding and seed, by `longfire.training.pretrain`
    OUT/compare.json    the record of all

What is done is not done again: started anew, it goes on. On a CPU several runs go at a time, each on a core of its own,
so that the numbers do not depend on how many cores there are.
"""

import logging
import multiprocessing
import os
import signal
import sys
import threading
import time
from collections import Counter
from collections.abc import Callable, Iterator
from concurrent.futures import FIRST_COMPLETED, Future, ProcessPoolExecutor, wait
from concurrent.futures.process import BrokenProcessPool
from contextlib import contextmanager, suppress
from dataclasses import asdict
from pathlib import Path
from typing import Any

import torch
from tqdm import tqdm
from transformers.utils.logging import disable_progress_bar

from longfire.data import Corpus
from longfire.evaluation.record import interruptible
from longfire.lab.comparison import Comparison, is_extension
from longfire.lab.existing_runs import refuse_other_runs
from longfire.lab.labels import written
from longfire.lab.one_run import check_other_texts, one_run
from longfire.lab.progress import Bar, say_ended
from longfire.provenance import provenance, together
from longfire.training import Recipe
from longfire.training.pretrain import training_sequences
from longfire.validation import at_least

log = logging.getLogger(__name__)

FEW_DOCUMENTS, FEW_TOKENS = 10, 1 << 15
"""With fewer held out, a comparison is told to mean little."""
TRIES = 2
"""How often a run may lose its process."""


def compare(
    comparison: Comparison,
    out: Path,
    *,
    jobs: int | None = None,
    save: Callable[[dict[str, Any]], object] = lambda record: None,
    **options: Any,
) -> dict[str, Any]:
    """Train and test all that is not yet, and return the record, which is saved after each run.

    Args:
        comparison: of what.
        out: the folder.
        jobs: runs at a time. None: on a CPU as many as it has cores, on a GPU one.
        save: called with the record after each run.
        options: for `longfire.training.pretrain`.
    """
    if int(os.environ.get("WORLD_SIZE", "1")) > 1:
        raise ValueError(
            "compare starts its runs itself. To spread one over several GPUs, train it by torchrun … -m longfire "
            "pretrain --out OUT/runs/ENCODING-SEED, and then compare without torchrun, which takes what is done."
        )
    out = Path(out)
    if jobs is not None:
        at_least("jobs", jobs, 1)
    corpus = comparison.load_corpus(progress=True)
    refuse_other_runs(comparison, out, corpus)
    training_sequences(comparison.recipe, corpus)  # what no run could do is said before the first
    getattr(corpus, comparison.split).pieces(max(comparison.tested_lengths()))
    notes = [*held_out(corpus, comparison.split, comparison.tokens), *check_other_texts(comparison, corpus)]
    for note in notes[1:]:
        log.warning(note)
    record: dict[str, Any] = {
        "provenance": provenance(),
        "setting": {
            **{key: value for key, value in asdict(comparison).items() if key != "corpus"},
            "lengths": comparison.tested_lengths(),
            "trained_length": comparison.recipe.length,
            "corpus": corpus.describe(),
        },
        "notes": notes,
        "runs": [],
        "biases": {},
    }
    runs = list(comparison.recipes())
    made: list[dict[str, Any]] = []
    at_once = max(1, min(len(runs), jobs or (1 if torch.cuda.is_available() else os.cpu_count() or 1)))

    def keep(record: dict[str, Any]) -> None:
        if record["runs"]:  # or what is there from another time says more
            save(record)

    with interruptible(record, keep):
        for run in _carried_out(comparison, out, runs, at_once, options):
            record["runs"].append(run)
            if learned := run.pop("biases", []):
                record["biases"][run["encoding"]] = learned
            if "provenance" in run:  # a run that was tested elsewhere says where
                made.append(run.pop("provenance"))
                record["provenance"] = together(made)
            record["runs"].sort(key=lambda one: (comparison.seeds.index(one["seed"]), _place(comparison, one)))
            keep(record)
            if options.get("progress", True):
                say_ended(run, comparison.recipe.length, f"{len(record['runs'])} of {len(runs)}")
    return record


def held_out(corpus: Corpus, split: str, limit: int | None) -> Iterator[str]:
    """How much text is tested on, at most `limit` tokens at each length; then, where it is little, that it is."""
    described = corpus.describe()
    tested, trained = (_amount(described["splits"][name]) for name in (split, "train"))
    cut = "the ends of " if described["divided"].startswith("by position") else ""
    passed_over = f" In the folder: {described['passed_over']}." if described["passed_over"] else ""
    sizes = described["splits"][split]
    if limit is not None and limit < sizes["tokens"]:
        tested += f", of which {limit:,} tokens are scored at each length"
    yield f"Held out for testing ({split}): {cut}{tested}. Trained on: {trained}.{passed_over}"
    if sizes["documents"] < FEW_DOCUMENTS or min(sizes["tokens"], limit or sizes["tokens"]) < FEW_TOKENS:
        yield (
            f"{tested} is too little held-out text to tell encodings apart: the ranking may differ on other documents. "
            f"Give more documents, or separate text to test on (--validation)."
        )


def _amount(sizes: dict[str, int]) -> str:
    documents = f"{sizes['documents']:,} document{'s' * (sizes['documents'] != 1)}"
    return f"{documents} with {sizes['tokens']:,} tokens"


def _place(comparison: Comparison, run: dict[str, Any]) -> int:
    return comparison.encodings.index(run["encoding"])


def _carried_out(
    comparison: Comparison, out: Path, runs: list[tuple[str, int, Recipe]], jobs: int, options: dict[str, Any]
) -> Iterator[dict[str, Any]]:
    """Each run's part of the record, as it is done; those that are made of another's model after all others."""
    runs = sorted(runs, key=lambda run: is_extension(run[0]))
    if jobs == 1:
        for label, seed, _recipe in runs:
            yield one_run(comparison, out, label, seed, options)
        return
    folders = [comparison.folder(out, label, seed) for label, seed, _ in runs]
    steps = sum(recipe.steps for _, _, recipe in runs)
    with Bar(folders, steps, jobs, lines=options.get("progress", True)) as bar:
        for extended in (False, True):
            part = [(label, seed) for label, seed, _ in runs if is_extension(label) == extended]
            yield from _tried(comparison, out, part, jobs, {**options, "progress": False}, bar.tick)


def _tried(
    comparison: Comparison,
    out: Path,
    waiting: list[tuple[str, int]],
    jobs: int,
    options: dict[str, Any],
    tick: Callable[[list[Path]], None],
) -> Iterator[dict[str, Any]]:
    """Runs that do not wait for each other. One that loses its process is begun again."""
    lost: Counter[tuple[str, int]] = Counter()
    while waiting:
        done: list[tuple[str, int]] = []
        try:
            for one in _in_a_pool(comparison, out, waiting, jobs, options, tick):
                done.append((one["encoding"], one["seed"]))
                yield one
        except BrokenProcessPool:  # one process was killed, and took the pool with it
            left = [one for one in waiting if one not in done]
            begun = [one for one in left if (comparison.folder(out, *one) / "recipe.json").exists()]
            begun = begun or left  # lost before any began: all of them, or this would never end
            lost.update(begun)
            for label, seed in [one for one in begun if lost[one] == TRIES]:
                done.append((label, seed))
                failed = "its process was lost, more than once: often memory ran out. Take fewer --jobs"
                yield {"encoding": label, "label": written(label), "seed": seed, "failed": failed}
        waiting = [one for one in waiting if one not in done]


def _in_a_pool(
    comparison: Comparison,
    out: Path,
    runs: list[tuple[str, int]],
    jobs: int,
    options: dict[str, Any],
    tick: Callable[[list[Path]], None],
) -> Iterator[dict[str, Any]]:
    pool = ProcessPoolExecutor(
        jobs, mp_context=multiprocessing.get_context("spawn"), initializer=_quiet_worker, initargs=(os.getpid(),)
    )
    try:
        with _deaf_to_interrupts():  # as its processes then are from their first line on: Ctrl-C is for this one
            waiting: dict[Future[dict[str, Any]], Path] = {
                pool.submit(_run_in_worker, comparison, out, label, seed, options): comparison.folder(out, label, seed)
                for label, seed in runs
            }
        while waiting:
            done, _ = wait(waiting, timeout=0.5, return_when=FIRST_COMPLETED)
            waiting = {future: folder for future, folder in waiting.items() if future not in done}
            tick(list(waiting.values()))
            for future in done:
                yield future.result()
    except (KeyboardInterrupt, GeneratorExit, BrokenPipeError):
        _stop(list((pool._processes or {}).values()), pool)
        raise
    finally:
        pool.shutdown(wait=True, cancel_futures=True)


def _stop(workers: list[Any], pool: ProcessPoolExecutor) -> None:
    """Let runs save a checkpoint, and start no others. A second Ctrl-C ends all at once."""
    for worker in workers:
        worker.terminate()
    with suppress(BrokenPipeError):
        tqdm.write("\nlongfire: runs save a checkpoint first. Ctrl-C again stops at once.", file=sys.stderr)
    try:
        pool.shutdown(wait=True, cancel_futures=True)
    except KeyboardInterrupt:
        for worker in workers:
            worker.kill()
        raise


@contextmanager
def _deaf_to_interrupts() -> Iterator[None]:
    if threading.current_thread() is not threading.main_thread():
        yield
        return
    before = signal.signal(signal.SIGINT, signal.SIG_IGN)
    try:
        yield
    finally:
        signal.signal(signal.SIGINT, before)


class _Worker:
    """A process of the pool. SIGTERM ends its run as Ctrl-C would, once; without a run it waits for the pool to end."""

    runs = stopped = False

    def hear(self, *_: object) -> None:
        before, self.stopped = self.stopped, True
        if self.runs and not before:
            raise KeyboardInterrupt


_worker = _Worker()


def _run_in_worker(*arguments: Any) -> dict[str, Any]:
    """`one_run`, in a process of the pool."""
    _worker.runs = True
    try:
        if _worker.stopped:
            raise KeyboardInterrupt
        return one_run(*arguments)
    finally:
        _worker.runs = False


def _quiet_worker(parent: int) -> None:
    """One core, no progress bars among those of others, and an end when the parent ends, however it does."""
    signal.signal(signal.SIGTERM, _worker.hear)
    torch.set_num_threads(1)
    disable_progress_bar()
    tqdm.set_lock(threading.RLock())  # its own is a semaphore of the system, which outlives an ended process

    def watch() -> None:
        while os.getppid() == parent:
            time.sleep(1)
        os._exit(1)

    threading.Thread(target=watch, daemon=True).start()
