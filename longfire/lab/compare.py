"""Encodings × seeds: train each short, test it long, and put them side by side.

    OUT/runs/fire-0/…   a run of its own for each encoding and seed, by `longfire.training.pretrain`
    OUT/compare.json    the record of all

What is done is not done again: started anew, it goes on. On a CPU several runs go at a time, each on a core of its own,
so that the numbers do not depend on how many cores there are.
"""

import json
import math
import multiprocessing
import os
import signal
import threading
import time
from collections import Counter
from collections.abc import Callable, Iterator
from concurrent.futures import FIRST_COMPLETED, Future, ProcessPoolExecutor, wait
from concurrent.futures.process import BrokenProcessPool
from contextlib import contextmanager
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

import torch
from tqdm import tqdm
from transformers.utils.logging import disable_progress_bar

from longfire.data import Corpus, is_saved, load_corpus
from longfire.encodings import position_parameters
from longfire.errors import at_least
from longfire.evaluation.perplexity import perplexity_by_length
from longfire.lab.labels import check_label, folder_name, read_label, written
from longfire.model import LongfireForCausalLM
from longfire.provenance import provenance
from longfire.storage import write_json
from longfire.training import Recipe, pretrain
from longfire.training.callbacks import LOSSES, read_losses

DEFAULT = ("fire", "alibi", "kerple_log", "rope", "nope")
MULTIPLES = (1, 2, 4, 8, 16)
TRIES = 2
"""How often a run may lose its process."""


@dataclass(frozen=True)
class Comparison:
    """What is compared."""

    recipe: Recipe
    encodings: tuple[str, ...] = DEFAULT
    seeds: tuple[int, ...] = (0, 1, 2)
    lengths: tuple[int, ...] = ()
    """To test at. Empty: 1, 2, 4, 8 and 16 times the training length."""
    protocol: str = "paper"
    tokens: int | None = None
    """To test on at each length. None: all of the validation split."""
    split: str = "validation"
    """Or "dev", for whatever is tuned."""
    corpus: tuple[tuple[str, Any], ...] = ()
    """Options of `longfire.data.load_corpus`."""

    def __post_init__(self) -> None:
        for label in self.encodings:
            check_label(label)
        folders = Counter(folder_name(label) for label in self.encodings)
        if twice := [name for name, times in folders.items() if times > 1]:
            raise ValueError(f"{', '.join(twice)}: asked for more than once.")
        for seed in self.seeds:
            at_least("a seed", seed, 0)
        if not self.encodings or not self.seeds:
            raise ValueError("give at least one encoding and one seed.")

    def tested_lengths(self) -> list[int]:
        """In order."""
        return sorted(self.lengths) or [self.recipe.length * multiple for multiple in MULTIPLES]

    def recipes(self) -> Iterator[tuple[str, int, Recipe]]:
        """Label, seed and recipe of every run; all encodings of a seed before the next seed."""
        for seed in self.seeds:
            for label in self.encodings:
                name, shared, options = read_label(label)
                changes = {"encoding": name, "share": shared or self.recipe.share, "seed": seed}
                if options:
                    changes["encoding_options"] = {**self.recipe.encoding_options, **options}
                yield label, seed, self.recipe.but(**changes)

    def load_corpus(self, progress: bool = False) -> Corpus:
        """The text, from the cache where it is there."""
        options = dict(self.corpus)
        source = options.pop("source", None)
        if "tokenizer" not in options and not is_saved(source):
            options["tokenizer"] = self.recipe.tokenizer
            options["vocab_size"] = self.recipe.vocab_size if self.recipe.tokenizer == "bpe" else None
        return load_corpus(source, progress=progress, **options)


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
    corpus = comparison.load_corpus(progress=True)
    record: dict[str, Any] = {
        "provenance": provenance(),
        "setting": {
            **{key: value for key, value in asdict(comparison).items() if key != "corpus"},
            "lengths": comparison.tested_lengths(),
            "trained_length": comparison.recipe.length,
            "corpus": corpus.describe(),
        },
        "runs": [],
        "biases": {},
        "interrupted": True,
    }
    runs = list(comparison.recipes())
    at_once = max(1, min(len(runs), jobs or (1 if torch.cuda.is_available() else os.cpu_count() or 1)))
    try:
        for run in _carried_out(comparison, out, runs, at_once, options):
            record["runs"].append(run)
            if learned := run.pop("biases", []):
                record["biases"][run["encoding"]] = learned
            record["runs"].sort(key=lambda one: (comparison.seeds.index(one["seed"]), _place(comparison, one)))
            save(record)
        del record["interrupted"]
    except KeyboardInterrupt:
        pass
    save(record)
    return record


def _place(comparison: Comparison, run: dict[str, Any]) -> int:
    return comparison.encodings.index(run["encoding"])


