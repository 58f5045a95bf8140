"""`longfire bench`: time and memory of biases, attention and models."""

import argparse
from dataclasses import fields
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, Any

from longfire.atomic_io import write_json
from longfire.commands.interrupt import INTERRUPTED
from longfire.commands.parser import Commands

if TYPE_CHECKING:
    from longfire.bench.benchmark import Benchmark

Options = dict[str, dict[str, Any]]

INTEGER = {"type": int, "metavar": "N"}
INTEGERS = {**INTEGER, "nargs": "+"}
NAMES = {"nargs": "+", "metavar": "NAME"}
DEVICE: Options = {
    "--device": {"choices": ["cpu", "cuda"], "help": "(default: the GPU if there is one)"},
    "--dtype": {
        "choices": ["bfloat16", "float16", "float32"],
        "help": "(default: bfloat16 on cuda, float32 on cpu)",
    },
}
HEADS: Options = {
    "--heads": {**INTEGER, "default": 12, "help": "attention heads"},
    "--head-dim": {**INTEGER, "default": 64, "help": "head size"},
}
BIAS: Options = {
    "--lengths": {**INTEGERS, "default": [512, 2048, 8192], "help": "tokens"},
    "--encodings": {**NAMES, "help": "(default: all that have a bias)"},
    **HEADS,
    "--seconds": {"type": float, "default": 2.0, "help": "how long each measurement is repeated"},
}
ATTENTION: Options = {
    **DEVICE,
    "--lengths": {
        **INTEGERS,
        "help": "tokens in a sequence (default: 2048 8192 32768 on cuda, 512 2048 on cpu)",
    },
    "--tokens": {**INTEGER, "help": "in a batch (default: 32768 on cuda, one sequence on cpu)"},
    "--engines": {**NAMES, "help": "(default: all)"},
    "--encodings": {**NAMES, "help": "beside attention without a bias (default: all that have a bias)"},
    "--shared-layers": {
        **INTEGER,
        "help": "layers of FIRE-S, in a row fire-s; 0 leaves it out (default: 12 on cuda, 0 on cpu)",
    },
    **HEADS,
    "--seconds": {"type": float, "default": 1.0, "help": "how long each measurement is repeated"},
}
MODEL: Options = {
    **DEVICE,
    "--size": {"metavar": "NAME", "help": "of the model (default: base on cuda, tiny on cpu)"},
    **{
        f"--{kind}": {**INTEGER, "nargs": "*", "help": f"{unit}; none skips {kind} (default: {usual})"}
        for kind, unit, usual in (
            ("forward", "tokens in a sequence", "2048 on cuda, 512 on cpu"),
            ("training", "tokens in a sequence", "2048 8192 on cuda, 512 on cpu"),
            ("decoding", "tokens in the cache", "8192 32768 on cuda, 512 on cpu"),
        )
    },
    "--tokens": {**INTEGER, "help": "in a batch (default: 32768 on cuda, 2048 on cpu)"},
    "--encodings": {**NAMES, "help": "for the forward pass (default: all, and fire-s)"},
    "--compile": {"action": argparse.BooleanOptionalAction, "help": "(default: on cuda)"},
    "--seconds": {"type": float, "default": 1.0, "help": "how long each measurement is repeated"},
}
SUBJECTS: dict[str, tuple[str, str, Options]] = {
    "bias": (
        "the bias of each encoding",
        "Time and peak memory of computing each encoding's bias on the CPU, without gradients.",
        BIAS,
    ),
    "attention": (
        "attention with each encoding on each engine",
        "Time of attention, forward and forward + backward, and the memory it adds, with each encoding on each engine "
        "and without a bias. An engine with a wrong result is not timed, and the exit status is then 1.",
        ATTENTION,
    ),
    "model": (
        "the whole model with each encoding",
        "Time of a forward pass of the whole model with every encoding, and of training and decoding with RoPE, FIRE "
        "and FIRE-S.",
        MODEL,
    ),
}


def add_bench(commands: Commands) -> None:
    """`longfire bench` and its subjects."""
    bench = commands.add_parser("bench", help="measure time and memory", description="Measure time and memory.")
    subjects = bench.add_subparsers(title="subjects", metavar="SUBJECT", required=True)
    for subject, (summary, description, options) in SUBJECTS.items():
        one = subjects.add_parser(subject, help=summary, description=f"{description} Ctrl-C keeps what was measured.")
        for flag, settings in options.items():
            one.add_argument(flag, **settings)
        one.add_argument("--out", type=Path, default=Path(f"bench/{subject}.json"), help="JSON file to write")
        one.add_argument("--dry-run", action="store_true", help="list the measurements without running them")
        one.set_defaults(run=run_bench, subject=subject)


def plan(options: argparse.Namespace) -> "Benchmark":
    """The benchmark that the options describe, checked."""
    from longfire.bench.attention_speed import AttentionBenchmark
    from longfire.bench.bias_speed import BiasBenchmark
    from longfire.bench.model_speed import ModelBenchmark

    kinds: dict[str, type[Benchmark]] = {
        "bias": BiasBenchmark,
        "attention": AttentionBenchmark,
        "model": ModelBenchmark,
    }
    kind = kinds[options.subject]
    given = ((field.name, getattr(options, field.name, None)) for field in fields(kind))
    values: dict[str, Any] = {name: tuple(value) if isinstance(value, list) else value for name, value in given}
    return kind.on(**values)


def run_bench(options: argparse.Namespace) -> int:
    """`longfire bench`: 0, 1 if a result was wrong or a measurement failed, 130 if interrupted."""
    from longfire.report.speed import speed_table
    from longfire.report.speed_plot import plot_model, plot_speed

    benchmark = plan(options)
    if options.dry_run:
        cases = benchmark.cases()
        print(*(f"{case}, batch {benchmark.batch(case)}" for case in cases), sep="\n")
        where = f"on {benchmark.device} in {benchmark.dtype}"
        print(f"{len(cases)} measurements of {options.subject} {where}, to be written to {options.out}")
        return 0
    record = benchmark.run(partial(write_json, options.out))
    print(f"{speed_table(record)}\n\nRecord: {options.out}", flush=True)
    if plot := {"attention": plot_speed, "model": plot_model}.get(options.subject):
        picture = options.out.with_suffix(".png")
        plot(record, picture)
        print(f"Plot: {picture}")
    if record.get("interrupted"):
        return INTERRUPTED
    return int(any("wrong" in row or "failed" in row for row in record["rows"]))
