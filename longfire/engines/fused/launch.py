"""Launching the kernels: shapes, strides and buffers."""

from functools import cached_property, lru_cache
from types import SimpleNamespace
from typing import Any

import torch
import triton
from torch import Tensor

from longfire.engines.fused import backward, expand, forward
from longfire.engines.fused.configs import config
from longfire.engines.fused.geometry import BLOCK, FAR, LARGEST, MIDDLE, TILE, Geometry
from longfire.engines.fused.turns import Turns, collect_far, collect_near, near_turns


@lru_cache(maxsize=64)
def numbers(geometry: Geometry) -> Any:
    """All that is computed of a geometry, computed once: the same names."""
    names = [name for name, member in vars(Geometry).items() if isinstance(member, property)]
    of_it = {name: getattr(geometry, name) for name in names}
    return SimpleNamespace(keys=geometry.keys, first=geometry.first, sizes=sizes_per_head(geometry), **of_it)


def expanded(values: Tensor, geometry: Geometry, relative: bool, scale: float) -> tuple[Tensor, Tensor, Tensor, Tensor]:
    """Near biases, middle nodes, far nodes and references, each (H, …).

    In float16 relative to a reference, or in float32 as they are. Attention will divide nodes by `scale`.
    """
    A, H, E = values.shape
    g = numbers(geometry)
    near, middle, far, reference = buffers(values, g.sizes, relative)
    blocks = g.near if g.exact else g.blocks
    shared = {"first_node": g.first_node, "first_block": g.first_block, "last": g.last, "ROWS": g.rows_per_octave}
    rows, farthest = values, E
    if not g.exact:
        farthest = ((g.middle if g.has_middle else g.near) + 1) * BLOCK
        rows = values.new_empty(A, H, farthest)
        expand.distances[A, H](
            values, rows, reference, E, farthest, H * E, g.first_node, g.last,
            ROWS=g.rows_per_octave, DISTANCES=g.distances_per_octave, N=1024,
        )  # fmt: skip
    elif relative:
        expand.references[blocks, H](values, reference, E, g.references)
    expand.near[blocks * 4, H, 1 if g.exact else g.near](
        rows, reference, near, farthest, g.references, near.shape[1], H * farthest, near_blocks=g.near,
        EXACT=g.exact, RELATIVE=relative, **shared, num_warps=4,
    )  # fmt: skip
    for nodes, out in ((MIDDLE, middle), (FAR, far)):
        if out.shape[1] == 0:
            continue
        tiles = g.middle_tiles if nodes == MIDDLE else 2 * max(g.last_block - g.middle, 0)
        source, length, distances = (rows, farthest, 0) if nodes == MIDDLE else (values, E, g.distances_per_octave)
        chunk = 1024 // nodes**2  # tiles a program
        expand.nodes[2 * g.blocks, H, triton.cdiv(tiles, chunk)](
            source, reference, out, length, g.references, out.shape[1], H * length, near_blocks=g.near,
            largest=LARGEST * min(1.0, scale),
            middle_blocks=g.middle, DISTANCES=distances, NODES=nodes, FAR=nodes == FAR, RELATIVE=relative, N=chunk,
            **shared,
        )  # fmt: skip
    return near, middle, far, reference


def buffers(values: Tensor, sizes: dict[str, int], relative: bool) -> tuple[Tensor, Tensor, Tensor, Tensor]:
    """For near biases, middle nodes, far nodes and references."""
    H, dtype = values.shape[1], torch.float16 if relative else torch.float32
    near, middle, far, references = sizes.values()
    zones = (values.new_empty(H, size, dtype=dtype) for size in (near, middle, far))
    return *zones, values.new_zeros(H, references)  # type: ignore[return-value]


def sizes_per_head(geometry: Geometry) -> dict[str, int]:
    """Elements of each kind, as the kernels name them."""
    near = BLOCK * BLOCK * geometry.near * (1 if geometry.exact else geometry.blocks)
    return {
        "near_per_head": near,
        "middle_per_head": 2 * geometry.blocks * geometry.middle_tiles * MIDDLE**2 if geometry.has_middle else 0,
        "far_per_head": geometry.far_tiles * FAR**2 if geometry.has_far else 0,
        "references_per_head": geometry.references,
    }


