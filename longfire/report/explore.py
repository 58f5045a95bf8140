"""How each encoding shapes attention before training, as a table and a plot."""

from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import torch
from torch import Tensor

from longfire.encodings import ENCODINGS, FIRE, PositionEncoding, build_encoding
from longfire.report.table import Table

HEADS, HEAD_DIM, WIDTH = 12, 64, 768  # the paper's base model
QUERIES = (128, 8192)  # those of the paper's figures of biases, counted from 1
DISTANCES = {128: (0, 1, 2, 4, 8, 16, 32, 64, 127), 8192: (0, 1, 4, 16, 64, 256, 1024, 4096, 8191)}
KINDS = {"bias": "bias", "rotation": "q·k", "embedding": "cosine", "nothing": "–"}
LEGEND = (
    "The first head of each encoding at initialisation. bias: added to the logits. q·k: dot product of rotated\n"
    "vectors of ones, divided by the head size. cosine: similarity of two position embeddings."
)
LOWEST = -10.0  # a key this far below the maximum gets e^−10 of its weight: practically no attention
HOW_TO_READ = """How to read this

Right edge: the query itself.  Left edge: the first token.

White: the bias added to the logits, relative to each head's maximum.
Keys at −10 get practically no attention.

Grey: no bias. The plot shows the similarity of query and key
positions (1: equal), by rotation or by embedding.

"learned": shown at initialisation. fire starts nearly flat, or as
another encoding, and learns its shape; its input stays in [0, 1], so
both queries use the same function, stretched."""


@dataclass(frozen=True)
class Effect:
    """The effect of an encoding on one query and all keys up to it."""

    name: str
    kind: str
    learned: bool
    curves: Tensor  # (heads, keys), by key position; one row if all heads are the same

    def at(self, distance: int) -> float:
        """The first head's value at a distance from the query."""
        return float(self.curves[0, -1 - distance])


@torch.no_grad()
def effects(query: int, seed: int = 0) -> list[Effect]:
    """Every encoding at initialisation, by kind, FIRE first (also initialised as Kerple-log)."""
    torch.manual_seed(seed)
    shape = {"num_heads": HEADS, "head_dim": HEAD_DIM, "width": WIDTH, "max_length": max(QUERIES)}
    encodings = {name: build_encoding(name, **shape, **cls.example) for name, cls in ENCODINGS.items()}
    encodings["fire, as kerple_log"] = FIRE(HEADS).init_as("kerple_log")
    unsorted = [_effect(name, encoding, query) for name, encoding in encodings.items()]
    return sorted(unsorted, key=lambda effect: (list(KINDS).index(effect.kind), not effect.name.startswith("fire")))


def _effect(name: str, encoding: PositionEncoding, query: int) -> Effect:
    q, k = torch.tensor([query - 1]), torch.arange(query)
    learned = next(encoding.parameters(), None) is not None
    bias = encoding(q, k) if encoding.has_bias else None
    if bias is not None:
        return Effect(name, "bias", learned, bias[:, 0])
    ones = torch.ones(1, 1, query, HEAD_DIM)
    products = encoding.rotate(ones[:, :, :1], q) @ encoding.rotate(ones, k).mT / HEAD_DIM  # (1, 1, 1, S)
    if type(encoding).rotate is not PositionEncoding.rotate:
        return Effect(name, "rotation", learned, products[0, 0])
    vectors = encoding.embed(torch.zeros(1, query, WIDTH), k)[0]  # (S, C)
    if vectors.any():
        return Effect(name, "embedding", learned, torch.cosine_similarity(vectors[-1:], vectors)[None])
    return Effect(name, "nothing", learned, torch.zeros(1, query))


def effects_table(query: int, shown: Sequence[Effect]) -> str:
    """The first head's values at a few distances from the query."""
    distances = DISTANCES[query]
    rows = [[effect.name, KINDS[effect.kind], *(_number(effect.at(d)) for d in distances)] for effect in shown]
    return Table([f"query {query}, distance →", "", *map(str, distances)], rows, left=2).text()


def _number(value: float) -> str:
    return f"{value:.0f}" if abs(value) >= 100 else f"{value:z.2f}"


def effects_record(shown: dict[int, list[Effect]]) -> dict[str, Any]:
    """The same values as data."""
    return {
        f"query {query}": {
            effect.name: {"kind": effect.kind, "first head, by distance": {d: effect.at(d) for d in DISTANCES[query]}}
            for effect in query_effects
        }
        for query, query_effects in shown.items()
    }


def plot_effects(shown: dict[int, list[Effect]], path: Path) -> None:
    """Draw a panel per encoding and query, a line per head."""
    from matplotlib.figure import Figure
    from matplotlib.lines import Line2D

    columns = 3
    rows = 1 + max(map(len, shown.values())) // columns
    figure = Figure(figsize=(21, 3.1 * rows), layout="constrained")
    figure.suptitle(
        "Which keys does a query prefer? Position encodings before training, one line per head", fontsize=18
    )
    heads = [Line2D([], [], color=_color(head, HEADS), linewidth=3, label=f"head {head + 1}") for head in range(HEADS)]
    figure.legend(handles=heads, loc="outside lower center", ncols=HEADS, frameon=False, fontsize=11)
    halves = figure.subfigures(1, len(shown), wspace=0.04, squeeze=False)[0]
    for half, (query, query_effects) in zip(halves, shown.items(), strict=True):
        half.suptitle(f"query at position {query:,}", fontsize=15, fontweight="bold")
        half.supxlabel("key position", fontsize=12)
        panels = list(half.subplots(rows, columns, squeeze=False).flat)
        for axes, effect in zip(panels, query_effects, strict=False):
            _plot_one(axes, effect)
        for axes in panels[len(query_effects) :]:
            axes.axis("off")
        if half is halves[-1]:
            text = panels[len(query_effects)].text(0, 1, HOW_TO_READ, va="top", fontsize=10.5, linespacing=1.2)
            text.set_in_layout(False)  # it may run into the empty panel beside it
    figure.savefig(path, dpi=75)


def _plot_one(axes: Any, effect: Effect) -> None:
    curves = effect.curves
    if effect.kind == "bias":
        curves = (curves - curves.amax(1, keepdim=True)).clamp(min=LOWEST - 2)
        axes.set_ylim(LOWEST, 0.5)
    else:
        curves = curves / curves[:, -1:].clamp(min=1.0)
        axes.set_ylim(-1.05, 1.1)
        axes.set_facecolor("#f0f0f0")
    keys = range(1, curves.shape[1] + 1)
    for head, curve in enumerate(curves):
        axes.plot(keys, curve, color=_color(head, len(curves)), linewidth=1.3)
    axes.set_title(effect.name, loc="left", fontsize=13, fontweight="bold" if "fire" in effect.name else "normal")
    axes.set_title("learned" if effect.learned else "fixed", loc="right", fontsize=9, color="gray")
    axes.set_xlim(1, curves.shape[1])
    axes.grid(alpha=0.25)


def _color(head: int, heads: int) -> Any:
    import matplotlib as mpl

    return mpl.colormaps["viridis"](0.9 * head / max(1, heads - 1))
