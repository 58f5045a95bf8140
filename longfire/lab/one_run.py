"""One encoding with one seed: trained, and tested at every length.

    RUN/perplexity.json, perplexity-TEXT.json   what it was tested on, and what came out
        learned.json                            what its encoding learned, and on which machine that was looked at

What is there is not made again, and then the weights are not needed: runs may be brought together from several machines
without them.
"""

import math
import re
import time
from collections.abc import Iterator
from functools import cached_property
from pathlib import Path
from typing import Any

import numpy as np
import torch

from longfire.atomic_io import read_json
from longfire.data import HUB, Corpus, CorpusError, TokenSplit, is_saved, load_corpus
from longfire.encodings import position_parameters
from longfire.evaluation.held_out import joined, require_tokenizer
from longfire.evaluation.learned import learned_by_layer
from longfire.evaluation.perplexity import perplexity_by_length
from longfire.lab.comparison import SOURCE, Comparison, is_extension
from longfire.lab.kept import kept_or_made
from longfire.lab.labels import written
from longfire.model import LongfireForCausalLM
from longfire.provenance import provenance
from longfire.training import pretrain
from longfire.training.callbacks import LOSSES, read_losses
from longfire.validation import in_a_line

NEAR = 128
"""The query of the left half of the paper's figure of biases."""


def one_run(comparison: Comparison, out: Path, label: str, seed: int, options: dict[str, Any]) -> dict[str, Any]:
    """Train and test one encoding with one seed. A failure is part of the record, and costs the others nothing."""
    run = comparison.folder(out, label, seed)
    recipe = next(recipe for a, b, recipe in comparison.recipes() if (a, b) == (label, seed))
    found: dict[str, Any] = {"encoding": label, "label": written(label), "seed": seed}
    started = time.perf_counter()
    try:
        corpus = comparison.load_corpus()
        if is_extension(label):
            recipe = recipe.but(init_from=str(out / str(recipe.init_from)))
            found["extended"] = {"from": written(SOURCE), "to": recipe.extend_to, "steps": recipe.steps}
        folder = pretrain(recipe, corpus, run, **{"tracker": "none", "wait": True, **options})
        done = read_json(run / "done.json")
        found |= {key: done[key] for key in ("parameters", "tokens_seen", "unique_tokens", "seconds")}
        found |= {"tokens_per_second": done["tokens/s"], "commit": done["provenance"]["commit"]}
        found["losses"] = [[line["step"], round(line["loss"], 4)] for line in read_losses(run / LOSSES)]
        trained = Trained(folder)
        found["perplexity"] = perplexity(comparison, trained, getattr(corpus, comparison.split), corpus, run)
        for name, source in comparison.also:
            text = text_for(comparison, source, corpus)
            tested, left_out = others(text, corpus)
            found.setdefault("also", {})[name] = perplexity(comparison, trained, tested, text, run, name, left_out or 0)
        found |= what_was_learned(comparison, trained, run)
        if seed != comparison.seeds[0]:
            found["biases"] = []
        found["checkpoint"] = str(folder.relative_to(out))
    except (KeyboardInterrupt, BrokenPipeError):
        raise
    except Exception as error:
        found["failed"] = in_a_line(error)
    torch.compiler.reset()  # what was compiled for one encoding serves no other
    found["took"] = round(time.perf_counter() - started, 2)
    return found


class Trained:
    """A model in a folder, loaded when something about it is not known yet."""

    def __init__(self, folder: Path) -> None:
        self.folder = folder

    @cached_property
    def model(self) -> LongfireForCausalLM:
        model: Any = LongfireForCausalLM.from_pretrained(self.folder).eval()
        return model.to("cuda", torch.bfloat16) if torch.cuda.is_available() else model  # type: ignore[no-any-return]


def what_was_learned(comparison: Comparison, trained: Trained, run: Path) -> dict[str, Any]:
    """By the encodings of the layers; and where it was looked at, which is where all of a run is tested."""

    def make() -> dict[str, Any]:
        model = trained.model
        learned = learned_by_layer(model.model.encodings, comparison.recipe.length)
        return {
            "position_parameters": sum(p.numel() for p in position_parameters(model)),
            **({"learned": learned} if learned else {}),
            "biases": learned_biases(model, comparison),
            "provenance": provenance(),
        }

    return kept_or_made(run / "learned.json", [comparison.recipe.length, *bias_queries(comparison)], make)


