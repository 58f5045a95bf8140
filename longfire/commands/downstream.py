"""`longfire finetune TASK` and `longfire evaluate TASK`."""

import argparse
from collections.abc import Mapping, Sequence
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, Any

from longfire.atomic_io import write_json
from longfire.commands.interrupt import INTERRUPTED
from longfire.commands.parser import DTYPES, INTEGER, INTEGERS, LIST, NUMBER, Commands
from longfire.commands.training import recipe_changes
from longfire.tasks import SUITES, TASKS

if TYPE_CHECKING:
    from longfire.lab.downstream.plan import Experiment, Plan
    from longfire.lab.downstream.questions import Questions
    from longfire.training import FinetuneRecipe

ALL = "all"
PAPERS = ("scrolls", "glue", "narrative_qa")
"""The paper's tables to show next to ours."""
NAMES = (
    f"scrolls ({', '.join(SUITES['scrolls'])}), glue ({', '.join(SUITES['glue'])}: GLUE and SuperGLUE), squality, or "
    f"{ALL} (both suites)"
)
LISTED = {
    "scrolls": "questions on long documents; its tasks are subjects too",
    "glue": "GLUE and SuperGLUE; their tasks are subjects too",
    ALL: "both suites",
}


def add_finetune(commands: Commands) -> None:
    """Add `longfire finetune`."""
    parser = commands.add_parser(
        "finetune",
        help="fine-tune checkpoints on tasks and test them",
        description="Fine-tune checkpoints on a task, test them on its validation split, and print the results next to "
        f"the paper's. Tasks: {NAMES}. The tasks of scrolls are trained separately, those of glue together. "
        "Interrupted runs resume; completed work is skipped. On several GPUs: torchrun --nproc-per-node 8 -m longfire "
        "finetune …",
    )
    add = parser.add_argument
    add("task", metavar="TASK", help="a task, a suite, or tasks to train together, joined by +")
    _add_common(parser, "finetune", "test questions per task")
    add(
        "--recipe",
        metavar="NAME",
        help="fine-tuning recipe: scrolls or glue (the paper's, for models of its size), small (scrolls-small or "
        "glue-small), or tiny for a quick try (default: scrolls or glue)",
    )
    add(
        "--select",
        default="dev",
        help="model of each run to test: the best by dev (score on part of the train split), validation (score, as in "
        "the paper) or loss (on the dev part; fast), or the last",
    )
    add("--dev-examples", **INTEGER, default=64, help="dev questions per task for selecting a model")
    add("--test-lengths", **INTEGERS, help="test lengths (default: training length)")
    override = parser.add_argument_group("recipe overrides").add_argument
    override("--length", **INTEGER, help="maximum tokens of question, document and answer")
    override("--batch", dest="batch_size", **INTEGER, help="rows per step")
    override("--steps", **INTEGER, help="training steps")
    override("--learning-rate", **NUMBER, help="peak learning rate")
    override("--seed", **INTEGER, help="seed for row order and dropout")
    override("--set", **LIST, metavar="FIELD=VALUE", help="any field of the recipe")
    add("--tracker", default="tensorboard", help="tensorboard, wandb, trackio or none")
    add("--fsdp", action="store_true", help="shard the model across GPUs (FSDP2) instead of replicating it")
    add("--dry-run", action="store_true", help="print recipe, questions and lengths, then exit")
    parser.set_defaults(resumes=True, run=run_finetune)


def add_tasks(subjects: Commands) -> None:
    """Add `longfire evaluate TASK` for each task and suite."""
    for name in (*SUITES, ALL, *TASKS):
        summary: dict[str, Any] = {"help": LISTED[name]} if name in LISTED else {}
        parser = subjects.add_parser(
            name,
            **summary,
            description=f"Test checkpoints on {name} without fine-tuning: scores with 95 % intervals and, with several "
            "lengths, a table and a plot by context length. Works with any causal language model of transformers. "
            "Completed work is skipped.",
        )
        _add_common(parser, "evaluate", "questions per task")
        lengths = parser.add_mutually_exclusive_group()
        lengths.add_argument(
            "--length",
            **INTEGER,
            help="maximum tokens of question, document and answer (default: the first checkpoint's training length)",
        )
        lengths.add_argument("--lengths", **INTEGERS, help="several such lengths")
        add = parser.add_argument
        add("--split", choices=["validation", "train"], default="validation", help="split to test on")
        add("--device", help="cpu, cuda, cuda:1, … (default: cuda if available)")
        add("--dtype", choices=DTYPES, help="dtype of the weights (default: bfloat16 on cuda, as saved on cpu)")
        parser.set_defaults(resumes=True, run=run_task, task=name)


def _add_common(parser: argparse.ArgumentParser, folder: str, limited: str) -> None:
    add = parser.add_argument
    add(
        "checkpoints",
        nargs="+",
        metavar="CHECKPOINT",
        help="folder of a checkpoint or run; FOLDER:rope_pi=N or FOLDER:yarn=N extends RoPE to N tokens",
    )
    add(
        "--data",
        required=True,
        metavar="FOLDER",
        help="folder with TASK/SPLIT.jsonl (.gz, .zst), optionally in a subfolder named after the suite; hub for the "
        "Hugging Face hub; or placeholder for generated rows, for a quick try",
    )
    add("--out", type=Path, help=f"output folder (default: {folder}/TASK)")
    add("--limit", **INTEGER, help=f"maximum number of {limited} (default: all)")
    add(
        "--batch-tokens",
        **INTEGER,
        help="tokens per batch when answering questions (default: 262144 on cuda, 16384 on cpu)",
    )


