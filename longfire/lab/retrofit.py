"""Retrofit a model, let it recover by further training, and measure perplexity by length before and after.

OUT/model/ …          the result and its run, by `longfire.training.run`
    perplexity/*.json one file per test
    retrofit.json     the record, in the form of a comparison's
"""

import os
import sys
from collections.abc import Callable
from dataclasses import asdict
from pathlib import Path
from typing import Any

from longfire.atomic_io import read_json, refuse_unwritable
from longfire.evaluation.perplexity import perplexity_by_length
from longfire.evaluation.record import Save, interruptible
from longfire.lab.result_cache import load_result, save_result
from longfire.lab.retrofit_plan import RetrofitPlan
from longfire.model.generate import load_model
from longfire.model.inspection import encoding_name
from longfire.provenance import provenance
from longfire.training.callbacks import LOSSES, read_losses
from longfire.training.pretrain import text_sequences
from longfire.training.recovery import RecoveryTrainer, add_lora
from longfire.training.run import as_json, is_done, run_training

ORIGINAL = "original"


def retrofit_and_recover(
    plan: RetrofitPlan, out: Path, *, save: Save = lambda record: None, progress: bool = True
) -> dict[str, Any]:
    """Run a plan; return its record, saved after each test. Finished work is skipped, interrupted work resumes.

    Args:
        plan: what to do.
        out: the output folder. One that contains a different run is refused.
        save: called with the record.
        progress: show bars on a terminal, lines elsewhere.
    """
    if int(os.environ.get("WORLD_SIZE", "1")) > 1:
        raise ValueError("retrofit runs in one process. Run it without torchrun.")
    refuse_unwritable(out)
    corpus, recipe = plan.load_corpus(progress), plan.recipe
    identity = as_json(plan.identity(corpus))
    finished = is_done(out, identity)  # refuses a different run
    if recipe.steps:
        text_sequences(corpus, recipe.length, recipe.batch_size)
    between = plan.points[1:-1]
    lengths = [n for n in plan.tested_lengths if _has_pieces(corpus.validation, n)]
    record: dict[str, Any] = {
        "provenance": provenance(),
        "setting": {
            "model": plan.model,
            "model_type": plan.config.model_type,
            "encoding": plan.title,
            "position_encoding": identity["position_encoding"],
            "training_length": plan.length,
            "trained_length": recipe.length,
            "parameters": plan.parameters(),
            "lengths": lengths,
            "recipe": asdict(recipe),
            "tokens": plan.tokens,
            "corpus": corpus.describe(),
        },
        "runs": [],
    }
    if left_out := [n for n in plan.tested_lengths if n not in lengths]:
        record["note"] = f"No held-out document has {min(left_out):,} tokens: not tested there."

    asked = {"lengths": lengths, "tokens": plan.tokens, **identity}

    def file(name: str) -> Path:
        return out / "perplexity" / f"{name}.json"

    def test(name: str, step: int, model: Callable[[], Any]) -> None:
        """Add a model's perplexity to the record, measured unless it is known."""
        if (found := load_result(file(name), asked)) is None:
            if progress:
                print(f"{out.name}: testing {name.replace('-', ' ')}", file=sys.stderr, flush=True)
            loaded = model()
            found = perplexity_by_length(loaded, corpus.validation, lengths, tokens=plan.tokens, progress=progress)
            found["encoding"] = encoding_name(loaded)
            if not any("failed" in row for row in found["rows"]):  # measure those again
                save_result(file(name), asked, found)
        run = {
            "stage": name,
            "step": step,
            "tokens_seen": step * recipe.batch_size * recipe.length,
            "seed": recipe.seed,
        }
        record["runs"] = [*(one for one in record["runs"] if one["stage"] != name), {**run, "perplexity": found}]
        record["runs"].sort(key=lambda one: (one["stage"] != ORIGINAL, one["step"]))
        save(record)

    def require_points() -> None:
        """Refuse steps that training has passed without a test: their models are gone."""
        if lost := [step for step in between if load_result(file(f"step-{step}"), asked) is None]:
            raise ValueError(
                f"training in {out} is past step {lost[0]}, which was not tested like this: its model is gone. Omit it "
                f"from --evaluate-at, or choose another folder."
            )

    if finished:
        require_points()

    def make_trainer() -> RecoveryTrainer:
        model = plan.load_retrofit()
        dtype = model.dtype
        return RecoveryTrainer(
            recipe,
            add_lora(model, recipe.lora_rank) if recipe.lora_rank else model.float(),
            corpus,
            source=Path(plan.source),
            dtype=dtype,
            run=out,
            progress=progress,
            measure=lambda trained, step: test(f"step-{step}", step, lambda: trained),
            measure_at=between,
        )

    def keep(record: dict[str, Any]) -> None:
        if record["runs"]:  # do not overwrite an earlier record with an empty one
            save(record)

    with interruptible(record, keep):
        test(ORIGINAL, 0, plan.load_original)
        if recipe.steps:
            test("step-0", 0, plan.load_retrofit)
        folder = run_training(out, identity, make_trainer)
        require_points()
        for step in between:
            test(f"step-{step}", step, lambda: None)  # known
        test(f"step-{recipe.steps}", recipe.steps, lambda: load_model(folder)[0].eval())
        done = read_json(out / "done.json")
        record["runs"][-1] |= {key: done[key] for key in ("seconds", "tokens/s", "final_loss")}
        record["runs"][-1]["losses"] = _losses(out / LOSSES)
    return record


def _has_pieces(split: Any, length: int) -> bool:
    return bool((split.starts[1:] - split.starts[:-1] >= length).any())


def _losses(file: Path) -> list[list[float]]:
    return [[line["step"], round(line["loss"], 4)] for line in read_losses(file)] if file.exists() else []
