"""A comparison ready to run: text loaded, every run identified, all checks done."""

import logging
import os
import re
from collections.abc import Iterator
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import numpy as np
import numpy.typing as npt
import torch

from longfire.atomic_io import read_json, refuse_unwritable
from longfire.data import HUB, Corpus, CorpusError, TokenSplit, is_saved, load_corpus
from longfire.evaluation.held_out import joined, require_tokenizer
from longfire.evaluation.record import FEW_DOCUMENTS, FEW_TOKENS
from longfire.lab.comparison import Comparison, PlannedRun
from longfire.training.pretrain import identity, training_sequences
from longfire.training.processes import world_size
from longfire.training.run import differing
from longfire.training.task_data import TaskData
from longfire.validation import at_least

log = logging.getLogger(__name__)

MAX_LISTED = 3
"""Runs to name in a message; the rest are counted."""


@dataclass(frozen=True, eq=False)
class OtherText:
    """Another text to test on, without the documents it shares with the corpus."""

    name: str
    corpus: Corpus
    shared: npt.NDArray[np.bool_] | None
    """Mask of the documents that are also in the corpus. None: unknown."""

    @property
    def left_out(self) -> int:
        """Number of skipped documents."""
        return 0 if self.shared is None else int(self.shared.sum())

    def split(self) -> TokenSplit:
        """The remaining documents, of all splits."""
        whole = joined(self.corpus)
        return whole.without(self.shared) if self.shared is not None and self.left_out else whole


@dataclass(frozen=True)
class ComparisonPlan:
    """Everything the runs need. Can be pickled: tokens travel as paths."""

    comparison: Comparison
    out: Path
    corpus: Corpus | TaskData
    texts: tuple[OtherText, ...]
    runs: tuple[PlannedRun, ...]
    notes: tuple[str, ...]
    """What a reader of the results should know about the text."""
    jobs: int
    """Runs at a time."""
    options: dict[str, Any]
    """Arguments of `longfire.training.pretrain`."""


def plan_comparison(comparison: Comparison, out: Path, *, jobs: int | None = None, **options: Any) -> ComparisonPlan:
    """Load the text and check that every run is feasible. Writes nothing but the token cache.

    Args:
        comparison: what to compare.
        out: output folder.
        jobs: runs at a time. None: one per core on a CPU, one on a GPU.
        options: passed to `longfire.training.pretrain`.
    """
    if world_size() > 1:
        raise ValueError(
            "compare starts its own processes. To train one run on several GPUs, use torchrun … -m longfire pretrain "
            "--out OUT/runs/ENCODING-SEED, then run compare without torchrun: it picks up completed runs."
        )
    if jobs is not None:
        at_least("jobs", jobs, 1)
    out = Path(out)
    refuse_unwritable(out)
    corpus = _load_text(comparison) if comparison.recipe.task is None else TaskData(comparison.recipe.task)
    runs = tuple(replace(run, identity=_identity(run, corpus)) for run in comparison.runs(out))
    _refuse_different_runs(runs, out, corpus)
    for recipe in {(run.recipe.length, run.recipe.batch_size): run.recipe for run in runs}.values():
        training_sequences(recipe, corpus)
    texts: tuple[OtherText, ...] = ()
    notes: tuple[str, ...] = ()
    if isinstance(corpus, Corpus):
        getattr(corpus, comparison.split).pieces(max(comparison.tested_lengths()))
        texts = tuple(_other_text(comparison, name, source, corpus) for name, source in comparison.also)
        notes = (*_held_out_notes(corpus, comparison.split, comparison.tokens), *_other_text_notes(texts))
        for note in notes[1:]:
            log.warning(note)
    jobs = jobs or (1 if torch.cuda.is_available() else os.cpu_count() or 1)
    return ComparisonPlan(comparison, out, corpus, texts, runs, notes, min(len(runs), jobs), options)


def _load_text(comparison: Comparison) -> Corpus:
    options, recipe = dict(comparison.corpus), comparison.recipe
    source = options.pop("source", None)
    if "tokenizer" not in options and not is_saved(source):
        options["tokenizer"] = recipe.tokenizer
        options["vocab_size"] = recipe.vocab_size if recipe.tokenizer == "bpe" else None
    return load_corpus(source, **options)


def _identity(run: PlannedRun, corpus: Corpus | TaskData) -> dict[str, Any] | None:
    if run.is_extension and not Path(str(run.recipe.init_from), "done.json").is_file():
        return None
    return identity(run.recipe, corpus)


