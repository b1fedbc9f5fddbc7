"""Continuous batching for any Hugging Face causal language model: one object, one thread.

A request waits, then runs in a slot until it stops; the slot then keeps the session's prefix for
the next turn. A step computes, for every running row, what is known and not yet cached (a prompt,
the suffix of a turn, the last sampled token) and samples one token where nothing is left over.
Invariant: under `kv="recompute"` no position written by old weights is attended to after `update`.
Nothing here blocks: whoever drives the batcher calls `step` while `has_work`.
"""

import time
from collections import deque
from collections.abc import Iterable, Sequence
from dataclasses import dataclass, field
from typing import Literal

import numpy as np
import torch
from transformers import PreTrainedModel

from rollart.backends.engines.forward import RaggedModel
from rollart.backends.engines.kv_slots import KVSlots
from rollart.backends.engines.loading import load_in_place
from rollart.backends.engines.ragged import Ints, good_order
from rollart.backends.engines.sampling import draw
from rollart.core.errors import EngineRefused
from rollart.core.tokens import Int32Array, ids_array
from rollart.core.types import GenerateRequest, RequestCost, StopReason, TokenDelta

SHARE = 64  # tokens of prefill that decode rows can never crowd out of a step


@dataclass(frozen=True, slots=True, kw_only=True)
class BusyInterval:
    """The device worked from `begin` to `end` (seconds, monotonic) on `work`."""

    work: Literal["prefill", "decode", "mixed", "rebuild", "update"]
    begin: float
    end: float


@dataclass(slots=True, eq=False)
class _Row:
    """A live request. `mark`: since when its time is not yet accounted for, in seconds."""

    request: GenerateRequest
    prompt: Int32Array
    mark: float
    slot: int = -1
    sampled: int = 0
    prefilling: bool = True
    cached_tokens: int = 0
    prefill_tokens: int = 0
    seconds: dict[str, float] = field(
        default_factory=lambda: {"queued": 0.0, "prefill": 0.0, "decode": 0.0}
    )

    def account(self, phase: str, now: float) -> None:
        self.seconds[phase] += now - self.mark
        self.mark = now

    def cost(self) -> RequestCost:
        return RequestCost(
            cached_tokens=self.cached_tokens,
            prefill_tokens=self.prefill_tokens,
            decode_tokens=self.sampled,
            queued_s=self.seconds["queued"],
            prefill_s=self.seconds["prefill"],
            decode_s=self.seconds["decode"],
        )


