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

KEPT = "Ctrl-C keeps what was measured."


def add_bench(commands: Commands) -> None:
    """`longfire bench` and its subjects."""
    bench = commands.add_parser("bench", help="measure time and memory", description="Measure time and memory.")
    subjects = bench.add_subparsers(title="subjects", metavar="SUBJECT", required=True)
    _add_bias(subjects)
    _add_attention(subjects)
    _add_model(subjects)


def _add_bias(subjects: Commands) -> None:
    bias = subjects.add_parser(
        "bias",
        help="the bias of each encoding",
        description=f"Time and peak memory of computing each encoding's bias on the CPU, without gradients. {KEPT}",
    )
    bias.add_argument("--lengths", type=int, nargs="+", default=[512, 2048, 8192], metavar="N", help="tokens")
    bias.add_argument("--encodings", nargs="+", metavar="NAME", help="(default: all that have a bias)")
    _add_heads(bias)
    _add_common(bias, "bias", seconds=2.0)


def _add_attention(subjects: Commands) -> None:
    attention = subjects.add_parser(
        "attention",
        help="attention with each encoding on each engine",
        description="Time of attention, forward and forward + backward, and the memory it adds, with each encoding on "
        "each engine and without a bias. An engine with a wrong result is not timed, and the exit status is then 1. "
        f"{KEPT}",
    )
    _add_device(attention)
    attention.add_argument(
        "--lengths",
        type=int,
        nargs="+",
        metavar="N",
        help="tokens in a sequence (default: 2048 8192 32768 on cuda, 512 2048 on cpu)",
    )
    attention.add_argument(
        "--tokens", type=int, metavar="N", help="in a batch (default: 32768 on cuda, one sequence on cpu)"
    )
    attention.add_argument("--engines", nargs="+", metavar="NAME", help="(default: all)")
    attention.add_argument(
        "--encodings",
        nargs="+",
        metavar="NAME",
        help="beside attention without a bias (default: all that have a bias)",
    )
    attention.add_argument(
        "--shared-layers",
        type=int,
        metavar="N",
        help="layers of FIRE-S, in a row fire-s; 0 leaves it out (default: 12 on cuda, 0 on cpu)",
    )
    _add_heads(attention)
    _add_common(attention, "attention")


def _add_model(subjects: Commands) -> None:
    model = subjects.add_parser(
        "model",
        help="the whole model with each encoding",
        description="Time of a forward pass of the whole model with every encoding, and of training and decoding with "
        f"RoPE, FIRE and FIRE-S. {KEPT}",
    )
    _add_device(model)
    model.add_argument("--size", metavar="NAME", help="of the model (default: base on cuda, tiny on cpu)")
    for kind, unit, usual in (
        ("forward", "tokens in a sequence", "2048 on cuda, 512 on cpu"),
        ("training", "tokens in a sequence", "2048 8192 on cuda, 512 on cpu"),
        ("decoding", "tokens in the cache", "8192 32768 on cuda, 512 on cpu"),
    ):
        model.add_argument(
            f"--{kind}", type=int, nargs="*", metavar="N", help=f"{unit}; none skips {kind} (default: {usual})"
        )
    model.add_argument("--tokens", type=int, metavar="N", help="in a batch (default: 32768 on cuda, 2048 on cpu)")
    model.add_argument("--encodings", nargs="+", metavar="NAME", help="for the forward pass (default: all, and fire-s)")
    model.add_argument("--compile", action=argparse.BooleanOptionalAction, help="(default: on cuda)")
    _add_common(model, "model")


def _add_device(one: argparse.ArgumentParser) -> None:
    one.add_argument("--device", choices=["cpu", "cuda"], help="(default: the GPU if there is one)")
    one.add_argument(
        "--dtype",
        choices=["bfloat16", "float16", "float32"],
        help="(default: bfloat16 on cuda, float32 on cpu)",
    )


def _add_heads(one: argparse.ArgumentParser) -> None:
    one.add_argument("--heads", type=int, default=12, help="attention heads")
    one.add_argument("--head-dim", type=int, default=64, help="head size")


def _add_common(one: argparse.ArgumentParser, subject: str, seconds: float = 1.0) -> None:
    one.add_argument("--seconds", type=float, default=seconds, help="how long each measurement is repeated")
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