def text_for(comparison: Comparison, source: str, corpus: Corpus, progress: bool = False) -> Corpus:
    """Another text in the tokens of the corpus, and read as that one is; from the cache, or made already."""
    if is_saved(source):
        text = load_corpus(source, progress=progress)
        require_tokenizer(text, corpus.tokenizer, corpus.name)
        return text
    given = dict(comparison.corpus)
    options: dict[str, Any] = {
        name: given[name] for name in ("cache_dir", "skip_bad", "max_documents") if name in given
    }
    if re.split("[:@]", source.removeprefix("hub:"))[0] not in HUB:  # these know which field holds their text
        options["field"] = given.get("field")
    return load_corpus(source, tokenizer=corpus.folder / "tokenizer", progress=progress, **options)


def others(text: Corpus, corpus: Corpus) -> tuple[TokenSplit, int | None]:
    """The documents of another text that the corpus has not, by content; and how many it has, None if not known."""
    whole, own = joined(text), corpus.contents
    if whole.contents is None or own is None:
        return whole, None
    shared = np.isin(whole.contents, own)
    if shared.all():
        raise CorpusError(
            "all its documents are in the corpus, whose held-out part is tested on anyway. Give another text, or leave "
            "it out."
        )
    return (whole.without(shared) if shared.any() else whole), int(shared.sum())


def check_other_texts(comparison: Comparison, corpus: Corpus) -> Iterator[str]:
    """Before anything is trained: refuse another text that cannot be tested on; says of the others what to know."""
    for name, source in comparison.also:
        try:
            tested, left_out = others(text_for(comparison, source, corpus, progress=True), corpus)
            tested.pieces(max(comparison.tested_lengths()))
        except (ValueError, OSError) as error:
            raise ValueError(f"{name}, a text of --also, cannot be tested on: {error}") from error
        if left_out is None:
            yield f"{name} may hold text of the corpus: tokens of an older version cannot be compared. Make them anew."
        elif left_out:
            yield (
                f"{left_out:,} of the {left_out + tested.num_documents:,} documents of {name} are left out, since they "
                f"are in the corpus too (compared by content, whitespace aside)."
            )


def perplexity(
    comparison: Comparison,
    trained: Trained,
    split: TokenSplit,
    corpus: Corpus,
    run: Path,
    name: str = "",
    left_out: int = 0,
) -> dict[str, Any]:
    """Perplexity by length, kept beside the model for the next time."""
    file = run / f"perplexity{f'-{name}' if name else ''}.json"
    asked = [comparison.tested_lengths(), comparison.protocol, comparison.tokens, comparison.split, corpus.fingerprint]
    asked += [left_out] if left_out else []
    how: dict[str, Any] = {"protocol": comparison.protocol, "tokens": comparison.tokens, "progress": False}
    return kept_or_made(
        file, asked, lambda: perplexity_by_length(trained.model, split, comparison.tested_lengths(), **how)
    )


def bias_queries(comparison: Comparison) -> list[int]:
    """Whose biases are shown, counted from 1: the paper's near one, and the last of training and of all tests."""
    longest = max(comparison.tested_lengths())
    return sorted({min(NEAR, longest), min(comparison.recipe.length, longest), longest})


@torch.no_grad()
def learned_biases(model: LongfireForCausalLM, comparison: Comparison) -> list[dict[str, Any]]:
    """The bias of each layer and head at these queries."""
    rows = []
    device = next(model.parameters()).device
    for query in (counted - 1 for counted in bias_queries(comparison)):
        distances = torch.logspace(0, math.log2(query + 1), 64, base=2, device=device).round().long().unique() - 1
        keys = (query - distances).flip(0)
        for layer, encoding in enumerate(model.model.encodings):
            bias = encoding(torch.tensor([query], device=device), keys) if encoding.has_bias else None
            for head, values in enumerate([] if bias is None else bias[:, 0].tolist()):
                short = [round(value, 4) for value in values]
                rows.append({"layer": layer, "head": head, "query": query, "positions": keys.tolist(), "values": short})
    return rows
