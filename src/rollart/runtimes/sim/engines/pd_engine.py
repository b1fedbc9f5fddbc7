"""A prefill/decode group: some workers compute prompts, others decode; one engine to control.

A request is prefilled by one worker, which samples its first token; its KV then crosses a link, and
another worker decodes the rest. Assumed: a worker keeps what it computed or was sent as the
session's prefix, like any engine. So a prefill worker computes again what was decoded elsewhere,
and only the KV that the decoding worker lacks is sent. Each decoding worker receives over a link of
its own, one transfer after another; KV is not held back at the sender. A decoding worker that has
to preempt recomputes by itself.
Routing: to where the session's prefix is, else to the worker with the fewest tokens to prefill, or
with the fewest sequences to decode. Pure, as `StepClock` is, and with the same contract.
"""

import math
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from enum import Enum
from heapq import heapify, heappop, heappush
from itertools import count

from rollart.core.ports import EventSink
from rollart.runtimes.sim.engines.api import (
    DEFAULT_SETTINGS,
    EngineSettings,
    Sampled,
    WeightSource,
    Workload,
    without_content,
)
from rollart.runtimes.sim.engines.busy_log import BusyLog
from rollart.runtimes.sim.engines.engine import ModelledEngine
from rollart.runtimes.sim.engines.seq import Seq, Stage
from rollart.runtimes.sim.engines.step_clock import StepClock
from rollart.runtimes.sim.hardware.catalogue import LinkClass
from rollart.runtimes.sim.hardware.roofline import Roofline


class _Place(Enum):
    PREFILL = "prefill"
    LINK = "link"
    DECODE = "decode"


@dataclass(slots=True, eq=False)
class _Flow:
    """A request in the group; `part` is that of it which a worker has, of index `worker`.

    `since` is when it went on the link (s).
    """

    seq: Seq
    part: Seq
    place: _Place
    worker: int
    since: float = 0.0


@dataclass(slots=True)
class _Home:
    """The workers that may hold a session's prefix; -1 for none."""

    prefill: int = -1
    decode: int = -1


