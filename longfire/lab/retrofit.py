"""Retrofit a model, let it recover by further training, and measure perplexity by length before and after.

OUT/model/ …            the result and its run, by `longfire.training.run`
    perplexity/….json   one file per test
"""

import gc
import sys
from dataclasses import asdict, dataclass, field
from functools import cached_property
from pathlib import Path
from typing import Any

import numpy as np

from longfire.atomic_io import read_json, refuse_unwritable
from longfire.data import Corpus
from longfire.evaluation.perplexity import perplexity_by_length
from longfire.evaluation.record import Save, interruptible
from longfire.lab.result_cache import load_result, save_result
from longfire.lab.retrofit_plan import RetrofitPlan
from longfire.model.generate import load_model
from longfire.provenance import provenance
from longfire.training.callbacks import LOSSES, read_losses
from longfire.training.pretrain import text_sequences
from longfire.training.processes import world_size
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
    if world_size() > 1:
        raise ValueError("retrofit runs in one process. Run it without torchrun.")
    refuse_unwritable(out)
    work = Work(plan, out, plan.load_corpus(progress), save, progress)
    if is_done(out, work.identity):  # refuses a different run
        work.require_points()
    if plan.recipe.steps:
        text_sequences(work.corpus, plan.recipe.length, plan.recipe.batch_size)
    with interruptible(work.record, save):
        work.run()
    return work.record


@dataclass
class Work:
    """A plan being carried out."""

    plan: RetrofitPlan
    out: Path
    corpus: Corpus
    save: Save
    progress: bool
    record: dict[str, Any] = field(init=False)

    def __post_init__(self) -> None:
        plan, recipe, corpus = self.plan, self.plan.recipe, self.corpus
        self.identity = as_json(plan.identity(corpus))
        longest = int(np.diff(corpus.validation.starts).max())
        self.lengths = [n for n in plan.tested_lengths if n <= longest]
        setting = {
            "model": plan.model,
            "model_type": plan.config.model_type,
            "encoding": plan.title,
            "position_encoding": self.identity["position_encoding"],
            "training_length": plan.length,
            "trained_length": recipe.length,
            "parameters": plan.parameters,
            "lengths": self.lengths,
            "recipe": asdict(recipe),
            "tokens": plan.tokens,
            "corpus": corpus.describe(),
        }
        self.record = {"provenance": provenance(), "setting": setting, "runs": []}
        if left_out := [n for n in plan.tested_lengths if n > longest]:
            self.record["note"] = f"No held-out document has {left_out[0]:,} tokens: not tested there."

    def run(self) -> None:
        """Test the original and the retrofit, train, and test the result."""
        steps = self.plan.recipe.steps
        self.test(ORIGINAL, 0, self.plan.load_original)
        if steps:
            self.test("step-0", 0, self.plan.load_retrofit)
        folder = run_training(self.out, self.identity, self.make_trainer)
        gc.collect()  # the trainer's model, before another is loaded
        self.require_points()
        for step in self.plan.points[1:-1]:
            self.test(f"step-{step}", step)
        self.test(f"step-{steps}", steps, lambda: load_model(folder)[0].eval())
        done, losses = read_json(self.out / "done.json"), self.out / LOSSES
        self.record["runs"][-1] |= {key: done[key] for key in ("seconds", "tokens/s", "final_loss")}
        if losses.exists():
            self.record["runs"][-1]["losses"] = [[line["step"], line["loss"]] for line in read_losses(losses)]

    def make_trainer(self) -> RecoveryTrainer:
        plan, model = self.plan, self.plan.load_retrofit()
        dtype, rank = model.dtype, plan.recipe.lora_rank
        return RecoveryTrainer(
            plan.recipe,
            add_lora(model, rank) if rank else model.float(),
            self.corpus,
            source=Path(plan.source),
            dtype=dtype,
            run=self.out,
            progress=self.progress,
            measure=lambda trained, step: self.test(f"step-{step}", step, lambda: trained),
            measure_at=plan.points[1:-1],
        )

    def test(self, name: str, step: int, load: Any = None) -> None:
        """Add a model's perplexity to the record. If it can be loaded, it is measured, unless that was done before."""
        found = self.known(name)
        if load is not None and (found is None or any("failed" in row for row in found["rows"])):
            if self.progress:
                print(f"{self.out.name}: testing {name.replace('-', ' ')}", file=sys.stderr, flush=True)
            options: dict[str, Any] = {"tokens": self.plan.tokens, "progress": self.progress}
            found = perplexity_by_length(load(), self.corpus.validation, self.lengths, **options)
            save_result(self.file(name), self.asked, found)
        tokens, seed = step * self.plan.recipe.tokens_per_step, self.plan.recipe.seed
        run = {"stage": name, "step": step, "tokens_seen": tokens, "seed": seed, "perplexity": found}
        others = [one for one in self.record["runs"] if one["stage"] != name]
        self.record["runs"] = sorted([*others, run], key=lambda one: (one["stage"] != ORIGINAL, one["step"]))
        self.save(self.record)

    @cached_property
    def asked(self) -> dict[str, Any]:
        """What a test depends on."""
        return {"lengths": self.lengths, "tokens": self.plan.tokens, **self.identity}

    def file(self, name: str) -> Path:
        return self.out / "perplexity" / f"{name}.json"

    def known(self, name: str) -> dict[str, Any] | None:
        """The result of an earlier test."""
        return load_result(self.file(name), self.asked)

    def require_points(self) -> None:
        """Refuse steps that training has passed without a test: their models are gone."""
        if lost := [step for step in self.plan.points[1:-1] if self.known(f"step-{step}") is None]:
            raise ValueError(
                f"training in {self.out} is past step {lost[0]}, which was not tested like this: its model is gone. "
                f"Omit it from --evaluate-at, or choose another folder."
            )
