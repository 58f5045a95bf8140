"""Runs that are in a folder already: they are taken as they are, if they are what is asked for."""

from pathlib import Path
from typing import Any

from longfire.atomic_io import read_json
from longfire.data import Corpus
from longfire.lab.comparison import Comparison
from longfire.training import Recipe
from longfire.training.pretrain import identity
from longfire.training.run import differing

NAMED = 3
"""Runs that a message names; more are counted."""


def refuse_other_runs(comparison: Comparison, out: Path, corpus: Corpus) -> None:
    """Before anything is trained: refuse a folder with runs by another recipe or on another text."""
    found: dict[str, list[str]] = {}
    for label, seed, recipe in comparison.recipes():
        run = comparison.folder(out, label, seed)
        if other := differing(run, _identity(recipe, corpus, out)):
            found.setdefault(_in_words(run, other, corpus), []).append(run.name)
    if found:
        listed = "; ".join(f"{_listed(runs)}: {what}" for what, runs in found.items())
        raise ValueError(
            f"{out} holds other runs than those asked for ({listed}). Nothing was trained or written. Choose another "
            f"folder with --out, or delete these runs."
        )


def _identity(recipe: Recipe, corpus: Corpus, out: Path) -> dict[str, Any]:
    """Of a run; nothing, as long as the model that it is to be made of is not there."""
    if recipe.extend_to is None:
        return identity(recipe, corpus)
    source = out / str(recipe.init_from)
    return identity(recipe.but(init_from=str(source)), corpus) if (source / "done.json").is_file() else {}


def _in_words(run: Path, other: dict[str, tuple[Any, Any]], corpus: Corpus) -> str:
    """What differs: the text by its name, and what follows from something else only where there is nothing else."""
    parts = [
        f"{name} {there!r} there, {here!r} here"
        for name, (there, here) in other.items()
        if name not in ("corpus", "checkpoint")
    ]
    if "corpus" in other and not {"tokenizer", "vocab_size"} & {*other}:
        parts.insert(0, _texts(_text_of(run.parent, other["corpus"][0]), corpus.describe()))
    return ", ".join(parts) or "made of another model"


def _texts(there: dict[str, Any], here: dict[str, Any]) -> str:
    for name, what in (("name", "text"), ("tokenizer", "tokenizer"), ("source", "text")):
        if name in there and there[name] != here[name]:
            return f"{what} {there[name]!r} there, {here[name]!r} here"
    return f"another text than {here['name']!r}" if not there else f"the text {here['name']!r} has changed since"


def _text_of(runs: Path, fingerprint: str) -> dict[str, Any]:
    """What a text is, if one of the runs that are done was trained on it."""
    for file in sorted(runs.glob("*/done.json")):
        corpus = read_json(file).get("corpus", {})
        if corpus.get("fingerprint") == fingerprint:
            return dict(corpus)
    return {}


def _listed(names: list[str]) -> str:
    more = f" and {len(names) - NAMED} more" if len(names) > NAMED else ""
    return ", ".join(names[:NAMED]) + more
