"""`longfire finetune TASK` and `longfire evaluate TASK`."""

import argparse
from collections.abc import Mapping, Sequence
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, Any

from longfire.atomic_io import write_json
from longfire.commands.interrupt import INTERRUPTED
from longfire.commands.training import settings
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
    "scrolls": "questions on long documents; or one of its tasks by name",
    "glue": "GLUE and SuperGLUE; or one of their tasks by name",
    ALL: "both suites",
}
RECIPE_FIELDS = ("length", "batch_size", "steps", "learning_rate", "seed")


def add_finetune(commands: "argparse._SubParsersAction[argparse.ArgumentParser]") -> None:
    """`longfire finetune` and its options."""
    one = commands.add_parser(
        "finetune",
        help="fine-tune checkpoints on tasks, and test them",
        description="Fine-tune checkpoints on a task, test them on its validation split, and show the results like the "
        f"paper's tables. Tasks: {NAMES}. Tasks of scrolls are trained separately, those of glue together. Completed "
        "work is skipped and interrupted runs resume. On several GPUs: torchrun --nproc-per-node 8 -m longfire "
        "finetune …",
    )
    one.add_argument("task", metavar="TASK", help="a task; several to train together, joined by +; or a suite")
    _add_common(one, "finetune", "maximum number of test questions per task")
    one.add_argument(
        "--recipe",
        metavar="NAME",
        help="scrolls and glue are the paper's, for checkpoints of its size, and the default; small (scrolls-small, "
        "glue-small) is for small checkpoints; tiny is for trying things out",
    )
    one.add_argument(
        "--select",
        default="dev",
        help="which model of a run to test, the best by: dev (answers on a part of the train split), validation (as in "
        "the paper), loss (on the same part; fast), or last",
    )
    one.add_argument(
        "--dev-examples", type=int, default=64, metavar="N", help="dev questions per task to choose a model by"
    )
    one.add_argument("--test-lengths", type=int, nargs="+", metavar="N", help="tokens; the training length by default")
    of = one.add_argument_group("changes to the recipe")
    of.add_argument("--length", type=int, metavar="N", help="maximum tokens of question, document and answer")
    of.add_argument("--batch", dest="batch_size", type=int, metavar="N", help="rows per step")
    of.add_argument("--steps", type=int, metavar="N", help="training steps")
    of.add_argument("--learning-rate", type=float, metavar="X")
    of.add_argument("--seed", type=int, metavar="N", help="for the order of rows and for dropout")
    of.add_argument(
        "--set", nargs="+", action="extend", default=[], metavar="FIELD=VALUE", help="any field of the recipe, by name"
    )
    one.add_argument("--tracker", default="tensorboard", help="tensorboard, wandb, trackio or none")
    one.add_argument("--fsdp", action="store_true", help="shard the model over the GPUs (FSDP2) instead of copying it")
    one.add_argument("--dry-run", action="store_true", help="print recipe, questions and lengths; train nothing")
    one.set_defaults(resumes=True, run=run_finetune)


def add_tasks(subjects: "argparse._SubParsersAction[argparse.ArgumentParser]") -> None:
    """`longfire evaluate TASK`, for each task and suite."""
    for name in (*SUITES, ALL, *TASKS):
        listed: dict[str, Any] = {"help": LISTED[name]} if name in LISTED else {}
        one = subjects.add_parser(
            name,
            **listed,
            description=f"Test checkpoints on {name} as they are: scores with 95 % intervals, and with several lengths "
            "a table and a plot by context length. Works with any transformers causal language model. Completed work "
            "is skipped.",
        )
        _add_common(one, "evaluate", "maximum number of questions per task")
        lengths = one.add_mutually_exclusive_group()
        lengths.add_argument(
            "--length",
            type=int,
            metavar="N",
            help="maximum tokens of question, document and answer; by default that of the first checkpoint's training",
        )
        lengths.add_argument("--lengths", type=int, nargs="+", metavar="N", help="several of them")
        one.add_argument("--split", choices=["validation", "train"], default="validation", help="questions to use")
        one.add_argument("--device", help="cpu, cuda, cuda:1, …; the GPU by default, if there is one")
        one.add_argument(
            "--dtype",
            choices=["bfloat16", "float16", "float32"],
            help="by default bfloat16 on a GPU, otherwise as saved",
        )
        one.set_defaults(resumes=True, run=run_task, task=name)