class Call:
    """One call of attention: what all of its kernels are told."""

    def __init__(
        self,
        q: Tensor,
        k: Tensor,
        v: Tensor,
        bias: tuple[Tensor, Tensor, Tensor, Tensor],
        key_mask: Tensor | None,
        shift: Tensor | None,
        seed: Tensor | None,
        geometry: Geometry,
        scale: float,
        dropout_p: float,
    ) -> None:
        g = self.geometry = numbers(geometry)
        self.q, self.k, self.v, self.bias = q, k, v, bias
        self.key_mask, self.shift, self.seed = key_mask, shift, seed
        self.B, self.H, self.T, self.D = q.shape
        self.S, self.group = k.shape[2], q.shape[1] // k.shape[1]
        self.per_head = g.sizes
        self.options: dict[str, Any] = {
            "B": self.B,
            "H": self.H,
            "T": self.T,
            "S": self.S,
            "group": self.group,
            "scale": scale,
            "dropout_p": dropout_p,
            "first_block": g.first_block,
            "near": g.near,
            "D": self.D,
            "DP": max(16, triton.next_power_of_2(self.D)),
            "EXACT": g.exact,
            "REFERENCE": g.exact and bias[0].dtype == torch.float16,
            "MASK": key_mask is not None,
            "SHIFT": shift is not None,
            "DROPOUT": dropout_p > 0,
            "PRECISION": "ieee" if q.dtype == torch.float32 else "tf32",
        }
        self.zones = {
            **self.per_head,
            "middle": g.middle,
            "HAS_MIDDLE": g.has_middle,
            "HAS_FAR": g.has_far,
        }

    def pointers(self) -> dict[str, Tensor]:
        near, middle, far, reference = self.bias
        return {
            "KeyMask": self.q if self.key_mask is None else self.key_mask,
            "Shift": self.q if self.shift is None else self.shift,
            "Seed": self.q if self.seed is None else self.seed,
            "Near": near,
            "Middle": middle if middle.numel() else near,
            "Far": far if far.numel() else near,
            "Reference": reference,
        }

    def tiles(self, BM: int) -> int:
        """Tiles of queries: one more where sequences are shifted, since they may begin anywhere in a tile."""
        first = self.S - self.T
        if self.shift is not None:
            return -(-self.T // BM) + 1
        return -(-self.S // BM) - first // BM

    def even(self, tile: int) -> bool:
        """Every tile of so many queries is whole."""
        return self.shift is None and self.T % tile == 0 and self.S % tile == 0

    def forward(self) -> tuple[Tensor, Tensor]:
        out = torch.empty_like(self.q)
        lse = self.q.new_empty(self.B, self.H, self.T, dtype=torch.float32)
        how = config("forward", self.D, self.q.dtype, self.S)
        tiles = self.tiles(how.BM)
        forward.forward[(tiles * self.B * self.H,)](
            Q=self.q, K=self.k, V=self.v, Out=out, Lse=lse, tiles=tiles, BM=how.BM, BN=how.BN,
            **how.launch(), **how.zones(), **strides(q=self.q, k=self.k, v=self.v, o=out), **self.pointers(),
            **self.options, **self.zones,
        )  # fmt: skip
        return out, lse

    def backward(self, dout: Tensor, out: Tensor, lse: Tensor, learned: bool) -> tuple[Tensor, Tensor, Tensor, Tensor]:
        """dq, dk, dv, and the gradient of the values (empty unless `learned`)."""
        g = self.geometry
        dq, delta = torch.empty_like(self.q), torch.empty_like(lse)
        zones = [size if learned else 0 for size in (self.per_head["middle_per_head"], self.per_head["far_per_head"])]
        new = self.q.new_empty if self.even(BLOCK) else self.q.new_zeros  # no program comes by tiles without queries
        dmiddle, dfar = (new(self.B, self.H, size) for size in zones)
        found = {"dOut": dout, "Lse": lse, "Delta": delta}
        nodes = {"dMiddle": dmiddle if dmiddle.numel() else delta, "dFar": dfar if dfar.numel() else delta}
        rows = {**found, **nodes, "Out": out, "dQ": dq}
        dvalues = self.q.new_empty(0, dtype=torch.float32)
        self.queries(rows, learned)
        if learned:
            dvalues = self.q.new_empty(g.row_nodes, self.H, g.distance_nodes, dtype=torch.float32)
            self.values_gradient(found, dmiddle, dvalues)
            if dfar.numel():
                collect_far(dfar, dvalues, g)
        dk, dv = self.keys(found)
        return dq, dk, dv, dvalues

    @cached_property
    def turns(self) -> Turns:
        """How near gradients are made."""
        return near_turns(self.geometry, self.H)

    def queries(self, rows: dict[str, Tensor], learned: bool) -> None:
        """dQ, Delta, and the gradients of nodes for each sequence."""
        how = config("queries", self.D, self.q.dtype, self.S)
        tiles = self.tiles(how.BM)
        backward.queries[(tiles * self.B * self.H,)](
            Q=self.q, K=self.k, V=self.v, **rows, tiles=tiles, LEARNED=learned, BM=how.BM, BN=how.BN, **how.launch(),
            **strides(q=self.q, k=self.k, v=self.v, o=rows["Out"], do=rows["dOut"], dq=rows["dQ"]), **self.pointers(),
            **self.options, **self.zones,
        )  # fmt: skip

    def keys(self, found: dict[str, Tensor]) -> tuple[Tensor, Tensor]:
        """dk and dv."""
        new = torch.empty_like if self.shift is None else torch.zeros_like  # keys before a sequence's first: in no tile
        if self.group == 1:
            dk, dv = new(self.k), new(self.v)
        else:
            dk, dv = (new(self.k.new_empty(self.B, self.H, self.S, self.D, dtype=torch.float32)) for _ in range(2))
        how = config("keys", self.D, self.q.dtype, self.S)
        tiles = triton.cdiv(self.S, how.BN)
        near = self.bias[0]
        if self.geometry.exact:
            near = torch.empty_like(near)
            expand.transposed[(near.numel() // TILE**2,)](self.bias[0], near)
        backward.keys[(tiles * self.B * self.H,)](
            Q=self.q, K=self.k, V=self.v, **found, dK=dk, dV=dv, tiles=tiles, EVEN=self.even(how.BM),
            BM=how.BM, BN=how.BN, **how.launch(), **how.zones(),
            **strides(q=self.q, k=self.k, v=self.v, do=found["dOut"], dk=dk, dv=dv),
            **{**self.pointers(), "Near": near}, **self.options, **self.zones,
        )  # fmt: skip
        if self.group > 1:
            dk, dv = (x.unflatten(1, (-1, self.group)).sum(2).to(self.k.dtype) for x in (dk, dv))
        return dk, dv

    def values_gradient(self, found: dict[str, Tensor], dmiddle: Tensor, dvalues: Tensor) -> None:
        """The gradient of the values (A, H, E), but for what far nodes say."""
        g, turns = self.geometry, self.turns
        dnear = dvalues.new_empty(turns.heads * turns.groups * g.near * BLOCK * BLOCK)
        cut = {"groups": turns.groups, "rows_per_group": turns.rows_per_group, "last_block": g.last_block}
        for first_head in range(0, self.H, turns.heads):
            count = min(turns.heads, self.H - first_head)
            self.near_biases(found, dnear, first_head, count, cut)
            near = {"dNear": dnear, "groups": turns.groups, "S": self.S}
            collect_near(near, dmiddle, dvalues, g, first_head, count)

    def near_biases(
        self, found: dict[str, Tensor], dnear: Tensor, first_head: int, heads: int, cut: dict[str, int]
    ) -> None:
        """Gradients of near biases, summed over the batch, by another walk."""
        g = self.geometry
        how = config("near_biases", self.D, self.q.dtype, self.S)
        pointers = {name: tensor for name, tensor in self.pointers().items() if name not in ("Middle", "Far")}
        backward.near_biases[g.near * 4, cut["groups"], heads](
            Q=self.q, K=self.k, V=self.v, **found, dNear=dnear, first_head=first_head, **cut, **how.launch(),
            near_per_head=self.per_head["near_per_head"], references_per_head=self.per_head["references_per_head"],
            **strides(q=self.q, k=self.k, v=self.v, do=found["dOut"]), **pointers, **self.options,
        )  # fmt: skip


def strides(**tensors: Tensor) -> dict[str, int]:
    """Of batch, head and row, as the kernels name them."""
    rows = {"q": "t", "o": "t", "do": "t", "dq": "t"}
    names: dict[str, int] = {}
    for name, tensor in tensors.items():
        for part, stride in zip(("b", "h", rows.get(name, "s")), tensor.stride(), strict=False):
            names[f"{name}_{part}"] = stride
    return names