def _carried_out(
    comparison: Comparison, out: Path, runs: list[tuple[str, int, Recipe]], jobs: int, options: dict[str, Any]
) -> Iterator[dict[str, Any]]:
    """Each run's part of the record, as it is done."""
    if jobs == 1:
        for label, seed, _recipe in runs:
            yield one_run(comparison, out, label, seed, options)
        return
    with tqdm(
        total=comparison.recipe.steps * len(runs), unit="step", desc=f"{len(runs)} runs, {jobs} at a time", disable=None
    ) as bar:

        def tick() -> None:
            bar.update(sum(_steps_done(_folder(out, label, seed)) for label, seed, _ in runs) - bar.n)

        waiting = [(label, seed) for label, seed, _ in runs]
        lost: Counter[tuple[str, int]] = Counter()
        while waiting:
            done: list[tuple[str, int]] = []
            try:
                for one in _in_a_pool(comparison, out, waiting, jobs, {**options, "progress": False}, tick):
                    done.append((one["encoding"], one["seed"]))
                    yield one
            except BrokenProcessPool:  # one process was killed, and took the pool with it
                begun = [one for one in waiting if one not in done and (_folder(out, *one) / "recipe.json").exists()]
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
    tick: Callable[[], None],
) -> Iterator[dict[str, Any]]:
    pool = ProcessPoolExecutor(
        jobs, mp_context=multiprocessing.get_context("spawn"), initializer=_quiet_worker, initargs=(os.getpid(),)
    )
    try:
        with _deaf_to_interrupts():  # as its processes then are from their first line on: Ctrl-C is for this one
            waiting: set[Future[dict[str, Any]]] = {
                pool.submit(one_run, comparison, out, label, seed, options) for label, seed in runs
            }
        while waiting:
            done, waiting = wait(waiting, timeout=0.5, return_when=FIRST_COMPLETED)
            tick()
            for future in done:
                yield future.result()
    finally:
        for process in list((pool._processes or {}).values()):
            process.terminate()  # what is not done goes on from its checkpoint the next time
        pool.shutdown(wait=False, cancel_futures=True)


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


def _quiet_worker(parent: int) -> None:
    """One core, no progress bars among those of others, and an end when the parent ends, however it does."""
    torch.set_num_threads(1)
    disable_progress_bar()

    def watch() -> None:
        while os.getppid() == parent:
            time.sleep(1)
        os._exit(1)

    threading.Thread(target=watch, daemon=True).start()


def _steps_done(run: Path) -> int:
    try:
        lines = read_losses(run / LOSSES)
    except OSError:
        return 0
    return int(lines[-1]["step"]) if lines else 0


def _folder(out: Path, label: str, seed: int) -> Path:
    return out / "runs" / f"{folder_name(label)}-{seed}"


def one_run(comparison: Comparison, out: Path, label: str, seed: int, options: dict[str, Any]) -> dict[str, Any]:
    """Train and test one encoding with one seed. A failure is part of the record, and costs the others nothing."""
    run = _folder(out, label, seed)
    recipe = next(recipe for a, b, recipe in comparison.recipes() if (a, b) == (label, seed))
    found: dict[str, Any] = {"encoding": label, "label": written(label), "seed": seed}
    started = time.perf_counter()
    try:
        corpus = comparison.load_corpus()
        folder = pretrain(recipe, corpus, run, **{"tracker": "none", **options})
        done = json.loads((run / "done.json").read_text(encoding="utf-8"))
        model = LongfireForCausalLM.from_pretrained(folder).eval()
        if torch.cuda.is_available():
            model = model.to("cuda", torch.bfloat16)
        found |= {key: done[key] for key in ("parameters", "tokens_seen", "unique_tokens", "seconds")}
        found["tokens_per_second"] = done["tokens/s"]
        found["position_parameters"] = sum(p.numel() for p in position_parameters(model))
        found["losses"] = [[line["step"], round(line["loss"], 4)] for line in read_losses(run / LOSSES)]
        found["perplexity"] = tested(comparison, model, corpus, run)
        found["biases"] = learned_biases(model, comparison) if seed == comparison.seeds[0] else []
        found["checkpoint"] = str(folder.relative_to(out))
    except KeyboardInterrupt:
        raise
    except Exception as error:
        found["failed"] = f"{type(error).__name__}: {error}".splitlines()[0]
    torch.compiler.reset()  # what was compiled for one encoding serves no other
    found["took"] = round(time.perf_counter() - started, 2)
    return found


def tested(comparison: Comparison, model: LongfireForCausalLM, corpus: Corpus, run: Path) -> dict[str, Any]:
    """Perplexity by length, kept beside the model for the next time."""
    file = run / "perplexity.json"
    asked = [comparison.tested_lengths(), comparison.protocol, comparison.tokens, comparison.split, corpus.fingerprint]
    if file.exists():
        kept = json.loads(file.read_text(encoding="utf-8"))
        if kept["asked"] == asked:
            return dict(kept["found"])
    found = perplexity_by_length(
        model,
        getattr(corpus, comparison.split),
        comparison.tested_lengths(),
        protocol=comparison.protocol,
        tokens=comparison.tokens,
        progress=False,
    )
    write_json(file, {"asked": asked, "found": found})
    return found


@torch.no_grad()
def learned_biases(model: LongfireForCausalLM, comparison: Comparison) -> list[dict[str, Any]]:
    """The bias of each layer and head at the last query of the training length and of the longest tested one."""
    rows = []
    device = next(model.parameters()).device
    for query in (comparison.recipe.length - 1, max(comparison.tested_lengths()) - 1):
        distances = torch.logspace(0, math.log2(query + 1), 64, base=2, device=device).round().long().unique() - 1
        keys = (query - distances).flip(0)
        for layer, encoding in enumerate(model.model.encodings):
            bias = encoding.bias(torch.tensor([query], device=device), keys) if encoding.has_bias else None
            for head, values in enumerate([] if bias is None else bias[:, 0].tolist()):
                short = [round(value, 4) for value in values]
                rows.append({"layer": layer, "head": head, "query": query, "positions": keys.tolist(), "values": short})
    return rows
