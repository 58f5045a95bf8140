"""`longfire explore`."""

import argparse
from pathlib import Path

from longfire.atomic_io import refuse_unwritable, write_json
from longfire.commands.parser import Commands, path_slug


def add_explore(commands: Commands) -> None:
    """`longfire explore` and its options."""
    explore = commands.add_parser(
        "explore",
        help="show how encodings shape attention, or what a checkpoint has learned",
        description="Without a checkpoint: print each encoding's bias at a few distances and plot all of them for "
        "queries 128 and 8192. With one, or two to compare: write a page that plots the learned bias of each layer and "
        "head, with a slider for the query position from 1 to 16 times the training length.",
    )
    explore.add_argument(
        "checkpoints",
        type=Path,
        nargs="*",
        metavar="CHECKPOINT",
        help="folder that save_pretrained wrote, or of a training run",
    )
    explore.add_argument("--out", type=Path, default=Path("explore"), help="folder to write to")
    explore.add_argument("--seed", type=int, default=0, help="for the random initialisation, without a checkpoint")
    explore.set_defaults(run=run_explore)


def run_explore(options: argparse.Namespace) -> int:
    """`longfire explore`."""
    page = plan(options)
    return explore_encodings(options) if page is None else explore_checkpoints(options, page)


def plan(options: argparse.Namespace) -> Path | None:
    """The page to write; None without a checkpoint. Everything that can be refused is refused here."""
    refuse_unwritable(options.out)
    if not options.checkpoints:
        return None
    if len(options.checkpoints) > 2:
        raise ValueError(f"give one checkpoint, or two to compare, not {len(options.checkpoints)}.")
    return Path(options.out / f"{'-'.join(map(path_slug, options.checkpoints))}.html")


def explore_encodings(options: argparse.Namespace) -> int:
    """Every encoding before training."""
    from longfire.report.explore import LEGEND, QUERIES, effects, effects_record, effects_table, plot_effects

    shown = {query: effects(query, options.seed) for query in QUERIES}
    for query, found in shown.items():
        print(effects_table(query, found), end="\n\n")
    print(LEGEND, end="\n\n")
    picture, record = options.out / "encodings.png", options.out / "encodings.json"
    write_json(record, effects_record(shown))
    plot_effects(shown, picture)
    print(f"All heads and keys: {picture}   Record: {record}")
    return 0


def explore_checkpoints(options: argparse.Namespace, page: Path) -> int:
    """What one or two checkpoints have learned."""
    from longfire.report.explore_page import explore_page, explore_table

    print(f"{explore_table(explore_page(options.checkpoints, page))}\n\nOpen in a browser: {page}")
    return 0
