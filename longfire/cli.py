"""The `longfire` command. Nothing heavy is imported until a command runs, so that --help answers at once."""

import argparse
import json
import os
import sys
from collections.abc import Sequence
from pathlib import Path

from longfire import __version__


def main(arguments: Sequence[str] | None = None) -> int:
    """Run a command line; the exit status."""
    options = parser().parse_args(arguments)
    try:
        options.run(options)
        sys.stdout.flush()
    except BrokenPipeError:  # the reader, such as head, has seen enough
        os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())
    except (ValueError, OSError, ModuleNotFoundError) as error:
        print(f"longfire: {explained(error)}", file=sys.stderr)
        return 2
    return 0


def parser() -> argparse.ArgumentParser:
    """All commands and their options."""
    top = argparse.ArgumentParser(
        prog="longfire", description="Position encodings for transformers that are trained short and used long."
    )
    top.add_argument("--version", action="version", version=f"longfire {__version__}")
    commands = top.add_subparsers(title="commands", metavar="COMMAND", required=True)

    explore = commands.add_parser(
        "explore",
        formatter_class=argparse.ArgumentDefaultsHelpFormatter,
        help="show what each encoding does to attention",
        description="Print the bias of each encoding at a few distances and draw all of them for queries 128 and 8192.",
    )
    explore.add_argument("--out", type=Path, default=Path("explore"), help="folder for the picture and the JSON")
    explore.add_argument("--seed", type=int, default=0, help="of the random starting values")
    explore.set_defaults(run=run_explore)

    bench = commands.add_parser("bench", help="measure time and memory", description="Measure time and memory.")
    subjects = bench.add_subparsers(title="subjects", metavar="SUBJECT", required=True)
    for subject, help_text in (
        ("bias", "making the bias of each encoding"),
        ("attention", "attention with each encoding on each engine"),
    ):
        one = subjects.add_parser(
            subject,
            help=help_text,
            description=f"Milliseconds and peak memory of {help_text}, on the CPU, forward without gradients.",
            formatter_class=argparse.ArgumentDefaultsHelpFormatter,
        )
        one.add_argument("--lengths", type=int, nargs="+", default=[512, 2048, 8192], metavar="N", help="tokens")
        all_of_them = "all that have a bias" + (", and nope" if subject == "attention" else "")
        one.add_argument(
            "--encodings", nargs="+", metavar="NAME", default=argparse.SUPPRESS, help=f"{all_of_them}, unless given"
        )
        one.add_argument("--heads", type=int, default=12, help="attention heads")
        one.add_argument("--head-dim", type=int, default=64, help="head size")
        one.add_argument("--seconds", type=float, default=2.0, help="how long to repeat each measurement")
        one.add_argument("--out", type=Path, default=Path(f"bench/{subject}.json"), help="JSON file to write")
        one.add_argument("--dry-run", action="store_true", help="print what would be measured, and measure nothing")
        one.set_defaults(run=run_bench, subject=subject)
    return top


def run_explore(options: argparse.Namespace) -> None:
    """`longfire explore`."""
    from longfire.report.explore import LEGEND, QUERIES, effects, effects_record, effects_table, plot_effects

    options.out.mkdir(parents=True, exist_ok=True)
    shown = {query: effects(query, options.seed) for query in QUERIES}
    for query, found in shown.items():
        print(effects_table(query, found), end="\n\n")
    print(LEGEND, end="\n\n")
    picture, record = options.out / "encodings.png", options.out / "encodings.json"
    record.write_text(json.dumps(effects_record(shown), indent=1) + "\n")
    plot_effects(shown, picture)
    print(f"All heads and all keys: {picture}   The numbers: {record}")


def run_bench(options: argparse.Namespace) -> None:
    """`longfire bench bias` and `longfire bench attention`."""
    from longfire.evaluation.speed import Setting, measure
    from longfire.report.speed import speed_table

    encodings = tuple(options.encodings) if "encodings" in options else None
    setting = Setting(
        options.subject, tuple(options.lengths), options.heads, options.head_dim, options.seconds, encodings
    )
    if options.dry_run:
        cases = setting.cases()
        print(*(f"{name} {engine or ''} n={n}".replace("  ", " ") for n, name, engine in cases), sep="\n")
        print(f"{len(cases)} measurements of {options.subject}, to be written to {options.out}")
        return
    options.out.parent.mkdir(parents=True, exist_ok=True)
    record = measure(setting)
    options.out.write_text(json.dumps(record, indent=1) + "\n")
    print(f"{speed_table(record)}\n\nwritten to {options.out}")


def explained(error: Exception) -> str:
    """The message, with what to install where a library is missing."""
    if isinstance(error, ModuleNotFoundError):
        return f"this command needs {error.name}: pip install 'longfire[lab]'"
    return str(error)
