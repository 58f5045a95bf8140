"""`longfire bench`: time and memory."""

import argparse
from collections.abc import Callable
from pathlib import Path
from typing import Any

from longfire.atomic_io import write_json
from longfire.commands.interrupt import INTERRUPTED


def add_bench(commands: "argparse._SubParsersAction[argparse.ArgumentParser]") -> None:
    """`longfire bench` and its subjects."""
    bench = commands.add_parser("bench", help="measure time and memory", description="Measure time and memory.")
    subjects = bench.add_subparsers(title="subjects", metavar="SUBJECT", required=True)
    add_bench_bias(subjects)
    add_bench_attention(subjects)
    add_bench_model(subjects)


def add_bench_bias(subjects: "argparse._SubParsersAction[argparse.ArgumentParser]") -> None:
    """`longfire bench bias` and its options."""
    bias = subjects.add_parser(
        "bias",
        help="making the bias of each encoding",
        description="Milliseconds and peak memory of making the bias of each encoding, on the CPU, without gradients.",
        formatter_class=argparse.ArgumentDefaultsHelpFormatter,
    )
    bias.add_argument("--lengths", type=int, nargs="+", default=[512, 2048, 8192], metavar="N", help="tokens")
    bias.add_argument(
        "--encodings", nargs="+", metavar="NAME", default=argparse.SUPPRESS, help="all that have a bias, unless given"
    )
    add_common_options(bias, "bias", seconds=2.0)
    bias.set_defaults(run=run_bench_bias)


def add_bench_attention(subjects: "argparse._SubParsersAction[argparse.ArgumentParser]") -> None:
    """`longfire bench attention` and its options. What is not given depends on the device."""
    one = subjects.add_parser(
        "attention",
        help="attention with each encoding on each engine",
        description="Milliseconds of attention forward and forward + backward, and the memory it adds, with each "
        "encoding on each engine and without a bias. An engine whose result is wrong is not timed, and the exit status "
        "is then 1. Ctrl-C keeps what was measured.",
    )
    one.add_argument("--device", choices=["cpu", "cuda"], help="the GPU if there is one, unless given")
    one.add_argument("--dtype", choices=["bfloat16", "float16", "float32"], help="on cuda bfloat16, on cpu float32")
    one.add_argument(
        "--lengths",
        type=int,
        nargs="+",
        metavar="N",
        help="tokens in a sequence: on cuda 2048 8192 32768, on cpu 512 2048",
    )
    one.add_argument(
        "--tokens", type=int, metavar="N", help="in all sequences together: on cuda 32768, on cpu one sequence"
    )
    one.add_argument("--engines", nargs="+", metavar="NAME", help="all, unless given")
    one.add_argument(
        "--encodings", nargs="+", metavar="NAME", help="all that have a bias, unless given; no bias is always measured"
    )
    one.add_argument(
        "--shared-layers",
        type=int,
        metavar="N",
        help="layers of FIRE-S, in a row fire-s: on cuda 12, on cpu 0 (left out)",
    )
    add_common_options(one, "attention", seconds=1.0)
    one.set_defaults(run=run_bench_attention)


def add_bench_model(subjects: "argparse._SubParsersAction[argparse.ArgumentParser]") -> None:
    """`longfire bench model` and its options. What is not given depends on the device."""
    one = subjects.add_parser(
        "model",
        help="the whole model with each encoding",
        description="Forward of the whole model with every encoding; training and decoding with RoPE, FIRE and FIRE-S. "
        "Ctrl-C keeps what was measured.",
    )
    one.add_argument("--device", choices=["cpu", "cuda"], help="the GPU if there is one, unless given")
    one.add_argument("--dtype", choices=["bfloat16", "float16", "float32"], help="on cuda bfloat16, on cpu float32")
    one.add_argument("--size", metavar="NAME", help="of the model: on cuda base, on cpu tiny")
    for kind, what in (("forward", "tokens"), ("training", "tokens"), ("decoding", "tokens in the cache")):
        one.add_argument(
            f"--{kind}", type=int, nargs="*", metavar="N", help=f"{what}, for {kind}; none to leave it out"
        )
    one.add_argument("--tokens", type=int, metavar="N", help="in all sequences together: on cuda 32768, on cpu 2048")
    one.add_argument("--encodings", nargs="+", metavar="NAME", help="in forward; all and fire-s, unless given")
    one.add_argument("--compile", action=argparse.BooleanOptionalAction, help="on cuda, unless given")
    one.add_argument("--seconds", type=float, default=1.0, help="how long to repeat each measurement")
    one.add_argument("--out", type=Path, default=Path("bench/model.json"), help="JSON file to write")
    one.add_argument("--dry-run", action="store_true", help="print what would be measured, and measure nothing")
    one.set_defaults(run=run_bench_model)