def _refuse_different_runs(runs: tuple[PlannedRun, ...], out: Path, corpus: Corpus | TaskData) -> None:
    """Refuse a folder that contains runs with a different recipe or text."""
    conflicts: dict[str, list[str]] = {}
    for run in runs:
        if different := differing(run.folder, run.identity or {}):
            conflicts.setdefault(_describe_difference(run.folder, different, corpus), []).append(run.folder.name)
    if conflicts:
        for names in conflicts.values():
            names[MAX_LISTED:] = [f"{more} more"] if (more := len(names) - MAX_LISTED) > 0 else []
        listed = [f"{', '.join(names)}: {difference}" for difference, names in conflicts.items()]
        raise ValueError(
            f"{out} already contains different runs ({'; '.join(listed)}). Nothing was trained or written. Choose "
            f"another folder with --out, or delete these runs."
        )


def _describe_difference(run: Path, different: dict[str, tuple[Any, Any]], corpus: Corpus | TaskData) -> str:
    hashes = ("corpus", "checkpoint")  # meaningless to a reader
    parts = [f"{key} {there!r} there, {here!r} here" for key, (there, here) in different.items() if key not in hashes]
    if "corpus" in different and not {"tokenizer", "vocab_size"} & {*different}:
        there, here = read_json(run / "done.json").get("corpus"), corpus.describe()
        if there is None:
            parts.insert(0, f"a text other than {here['name']!r}")
        elif key := next((key for key in ("name", "tokenizer", "source") if there[key] != here[key]), None):
            parts.insert(0, f"corpus {key} {there[key]!r} there, {here[key]!r} here")
        else:
            parts.insert(0, f"the text {here['name']!r} has changed")
    return ", ".join(parts) or "trained from another model"


def _other_text(comparison: Comparison, name: str, source: str, corpus: Corpus) -> OtherText:
    """Load another text. Refuses one that cannot be tested on."""
    try:
        text = load_other_text(comparison, source, corpus)
        other = OtherText(name, text, shared_documents(text, corpus))
        other.split().pieces(max(comparison.tested_lengths()))
    except (ValueError, OSError) as error:
        raise ValueError(f"--also {name}: cannot test on this text: {error}") from error
    return other


def load_other_text(comparison: Comparison, source: str, corpus: Corpus) -> Corpus:
    """Load another text with the corpus's tokenizer and options."""
    if is_saved(source):
        text = load_corpus(source)
        require_tokenizer(text, corpus.tokenizer, corpus.name)
        return text
    shared = ("cache_dir", "skip_bad", "max_documents")
    options: dict[str, Any] = {name: comparison.corpus[name] for name in shared if name in comparison.corpus}
    if re.split("[:@]", source.removeprefix("hub:"))[0] not in HUB:  # HUB lists the text field of its data sets
        options["field"] = comparison.corpus.get("field")
    return load_corpus(source, tokenizer=corpus.folder / "tokenizer", **options)


def shared_documents(text: Corpus, corpus: Corpus) -> npt.NDArray[np.bool_] | None:
    """Mask of the documents that are also in the corpus, compared by content; None if unknown."""
    if text.contents is None or corpus.contents is None:
        return None
    shared = np.isin(text.contents, corpus.contents)
    if shared.all():
        raise CorpusError(
            "all its documents are in the corpus, whose held-out part is always tested. Pass another text, or drop "
            "--also."
        )
    return shared


def _other_text_notes(texts: tuple[OtherText, ...]) -> Iterator[str]:
    for text in texts:
        if text.shared is None:
            yield (
                f"{text.name} may overlap with the corpus: its tokens were saved by an older version, without document "
                f"hashes. Tokenise it again."
            )
        elif text.left_out:
            yield (
                f"{text.left_out:,} of the {len(text.shared):,} documents of {text.name} are skipped, because they are "
                f"also in the corpus (same content, ignoring whitespace)."
            )


def _held_out_notes(corpus: Corpus, split: str, limit: int | None) -> Iterator[str]:
    """The sizes of the held-out and training text, and a warning if there is too little to rank encodings."""
    description = corpus.describe()
    sizes = description["splits"][split]
    tested, trained = (_size(description["splits"][name]) for name in (split, "train"))
    ends = "the ends of " if description["divided"].startswith("by position") else ""
    passed_over = f" In the folder: {description['passed_over']}." if description["passed_over"] else ""
    yield f"Held-out text ({split}): {ends}{tested}. Training text: {trained}.{passed_over}"
    if limit is not None and limit < sizes["tokens"]:
        tested += f", of which up to {limit:,} tokens are scored at each length"
    if sizes["documents"] < FEW_DOCUMENTS or min(sizes["tokens"], limit or sizes["tokens"]) < FEW_TOKENS:
        yield (
            f"{tested}: too little held-out text to rank encodings reliably. Add documents, or pass a separate text "
            f"to test on (--validation)."
        )


def _size(sizes: dict[str, int]) -> str:
    documents = f"{sizes['documents']:,} document{'s' * (sizes['documents'] != 1)}"
    return f"{documents} with {sizes['tokens']:,} tokens"