class PrefillDecode:
    """The `Machine` of such a group.

    Args:
        link: from the prefill workers to each decoding worker.
        kv_bytes: of one token, on all GPUs of a worker together.
    """

    def __init__(
        self,
        *,
        prefill: Sequence[StepClock],
        decode: Sequence[StepClock],
        link: LinkClass,
        kv_bytes: float,
    ) -> None:
        if not prefill or not decode:
            raise ValueError(
                f"{len(prefill)} prefill and {len(decode)} decode workers: a group needs both"
            )
        self._prefill = tuple(prefill)
        self._decode = tuple(decode)
        self._workers = (*self._prefill, *self._decode)
        self._latency_s = link.latency_s
        self._token_s = kv_bytes / (link.gb_s * 1e9)
        self._flows: dict[str, _Flow] = {}
        self._homes: dict[str, _Home] = {}
        self._on_link: list[tuple[float, int, _Flow]] = []
        self._serials = count()
        self._link_free_at = [0.0] * len(decode)
        self._incoming = [0] * len(decode)
        self.sent_tokens = 0

    @property
    def capacity(self) -> int:
        """Tokens that one sequence may have in all: any worker must be able to hold it."""
        return min(worker.capacity for worker in self._workers)

    @property
    def next_event_at(self) -> float:
        at = self._on_link[0][0] if self._on_link else math.inf
        for worker in self._workers:
            at = min(at, worker.next_event_at)
        return at

    @property
    def stopped(self) -> bool:
        return all(worker.stopped for worker in self._workers)

    def sampled(self, seq: Seq, now: float) -> int:
        flow = self._flows.get(seq.name)
        if flow is None or flow.place is not _Place.DECODE:
            return seq.sampled
        return seq.sampled + self._decode[flow.worker].sampled(flow.part, now)

    # -- commands --------------------------------------------------------------------------------

    def add(self, seq: Seq, now: float) -> None:
        self._to_prefill(seq, now, rebuilds=False)

    def abort(self, names: Iterable[str], now: float) -> float:
        at = now
        for name in names:
            flow = self._flows.pop(name, None)
            if flow is None:
                continue
            flow.seq.stage = Stage.GONE
            if flow.place is _Place.LINK:
                self._off_link(flow)
            else:
                at = max(at, self._worker_of(flow).abort((name,), now))
        return at

    def release(self, session: str) -> None:
        home = self._homes.pop(session, None)
        if home is not None:
            self._leave_home(session, home)

    def stop(self, now: float) -> float:
        """Run no further iteration; what is on a link still arrives, and then waits."""
        return max(worker.stop(now) for worker in self._workers)

    def start(self, now: float) -> None:
        for worker in self._workers:
            worker.start(now)

    def set_pace(self, pace: float, now: float) -> None:
        for worker in self._workers:
            worker.set_pace(pace, now)

    def renew(self, version: int, now: float, *, keep: bool) -> int:
        """As for one batch; what decodes, or was sent, goes back to be prefilled whole."""
        tokens = sum(worker.renew(version, now, keep=keep) for worker in self._prefill)
        if keep:
            for worker in self._decode:
                worker.renew(version, now, keep=True)
            return tokens
        back: list[_Flow] = []
        for worker in self._decode:
            for part in worker.take_all(now):
                flow = self._flows[part.name]
                self._book(flow)
                back.append(flow)
            worker.renew(version, now, keep=False)
        for _, _, flow in sorted(self._on_link):
            flow.seq.prefill_s += now - flow.since
            back.append(flow)
        self._on_link.clear()
        self._link_free_at = [now] * len(self._decode)
        self._incoming = [0] * len(self._decode)
        for flow in back:
            tokens += flow.seq.held
            self._to_prefill(flow.seq, now, rebuilds=True)
        return tokens

    def close(self, now: float) -> None:
        for worker in self._workers:
            worker.close(now)
        self._on_link.clear()

    def advance(self, to: float) -> list[Seq]:
        """Let time pass up to `to`; returns the requests that became whole, in order."""
        whole: list[Seq] = []
        while (at := self.next_event_at) <= to:
            for worker in self._prefill:
                if worker.next_event_at <= at:
                    for part in worker.advance(at):
                        self._prefilled(part, at, whole)
            for worker in self._decode:
                if worker.next_event_at <= at:
                    for part in worker.advance(at):
                        self._decoded(part, whole)
            while self._on_link and self._on_link[0][0] <= at:
                self._arrived(heappop(self._on_link)[2], at)
        return whole

    # -- the way of a request ----------------------------------------------------------------------

    def _to_prefill(self, seq: Seq, now: float, *, rebuilds: bool) -> None:
        home = self._homes.setdefault(seq.session, _Home())
        if home.prefill < 0 or not self._prefill[home.prefill].prefix(seq.session):
            loads = [worker.backlog for worker in self._prefill]
            home.prefill = loads.index(min(loads))
        part = Seq(
            name=seq.name,
            session=seq.session,
            prompt=seq.held,
            wanted=1,
            share=seq.share,
            rebuilds=rebuilds,
        )
        flow = _Flow(seq, part, _Place.PREFILL, home.prefill)
        self._flows[seq.name] = flow
        self._prefill[home.prefill].add(part, now)

    def _prefilled(self, part: Seq, now: float, whole: list[Seq]) -> None:
        flow = self._flows[part.name]
        self._book(flow)
        flow.seq.kv_version = part.kv_version
        if flow.seq.sampled >= flow.seq.wanted:
            self._finish(flow, whole)
        else:
            self._to_link(flow, now)

    def _to_link(self, flow: _Flow, now: float) -> None:
        seq = flow.seq
        home = self._homes.setdefault(seq.session, _Home())
        held = self._decode[home.decode].prefix(seq.session) if home.decode >= 0 else 0
        if not held:
            loads = [
                worker.load + coming
                for worker, coming in zip(self._decode, self._incoming, strict=True)
            ]
            home.decode = loads.index(min(loads))
        lacking = max(0, seq.held - int(held * seq.share))
        begin = max(now, self._link_free_at[home.decode])
        self._link_free_at[home.decode] = begin + lacking * self._token_s
        self.sent_tokens += lacking
        self._incoming[home.decode] += 1
        flow.place, flow.worker, flow.since = _Place.LINK, home.decode, now
        arrives_at = self._link_free_at[home.decode] + self._latency_s
        heappush(self._on_link, (arrives_at, next(self._serials), flow))

    def _off_link(self, flow: _Flow) -> None:
        """Its place in the link's queue stays taken: the bytes were promised already."""
        self._on_link = [entry for entry in self._on_link if entry[2] is not flow]
        heapify(self._on_link)
        self._incoming[flow.worker] -= 1

    def _arrived(self, flow: _Flow, now: float) -> None:
        seq = flow.seq
        self._incoming[flow.worker] -= 1
        seq.prefill_s += now - flow.since
        flow.place = _Place.DECODE
        flow.part = Seq(
            name=seq.name,
            session=seq.session,
            prompt=seq.held,
            wanted=seq.wanted - seq.sampled,
            ready=True,
            kv_version=seq.kv_version,
        )
        self._decode[flow.worker].add(flow.part, now)

    def _decoded(self, part: Seq, whole: list[Seq]) -> None:
        flow = self._flows[part.name]
        self._book(flow)
        self._finish(flow, whole)

    def _finish(self, flow: _Flow, whole: list[Seq]) -> None:
        flow.seq.stage = Stage.DONE
        del self._flows[flow.seq.name]
        whole.append(flow.seq)

    def _book(self, flow: _Flow) -> None:
        """What a worker did for a request, on the request."""
        seq, part = flow.seq, flow.part
        seq.grow(part.sampled)
        seq.cached += part.cached
        seq.prefilled += part.prefilled
        seq.queued_s += part.queued_s
        seq.prefill_s += part.prefill_s
        seq.decode_s += part.decode_s

    def _worker_of(self, flow: _Flow) -> StepClock:
        workers = self._prefill if flow.place is _Place.PREFILL else self._decode
        return workers[flow.worker]

    def _leave_home(self, session: str, home: _Home) -> None:
        if home.prefill >= 0:
            self._prefill[home.prefill].release(session)
        if home.decode >= 0:
            self._decode[home.decode].release(session)


