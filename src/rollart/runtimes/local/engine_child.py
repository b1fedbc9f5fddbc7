"""The engine's process: commands between steps, one step, one frame with all its tokens.

One thread. Invariant: commands are obeyed in the order they were given, never within a step. It
waits on its channel only when there is nothing to compute; it blocks while the owner does not read
its frames, which is the engine's back-pressure.
"""

import time
from collections.abc import Callable
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, Literal

import msgspec
import numpy as np

from rollart.core.errors import EngineRefused, RollartError
from rollart.core.identity import PolicyVersion
from rollart.core.tokens import Int32Array, ids_array, logprobs_array
from rollart.core.types import GenerateRequest, TokenDelta
from rollart.process.serve import ChildPort, Request
from rollart.runtimes.local.busy import FLUSH_S, BusyLog
from rollart.runtimes.local.codec import Packed, pack_cost
from rollart.runtimes.local.torch_child import compute_on_one_thread, end_at_once

if TYPE_CHECKING:
    from rollart.backends.engines.hf_batcher import HFBatcher
    from rollart.backends.weights.shm import SharedMemoryWeightStore

ENTRY = "rollart.runtimes.local.engine_child:entry"
DELTAS, REFUSED, BUSY = 0, 1, 2
"""First element of an event."""


@dataclass(frozen=True, slots=True, kw_only=True)
class EngineChildConfig:
    """What an engine is made of. Weights are read from store directory `weights`/`run`."""

    model: str
    weights: str
    run: str
    dtype: str
    kv: Literal["recompute", "keep"]
    slots: int
    step_tokens: int
    context: int


def entry(port: ChildPort, config: Any) -> None:
    """Load the model, then serve until stopped."""
    from rollart.backends.engines.hf_batcher import HFBatcher

    serve(port, msgspec.convert(config, EngineChildConfig), HFBatcher)


def serve(port: ChildPort, settings: EngineChildConfig, kind: "type[HFBatcher]") -> None:
    """As `entry`, with a batcher of this kind."""
    import torch

    from rollart.backends.weights.shm import SharedMemoryWeightStore

    compute_on_one_thread()
    torch.set_grad_enabled(False)
    batcher = _load(settings, kind)
    store = SharedMemoryWeightStore(settings.weights, settings.run)
    port.ready()
    EngineLoop(port, batcher, store, settings.dtype).run()
    end_at_once()


def _load(settings: EngineChildConfig, kind: "type[HFBatcher]") -> "HFBatcher":
    import torch
    from transformers import AutoModelForCausalLM, AutoTokenizer
    from transformers.utils.logging import disable_progress_bar

    disable_progress_bar()
    model = AutoModelForCausalLM.from_pretrained(
        settings.model, dtype=getattr(torch, settings.dtype), local_files_only=True
    )
    tokenizer = AutoTokenizer.from_pretrained(settings.model, local_files_only=True)
    return kind(
        model.eval(),
        version=0,
        stop_ids=stop_ids(model, tokenizer),
        slots=settings.slots,
        max_len=settings.context,
        step_tokens=settings.step_tokens,
        kv=settings.kv,
    )


def stop_ids(model: Any, tokenizer: Any) -> frozenset[int]:
    """Every id that ends a completion by the word of the model or of its tokenizer."""
    found: set[int] = set()
    for source in (model.generation_config, model.config, tokenizer):
        value = getattr(source, "eos_token_id", None)
        if value is not None:
            found.update([value] if isinstance(value, int) else value)
    return frozenset(found)


class EngineLoop:
    """Commands, steps and frames of one batcher."""

    def __init__(
        self,
        port: ChildPort,
        batcher: "HFBatcher",
        store: "SharedMemoryWeightStore",
        dtype: str,
    ) -> None:
        self._port = port
        self._batcher = batcher
        self._store = store
        self._dtype = dtype
        self._prompts: dict[str, Int32Array] = {}
        self._busy = BusyLog()
        self._commands: dict[str, Callable[..., Packed]] = {
            "add": self._add,
            "abort": self._abort,
            "release": self._release,
            "forget": self._forget,
            "pause": batcher.pause,
            "resume": batcher.resume,
            "update": self._update,
            "rebuild_kv": batcher.rebuild_kv,
        }

    def run(self) -> None:
        """Until stopped. A step that raises (weights that are not finite) ends the process."""
        port, batcher = self._port, self._batcher
        while not port.stopping:
            wait = 0.0 if batcher.has_work else None if self._busy.empty else FLUSH_S
            for request in port.requests(wait):
                self._obey(request)
            if batcher.has_work:
                deltas = batcher.step()
                if deltas:
                    port.event(pack_deltas(deltas))
            for interval in batcher.take_busy():
                self._busy.add(interval.work, interval.begin, interval.end)
            if self._busy.due:
                port.event((BUSY, self._busy.take()))

    def _obey(self, request: Request) -> None:
        try:
            result = self._commands[request.method](*request.args)
        except Exception as error:
            if request.id is None:
                raise
            self._port.reply_error(request.id, error)
        else:
            self._port.reply(request.id, result)

    def _add(self, key: int, session: str, tokens: Packed, sampling: Packed) -> None:
        """Queue a request whose prompt is `kept` tokens of the session's last one and `rest`."""
        kept, rest = tokens
        max_tokens, temperature, seed, offset = sampling
        prompt = np.frombuffer(rest, np.int32)
        if kept:
            prompt = np.concatenate((self._prompts[session][:kept], prompt))
        self._prompts[session] = prompt
        request = GenerateRequest(
            id=str(key),
            session=session,
            prompt=(prompt,),
            max_tokens=max_tokens,
            temperature=temperature,
            seed=seed,
            offset=offset,
        )
        try:
            self._batcher.add(request)
        except EngineRefused as error:
            self._port.event((REFUSED, key, str(error), self._batcher.version))

    def _abort(self, keys: list[int]) -> None:
        self._batcher.abort([str(key) for key in keys])

    def _release(self, session: str) -> None:
        self._prompts.pop(session, None)
        self._batcher.release(session)

    def _forget(self, session: str) -> None:
        self._prompts.pop(session, None)

    def _update(self, policy: str, number: int) -> float:
        """Copy a version from the store in place; returns the seconds it took."""
        import torch

        from rollart.backends.weights.torch_state import torch_state

        if not self._batcher.paused:
            raise RollartError("update while steps run; pause the engine first")
        begin = time.monotonic()
        with self._store.read(PolicyVersion(policy, number)) as weights:
            state = torch_state(weights, dtype=getattr(torch, self._dtype))
            self._batcher.update(number, state.items())
        return time.monotonic() - begin


def pack_deltas(deltas: list[TokenDelta]) -> Packed:
    """One step's deltas, all of one version: columns, so that a frame costs little a row."""
    counts = [len(delta.ids) for delta in deltas]
    finished = [
        (row, delta.finish.value, None if delta.cost is None else pack_cost(delta.cost))
        for row, delta in enumerate(deltas)
        if delta.finish is not None
    ]
    return (
        DELTAS,
        deltas[0].version,
        [int(delta.request_id) for delta in deltas],
        counts,
        np.concatenate([ids_array(delta.ids) for delta in deltas]).tobytes(),
        np.concatenate([logprobs_array(delta.logprobs) for delta in deltas]).tobytes(),
        finished,
    )
