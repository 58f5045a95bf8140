"""`longfire bench`: time and memory of biases, attention and models."""

import argparse
from dataclasses import fields
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, Any

from longfire.atomic_io import write_json
from longfire.commands.interrupt import INTERRUPTED
from longfire.commands.parser import DTYPES, INTEGER, INTEGERS, NAMES, Commands, Settings

if TYPE_CHECKING:
    from longfire.bench.benchmark import Benchmark

Options = dict[str, Settings]

DEVICE: Options = {
    "--device": {"choices": ["cpu", "cuda"], "help": "device to measure (default: cuda if available)"},
    "--dtype": {"choices": DTYPES, "help": "dtype (default: bfloat16 on cuda, float32 on cpu)"},
}
HEADS: Options = {
    "--heads": {**INTEGER, "default": 12, "help": "attention heads"},
    "--head-dim": {**INTEGER, "default": 64, "help": "head size"},
}
BIAS: Options = {
    "--lengths": {**INTEGERS, "default": [512, 2048, 8192], "help": "sequence lengths"},
    "--encodings": {**NAMES, "help": "encodings to measure (default: all with a bias)"},
    **HEADS,
    "--seconds": {"type": float, "default": 2.0, "help": "seconds to repeat each measurement"},
}
ATTENTION: Options = {
    **DEVICE,
    "--layout": {
        **NAMES,
        "dest": "layouts",
        "help": "measure packed documents (packed), a sliding window (window), attention that is not causal "
        "(bidirectional) or random positions (positions), relative to their baselines (default: causal rows)",
    },
    "--lengths": {
        **INTEGERS,
        "help": "sequence lengths (default: 2048 8192 32768 on cuda, 512 2048 on cpu; --layout has its own)",
    },
    "--tokens": {**INTEGER, "help": "tokens per batch (default: 32768 on cuda, one sequence on cpu)"},
    "--engines": {**NAMES, "help": "engines to measure (default: all; with --layout on cuda, mainly fused)"},
    "--encodings": {
        **NAMES,
        "help": "encodings to measure next to no bias (default: all with a bias; --layout has its own)",
    },
    "--shared-layers": {
        **INTEGER,
        "help": "layers that share one FIRE in the row fire-s; 0 skips it (default: 12 on cuda, 0 on cpu)",
    },
    **HEADS,
    "--seconds": {"type": float, "default": 1.0, "help": "seconds to repeat each measurement"},
}
MODEL: Options = {
    **DEVICE,
    "--size": {"metavar": "NAME", "help": "model size (default: base on cuda, tiny on cpu)"},
    **{
        f"--{kind}": {
            **INTEGER,
            "nargs": "*",
            "help": f"{lengths}; pass the option without a number to skip {kind} (default: {default})",
        }
        for kind, lengths, default in (
            ("forward", "sequence lengths", "2048 on cuda, 512 on cpu"),
            ("training", "sequence lengths", "2048 8192 on cuda, 512 on cpu"),
            ("decoding", "tokens in the cache", "8192 32768 on cuda, 512 on cpu"),
        )
    },
    "--tokens": {**INTEGER, "help": "tokens per batch (default: 32768 on cuda, 2048 on cpu)"},
    "--encodings": {**NAMES, "help": "encodings for the forward pass (default: all, and fire-s)"},
    "--compile": {"action": argparse.BooleanOptionalAction, "help": "compile the model (default: on cuda only)"},
    "--seconds": {"type": float, "default": 1.0, "help": "seconds to repeat each measurement"},
}
SUBJECTS: dict[str, tuple[str, str, Options]] = {
    "bias": (
        "the bias of each encoding",
        "Time and peak memory of computing each encoding's bias on the CPU, without gradients.",
        BIAS,
    ),
    "attention": (
        "attention with each encoding on each engine",
        "Time of attention, forward and forward + backward, and the memory it adds, for each encoding and without a "
        "bias, on each engine. An engine with a wrong result is not timed, and makes the exit status 1.",
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
    """Add `longfire bench` and its subjects."""
    bench = commands.add_parser("bench", help="measure time and memory", description="Measure time and memory.")
    subjects = bench.add_subparsers(title="subjects", metavar="SUBJECT", required=True)
    for subject, (summary, description, options) in SUBJECTS.items():
        description = f"{description} Ctrl-C keeps the measurements so far."
        parser = subjects.add_parser(subject, help=summary, description=description)
        for flag, settings in options.items():
            parser.add_argument(flag, **settings)
        parser.add_argument("--out", type=Path, default=Path(f"bench/{subject}.json"), help="JSON file to write")
        parser.add_argument("--dry-run", action="store_true", help="list the measurements without running them")
        parser.set_defaults(run=run_bench, subject=subject)


def plan(options: argparse.Namespace) -> "Benchmark":
    """The checked benchmark for the options."""
    from longfire.bench.attention_speed import AttentionBenchmark
    from longfire.bench.bias_speed import BiasBenchmark
    from longfire.bench.layout_speed import LayoutBenchmark
    from longfire.bench.model_speed import ModelBenchmark

    kinds: dict[str, type[Benchmark]] = {
        "bias": BiasBenchmark,
        "attention": AttentionBenchmark,
        "model": ModelBenchmark,
    }
    kind = LayoutBenchmark if getattr(options, "layouts", None) else kinds[options.subject]
    chosen = ((field.name, getattr(options, field.name, None)) for field in fields(kind) if field.name != "subject")
    values: dict[str, Any] = {name: tuple(value) if isinstance(value, list) else value for name, value in chosen}
    return kind.on(**values)


def _has_results(record: dict[str, Any]) -> bool:
    return any("not run" not in row for row in record["rows"])


def _save(path: Path, record: dict[str, Any]) -> None:
    """Write a record, unless it would replace an earlier one by nothing."""
    if _has_results(record):
        write_json(path, record)


def run_bench(options: argparse.Namespace) -> int:
    """Run `longfire bench`. Exit status: 1 if a result was wrong, a measurement failed or there is none, 130 if
    interrupted."""
    from longfire.report.speed import speed_table
    from longfire.report.speed_plot import PLOTS

    benchmark = plan(options)
    if options.dry_run:
        cases = benchmark.cases()
        print(*(f"{case}, batch {benchmark.batch(case)}" for case in cases), sep="\n")
        where = f"on {benchmark.device} in {benchmark.dtype}"
        print(f"{len(cases)} measurements of {options.subject} {where}, to be written to {options.out}")
        return 0
    record = benchmark.run(partial(_save, options.out))
    table = speed_table(record)
    if not _has_results(record):
        print(f"{table}\n\nNothing was measured: {options.out} is as it was.", flush=True)
        return 1
    picture = options.out.with_suffix(".png")
    try:
        if plot := PLOTS.get(benchmark.subject):
            plot(record, picture)
    finally:  # without matplotlib too
        print(f"{table}\n\nRecord: {options.out}", flush=True)
    if plot:
        print(f"Plot: {picture}")
    if record.get("interrupted"):
        return INTERRUPTED
    return int(any("wrong" in row or "failed" in row for row in record["rows"]))
