"""`longfire finetune TASK`, and `longfire evaluate TASK`."""

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
"""The paper's tables to show beside ours."""
NAMES = (
    f"scrolls ({', '.join(SUITES['scrolls'])}), glue ({', '.join(SUITES['glue'])}: GLUE and SuperGLUE), squality, or "
    f"{ALL} (both suites)"
)
LISTED = {
    "scrolls": "answers to long documents' questions, or one of its tasks by name",
    "glue": "GLUE and SuperGLUE, or one of their tasks by name",
    ALL: "both",
}
CHECKPOINT = "FOLDER, a checkpoint's or a run's; FOLDER:rope_pi=N or FOLDER:yarn=N extends one with RoPE to N tokens"
DATA = (
    "folder with TASK/SPLIT.jsonl (.gz, .zst), in a folder of the suite's name or not; hub, for the Hugging Face hub; "
    "or made-up, for rows that only serve to try things out"
)


def add_finetune(commands: "argparse._SubParsersAction[argparse.ArgumentParser]") -> None:
    """`longfire finetune` and its options."""
    one = commands.add_parser(
        "finetune",
        help="fine-tune checkpoints on tasks, and test them",
        description="Fine-tune checkpoints on a task, test them on its validation split, and show them as the paper's "
        f"tables do. Tasks: {NAMES}. Those of scrolls are trained one by one, those of glue together. What is done is "
        "not done again; stopped and started with the same command, it goes on. On several GPUs: torchrun "
        "--nproc-per-node 8 -m longfire finetune …",
    )
    one.add_argument("task", metavar="TASK", help="one; several that are trained together, joined by +; or a suite")
    one.add_argument("checkpoints", nargs="+", metavar="CHECKPOINT", help=CHECKPOINT)
    one.add_argument("--data", required=True, metavar="FOLDER", help=DATA)
    one.add_argument("--out", type=Path, help="folder; finetune/TASK, unless given")
    one.add_argument(
        "--recipe",
        metavar="NAME",
        help="the suite's name, unless given: the paper's, for checkpoints of its size; small (scrolls-small, "
        "glue-small) for small ones; tiny to try out",
    )
    one.add_argument(
        "--select",
        default="dev",
        help="which model of a run is tested, the best by: dev, unless given (answers on a part of the train split), "
        "validation (as the paper), loss (on the same part: quick), or last",
    )
    one.add_argument("--dev-examples", type=int, default=64, metavar="N", help="to judge by, of each task: 64")
    one.add_argument(
        "--test-lengths", type=int, nargs="+", default=[], metavar="N", help="tokens; that of training, unless given"
    )
    one.add_argument("--limit", type=int, metavar="N", help="test on so many questions a task; all, unless given")
    of = one.add_argument_group("other than in the recipe")
    of.add_argument("--length", type=int, metavar="N", help="tokens of question, document and answer, at most")
    of.add_argument("--batch", dest="batch_size", type=int, metavar="N", help="rows in a step")
    of.add_argument("--steps", type=int, metavar="N", help="steps of training")
    of.add_argument("--learning-rate", type=float, metavar="X")
    of.add_argument("--seed", type=int, metavar="N", help="of the order of rows and of dropout")
    of.add_argument(
        "--set", nargs="+", action="extend", default=[], metavar="FIELD=VALUE", help="any field of the recipe, by name"
    )
    one.add_argument("--batch-tokens", type=int, metavar="N", help="of answers: on cuda 262144, on cpu 16384")
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
            description=f"Answers of checkpoints to the questions of {name}, as they are, with scores and 95 % "
            "intervals. With several lengths: scores by context length, as table and picture. What is done is not "
            "done again. For any causal model of transformers.",
        )
        one.add_argument("checkpoints", nargs="+", metavar="CHECKPOINT", help=CHECKPOINT)
        one.add_argument("--data", required=True, metavar="FOLDER", help=DATA)
        lengths = one.add_mutually_exclusive_group()
        lengths.add_argument(
            "--length",
            type=int,
            metavar="N",
            help="tokens of question, document and answer; those of fine-tuning, or training",
        )
        lengths.add_argument("--lengths", type=int, nargs="+", metavar="N", help="several of them")
        one.add_argument("--split", choices=["validation", "train"], default="validation", help="validation")
        one.add_argument("--limit", type=int, metavar="N", help="so many questions a task; all, unless given")
        one.add_argument("--batch-tokens", type=int, metavar="N", help="in a batch: on cuda 262144, on cpu 16384")
        one.add_argument("--device", help="cpu, cuda, cuda:1, …; the GPU if there is one, unless given")
        one.add_argument(
            "--dtype", choices=["bfloat16", "float16", "float32"], help="bfloat16 on a GPU, otherwise as saved"
        )
        one.add_argument("--out", type=Path, help="folder; evaluate/TASK, unless given")
        one.set_defaults(resumes=True, run=run_task, task=name)