def _add_common(one: argparse.ArgumentParser, folder: str, limit: str) -> None:
    one.add_argument(
        "checkpoints",
        nargs="+",
        metavar="CHECKPOINT",
        help="folder of a checkpoint or a run; FOLDER:rope_pi=N or FOLDER:yarn=N extends RoPE to N tokens",
    )
    one.add_argument(
        "--data",
        required=True,
        metavar="FOLDER",
        help="folder with TASK/SPLIT.jsonl (.gz, .zst), optionally inside a folder named after the suite; hub for the "
        "Hugging Face hub; or placeholder for generated rows to try things out",
    )
    one.add_argument("--out", type=Path, help=f"results folder; {folder}/TASK by default")
    one.add_argument("--limit", type=int, metavar="N", help=f"{limit}; all by default")
    one.add_argument(
        "--batch-tokens",
        type=int,
        metavar="N",
        help="tokens in a batch when answering questions; 262144 on a GPU and 16384 on a CPU by default",
    )


def run_finetune(options: argparse.Namespace) -> int:
    """`longfire finetune`: 0, 1 if a part failed, 130 if interrupted."""
    from longfire.lab.downstream.plan import Experiment, plan
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
    how = {"tracker": options.tracker, "batch_tokens": options.batch_tokens, **(SHARDED if options.fsdp else {})}
    return run_plans(plans, options.checkpoints, **how)


def run_task(options: argparse.Namespace) -> int:
    """`longfire evaluate TASK`: 0, 1 if a test failed, 130 if interrupted."""
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
    """Run plans and show their results. The exit status, to which failures of the `own` checkpoints count (None: all).

    `size` is that of the paper's models to show (None: the closest), `how` are options of `downstream`.
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
    """Print tables and draw plots, on the first process. The exit status."""
    from longfire.lab.downstream.record import RECORD
    from longfire.lab.downstream.task_score import is_first
    from longfire.lab.reported import reported
    from longfire.report.contexts import plot_contexts
    from longfire.report.downstream import downstream_table

    rows = [row for row in record["rows"] if own is None or row["checkpoint"] in own]
    failed = any("failed" in one for row in rows for one in (*row.get("parts", ()), *row["scores"]))
    status = INTERRUPTED if record.get("interrupted") else int(failed)
    if not is_first():
        return status
    print(downstream_table(record, {name: reported(name) for name in PAPERS}, size))
    tested = {one["task"] for row in record["rows"] for one in row["scores"] if "failed" not in one}
    several = len(record["setting"]["lengths"]) > 1
    plots = [plot_contexts(record, task, out / f"contexts-{task}.png") for task in sorted(tested) if several]
    drawn = f"   Plots: {', '.join(map(str, plots))}" if plots else ""
    print(f"\nNumbers: {out / RECORD}{drawn}")
    return status


def choose_recipe(options: argparse.Namespace, name: str) -> "FinetuneRecipe":
    """The recipe for a task or suite, with the changes on the command line."""
    from longfire.training import FINETUNE_RECIPES, finetune_recipe_named

    first = name.split("+")[0]
    suite = TASKS[first].suite if first in TASKS else first
    given = f"{suite}-{options.recipe}"
    recipe = finetune_recipe_named(given if given in FINETUNE_RECIPES else options.recipe or suite)
    changes = {field: getattr(options, field) for field in RECIPE_FIELDS if getattr(options, field) is not None}
    return recipe.but(**{**changes, **settings(options.set)})


def describe_experiment(
    experiment: "Experiment",
    checkpoints: Sequence[str],
    questions: "Mapping[str, Questions] | None" = None,
    missing: Mapping[str, str] | None = None,
) -> str:
    """For a dry run: recipe, checkpoints, and how many questions each task has, if they are known."""
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
