"""Where rewards are computed: nowhere in particular, on GPUs of their own, or serverless.

Owns who computes what. Invariant: a worker takes at most `at_once` calls, and a call that waits
takes the first place that comes free, in order of asking. When a worker was busy is told as
`DeviceBusy`, and that it is there as `DeviceReserved`: when it comes, and when an instance goes
while the run does. So busy over reserved seconds is how well it was used.
"""

import asyncio
from collections import deque
from collections.abc import Callable
from dataclasses import dataclass
from typing import Protocol

from rollart.core.events import DeviceBusy, DeviceReserved, Work
from rollart.core.ports import EventSink


class RewardPool(Protocol):
    """Places in which rewards are computed."""

    async def compute(self, seconds: float) -> None:
        """Wait for a place, hold it for so long, and give it back, also when cancelled."""
        ...

    async def close(self) -> None: ...


class Anywhere:
    """No place is ever short: a rule on some CPU."""

    async def compute(self, seconds: float) -> None:
        await asyncio.sleep(seconds)

    async def close(self) -> None:
        return


@dataclass(slots=True, eq=False)
class _Worker:
    """A GPU or an instance. `since` is when it came, `busy_since` when it last began to work."""

    name: str
    since: float
    running: int = 0
    busy_since: float = 0.0
    retires: asyncio.TimerHandle | None = None


class _Workers:
    """The workers of a pool and who waits for one.

    Args:
        name: of the pool; worker n is `name-n`.
        spread: whether calls go to the least busy worker with a place, or to the most busy.
        on_idle: told of a worker that has nothing to do.
    """

    def __init__(
        self,
        name: str,
        *,
        hardware: str,
        at_once: int,
        spread: bool,
        events: EventSink,
        on_idle: "Callable[[_Worker], None]" = lambda worker: None,
    ) -> None:
        self._name = name
        self._hardware = hardware
        self._at_once = at_once
        self._sign = 1 if spread else -1
        self._events = events
        self._on_idle = on_idle
        self._numbers = 0
        self._queue: deque[asyncio.Future[_Worker]] = deque()
        self.all: dict[str, _Worker] = {}

    @property
    def waiting(self) -> int:
        return sum(not one.done() for one in self._queue)

    @property
    def has_room(self) -> bool:
        return any(worker.running < self._at_once for worker in self.all.values())

    def add(self) -> None:
        """A new worker, which takes from the queue at once."""
        worker = _Worker(name=f"{self._name}-{self._numbers}", since=_now())
        self._numbers += 1
        self.all[worker.name] = worker
        self._tell_there(worker, None)
        for _ in range(self._at_once):
            self._serve(worker)
        if worker.running == 0:
            self._on_idle(worker)

    def retire(self, worker: _Worker) -> None:
        """It goes."""
        del self.all[worker.name]
        self._tell_there(worker, _now())

    def clear(self) -> None:
        """All are gone with the run, whose log has ended."""
        for worker in self.all.values():
            if worker.retires is not None:
                worker.retires.cancel()
        self.all.clear()

    async def take(self) -> _Worker:
        """A worker with a place that is now held."""
        with_room = [worker for worker in self.all.values() if worker.running < self._at_once]
        if with_room:
            return self._hold(min(with_room, key=lambda worker: self._sign * worker.running))
        place: asyncio.Future[_Worker] = asyncio.get_running_loop().create_future()
        self._queue.append(place)
        try:
            return await place
        except asyncio.CancelledError:
            if place.done() and not place.cancelled():
                self.give_back(place.result())  # it came together with the cancellation
            raise

    def give_back(self, worker: _Worker) -> None:
        """The place is free, or the next call's."""
        worker.running -= 1
        if worker.running == 0:
            self._tell_busy(worker)
        self._serve(worker)
        if worker.running == 0 and worker.name in self.all:
            self._on_idle(worker)

    def _serve(self, worker: _Worker) -> None:
        """A free place of it goes to whoever waits longest."""
        while self._queue:
            place = self._queue.popleft()
            if not place.done():
                place.set_result(self._hold(worker))
                return

    def _hold(self, worker: _Worker) -> _Worker:
        if worker.running == 0:
            worker.busy_since = _now()
        worker.running += 1
        if worker.retires is not None:
            worker.retires.cancel()
            worker.retires = None
        return worker

    def _tell_busy(self, worker: _Worker) -> None:
        if (end := _now()) > worker.busy_since:
            self._events.emit(
                DeviceBusy(
                    device=worker.name,
                    hardware=self._hardware,
                    work=Work.REWARD,
                    begin=worker.busy_since,
                    end=end,
                )
            )

    def _tell_there(self, worker: _Worker, end: float | None) -> None:
        self._events.emit(
            DeviceReserved(device=worker.name, hardware=self._hardware, begin=worker.since, end=end)
        )


