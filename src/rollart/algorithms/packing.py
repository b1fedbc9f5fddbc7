"""Which token of a batch goes where: micro-batches, rows and places, planned before any tensor.

Invariant: every token of every sequence has exactly one place, and a place is known by the
sequence's key, never by its position in a list. Whatever the layout, a token attends only to
earlier tokens of its own sequence and its position counts from its sequence's start, so a model
gives it the same output wherever it was placed.
"""

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Final, Generic, Literal, TypeVar

import numpy as np
from numpy.typing import NDArray

Layout = Literal["packed", "padded"]
Key = TypeVar("Key")
"""Identity of a sequence, hashable; a trajectory's segment, say."""
Scalar = TypeVar("Scalar", bound=np.generic)

PADDING: Final = -1
"""Segment index of places that hold no token."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Place(Generic[Key]):
    """Columns start..start+length of a row hold the sequence `key`."""

    key: Key
    start: int
    length: int

    @property
    def columns(self) -> slice:
        return slice(self.start, self.start + self.length)


@dataclass(frozen=True, slots=True, kw_only=True)
class MicroBatch(Generic[Key]):
    """R rows of W columns, each row the places of its sequences from the left."""

    rows: tuple[tuple[Place[Key], ...], ...]
    width: int

    @property
    def shape(self) -> tuple[int, int]:
        return len(self.rows), self.width

    def keys(self) -> tuple[Key, ...]:
        """Return the sequences of this micro-batch, each once."""
        return tuple(place.key for _, place in self._places())

    def position_ids(self) -> NDArray[np.int64]:
        """Return [R, W]: the position of a token in its own sequence; 0 on padding."""
        out = np.zeros(self.shape, dtype=np.int64)
        for row, place in self._places():
            out[row, place.columns] = np.arange(place.length)
        return out

    def segment_ids(self) -> NDArray[np.int64]:
        """Return [R, W]: the number of a token's sequence within its row; PADDING elsewhere."""
        out = np.full(self.shape, PADDING, dtype=np.int64)
        for row, places in enumerate(self.rows):
            for number, place in enumerate(places):
                out[row, place.columns] = number
        return out

    def pack(
        self, values: Mapping[Key, NDArray[Scalar]], *, fill: float | int | bool
    ) -> NDArray[Scalar]:
        """Lay one value a token out as [R, W] in the values' dtype, `fill` on padding.

        Raises:
            KeyError: a sequence of this micro-batch has no values.
            ValueError: a sequence's values are not as many as its planned tokens.
        """
        dtype = np.result_type(*(values[key].dtype for key in self.keys()))
        out = np.full(self.shape, fill, dtype=dtype)
        for row, place in self._places():
            given = values[place.key]
            if given.shape != (place.length,):
                raise ValueError(
                    f"sequence {place.key!r} was planned with {place.length} tokens but its "
                    f"values have shape {given.shape}; give one value a token"
                )
            out[row, place.columns] = given
        return out

    def unpack(self, packed: NDArray[Scalar]) -> dict[Key, NDArray[Scalar]]:
        """Take the values of each sequence back out of [R, W]; the inverse of `pack`.

        Raises:
            ValueError: the array has another shape than this micro-batch.
        """
        if packed.shape != self.shape:
            raise ValueError(
                f"array of shape {packed.shape} does not belong to a micro-batch of shape "
                f"{self.shape}; unpack with the micro-batch that packed it"
            )
        return {place.key: packed[row, place.columns] for row, place in self._places()}

    def _places(self) -> Iterator[tuple[int, Place[Key]]]:
        for row, places in enumerate(self.rows):
            for place in places:
                yield row, place


def plan_micro_batches(
    lengths: Mapping[Key, int],
    *,
    token_budget: int,
    layout: Layout,
    row_tokens: int | None = None,
) -> tuple[MicroBatch[Key], ...]:
    """Cut a batch into micro-batches of at most `token_budget` places, padding included.

    `packed` puts several sequences into a row of up to `row_tokens` places, first-fit decreasing.
    A shorter row wastes more places, but dense attention costs its width squared. `padded` puts
    one sequence into a row. Rows of similar width then share a micro-batch. The plan depends on
    `lengths` (ties: its order) and nothing else.

    Args:
        lengths: tokens of each sequence, at least 1.
        token_budget: places of a micro-batch: rows times width.
        row_tokens: places of a packed row, at most the budget, which is the default; without
            meaning for `padded`.

    Raises:
        ValueError: a sequence is empty or longer than a row may be, or the sizes are impossible.
    """
    if token_budget < 1:
        raise ValueError(f"token_budget is {token_budget}; use at least 1")
    if row_tokens is not None and not 1 <= row_tokens <= token_budget:
        raise ValueError(f"row_tokens is {row_tokens}; use 1 to the token budget of {token_budget}")
    limit = token_budget if row_tokens is None or layout == "padded" else row_tokens
    for key, length in lengths.items():
        if length < 1:
            raise ValueError(f"sequence {key!r} has {length} tokens; leave empty ones out")
        if length > limit:
            raise ValueError(
                f"sequence {key!r} has {length} tokens, more than the {limit} a row may hold; "
                "raise the token budget (and row_tokens) or shorten the sequences"
            )
    # sorted is stable, so equal lengths keep the order of the mapping.
    longest_first = sorted(lengths.items(), key=lambda item: -item[1])
    if layout == "packed":
        rows = _first_fit(longest_first, limit)
    else:
        rows = [(Place(key=key, start=0, length=length),) for key, length in longest_first]
    return _cut(rows, token_budget)


def block_causal_mask(segment_ids: NDArray[np.int64]) -> NDArray[np.bool_]:
    """Return [R, W, W], true where query (axis 1) may attend to key (axis 2).

    That is: the same segment, and not later. Padding attends to earlier padding, so no query is
    left without a key: a softmax over nothing is NaN, and reaches the weights' gradient even
    where the loss is masked.

    Args:
        segment_ids: [R, W] as from `MicroBatch.segment_ids`.
    """
    width = segment_ids.shape[-1]
    same = segment_ids[:, :, None] == segment_ids[:, None, :]
    return same & np.tri(width, dtype=np.bool_)


def _first_fit(
    longest_first: Sequence[tuple[Key, int]], limit: int
) -> list[tuple[Place[Key], ...]]:
    rows: list[list[Place[Key]]] = []
    used: list[int] = []
    for key, length in longest_first:
        fits = (row for row, taken in enumerate(used) if taken + length <= limit)
        row = next(fits, len(rows))
        if row == len(rows):
            rows.append([])
            used.append(0)
        rows[row].append(Place(key=key, start=used[row], length=length))
        used[row] += length
    return [tuple(row) for row in rows]


def _cut(rows: Sequence[tuple[Place[Key], ...]], token_budget: int) -> tuple[MicroBatch[Key], ...]:
    """Widest rows first: the first row of a micro-batch sets its width and so its row count."""
    widest_first = sorted(rows, key=_row_width, reverse=True)
    batches: list[MicroBatch[Key]] = []
    begin = 0
    while begin < len(widest_first):
        width = _row_width(widest_first[begin])
        end = begin + token_budget // width
        batches.append(MicroBatch(rows=tuple(widest_first[begin:end]), width=width))
        begin = end
    return tuple(batches)


def _row_width(row: Sequence[Place[Key]]) -> int:
    return row[-1].start + row[-1].length
