"""Causal attention of sequences that lie one after another, without padding them to one width.

`AttentionPlan` says once for all layers which lines (a token's head, `head_dim` numbers) meet in
which tile; `attend` runs it. A tile is a block of queries of sequences of like length, against the
keys up to its end: what lies above the diagonal is mostly not computed.
Invariant: a query at position p of a sequence attends to positions 0..p of its own and no other.
"""

from dataclasses import dataclass
from typing import Any

import numpy as np
import numpy.typing as npt
import torch
from torch import Tensor
from torch.autograd import Function
from torch.autograd.function import once_differentiable

Ints = npt.NDArray[np.int64]

BLOCK = 64  # queries of a sequence in a tile
TILE_SCORES = (
    1 << 18
)  # scores of a tile, all heads: with their gradient they stay in a core's cache
LIKE = 0.8  # a sequence joins others that are at most 1 / LIKE times as long
KEPT_WIDTH = 512  # keys up to which a tile's weights are kept for the backward pass


@dataclass(frozen=True, slots=True, kw_only=True)
class Heads:
    """Query heads and key-value heads; `groups` queries share a key."""

    queries: int
    keys: int

    @property
    def groups(self) -> int:
        return self.queries // self.keys


@dataclass(frozen=True, slots=True, kw_only=True)
class Tile:
    """`rows` sequences, `width` queries each, against the first `length` of `memory` positions.

    The tile's lines begin at `query` [rows, keys, groups, width] and `key` [rows, keys, memory].
    `mask` [rows or 1, 1, width, length - first] is added to the scores from position `first` on.
    """

    rows: int
    width: int
    length: int
    memory: int
    query: int
    key: int
    first: int
    mask: Tensor


@dataclass(frozen=True, slots=True, kw_only=True)
class Lines:
    """Lines that tiles are made of, `picked` from [n * heads]; `home` [n * heads] is the inverse.

    Some lines only fill a tile up: they repeat another and are nobody's home.
    """

    picked: Tensor
    home: Tensor


@dataclass(frozen=True, slots=True, kw_only=True)
class AttentionPlan:
    """Which lines of the queries and of the keys (and values) meet in which tile."""

    heads: Heads
    tiles: tuple[Tile, ...]
    queries: Lines
    keys: Lines