class HFBatcher:
    """The engine proper. It owns `model` from here on.

    Args:
        model: any causal language model with full attention; its dtype and device are kept.
        version: policy version of the weights it comes with.
        stop_ids: token ids that end a completion; they are returned as its last token.
        slots: sequences held at once, running and idle together.
        max_len: positions a sequence may have, at most what the model was made for.
        step_tokens: tokens a step computes at most; decode rows come first, then prompts in turn.
        max_waiting: requests that may wait for a slot before `add` refuses.
        kv: whether KV of older weights is computed anew ("recompute") or used on ("keep").
    """

    def __init__(
        self,
        model: PreTrainedModel,
        *,
        version: int,
        stop_ids: Iterable[int] = (),
        slots: int = 64,
        max_len: int | None = None,
        step_tokens: int = 2048,
        max_waiting: int = 4096,
        kv: Literal["recompute", "keep"] = "recompute",
    ) -> None:
        config = model.config
        most: int = config.max_position_embeddings
        if set(getattr(config, "layer_types", None) or ["full_attention"]) != {"full_attention"}:
            raise EngineRefused(f"layer types {config.layer_types}: only full attention is served")
        if not 0 < (max_len or most) <= most:
            raise EngineRefused(f"max_len {max_len}: the model was made for 1 to {most} positions")
        self.max_len = max_len or most
        self.version, self.paused, self.rebuilt_tokens = version, False, 0
        self._step_tokens, self._max_waiting, self._keep = step_tokens, max_waiting, kv == "keep"
        self._vocabulary, self._stops = config.vocab_size, frozenset(stop_ids)
        parameter = next(model.parameters())
        heads: int = config.num_attention_heads
        self.kv = KVSlots(
            layers=config.num_hidden_layers,
            slots=slots,
            kv_heads=getattr(config, "num_key_value_heads", None) or heads,
            max_len=self.max_len,
            head_dim=getattr(config, "head_dim", None) or config.hidden_size // heads,
            dtype=parameter.dtype,
            device=parameter.device,
        )
        self._model = RaggedModel(model, self.kv)
        self._weights = 0  # how often `update` wrote: the tag that KV carries
        self._waiting: dict[str, _Row] = {}
        self._running: dict[str, _Row] = {}
        self._paused_at = 0.0
        self._busy: deque[BusyInterval] = deque(maxlen=65536)

    @property
    def has_work(self) -> bool:
        """Whether `step` would do anything."""
        return not self.paused and bool(self._waiting or self._running)

    @property
    def waiting(self) -> int:
        return len(self._waiting)

    @property
    def running(self) -> int:
        return len(self._running)

    def add(self, request: GenerateRequest) -> None:
        """Queue a request. Raises `EngineRefused`, with the numbers, if it can never be served."""
        prompt, asked = _prompt(request), request.max_tokens
        name = f"request {request.id}"
        if request.id in self._waiting or request.id in self._running:
            raise EngineRefused(f"{name} is already here; ids must be unique")
        if len(prompt) == 0 or asked < 1:
            raise EngineRefused(
                f"{name}: prompt of {len(prompt)} tokens, max_tokens {asked}; each must be positive"
            )
        if len(prompt) + asked > self.max_len:
            raise EngineRefused(
                f"{name}: prompt of {len(prompt)} tokens + max_tokens {asked} = "
                f"{len(prompt) + asked} exceeds the context of {self.max_len}; "
                f"ask for at most {max(0, self.max_len - len(prompt))} tokens"
            )
        if prompt.view(np.uint32).max() >= self._vocabulary:  # a negative id shows as a huge one
            raise EngineRefused(
                f"{name}: ids from {prompt.min()} to {prompt.max()} in the prompt; "
                f"the vocabulary is 0 to {self._vocabulary - 1}"
            )
        if not 0 <= request.temperature < float("inf"):
            raise EngineRefused(f"{name}: temperature {request.temperature} must be finite, >= 0")
        if len(self._waiting) >= self._max_waiting:
            raise EngineRefused(f"{name}: {self._max_waiting} requests wait already; send fewer")
        self._waiting[request.id] = _Row(request, prompt, time.monotonic())
        self.kv.touch(request.session)

    def abort(self, request_ids: Sequence[str]) -> tuple[str, ...]:
        """Drop requests and the KV of their sessions; returns those that were live."""
        live = tuple(name for name in request_ids if name in self._waiting or name in self._running)
        for name in live:
            row = self._waiting.pop(name, None) or self._running.pop(name)
            if row.slot >= 0:
                self.kv.give_back(row.slot)
            self.kv.release(row.request.session)
        return live

    def release(self, session: str) -> None:
        """The session will not return: its idle prefix is freed."""
        self.kv.release(session)

    def pause(self) -> None:
        """No step is taken until `resume`; requests stay and may still be added."""
        if not self.paused:
            self.paused, self._paused_at = True, time.monotonic()

    def resume(self) -> None:
        if not self.paused:
            return
        now, self.paused = time.monotonic(), False
        for row in self._running.values():
            waited = now - max(row.mark, self._paused_at)
            row.seconds["queued"] += waited
            row.mark += waited

    def update(self, version: int, tensors: Iterable[tuple[str, torch.Tensor]]) -> None:
        """Copy new weights in place and take `version`; call it between steps.

        Every parameter and saved buffer must come exactly once; of tied ones, any name will do, and
        several if they agree. Raises `WeightsRejected` before anything is written.
        """
        begin = time.monotonic()
        load_in_place(self._model.model, tensors, f"version {version}")
        self.version = version
        if not self._keep:
            self._weights += 1
            self.kv.release_idle()
        self._note("update", begin)

    def rebuild_kv(self) -> int:
        """Recompute what update left behind of running rows, but for each one's next token.

        Returns the tokens computed. Without this call, `step` does the same as it goes.
        """
        begin = time.monotonic()
        slots = self._forget_old(np.array([row.slot for row in self._running.values()], np.int64))
        rows = {row.slot: row for row in self._running.values() if row.slot in set(slots.tolist())}
        done = 0
        while len(slots):
            need = self.kv.known[slots] - 1 - self.kv.cached[slots]
            counts = _portions(need, self._step_tokens)
            chosen, counts = slots[counts > 0], counts[counts > 0]
            if len(chosen):
                self._model.run(chosen, counts, np.zeros(len(chosen), bool))
            for slot, count in zip(chosen.tolist(), counts.tolist(), strict=True):
                rows[slot].prefill_tokens += count
                done += count
            slots = slots[self.kv.known[slots] - 1 > self.kv.cached[slots]]
        for row in rows.values():
            row.account("prefill", time.monotonic())
            row.prefilling = row.sampled == 0
        if done:
            self._note("rebuild", begin)
        self.rebuilt_tokens += done
        return done

    def step(self) -> list[TokenDelta]:
        """One iteration; a delta of one token for each row whose known tokens are all computed."""
        begin = time.monotonic()
        if self.paused:
            return []
        self._admit(begin)
        if not self._running:
            return []
        rows = list(self._running.values())
        slots = np.array([row.slot for row in rows], np.int64)
        self._forget_old(slots)
        need = self.kv.known[slots] - self.kv.cached[slots]
        decoding = need == 1
        share = max(SHARE, self._step_tokens - int(decoding.sum()))
        counts = np.where(decoding, 1, _portions(np.where(decoding, 0, need), share))
        active = np.flatnonzero(counts)
        active = active[good_order(slots[active], self.kv.cached[slots[active]], counts[active])[1]]
        rows, counts = [rows[i] for i in active], counts[active]
        slots, sampled = slots[active], counts == need[active]
        logits = self._model.run(slots, counts, sampled)
        prefills = 0
        for row, count in zip(rows, counts.tolist(), strict=True):
            if row.prefilling:
                row.prefill_tokens += count
                prefills += 1
        heirs = [row for row, take in zip(rows, sampled.tolist(), strict=True) if take]
        deltas = self._sample(heirs, slots[sampled], logits) if heirs else []
        work = "decode" if not prefills else "prefill" if prefills == len(rows) else "mixed"
        self._note(work, begin)
        return deltas

    def take_busy(self) -> list[BusyInterval]:
        """The busy intervals since the last call, oldest first."""
        taken = list(self._busy)
        self._busy.clear()
        return taken

    def _admit(self, now: float) -> None:
        while self._waiting:
            row = next(iter(self._waiting.values()))
            slot = self.kv.take(row.request.session, row.prompt, self._weights)
            if slot is None:
                return
            row.slot, row.cached_tokens = slot, int(self.kv.cached[slot])
            row.account("queued", now)
            self._running[row.request.id] = self._waiting.pop(row.request.id)

    def _forget_old(self, slots: Ints) -> Ints:
        """Empty those of the running slots that older weights wrote; returns them."""
        old = self.kv.forget(slots, self._weights)
        if len(old):
            gone = set(old.tolist())
            for row in self._running.values():
                row.prefilling |= row.slot in gone
        return old

    def _sample(self, rows: list[_Row], slots: Ints, logits: torch.Tensor) -> list[TokenDelta]:
        requests = [row.request for row in rows]
        ids, logprobs = draw(
            logits,
            np.array([request.temperature for request in requests], np.float32),
            np.array([request.seed & 0xFFFFFFFFFFFFFFFF for request in requests], np.uint64),
            np.array([row.request.offset + row.sampled for row in rows], np.uint64),
        )
        self.kv.tokens[slots, self.kv.known[slots]] = ids
        self.kv.known[slots] += 1
        now, deltas = time.monotonic(), []
        for at, (row, token) in enumerate(zip(rows, ids.tolist(), strict=True)):
            row.account("prefill" if row.prefilling else "decode", now)
            row.prefilling = False
            row.sampled += 1
            finish = None
            if token in self._stops:
                finish = StopReason.STOP
            elif row.sampled == row.request.max_tokens:
                finish = StopReason.LENGTH
            if finish is not None:
                del self._running[row.request.id]
                self.kv.park(row.request.session, row.slot)
            deltas.append(
                TokenDelta(
                    request_id=row.request.id,
                    ids=ids[at : at + 1],
                    logprobs=logprobs[at : at + 1],
                    version=self.version,
                    finish=finish,
                    cost=None if finish is None else row.cost(),
                )
            )
        return deltas

    def _note(
        self, work: Literal["prefill", "decode", "mixed", "rebuild", "update"], begin: float
    ) -> None:
        self._busy.append(BusyInterval(work=work, begin=begin, end=time.monotonic()))


def _prompt(request: GenerateRequest) -> Int32Array:
    """The prompt's blocks as one array [n]."""
    blocks = [ids_array(block) for block in request.prompt]
    return blocks[0] if len(blocks) == 1 else np.concatenate([np.zeros(0, np.int32), *blocks])


def _portions(need: Ints, budget: int) -> Ints:
    """What each row gets of the budget, first come first served, in tokens."""
    return np.clip(budget - (np.cumsum(need) - need), 0, need)
