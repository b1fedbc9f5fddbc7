"""Token blocks: what passes between engines, control and trainers.

Invariant: control only ever asks a block for its length and puts blocks one after another, so
the same code runs on numpy arrays (real engines) and on blocks without content (simulated ones).
An id costs 4 bytes, a log-prob 4; versions are kept as runs.
"""

from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from functools import cache
from typing import Protocol, cast

import numpy as np
import numpy.typing as npt

Int32Array = npt.NDArray[np.int32]
Float32Array = npt.NDArray[np.float32]


class TokenBlock(Protocol):
    """A run of token ids (int32) or of log-probs (float32): anything that has a length."""

    def __len__(self) -> int: ...


Prompt = tuple[TokenBlock, ...]
"""Blocks of token ids that follow one another; an engine reads them as one sequence."""

NOT_COUNTED = -1
"""The length of a prompt that nobody has counted; a long one is costly to count at every turn."""


@dataclass(frozen=True, slots=True)
class LengthOnly:
    """A block with a length and no content, for modelled engines."""

    length: int

    def __len__(self) -> int:
        return self.length


@cache
def length_only(length: int) -> LengthOnly:
    """The one block of a length: a modelled run has millions of blocks, and few lengths."""
    return LengthOnly(length)


@dataclass(frozen=True, slots=True)
class VersionRuns:
    """The policy version that sampled each token, run-length encoded.

    `runs` holds (version, count) pairs in token order, counts positive, neighbours different.
    """

    runs: tuple[tuple[int, int], ...] = ()

    def __len__(self) -> int:
        runs = self.runs
        if len(runs) == 1:
            return runs[0][1]
        if not runs:
            return 0
        return sum([count for _, count in runs])

    def append(self, version: int, count: int) -> "VersionRuns":
        """The runs followed by `count` tokens of `version`."""
        if count <= 0:
            return self
        if not self.runs:
            return VersionRuns(((version, count),))
        if self.runs[-1][0] == version:
            last = self.runs[-1][1]
            return VersionRuns((*self.runs[:-1], (version, last + count)))
        return VersionRuns((*self.runs, (version, count)))

    def expand(self) -> list[int]:
        """One version per token."""
        return [version for version, count in self.runs for _ in range(count)]

    @property
    def oldest(self) -> int | None:
        return min((version for version, _ in self.runs), default=None)

    @property
    def newest(self) -> int | None:
        return max((version for version, _ in self.runs), default=None)


NO_TOKENS = LengthOnly(0)
NO_VERSIONS = VersionRuns()


def total_length(blocks: Iterable[TokenBlock]) -> int:
    """Tokens in all of `blocks`."""
    return sum(map(len, blocks))


def join(blocks: Sequence[TokenBlock]) -> TokenBlock:
    """One block with the content of `blocks` in order.

    Raises:
        TypeError: some blocks have content and others only a length; ids would be lost.
    """
    full = [block for block in blocks if len(block)]
    if len(full) == 1:
        return full[0]
    if full and all(isinstance(block, np.ndarray) for block in full):
        return np.concatenate(cast("Sequence[npt.NDArray[np.generic]]", full))
    if any(isinstance(block, np.ndarray) for block in full):
        raise TypeError("blocks with token ids and blocks of length only cannot be joined")
    return LengthOnly(total_length(full))


def ids_array(block: TokenBlock) -> Int32Array:
    """The ids of a block as an int32 array [n].

    Raises:
        TypeError: the block has a length and no content (it came from a modelled engine).
    """
    if isinstance(block, LengthOnly) and len(block) == 0:
        return np.zeros(0, np.int32)
    if not isinstance(block, np.ndarray):
        raise TypeError(f"a {type(block).__name__} of {len(block)} tokens has no ids")
    return cast("npt.NDArray[np.generic]", block).astype(np.int32, copy=False)


def logprobs_array(block: TokenBlock) -> Float32Array:
    """The log-probs of a block as a float32 array [n]; `TypeError` if it has no content."""
    if isinstance(block, LengthOnly) and len(block) == 0:
        return np.zeros(0, np.float32)
    if not isinstance(block, np.ndarray):
        raise TypeError(f"a {type(block).__name__} of {len(block)} values has no log-probs")
    return cast("npt.NDArray[np.generic]", block).astype(np.float32, copy=False)
