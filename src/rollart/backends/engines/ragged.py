"""Attention over rows of unequal length, without padding: the plan of a step, and its execution.

All new tokens of all rows form one sequence [tokens]; projections and MLPs never see padding. Only
attention knows rows, and computes them in sub-batches of rows of like length.
Invariant: a query at position p of a row attends to positions 0..p of its own slot and no other.
"""

from dataclasses import dataclass
from typing import NamedTuple

import numpy as np
import numpy.typing as npt
import torch

from rollart.backends.engines.kv_slots import KVSlots

Ints = npt.NDArray[np.int64]
WORK = 2048  # KV positions a sub-batch reads: the copy of its keys stays in a core's cache
WIDE = 16  # new tokens a row above which scores, not keys, are what must stay in cache


@dataclass(frozen=True, slots=True, kw_only=True)
class SubBatch:
    """Rows that attend together: `width` queries a row against the first `length` positions.

    `queries` picks rows * width queries; a short row repeats its last. `memory` selects the rows'
    slots. Both are slices where things lie side by side. `mask` [rows, 1, 1, width, length - first]
    is added to the scores from position `first` on; before it everything is visible.
    """

    rows: int
    width: int
    length: int
    queries: torch.Tensor | slice
    memory: torch.Tensor | slice
    first: int
    mask: torch.Tensor | None


@dataclass(frozen=True, slots=True, kw_only=True)
class Plan:
    """What one pass computes.

    `ids`, `positions` [tokens]; `write` [tokens * kv_heads] are the lines of the slots that take
    the new keys and values; `sampled` [k] are the tokens whose logits are wanted. `all_rows` are
    the queries of all tokens, `sampled_rows` those of `sampled` alone.
    """

    kv: KVSlots
    ids: torch.Tensor
    positions: torch.Tensor
    write: torch.Tensor
    sampled: torch.Tensor
    all_rows: tuple[SubBatch, ...]
    sampled_rows: tuple[SubBatch, ...]

    @property
    def whole(self) -> bool:
        """Every token is sampled from, as in pure decoding."""
        return len(self.sampled) == len(self.ids)


class _Rows(NamedTuple):
    """Per row: its slot, positions cached, new tokens, and where those begin among all queries."""

    slots: Ints
    start: Ints
    counts: Ints
    offset: Ints

    def pick(self, chosen: Ints | slice) -> "_Rows":
        return _Rows(*(column[chosen] for column in self))


def make_plan(kv: KVSlots, slots: Ints, counts: Ints, sampled: npt.NDArray[np.bool_]) -> Plan:
    """Plan the next `counts` [rows] tokens of `slots` [rows] (all different, counts > 0).

    The last token of each row marked in `sampled` [rows] is sampled from.
    """
    rows = _Rows(slots, kv.cached[slots], counts, np.cumsum(counts) - counts)
    total = int(counts.sum())
    slot = np.repeat(slots, counts)
    position = np.arange(total) + np.repeat(rows.start - rows.offset, counts)
    lines = (slot * kv.kv_heads)[:, None] + np.arange(kv.kv_heads)
    last = (rows.offset + counts - 1)[sampled]
    all_rows = _sub_batches(kv, rows)
    sampled_rows = all_rows
    if len(last) < total:
        one, start = np.ones_like(last), (rows.start + counts - 1)[sampled]
        only = _Rows(slots[sampled], start, one, np.arange(len(last)))
        sampled_rows = _sub_batches(kv, only)
    return Plan(
        kv=kv,
        ids=kv.tensor(kv.tokens[slot, position].astype(np.int64)),
        positions=kv.tensor(position),
        write=kv.tensor((lines * kv.max_len + position[:, None]).ravel()),
        sampled=kv.tensor(last),
        all_rows=all_rows,
        sampled_rows=sampled_rows,
    )


def good_order(slots: Ints, start: Ints, counts: Ints) -> tuple[Ints, Ints]:
    """Rows by number of new tokens (in powers of two: `kind`), then length; returns kind, order.

    Attention sorts rows so in any case; who passes them in this order spares it moving queries.
    """
    kind = np.ceil(np.log2(counts)).astype(np.int64)
    order = np.lexsort((slots, start + counts, kind))
    return kind[order], order


