"""One run of a comparison: train one encoding with one seed and test it at every length.

    RUN/perplexity.json, perplexity-TEXT.json   cached tests
        learned.json                            what the encoding learned, and the machine that measured it

Completed work is skipped and needs no weights, so runs can be collected from several machines without them.
"""

import math
import time
from collections.abc import Callable
from functools import cache
from pathlib import Path
from typing import Any

import torch

from longfire.atomic_io import read_json
from longfire.data import Corpus, TokenSplit
from longfire.encodings import position_parameters
from longfire.encodings.labels import label_title
from longfire.evaluation.accuracy import accuracy_by_length
from longfire.evaluation.learned import bias_of, learned_by_layer
from longfire.evaluation.perplexity import perplexity_by_length
from longfire.lab.comparison import EXTENSION_SOURCE, Comparison, PlannedRun
from longfire.lab.comparison_plan import ComparisonPlan
from longfire.lab.result_cache import cached_result
from longfire.model import LongfireForCausalLM
from longfire.provenance import provenance
from longfire.training import pretrain
from longfire.training.callbacks import LOSSES, read_losses
from longfire.validation import error_summary

NEAR_QUERY = 128
"""The query on the left of the paper's figure of learned biases."""

Model = Callable[[], LongfireForCausalLM]
"""Loads the model on first use."""


def train_and_test(plan: ComparisonPlan, run: PlannedRun) -> dict[str, Any]:
    """Train and test one run. A failure is recorded and does not affect other runs."""
    result: dict[str, Any] = {"encoding": run.label, "label": run.title, "seed": run.seed}
    started = time.perf_counter()
    try:
        if run.is_extension:
            result["extended"] = {
                "from": label_title(EXTENSION_SOURCE),
                "to": run.recipe.extend_to,
                "steps": run.recipe.steps,
            }
        options = {"tracker": "none", "wait": True, **plan.options}
        folder = pretrain(run.recipe, plan.corpus, run.folder, planned=run.identity, **options)
        result |= _training_record(run.folder)
        model = cache(lambda: _load(folder))
        result |= _test(plan, run.folder, model)
        result |= _measure_encoding(plan.comparison, run.folder, model)
        if run.seed != plan.comparison.seeds[0]:
            result["biases"] = []  # the record has one seed's only
        result["checkpoint"] = str(folder.relative_to(plan.out))
    except (KeyboardInterrupt, BrokenPipeError):
        raise
    except Exception as error:
        result["failed"] = error_summary(error)
    torch.compiler.reset()  # graphs compiled for one encoding are useless to the next
    result["took"] = round(time.perf_counter() - started, 2)
    return result


def _training_record(run: Path) -> dict[str, Any]:
    done = read_json(run / "done.json")
    return {
        **{key: done[key] for key in ("parameters", "tokens_seen", "unique_tokens", "seconds")},
        "tokens_per_second": done["tokens/s"],
        "commit": done["provenance"]["commit"],
        "losses": [[line["step"], round(line["loss"], 4)] for line in read_losses(run / LOSSES)],
    }


def _load(folder: Path) -> LongfireForCausalLM:
    model: Any = LongfireForCausalLM.from_pretrained(folder).eval()
    return model.to("cuda", torch.bfloat16) if torch.cuda.is_available() else model  # type: ignore[no-any-return]


def _test(plan: ComparisonPlan, run: Path, model: Model) -> dict[str, Any]:
    """Accuracy by length on the comparison's task, or perplexity by length on its texts."""
    if isinstance(plan.corpus, Corpus):
        return _test_on_text(plan, plan.corpus, run, model)
    comparison, task = plan.comparison, plan.corpus.task
    lengths, questions, split = comparison.tested_lengths(), comparison.questions, comparison.split
    result = cached_result(
        run / "accuracy.json",
        [lengths, questions, split, plan.corpus.fingerprint],
        lambda: accuracy_by_length(model(), task, lengths, questions=questions, split=split),
    )
    return {"accuracy": result}


def _test_on_text(plan: ComparisonPlan, corpus: Corpus, run: Path, model: Model) -> dict[str, Any]:
    """Perplexity by length on the held-out split and on every other text."""
    comparison = plan.comparison
    lengths = comparison.tested_lengths()

    def perplexity(file: str, split: Callable[[], TokenSplit], *asked: Any) -> dict[str, Any]:
        return cached_result(
            run / file,
            [lengths, comparison.protocol, comparison.tokens, comparison.split, *asked],
            lambda: perplexity_by_length(
                model(), split(), lengths, protocol=comparison.protocol, tokens=comparison.tokens, progress=False
            ),
        )

    own = perplexity("perplexity.json", lambda: getattr(corpus, comparison.split), corpus.fingerprint)
    others = {
        text.name: perplexity(
            f"perplexity-{text.name}.json",
            text.split,
            text.corpus.fingerprint,
            *([text.left_out] if text.left_out else []),
        )
        for text in plan.texts
    }
    return {"perplexity": own, **({"also": others} if others else {})}


def _measure_encoding(comparison: Comparison, run: Path, model: Model) -> dict[str, Any]:
    """What each layer's encoding learned, and the machine that measured it."""
    length = comparison.recipe.sequence_length

    def measure() -> dict[str, Any]:
        learned = learned_by_layer(model().model.encodings, length)
        return {
            "position_parameters": sum(p.numel() for p in position_parameters(model())),
            **({"learned": learned} if learned else {}),
            "biases": _sample_biases(model(), bias_queries(comparison)),
            "provenance": provenance(),
        }

    return cached_result(run / "learned.json", [length, *bias_queries(comparison)], measure)


def bias_queries(comparison: Comparison) -> list[int]:
    """Queries to record biases for, counted from 1: the paper's, the last in training, the last in any test."""
    longest = comparison.tokens_at(max(comparison.tested_lengths()))
    return sorted({min(NEAR_QUERY, longest), min(comparison.recipe.sequence_length, longest), longest})


def _sample_biases(model: LongfireForCausalLM, queries: list[int]) -> list[dict[str, Any]]:
    """The bias of each layer and head, at geometrically spaced distances. `queries` count from 1, the rows from 0."""
    rows = []
    for query in queries:
        distances = (torch.logspace(0, math.log2(query), 64, base=2).round().long().unique() - 1).flip(0).tolist()
        positions = [query - 1 - distance for distance in distances]
        for layer, encoding in enumerate(model.model.encodings):
            for head, bias in enumerate(bias_of(encoding, query, distances).tolist() if encoding.has_bias else ()):
                values = [round(value, 4) for value in bias]
                rows.append(
                    {"layer": layer, "head": head, "query": query - 1, "positions": positions, "values": values}
                )
    return rows