def plan_attention(
    lengths: Ints, heads: Heads, *, like: Tensor, asked: Ints | None = None
) -> AttentionPlan:
    """Plan for sequences of `lengths` [s], one after another.

    Args:
        like: a tensor whose dtype and device the masks take.
        asked: tokens [n], not descending, that have queries; by default all.
    """
    start = np.cumsum(lengths) - lengths
    order = np.argsort(-lengths, kind="stable")
    builder = _Builder(heads, like)
    at = 0
    while at < len(order):
        longest = int(lengths[order[at]])
        alike = int(np.searchsorted(-lengths[order[at:]], -LIKE * longest, "right"))
        most = max(1, TILE_SCORES // (heads.queries * min(BLOCK, longest) * longest))
        rows = order[at : at + min(most, alike)]
        at += len(rows)
        if asked is None:
            builder.all_queries(start[rows], lengths[rows])
        else:
            builder.some_queries(start[rows], lengths[rows], asked)
    return AttentionPlan(
        heads=heads,
        tiles=tuple(builder.tiles),
        queries=builder.queries.lines(like.device),
        keys=builder.keys.lines(like.device),
    )


class _Picker:
    """Collects lines in the order of the tiles."""

    def __init__(self, heads: int) -> None:
        self._heads = heads
        self._picked: list[Ints] = []
        self._real: list[npt.NDArray[np.bool_]] = []
        self._size = 0

    def add(self, numbers: Ints, real: npt.NDArray[np.bool_]) -> int:
        """Lay out `numbers` [rows, width] as [rows, heads, width]; returns where that begins."""
        begin = self._size
        picked = numbers[:, None] * self._heads + np.arange(self._heads)[:, None]
        self._picked.append(picked.ravel())
        self._real.append(np.broadcast_to(real[:, None], picked.shape).ravel())
        self._size += picked.size
        return begin

    def lines(self, device: torch.device) -> Lines:
        picked, real = np.concatenate(self._picked), np.concatenate(self._real)
        home = np.empty(int(real.sum()), np.int64)
        home[picked[real]] = np.flatnonzero(real)
        return Lines(
            picked=torch.from_numpy(picked).to(device), home=torch.from_numpy(home).to(device)
        )


class _Builder:
    def __init__(self, heads: Heads, like: Tensor) -> None:
        self.tiles: list[Tile] = []
        self.queries, self.keys = _Picker(heads.queries), _Picker(heads.keys)
        self._like = like

    def all_queries(self, start: Ints, lengths: Ints) -> None:
        """Every token of these sequences, in blocks along the diagonal."""
        memory, key = self._memory(start, lengths)
        for first in range(0, memory, BLOCK):
            columns = np.arange(first, min(first + BLOCK, memory))
            numbers = start[:, None] + np.minimum(columns, lengths[:, None] - 1)
            query = self.queries.add(numbers, columns < lengths[:, None])
            self._tile(query, key, memory, np.broadcast_to(columns, (1, len(columns))), len(start))

    def some_queries(self, start: Ints, lengths: Ints, asked: Ints) -> None:
        """The asked tokens of these sequences; a row that has fewer than another is filled up."""
        memory, key = self._memory(start, lengths)
        begin = np.searchsorted(asked, start)
        counts = np.searchsorted(asked, start + lengths) - begin
        if not counts.any():
            return
        columns = np.arange(int(counts.max()))
        real = columns < counts[:, None]
        numbers = np.where(real, begin[:, None] + columns, begin.min())
        query = self.queries.add(numbers, real)
        position = np.where(real, asked[numbers] - start[:, None], 0)
        self._tile(query, key, memory, position, len(start))

    def _memory(self, start: Ints, lengths: Ints) -> tuple[int, int]:
        """Keys of these sequences: how many positions each, and where they begin."""
        columns = np.arange(int(lengths.max()))
        numbers = start[:, None] + np.minimum(columns, lengths[:, None] - 1)
        return len(columns), self.keys.add(numbers, columns < lengths[:, None])

    def _tile(self, query: int, key: int, memory: int, position: Ints, rows: int) -> None:
        first, length = int(position.min()), int(position.max()) + 1
        hidden = torch.from_numpy(np.arange(first, length) > position[:, None, :, None])
        mask = self._like.new_zeros(hidden.shape)
        self.tiles.append(
            Tile(
                rows=rows,
                width=position.shape[1],
                length=length,
                memory=memory,
                query=query,
                key=key,
                first=first,
                mask=mask.masked_fill_(hidden.to(mask.device), -torch.inf),
            )
        )


class _Attention(Function):
    @staticmethod
    def forward(ctx: Any, query: Tensor, key: Tensor, value: Tensor, plan: AttentionPlan) -> Tensor:
        ctx.plan = plan
        q = _in_tiles(query, plan.queries)
        k, v = _in_tiles(key, plan.keys), _in_tiles(value, plan.keys)
        out, kept = torch.empty_like(q), []
        for tile in plan.tiles:
            weights = _weights(plan, tile, q, k)
            _queries(plan, tile, out).copy_(torch.bmm(weights, _keys(plan, tile, v)))
            kept.append(weights if tile.length <= KEPT_WIDTH else None)
        ctx.save_for_backward(q, k, v, out, *kept)
        return out.index_select(0, plan.queries.home).view(query.shape)

    @staticmethod
    @once_differentiable
    def backward(ctx: Any, gradient: Tensor) -> tuple[Tensor, Tensor, Tensor, None]:
        plan: AttentionPlan = ctx.plan
        q, k, v, out, *kept = ctx.saved_tensors
        # Lines that only fill up have no gradient, so they give none to keys and values.
        d_out = torch.zeros_like(q)
        d_out.index_copy_(0, plan.queries.home, gradient.reshape(-1, q.shape[1]))
        along = (d_out * out).sum(-1, keepdim=True)
        d_q, d_k, d_v = torch.empty_like(q), torch.zeros_like(k), torch.zeros_like(v)
        for tile, known in zip(plan.tiles, kept, strict=True):
            weights = _weights(plan, tile, q, k) if known is None else known
            d_o = _queries(plan, tile, d_out)
            _keys(plan, tile, d_v).add_(torch.bmm(weights.transpose(1, 2), d_o))
            d_scores = torch.bmm(d_o, _keys(plan, tile, v).transpose(1, 2))
            d_scores.sub_(_queries(plan, tile, along)).mul_(weights)
            _queries(plan, tile, d_q).copy_(torch.bmm(d_scores, _keys(plan, tile, k)))
            asked = _queries(plan, tile, q)
            _keys(plan, tile, d_k).add_(torch.bmm(d_scores.transpose(1, 2), asked))
        return (
            d_q.index_select(0, plan.queries.home).view(gradient.shape),
            d_k.index_select(0, plan.keys.home).view(-1, plan.heads.keys, k.shape[1]),
            d_v.index_select(0, plan.keys.home).view(-1, plan.heads.keys, v.shape[1]),
            None,
        )


def attend(query: Tensor, key: Tensor, value: Tensor, plan: AttentionPlan) -> Tensor:
    """Attention of scaled queries [n, heads.queries, d] to keys and values [tokens, heads.keys, d].

    Returns [n, heads.queries, d]; memory for the backward pass grows with the tokens times
    `KEPT_WIDTH` at most, since the weights of longer tiles are computed again.
    """
    return _Attention.apply(query, key, value, plan)  # pyright: ignore[reportReturnType]


def _in_tiles(heads: Tensor, lines: Lines) -> Tensor:
    return heads.reshape(-1, heads.shape[-1]).index_select(0, lines.picked)


def _queries(plan: AttentionPlan, tile: Tile, lines: Tensor) -> Tensor:
    """The tile's queries [rows * keys, groups * width, d] in `lines`, as a view."""
    count = tile.rows * plan.heads.queries * tile.width
    shape = (tile.rows * plan.heads.keys, plan.heads.groups * tile.width, -1)
    return lines[tile.query : tile.query + count].view(shape)


def _keys(plan: AttentionPlan, tile: Tile, lines: Tensor) -> Tensor:
    """The tile's keys or values [rows * keys, length, d] in `lines`, as a view."""
    count = tile.rows * plan.heads.keys * tile.memory
    shape = (tile.rows * plan.heads.keys, tile.memory, -1)
    return lines[tile.key : tile.key + count].view(shape)[:, : tile.length]


def _weights(plan: AttentionPlan, tile: Tile, query: Tensor, key: Tensor) -> Tensor:
    scores = torch.bmm(_queries(plan, tile, query), _keys(plan, tile, key).transpose(1, 2))
    by_head = scores.view(tile.rows, plan.heads.queries, tile.width, tile.length)
    by_head[..., tile.first :].add_(tile.mask)
    return torch.softmax(scores, dim=-1)
