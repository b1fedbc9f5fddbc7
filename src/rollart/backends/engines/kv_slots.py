"""Key/value memory of the engine: a fixed number of slots, one sequence each.

Invariant: a slot is free, idle (it holds the prefix of one session, between turns) or running.
Memory is allocated once; when no slot is free, the idle prefix used longest ago gives way.
Every slot carries the number of the weights that wrote it; `reuse` honours no other number.
"""

import heapq
from collections import OrderedDict
from typing import Any

import numpy as np
import numpy.typing as npt
import torch


class KVSlots:
    """Slots and what they hold.

    `keys[layer]`, `values[layer]`: [slots * kv_heads, max_len, head_dim].
    `tokens` [slots, max_len]: the sequence, of which `known[slot]` ids are set and the first
    `cached[slot]` have their keys and values here, written by weights number `writer[slot]`.
    """

    def __init__(
        self,
        *,
        layers: int,
        slots: int,
        kv_heads: int,
        max_len: int,
        head_dim: int,
        dtype: torch.dtype,
        device: torch.device,
    ) -> None:
        shape = (slots * kv_heads, max_len, head_dim)
        self.keys = [torch.zeros(shape, dtype=dtype, device=device) for _ in range(layers)]
        self.values = [torch.zeros(shape, dtype=dtype, device=device) for _ in range(layers)]
        self.slots, self.kv_heads, self.max_len = slots, kv_heads, max_len
        self.tokens = np.zeros((slots, max_len), np.int32)
        self.known = np.zeros(slots, np.int64)
        self.cached = np.zeros(slots, np.int64)
        self.writer = np.zeros(slots, np.int64)
        self._free = list(range(slots))
        self._idle: OrderedDict[str, int] = OrderedDict()

    @property
    def free(self) -> int:
        """Slots that hold nothing."""
        return len(self._free)

    @property
    def idle(self) -> int:
        """Slots that hold the prefix of a session between turns."""
        return len(self._idle)

    def tensor(self, array: npt.NDArray[Any]) -> torch.Tensor:
        """The array as a tensor where the keys are."""
        return torch.from_numpy(array).to(self.keys[0].device)

    def take(self, session: str, prompt: npt.NDArray[np.int32], writer: int) -> int | None:
        """A slot for `prompt`, with as much of the session's prefix as it shares; None if full.

        At least the last prompt token is left to compute, for its logits are wanted.
        """
        slot = self._idle.pop(session, None)
        if slot is None:
            if self._free:
                slot = heapq.heappop(self._free)
            elif self._idle:
                slot = self._idle.popitem(last=False)[1]
            else:
                return None
            self.cached[slot] = 0
        self.cached[slot] = self.reuse(slot, prompt, writer)
        self.writer[slot] = writer
        self.tokens[slot, : len(prompt)] = prompt
        self.known[slot] = len(prompt)
        return slot

    def reuse(self, slot: int, prompt: npt.NDArray[np.int32], writer: int) -> int:
        """How many leading positions of `slot` serve `prompt` under weights number `writer`."""
        if self.writer[slot] != writer:
            return 0
        most = min(int(self.cached[slot]), len(prompt) - 1)
        equal = self.tokens[slot, :most] == prompt[:most]
        return most if equal.all() else int(equal.argmin())

    def forget(self, slots: npt.NDArray[np.int64], writer: int) -> npt.NDArray[np.int64]:
        """Those of `slots` that other weights wrote; they are emptied and given to `writer`."""
        old = slots[self.writer[slots] != writer]
        self.cached[old] = 0
        self.writer[old] = writer
        return old

    def park(self, session: str, slot: int) -> None:
        """The turn is over: keep the slot as the session's prefix, instead of an older one."""
        self.release(session)
        self._idle[session] = slot

    def touch(self, session: str) -> None:
        """The session is about to return: give way last."""
        if session in self._idle:
            self._idle.move_to_end(session)

    def release(self, session: str) -> None:
        """Free the session's idle prefix, if it has one."""
        slot = self._idle.pop(session, None)
        if slot is not None:
            self.give_back(slot)

    def release_idle(self) -> None:
        """Free every idle prefix."""
        for session in list(self._idle):
            self.release(session)

    def give_back(self, slot: int) -> None:
        """Free a running slot; lowest numbers are used first, so that rows lie side by side."""
        self.cached[slot] = self.known[slot] = 0
        heapq.heappush(self._free, slot)
