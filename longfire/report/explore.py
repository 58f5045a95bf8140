"""What each encoding does to attention before any training: numbers for a terminal and one picture.

The paper shows FIRE's biases for queries 128 and 8192, so these are the queries here too.
"""

from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import torch
from torch import Tensor

from longfire.encodings import ENCODINGS, PositionEncoding, build_encoding
from longfire.report.table import text_table

HEADS, HEAD_DIM, WIDTH, TRAINED_LENGTH = 12, 64, 768, 2048  # the paper's base model
QUERIES = (128, 8192)  # counted from 1, as in the paper
DISTANCES = {128: (0, 1, 2, 4, 8, 16, 32, 64, 127), 8192: (0, 1, 4, 16, 64, 256, 1024, 4096, 8191)}
OPTIONS = {name: {"trained_length": TRAINED_LENGTH, "target_length": max(QUERIES)} for name in ("rope_pi", "yarn")}
KINDS = {
    "bias": "bias on the logits",
    "rotation": "q·k after turning q = k",
    "embedding": "cosine of two positions",
    "nothing": "nothing",
}


@dataclass(frozen=True)
class Effect:
    """What an encoding does between one query and all keys up to it."""

    name: str
    kind: str
    curves: Tensor  # (heads, keys), by key position; one row where all heads are alike

    def at(self, distance: int) -> float:
        """For the first head, at a distance from the query."""
        return float(self.curves[0, -1 - distance])


@torch.no_grad()
def effects(query: int, seed: int = 0) -> list[Effect]:
    """Every encoding at its starting values, FIRE first and then by kind."""
    torch.manual_seed(seed)
    shape = {"num_heads": HEADS, "head_dim": HEAD_DIM, "width": WIDTH, "max_length": max(QUERIES)}
    found = [_effect(name, build_encoding(name, **shape, **OPTIONS.get(name, {})), query) for name in ENCODINGS]
    return sorted(found, key=lambda effect: (list(KINDS).index(effect.kind), effect.name != "fire"))


def _effect(name: str, encoding: PositionEncoding, query: int) -> Effect:
    q, k = torch.tensor([query - 1]), torch.arange(query)
    bias = encoding.bias(q, k)
    if bias is not None:
        return Effect(name, "bias", bias[:, 0])
    ones = torch.ones(1, 1, query, HEAD_DIM)
    turned = encoding.rotate(ones[:, :, :1], q) @ encoding.rotate(ones, k).mT / HEAD_DIM  # (1, 1, 1, S)
    if type(encoding).rotate is not PositionEncoding.rotate:
        return Effect(name, "rotation", turned[0, 0])
    vectors = encoding.embed(torch.zeros(1, query, WIDTH), k)[0]  # (S, C)
    if vectors.any():
        return Effect(name, "embedding", torch.cosine_similarity(vectors[-1:], vectors)[None])
    return Effect(name, "nothing", torch.zeros(1, query))


def effects_table(query: int, shown: Sequence[Effect]) -> str:
    """The first head's numbers at a few distances from the query."""
    distances = DISTANCES[query]
    rows = [[e.name, KINDS[e.kind], *(_number(e.at(d)) for d in distances)] for e in shown]
    return text_table([f"query {query}, distance →", "what is shown", *map(str, distances)], rows, left=2)


def _number(value: float) -> str:
    return f"{value:.0f}" if abs(value) >= 100 else f"{value:z.2f}"


def effects_record(shown: dict[int, list[Effect]]) -> dict[str, Any]:
    """The same numbers as data."""
    return {
        f"query {query}": {
            effect.name: {"kind": effect.kind, "first head, by distance": {d: effect.at(d) for d in DISTANCES[query]}}
            for effect in found
        }
        for query, found in shown.items()
    }


def plot_effects(shown: dict[int, list[Effect]], path: Path) -> None:
    """One panel per encoding and query, one line per head."""
    from matplotlib.figure import Figure
    from matplotlib.lines import Line2D

    figure = Figure(figsize=(21, 12.5), layout="constrained")
    figure.suptitle("What each position encoding does to attention, before training: one line per head", fontsize=17)
    heads = [Line2D([], [], color=_color(head, HEADS), linewidth=3, label=f"head {head + 1}") for head in range(HEADS)]
    figure.legend(handles=heads, loc="outside lower center", ncols=HEADS, frameon=False, fontsize=11)
    halves = figure.subfigures(1, len(shown), wspace=0.04, squeeze=False)[0]
    for half, (query, found) in zip(halves, shown.items(), strict=True):
        half.suptitle(f"query at position {query:,}: which keys does it prefer?", fontsize=15, fontweight="bold")
        for axes, effect in zip(half.subplots(4, 3).flat, found, strict=True):
            keys = torch.arange(1, query + 1)
            for head, curve in enumerate(effect.curves):
                axes.plot(keys, curve, color=_color(head, len(effect.curves)), linewidth=1.2)
            axes.set_title(effect.name, fontsize=13, fontweight="bold" if effect.name == "fire" else "normal")
            axes.set_ylabel(KINDS[effect.kind], fontsize=9)
            axes.set_xlim(1, query)
            axes.margins(y=0.08)
            axes.grid(alpha=0.25)
            if effect.kind != "bias":
                axes.set_facecolor("#f3f3f3")
                axes.set_ylim(-1.05, max(1.05, 1.05 * float(effect.curves.max())))
        half.supxlabel("key position  (left: the first token; right: the query itself)", fontsize=12)
    figure.savefig(path, dpi=75)


def _color(head: int, heads: int) -> Any:
    import matplotlib as mpl

    return mpl.colormaps["viridis"](0.9 * head / max(1, heads - 1))