def add_common_options(one: argparse.ArgumentParser, subject: str, seconds: float) -> None:
    """What every benchmark takes."""
    one.add_argument("--heads", type=int, default=12, help="attention heads")
    one.add_argument("--head-dim", type=int, default=64, help="head size")
    one.add_argument("--seconds", type=float, default=seconds, help="how long to repeat each measurement")
    one.add_argument("--out", type=Path, default=Path(f"bench/{subject}.json"), help="JSON file to write")
    one.add_argument("--dry-run", action="store_true", help="print what would be measured, and measure nothing")


def run_bench_bias(options: argparse.Namespace) -> int:
    """`longfire bench bias`."""
    from longfire.bench.bias_speed import BiasSetting, measure_bias
    from longfire.report.speed import speed_table

    encodings = tuple(options.encodings) if "encodings" in options else None
    setting = BiasSetting(tuple(options.lengths), options.heads, options.head_dim, options.seconds, encodings)
    if options.dry_run:
        cases = setting.cases()
        print(*(f"{name} n={n}" for n, name in cases), sep="\n")
        print(f"{len(cases)} measurements of bias, to be written to {options.out}")
        return 0
    options.out.parent.mkdir(parents=True, exist_ok=True)
    record = measure_bias(setting)
    write_json(options.out, record)
    print(f"{speed_table(record)}\n\nwritten to {options.out}")
    return 0


def run_bench_attention(options: argparse.Namespace) -> int:
    """`longfire bench attention`: 0, 1 if an engine was wrong or failed, 130 if it was interrupted."""
    from longfire.bench.attention_speed import Setting, measure
    from longfire.report.speed import speed_table
    from longfire.report.speed_plot import plot_speed

    names = ("dtype", "tokens", "shared_layers", "heads", "head_dim", "seconds")
    lists = {name: tuple(getattr(options, name) or ()) or None for name in ("lengths", "engines", "encodings")}
    setting = Setting.on(options.device, **{name: getattr(options, name) for name in names}, **lists)
    if options.dry_run:
        return dry_run(
            options, setting, "attention", [f"{case}, batch {setting.batch(case.n)}" for case in setting.cases()]
        )
    return measured(options, setting, measure, speed_table, plot_speed)


def run_bench_model(options: argparse.Namespace) -> int:
    """`longfire bench model`: 0, 1 if a measurement failed, 130 if it was interrupted."""
    from longfire.bench.model_speed import ModelSetting, measure_model
    from longfire.report.model_speed import model_table, plot_model

    names = ("dtype", "size", "tokens", "compile", "seconds")
    lists = {
        name: None if (given := getattr(options, name)) is None else tuple(given)
        for name in ("forward", "training", "decoding", "encodings")
    }
    setting = ModelSetting.on(options.device, **{name: getattr(options, name) for name in names}, **lists)
    if options.dry_run:
        cases = [f"{case}, batch {setting.batch(case)}" for case in setting.cases()]
        return dry_run(options, setting, f"a {setting.size} model", cases)
    return measured(options, setting, measure_model, model_table, plot_model)


def dry_run(options: argparse.Namespace, setting: Any, subject: str, cases: list[str]) -> int:
    """Say what would be measured."""
    print(*cases, sep="\n")
    where = f"on {setting.device} in {setting.dtype}"
    print(f"{len(cases)} measurements of {subject} {where}, to be written to {options.out}")
    return 0


def measured(
    options: argparse.Namespace,
    setting: Any,
    measure: Callable[..., dict[str, Any]],
    table: Callable[[dict[str, Any]], str],
    plot: Callable[[dict[str, Any], Path], None],
) -> int:
    """Measure, show, draw: 0, 1 if something was wrong or failed, 130 if it was interrupted."""
    options.out.parent.mkdir(parents=True, exist_ok=True)

    def save(record: dict[str, Any]) -> None:
        write_json(options.out, record)

    record = measure(setting, save)
    picture = options.out.with_suffix(".png")
    print(f"{table(record)}\n\nwritten to {options.out}", flush=True)
    plot(record, picture)
    print(f"drawn in {picture}")
    if record.get("interrupted"):
        return INTERRUPTED
    return int(any("wrong" in row or "failed" in row for row in record["rows"]))