def run_finetune(options: argparse.Namespace) -> int:
    """Run `longfire finetune`. Exit status: 1 if a run or a test failed, 130 if interrupted."""
    from longfire.lab.downstream.plan import Experiment, plan
    from longfire.training.processes import check_sharding
    from longfire.training.trainer import SHARDED

    out = options.out or Path("finetune") / options.task
    plans = [
        plan(
            Experiment(
                name,
                options.data,
                choose_recipe(options, name),
                select=options.select,
                lengths=tuple(options.test_lengths or ()),
                limit=options.limit,
                dev_examples=options.dev_examples,
            ),
            options.checkpoints,
            out / name if options.task == ALL else out,
        )
        for name in (SUITES if options.task == ALL else [options.task])
    ]
    if options.dry_run:
        for one in plans:
            checkpoints = [f"{candidate.label}: {candidate.given}" for candidate in one.candidates]
            print(describe_experiment(one.experiment, checkpoints, one.questions, one.missing))
            print(f"results folder: {one.out}")
        return 0
    if options.fsdp:
        check_sharding()
    how = {"tracker": options.tracker, "batch_tokens": options.batch_tokens, **(SHARDED if options.fsdp else {})}
    return run_plans(plans, options.checkpoints, **how)


def run_task(options: argparse.Namespace) -> int:
    """Run `longfire evaluate TASK`. Exit status: 1 if a test failed, 130 if interrupted."""
    from longfire.lab.downstream.plan import Experiment, plan

    experiment = Experiment(
        options.task,
        options.data,
        lengths=tuple(options.lengths or ([] if options.length is None else [options.length])),
        limit=options.limit,
        split=options.split,
    )
    out = options.out or Path("evaluate") / options.task
    how = {name: getattr(options, name) for name in ("batch_tokens", "device", "dtype")}
    return run_plans([plan(experiment, options.checkpoints, out)], options.checkpoints, **how)


def run_plans(plans: "Sequence[Plan]", own: Sequence[str] | None = None, size: str | None = None, **how: Any) -> int:
    """Run plans, show their results and return the exit status. Only failures of `own` checkpoints count (None: all).

    `size` selects the paper's models to show (None: the closest size); `how` goes to `downstream`.
    """
    from transformers.utils.logging import disable_progress_bar

    from longfire.lab.downstream.record import RECORD
    from longfire.lab.downstream.run import downstream

    disable_progress_bar()
    status = 0
    for one in plans:
        record = downstream(one, save=partial(write_json, one.out / RECORD), **how)
        status = max(status, show_results(record, one.out, own, size))
        if status == INTERRUPTED:
            break
    return status


def show_results(record: dict[str, Any], out: Path, own: Sequence[str] | None, size: str | None) -> int:
    """Print tables and draw plots, in the first process only. Returns the exit status."""
    from longfire.lab.downstream.record import RECORD
    from longfire.lab.reported import reported
    from longfire.report.contexts import plot_contexts
    from longfire.report.downstream import downstream_table
    from longfire.training.processes import is_first

    rows = [row for row in record["rows"] if own is None or row["checkpoint"] in own]
    failed = any("failed" in one for row in rows for one in (*row.get("parts", ()), *row["scores"]))
    status = INTERRUPTED if record.get("interrupted") else int(failed)
    if not is_first():
        return status
    tested = {one["task"] for row in record["rows"] for one in row["scores"] if "failed" not in one}
    several = len(record["setting"]["lengths"]) > 1
    plots = [plot_contexts(record, task, out / f"contexts-{task}.png") for task in sorted(tested) if several]
    print(downstream_table(record, {name: reported(name) for name in PAPERS}, size))
    print(f"\nNumbers: {out / RECORD}" + (f"   Plots: {', '.join(map(str, plots))}" if plots else ""))
    return status


def choose_recipe(options: argparse.Namespace, name: str) -> "FinetuneRecipe":
    """The recipe for a task or suite, with the command line's overrides."""
    from longfire.training import FINETUNE_RECIPES, finetune_recipe_named

    first = name.split("+")[0]
    suite = TASKS[first].suite if first in TASKS else first
    suite_recipe = f"{suite}-{options.recipe}"
    recipe = finetune_recipe_named(suite_recipe if suite_recipe in FINETUNE_RECIPES else options.recipe or suite)
    return recipe.but(**recipe_changes(options, recipe))


def describe_experiment(
    experiment: "Experiment",
    checkpoints: Sequence[str],
    questions: "Mapping[str, Questions] | None" = None,
    missing: Mapping[str, str] | None = None,
) -> str:
    """The recipe, the checkpoints and, if known, the number of questions per task, for a dry run."""
    from dataclasses import asdict

    from longfire.report.table import Table

    recipe: Any = experiment.recipe
    lines = [f"{name:18} {value}" for name, value in asdict(recipe).items()]
    lines += [f"{'select':18} {experiment.select}"]
    lines += [f"{'tested at':18} {', '.join(map(str, experiment.test_lengths()))}"]
    lines += [f"{'checkpoint':18} {checkpoint}" for checkpoint in checkpoints]
    header, counts = ["mixture", "task"], {}
    if questions is not None:
        header += ["train", "dev", "test"]
        counts = {task: [f"{len(part):,}" for part in (of.train, of.dev, of.test)] for task, of in questions.items()}
    rows = [
        [mixture.name, task, *counts.get(task, [])]
        for mixture in experiment.mixtures
        for task in mixture.tasks
        if questions is None or task in questions
    ]
    lines += ["", Table(header, rows, left=2).text(), ""]
    lines += [f"– {task} is missing: {why}." for task, why in (missing or {}).items()]
    return "\n".join(lines)
