"""What a retrofit costs: models pretrained with RoPE, given another encoding, and trained on.

python -m benchmarks.retrofit_cost runs/cost results/retrofit/small.json --corpus books/ --tokenizer gpt2 --jobs 6

Log perplexity by length after 0, 1, 3, 10 and 30 % of the tokens of pretraining. Interrupted runs resume.
"""

import argparse
import multiprocessing
import statistics
import sys
from collections.abc import Iterator, Sequence
from concurrent.futures import ProcessPoolExecutor
from dataclasses import asdict, dataclass, field
from pathlib import Path
from typing import Any

from transformers.utils.logging import disable_progress_bar

from longfire.atomic_io import write_json
from longfire.data import load_corpus
from longfire.encodings.labels import run_folder
from longfire.lab.retrofit import ORIGINAL, retrofit_and_recover
from longfire.lab.retrofit_plan import RetrofitPlan
from longfire.provenance import provenance
from longfire.report.table import Table, render_text
from longfire.training import pretrain, recipe_named

FRACTIONS = (0.0, 0.01, 0.03, 0.1, 0.3)
MULTIPLES = (1, 2, 4, 8, 16)
"""Test lengths, in training lengths."""
NEW = ("fire:init=kerple_log,horizon={length}", "kerple_log", "alibi", "nope")
"""In place of RoPE, fully trained and with LoRA."""
CONTROLS = ("rope", "rope_pi:target_length={target}", "yarn:target_length={target}")
"""RoPE as it is, and extended to the longest test length; fully trained."""


@dataclass(frozen=True)
class Cost:
    """One model, its retrofits, and the text."""

    out: Path
    recipe: str = "small"
    corpus: dict[str, Any] = field(default_factory=dict)
    """Arguments of `load_corpus`."""
    seeds: Sequence[int] = (0, 1, 2)
    new: Sequence[str] = NEW
    controls: Sequence[str] = CONTROLS
    changes: dict[str, Any] = field(default_factory=dict)
    """Fields of the pretraining recipe."""
    tokens: int | None = None
    """Maximum tokens to score at each length."""

    def pretraining(self, seed: int) -> Any:
        """The recipe of the original."""
        return recipe_named(self.recipe).with_encoding("rope", **{**self.changes, "seed": seed})

    def original(self, seed: int) -> Path:
        """The folder of the original's run."""
        return run_folder(self.out, "rope", seed)

    def pretrain(self, seed: int) -> None:
        """Train the original, unless it is there."""
        disable_progress_bar()  # for saving and loading
        pretrain(self.pretraining(seed), load_corpus(**self.corpus), self.original(seed), progress=False)

    def variants(self) -> Iterator[tuple[int, str, bool]]:
        """Seed, label and LoRA of every retrofit."""
        for seed in self.seeds:
            length = self.pretraining(seed).length
            for labels, ways in ((self.new, (False, True)), (self.controls, (False,))):
                for label in labels:
                    for lora in ways:
                        yield seed, label.format(length=length, target=length * MULTIPLES[-1]), lora

    def retrofit(self, seed: int, label: str, lora: bool) -> list[dict[str, Any]]:
        """The retrofit's rows: how good it is after each fraction."""
        disable_progress_bar()
        pretrained = self.pretraining(seed)
        steps = {round(fraction * pretrained.steps): fraction for fraction in FRACTIONS}
        if len(steps) < len(FRACTIONS):
            raise ValueError(f"1 % of {pretrained.steps} steps is not one step. Use at least 100.")
        changes = {"steps": max(steps), "batch_size": pretrained.batch_size, "length": pretrained.length, "seed": seed}
        text = {name: value for name, value in self.corpus.items() if name not in ("tokenizer", "vocab_size")}
        plan = RetrofitPlan(
            str(self.original(seed)),
            encoding=label,
            lora=lora,
            changes=changes,
            corpus=text,
            lengths=[multiple * pretrained.length for multiple in MULTIPLES],
            tokens=self.tokens,
            evaluate_at=sorted(steps)[1:-1],
        )
        folder = run_folder(self.out, label, seed, prefix="lora-" if lora else "full-")
        record = retrofit_and_recover(plan, folder, progress=False)
        return [
            {
                "seed": seed,
                "encoding": ORIGINAL if run["stage"] == ORIGINAL else label,
                "lora": lora and run["stage"] != ORIGINAL,
                "fraction": steps[run["step"]],
                "tokens": run["tokens_seen"],
                "log_perplexity": {row["length"]: row.get("log_perplexity") for row in run["perplexity"]["rows"]},
            }
            for run in record["runs"]
        ]


def measure(cost: Cost, jobs: int) -> dict[str, Any]:
    """Pretrain and retrofit, `jobs` runs at a time; return the record."""
    rows: list[dict[str, Any]] = []
    with ProcessPoolExecutor(jobs, mp_context=multiprocessing.get_context("spawn")) as pool:
        for seed, pretrained in [(seed, pool.submit(cost.pretrain, seed)) for seed in cost.seeds]:
            pretrained.result()
            print(f"pretrained: seed {seed}", file=sys.stderr, flush=True)
        found = [(variant, pool.submit(cost.retrofit, *variant)) for variant in cost.variants()]
        for number, ((seed, label, lora), retrofitted) in enumerate(found, 1):
            rows += [row for row in retrofitted.result() if row not in rows]  # the original's once
            what = f"{label}{', LoRA' * lora}, seed {seed}"
            print(f"{number} of {len(found)}: {what}", file=sys.stderr, flush=True)
    setting = {
        "pretraining": asdict(cost.pretraining(cost.seeds[0])),
        "fractions": FRACTIONS,
        "corpus": load_corpus(**cost.corpus).describe(),
        "scored": cost.tokens,
    }
    return {"provenance": provenance(), "setting": setting, "rows": rows}


def table(record: dict[str, Any]) -> Table:
    """Means over seeds."""
    kinds: dict[tuple[Any, ...], list[dict[str, Any]]] = {}
    for row in record["rows"]:
        kinds.setdefault((row["encoding"], row["lora"], row["fraction"]), []).append(row["log_perplexity"])
    lengths = list(record["rows"][0]["log_perplexity"])
    cells = []
    for (label, lora, fraction), losses in kinds.items():
        means = [statistics.fmean(one[length] for one in losses) for length in lengths]
        cells.append([label, "LoRA" if lora else "full", f"{fraction:.0%}", *(f"{mean:.3f}" for mean in means)])
    return Table(["encoding", "training", "tokens", *(f"{length:,}" for length in lengths)], cells, left=2)


def main() -> None:
    """Parse the command line, measure, and write the record."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("out", type=Path, help="folder of the runs")
    parser.add_argument("record", type=Path, help="JSON file to write")
    parser.add_argument("--recipe", default="small")
    parser.add_argument("--corpus", nargs="+")
    parser.add_argument("--tokenizer", default="bpe")
    parser.add_argument("--seeds", type=int, nargs="+", default=[0, 1, 2])
    parser.add_argument("--steps", type=int, help="of pretraining (default: the recipe's)")
    parser.add_argument("--test-tokens", type=int)
    parser.add_argument("--jobs", type=int, default=1)
    options = parser.parse_args()
    cost = Cost(
        options.out,
        options.recipe,
        {"source": options.corpus, "tokenizer": options.tokenizer},
        options.seeds,
        changes={} if options.steps is None else {"steps": options.steps},
        tokens=options.test_tokens,
    )
    record = measure(cost, options.jobs)
    write_json(options.record, record)
    print(render_text([table(record)]))


if __name__ == "__main__":
    main()
