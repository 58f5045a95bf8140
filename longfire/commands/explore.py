"""`longfire explore`."""

import argparse
from pathlib import Path

from longfire.atomic_io import refuse_unwritable, write_json
from longfire.commands.parser import Commands, path_slug


def add_explore(commands: Commands) -> None:
    """Add `longfire explore`."""
    explore = commands.add_parser(
        "explore",
        help="show how encodings shape attention, or what a checkpoint has learned",
        description="Without a checkpoint: print each encoding's bias at a few distances, and plot the biases of all "
        "encodings for queries 128 and 8192. With one checkpoint, or two to compare: write a page that plots the "
        "learned bias of each layer and head, with a slider for the query position from 1 to 16 times the training "
        "length.",
    )
    explore.add_argument(
        "checkpoints",
        type=Path,
        nargs="*",
        metavar="CHECKPOINT",
        help="folder written by save_pretrained, or folder of a training run",
    )
    explore.add_argument("--out", type=Path, default=Path("explore"), help="output folder")
    explore.add_argument("--seed", type=int, default=0, help="seed of the initialisation, without a checkpoint")
    explore.set_defaults(run=run_explore)


def run_explore(options: argparse.Namespace) -> int:
    """Run `longfire explore`."""
    page = plan(options)
    return explore_encodings(options) if page is None else explore_checkpoints(options, page)


def plan(options: argparse.Namespace) -> Path | None:
    """The path of the page, or None without a checkpoint. All checks of the options happen here."""
    refuse_unwritable(options.out)
    if not options.checkpoints:
        return None
    if len(options.checkpoints) > 2:
        raise ValueError(f"pass one checkpoint, or two to compare, not {len(options.checkpoints)}.")
    return Path(options.out / f"{'-'.join(map(path_slug, options.checkpoints))}.html")


def explore_encodings(options: argparse.Namespace) -> int:
    """Show every encoding at initialisation."""
    from longfire.report.explore import LEGEND, QUERIES, effects, effects_record, effects_table, plot_effects

    by_query = {query: effects(query, options.seed) for query in QUERIES}
    picture, record = options.out / "encodings.png", options.out / "encodings.json"
    write_json(record, effects_record(by_query))
    plot_effects(by_query, picture)
    for query, query_effects in by_query.items():
        print(effects_table(query, query_effects), end="\n\n")
    print(LEGEND, end="\n\n")
    print(f"All heads and keys: {picture}   Record: {record}")
    return 0


def explore_checkpoints(options: argparse.Namespace, page: Path) -> int:
    """Show what one or two checkpoints have learned."""
    from longfire.report.explore_page import explore_page, explore_table

    print(f"{explore_table(explore_page(options.checkpoints, page))}\n\nOpen in a browser: {page}")
    return 0
