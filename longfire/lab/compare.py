"""Train encodings short, test them long, and collect the results in one record.

    OUT/runs/fire-0/…   one run per encoding and seed, by `longfire.training.pretrain`
    OUT/compare.json    the record

Interrupted comparisons resume; completed runs are skipped. On a CPU several runs train at once, one core each, so the
numbers do not depend on how many cores there are.
"""

from collections.abc import Iterator
from dataclasses import asdict, replace
from typing import Any

from longfire.evaluation.record import Save, interruptible
from longfire.lab.comparison_plan import ComparisonPlan
from longfire.lab.pool import run_in_processes
from longfire.lab.progress import ProgressBar, print_finished
from longfire.lab.train_and_test import train_and_test
from longfire.provenance import merge_provenance, provenance

LOST = "its process was killed twice, probably for lack of memory: use fewer --jobs"


def compare(plan: ComparisonPlan, save: Save = lambda record: None) -> dict[str, Any]:
    """Train and test every incomplete run; return the record, which is saved after each run."""
    if not isinstance(plan, ComparisonPlan):
        raise TypeError("compare takes a plan: compare(plan_comparison(comparison, out, …), save).")
    comparison = plan.comparison
    record: dict[str, Any] = {
        "provenance": provenance(),
        "setting": {
            **{key: value for key, value in asdict(comparison).items() if key != "corpus"},
            "lengths": comparison.tested_lengths(),
            "trained_length": comparison.recipe.length,
            "corpus": plan.corpus.describe(),
        },
        "notes": list(plan.notes),
        "runs": [],
        "biases": {},
    }
    order = [(run.label, run.seed) for run in plan.runs]
    provenances: list[dict[str, Any]] = []

    with interruptible(record, save):
        for run in _results(plan):
            record["runs"].append(run)
            record["runs"].sort(key=lambda result: order.index((result["encoding"], result["seed"])))
            if biases := run.pop("biases", []):
                record["biases"][run["encoding"]] = biases
            if "provenance" in run:  # of the machine that tested the run
                provenances.append(run.pop("provenance"))
                record["provenance"] = merge_provenance(provenances)
            save(record)
            if plan.options.get("progress", True):
                print_finished(run, comparison.recipe.length, f"{len(record['runs'])} of {len(order)}")
    return record


def _results(plan: ComparisonPlan) -> Iterator[dict[str, Any]]:
    """Yield each run's result as it finishes. Extensions start once all other runs are complete."""
    stages = [[run for run in plan.runs if run.is_extension == extension] for extension in (False, True)]
    if plan.jobs == 1:
        yield from (train_and_test(plan, run) for stage in stages for run in stage)
        return
    quiet = replace(plan, options={**plan.options, "progress": False})
    folders = [run.folder for stage in stages for run in stage]
    steps = sum(run.recipe.steps for run in plan.runs)
    with ProgressBar(folders, steps, plan.jobs, lines=plan.options.get("progress", True)) as bar:
        for stage in stages:
            for run, result in run_in_processes(
                train_and_test,
                quiet,
                stage,
                plan.jobs,
                tick=lambda unfinished: bar.update([run.folder for run in unfinished]),
            ):
                key = {"encoding": run.label, "label": run.title, "seed": run.seed}
                yield {**key, "failed": LOST} if result is None else result