class Dedicated:
    """So many GPUs that do nothing else."""

    def __init__(
        self, name: str, *, hardware: str, gpus: int, at_once: int, events: EventSink
    ) -> None:
        self._workers = _Workers(
            name, hardware=hardware, at_once=at_once, spread=True, events=events
        )
        for _ in range(gpus):
            self._workers.add()

    async def compute(self, seconds: float) -> None:
        worker = await self._workers.take()
        try:
            await asyncio.sleep(seconds)
        finally:
            self._workers.give_back(worker)

    async def close(self) -> None:
        return


@dataclass(frozen=True, slots=True, kw_only=True)
class Scaling:
    """How instances come and go.

    Attributes:
        cold_start_s: seconds until a new one works.
        keep_s: seconds that an idle one stays.
        limit: instances there can be.
        burst: instances that may start at once; `growth_per_min` more may start a minute.
    """

    cold_start_s: float
    keep_s: float
    limit: int
    burst: int
    growth_per_min: float


class Serverless:
    """Instances that come with the calls, none at rest."""

    def __init__(
        self, name: str, *, hardware: str, at_once: int, scaling: Scaling, events: EventSink
    ) -> None:
        self._workers = _Workers(
            name,
            hardware=hardware,
            at_once=at_once,
            spread=False,
            events=events,
            on_idle=self._retire_later,
        )
        self._at_once = at_once
        self._scaling = scaling
        self._starting: dict[int, asyncio.TimerHandle] = {}
        self._started = 0
        self._may_start = float(scaling.burst)
        self._counted_at = _now()
        self._later: asyncio.TimerHandle | None = None

    @property
    def instances(self) -> int:
        """Those that work or start now."""
        return len(self._workers.all) + len(self._starting)

    async def compute(self, seconds: float) -> None:
        if not self._workers.has_room:
            self._grow(self._workers.waiting + 1)
        worker = await self._workers.take()
        try:
            await asyncio.sleep(seconds)
        finally:
            self._workers.give_back(worker)

    async def close(self) -> None:
        """End every instance."""
        for timer in (*self._starting.values(), *filter(None, [self._later])):
            timer.cancel()
        self._starting.clear()
        self._workers.clear()

    def _grow(self, waiting: int) -> None:
        """Start instances for those who wait, as far as the platform lets."""
        scaling, loop = self._scaling, asyncio.get_running_loop()
        now = loop.time()
        grown = (now - self._counted_at) * scaling.growth_per_min / 60
        self._may_start = min(float(scaling.burst), self._may_start + grown)
        self._counted_at = now
        while len(self._starting) * self._at_once < waiting and self.instances < scaling.limit:
            if self._may_start < 1:
                self._grow_later(waiting)
                return
            self._may_start -= 1
            self._start(scaling.cold_start_s)

    def _start(self, seconds: float) -> None:
        number, self._started = self._started, self._started + 1

        def ready() -> None:
            del self._starting[number]
            self._workers.add()

        self._starting[number] = asyncio.get_running_loop().call_later(seconds, ready)

    def _grow_later(self, waiting: int) -> None:
        if self._later is not None or self._scaling.growth_per_min <= 0:
            return

        def again() -> None:
            self._later = None
            self._grow(self._workers.waiting)

        seconds = (1 - self._may_start) * 60 / self._scaling.growth_per_min
        self._later = asyncio.get_running_loop().call_later(seconds, again)

    def _retire_later(self, worker: _Worker) -> None:
        loop = asyncio.get_running_loop()
        worker.retires = loop.call_later(self._scaling.keep_s, self._workers.retire, worker)


def _now() -> float:
    return asyncio.get_running_loop().time()