def _sub_batches(kv: KVSlots, rows: _Rows) -> tuple[SubBatch, ...]:
    """Put rows in their good order and cut where the number of new tokens or the work tells to."""
    kind, order = good_order(rows.slots, rows.start, rows.counts)
    rows = rows.pick(order)
    length = rows.start + rows.counts
    batches: list[SubBatch] = []
    at = 0
    while at < len(order):
        end = int(np.searchsorted(kind, kind[at], "right"))
        work = np.arange(1, end - at + 1) * length[at:end] * max(1, (1 << int(kind[at])) // WIDE)
        end = at + max(1, int(np.searchsorted(work, WORK, "right")))
        batches.append(_sub_batch(kv, rows.pick(slice(at, end))))
        at = end
    return tuple(batches)


def _sub_batch(kv: KVSlots, rows: _Rows) -> SubBatch:
    slots, start, counts, offset = rows
    width, length, first = int(counts.max()), int((start + counts).max()), int(start.min())
    column = np.minimum(np.arange(width), counts[:, None] - 1)
    hidden = np.arange(first, length) > (start[:, None] + column)[:, :, None]
    picked = (offset[:, None] + column).ravel()
    low, begin = int(slots[0]), int(offset[0])
    queries: torch.Tensor | slice = slice(begin, begin + len(picked))
    if (picked != np.arange(begin, begin + len(picked))).any():
        queries = kv.tensor(picked)
    # Neighbouring slots are read where they lie; others are gathered into a copy.
    memory: torch.Tensor | slice = slice(low * kv.kv_heads, (low + len(slots)) * kv.kv_heads)
    if (slots != np.arange(low, low + len(slots))).any():
        memory = kv.tensor((slots[:, None] * kv.kv_heads + np.arange(kv.kv_heads)).ravel())
    mask = None
    if hidden.any():
        added = np.where(hidden, np.float32(-np.inf), np.float32(0))[:, None, None]
        mask = kv.tensor(added).to(kv.keys[0].dtype)
    return SubBatch(
        rows=len(slots),
        width=width,
        length=length,
        queries=queries,
        memory=memory,
        first=first,
        mask=mask,
    )


def write_kv(plan: Plan, layer: int, key: torch.Tensor, value: torch.Tensor) -> None:
    """Store the new keys and values [tokens, kv_heads, head_dim] of a layer in the slots."""
    for memory, new in ((plan.kv.keys[layer], key), (plan.kv.values[layer], value)):
        memory.view(-1, memory.shape[-1]).index_copy_(0, plan.write, new.reshape(-1, new.shape[-1]))


def attend(
    kv: KVSlots, layer: int, batches: tuple[SubBatch, ...], queries: torch.Tensor
) -> torch.Tensor:
    """Attention of scaled `queries` [n, heads * head_dim] over the slots, in the same shape."""
    keys, values, dim = kv.keys[layer], kv.values[layer], kv.keys[layer].shape[-1]
    out = torch.empty_like(queries)
    for batch in batches:
        rows, width, length = batch.rows, batch.width, batch.length
        chosen = batch.queries
        q = queries[chosen] if isinstance(chosen, slice) else queries.index_select(0, chosen)
        q = q.view(rows, width, kv.kv_heads, -1, dim).permute(0, 2, 3, 1, 4)
        q = q.reshape(rows * kv.kv_heads, -1, dim)
        k, v = keys[:, :length], values[:, :length]
        if isinstance(batch.memory, slice):
            k, v = k[batch.memory], v[batch.memory]
        else:
            k, v = k.index_select(0, batch.memory), v.index_select(0, batch.memory)
        scores = torch.bmm(q, k.transpose(1, 2))
        if batch.mask is not None:
            scores.view(rows, kv.kv_heads, -1, width, length)[..., batch.first :].add_(batch.mask)
        weights = torch.softmax(scores, -1, dtype=torch.float32).to(v.dtype)
        mixed = torch.bmm(weights, v).view(rows, kv.kv_heads, -1, width, dim)
        mixed = mixed.permute(0, 3, 1, 2, 4).reshape(rows * width, -1)
        if isinstance(chosen, slice):
            out[chosen] = mixed
        else:
            out.index_copy_(0, chosen, mixed)
    return out
