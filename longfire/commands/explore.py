"""`longfire explore`."""

import argparse
from collections.abc import Sequence
from pathlib import Path

from longfire.atomic_io import refuse_unwritable, write_json
from longfire.commands.names import name_of


def add_explore(commands: "argparse._SubParsersAction[argparse.ArgumentParser]") -> None:
    """`longfire explore` and its options."""
    explore = commands.add_parser(
        "explore",
        formatter_class=argparse.ArgumentDefaultsHelpFormatter,
        help="show what encodings do to attention, or what a checkpoint has learned",
        description="Without a checkpoint: print the bias of each encoding at a few distances and draw all of them for "
        "queries 128 and 8192. With one, or two to compare: write a page, named after them, where the learned bias of "
        "each layer and head is drawn for a query position on a slider, from 1 to 16 times the training length.",
    )
    explore.add_argument(
        "checkpoints",
        type=Path,
        nargs="*",
        metavar="CHECKPOINT",
        default=argparse.SUPPRESS,
        help="folder that save_pretrained wrote, or of a training run",
    )
    explore.add_argument("--out", type=Path, default=Path("explore"), help="folder for what is written")
    explore.add_argument("--seed", type=int, default=0, help="of the random starting values, without a checkpoint")
    explore.set_defaults(run=run_explore)


def run_explore(options: argparse.Namespace) -> int:
    """`longfire explore`."""
    if checkpoints := getattr(options, "checkpoints", []):
        return explore_checkpoints(checkpoints, options.out)
    from longfire.report.explore import LEGEND, QUERIES, effects, effects_record, effects_table, plot_effects

    refuse_unwritable(options.out)
    shown = {query: effects(query, options.seed) for query in QUERIES}
    for query, found in shown.items():
        print(effects_table(query, found), end="\n\n")
    print(LEGEND, end="\n\n")
    picture, record = options.out / "encodings.png", options.out / "encodings.json"
    write_json(record, effects_record(shown))
    plot_effects(shown, picture)
    print(f"All heads and all keys: {picture}   The numbers: {record}")
    return 0


def explore_checkpoints(checkpoints: Sequence[Path], out: Path) -> int:
    """`longfire explore CHECKPOINT [CHECKPOINT]`."""
    from longfire.report.explore_page import explore_page, explore_table

    page = out / f"{'-'.join(map(name_of, checkpoints))}.html"
    print(explore_table(explore_page(checkpoints, page)), end="\n\n")
    print(f"To look at in a browser: {page}")
    return 0