def prefill_decode_engine(
    *,
    worker: str,
    hardware: str,
    prefill: Sequence[Roofline],
    decode: Sequence[Roofline],
    link: LinkClass,
    workload: Workload,
    weights: WeightSource,
    events: EventSink,
    settings: EngineSettings = DEFAULT_SETTINGS,
    content: Sampled = without_content,
) -> ModelledEngine:
    """Workers of one model as one engine. Its devices are ``WORKER/prefill-0`` and so on.

    Raises `ConfigError` when the model does not fit on a worker.
    """
    logs: list[BusyLog] = []

    def clocks(kind: str, rooflines: Sequence[Roofline]) -> list[StepClock]:
        made: list[StepClock] = []
        for index, roofline in enumerate(rooflines):
            log = BusyLog(f"{worker}/{kind}-{index}", roofline.gpu.name, events)
            logs.append(log)
            made.append(
                StepClock(
                    roofline,
                    capacity=roofline.kv_capacity_tokens,
                    step_tokens=settings.step_tokens,
                    most_running=settings.most_running,
                    busy=log.add,
                )
            )
        return made

    machine = PrefillDecode(
        prefill=clocks("prefill", prefill),
        decode=clocks("decode", decode),
        link=link,
        kv_bytes=decode[0].model.kv_bytes_per_token,
    )
    return ModelledEngine(
        worker=worker,
        hardware=hardware,
        machine=machine,
        logs=logs,
        workload=workload,
        weights=weights,
        settings=settings,
        content=content,
    )