def run_finetune(options: argparse.Namespace) -> int:
    """`longfire finetune`: 0, 1 if a part failed, 130 if it was interrupted."""
    from transformers.utils.logging import disable_progress_bar

    from longfire.lab.downstream.plan import RECORD, Experiment, plan
    from longfire.lab.downstream.questions import mixtures_of
    from longfire.lab.downstream.run import downstream
    from longfire.training.trainer import SHARDED

    disable_progress_bar()
    experiments = [
        Experiment(
            name,
            tuple(mixtures_of(name)),
            chosen_recipe(options, name),
            options.data,
            options.select,
            tuple(options.test_lengths),
            options.limit,
            options.dev_examples,
            must=name not in SUITES,
        )
        for name in (SUITES if options.task == ALL else [options.task])
    ]
    plans = [plan(experiment, options.checkpoints) for experiment in experiments]
    status = 0
    for ready in plans:
        out = options.out or Path("finetune") / options.task
        out = out / ready.experiment.name if options.task == ALL else out
        if options.dry_run:
            print(described(ready), f"to be written to {out}", sep="\n")
            continue
        sharded = SHARDED if options.fsdp else {}
        record = downstream(
            ready,
            out,
            tracker=options.tracker,
            batch_tokens=options.batch_tokens,
            save=partial(write_json, out / RECORD),
            **sharded,
        )
        status = max(status, shown(record, out, options.checkpoints))
        if status == INTERRUPTED:
            break
    return status


def run_task(options: argparse.Namespace) -> int:
    """`longfire evaluate TASK`: 0, 1 if a part failed, 130 if it was interrupted."""
    from transformers.utils.logging import disable_progress_bar

    from longfire.lab.downstream.plan import RECORD
    from longfire.lab.downstream.run import Exam, examine

    disable_progress_bar()
    suites = list(SUITES) if options.task == ALL else [options.task]
    tasks = tuple(task for name in suites for task in SUITES.get(name, (name,)))
    lengths = tuple(options.lengths or ([] if options.length is None else [options.length]))
    exam = Exam(
        *(options.task, tasks, options.data, lengths, options.split, options.limit),
        must=options.task in TASKS,
        batch_tokens=options.batch_tokens,
        device=options.device,
        dtype=options.dtype,
    )
    out = options.out or Path("evaluate") / options.task
    record = examine(exam, options.checkpoints, out, partial(write_json, out / RECORD))
    return shown(record, out, options.checkpoints)


def shown(record: dict[str, Any], out: Path, own: Sequence[str] | None = None, size: str | None = None) -> int:
    """Print the tables and draw the pictures, on the first process. The exit status.

    Args:
        record: of what was done.
        out: its folder.
        own: checkpoints whose failures count. None: all.
        size: of the paper's models, to stand beside. None: the nearest to ours.
    """
    from longfire.lab.downstream.exam import is_first
    from longfire.lab.downstream.plan import RECORD
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
    pictures = [plot_contexts(record, task, out / f"contexts-{task}.png") for task in sorted(tested) if several]
    drawn = f"   Pictures: {', '.join(map(str, pictures))}" if pictures else ""
    print(f"\nThe numbers: {out / RECORD}{drawn}")
    return status


def chosen_recipe(options: argparse.Namespace, name: str) -> "FinetuneRecipe":
    """The recipe for a task or suite, with what the command line changes."""
    from longfire.training import FINETUNE_RECIPES, finetune_recipe_named

    first = name.split("+")[0]
    suite = TASKS[first].suite if first in TASKS else first
    given = f"{suite}-{options.recipe}"
    recipe = finetune_recipe_named(given if given in FINETUNE_RECIPES else options.recipe or suite)
    fields = ("length", "batch_size", "steps", "learning_rate", "seed")
    changes = {field: getattr(options, field) for field in fields if getattr(options, field) is not None}
    return recipe.but(**{**changes, **settings(options.set)})


def described(ready: "Plan") -> str:
    """Recipe, checkpoints, and how many questions there are of each task."""
    checkpoints = [f"{entrant.label}: {entrant.given}" for entrant in ready.entrants]
    return described_tuning(ready.experiment, checkpoints, ready.questions, ready.missing)


def described_tuning(
    experiment: "Experiment",
    checkpoints: Sequence[str],
    questions: "Mapping[str, Questions] | None" = None,
    missing: Mapping[str, str] | None = None,
) -> str:
    """The same of checkpoints, and of questions, that need not be there yet."""
    from dataclasses import asdict

    from longfire.report.table import text_table

    lines = [f"{name:18} {value}" for name, value in asdict(experiment.recipe).items()]
    lines += [f"{'select':18} {experiment.select}"]
    lines += [f"{'tested at':18} {', '.join(map(str, experiment.tested_lengths()))}"]
    lines += [f"{'checkpoint':18} {checkpoint}" for checkpoint in checkpoints]
    table = [
        [mixture.name, task, *([] if questions is None else counted(questions[task]))]
        for mixture in experiment.mixtures
        for task in mixture.tasks
        if questions is None or task in questions
    ]
    header = ["mixture", "task", *([] if questions is None else ["train", "dev", "test"])]
    lines += ["", text_table(header, table, left=2), ""]
    lines += [f"– {task} is left out: {why}." for task, why in (missing or {}).items()]
    return "\n".join(lines)


def counted(questions: "Questions") -> list[str]:
    """How many there are, to train on, to judge by and to test on."""
    return [f"{len(part):,}" for part in (questions.train, questions.dev, questions.test)]
