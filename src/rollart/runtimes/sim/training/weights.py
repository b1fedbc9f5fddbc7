"""The way of new weights from trainer to engines: pushed once, pulled by each engine.

Owns the versions in a store near the engines. A push carries a version bucket by bucket over one
slow link; each attached engine pulls a bucket over its own link as soon as the store has it, while
it generates and while the rest is still on its way. What `pulled` makes an engine wait for is what
is left then, and loading it into the GPUs; no share of it is assumed. The mode "blocking" has none
of this: at the update the weights cross the slow link, and then each engine pulls them.

Nobody else is on an engine's link, so when it has a version follows from when the buckets came to
the store: it is reckoned at the commit, and a pull in the background costs no event.

Invariant: a version is readable once `push` has returned and until it is collected or abandoned;
one that an engine waits for is never collected, so the store holds at most `keep`, those awaited
and those on their way.
Who waits: `push` for the slow link, which is one of `Network`; `pulled` for the engine's own.
"""

import asyncio
import math
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from functools import partial
from typing import Literal

from rollart.core.errors import ConfigError, RollartError, WeightsMissing
from rollart.runtimes.sim.hardware.catalogue import LinkClass, link
from rollart.runtimes.sim.hardware.model_shape import ModelShape
from rollart.runtimes.sim.hardware.network import Network, Transfer

Crossed = Callable[[float, float], None]
"""Told when weights were on the slow link: begin and end, loop time in seconds."""

_PUSH = "weights push"


@dataclass(frozen=True, slots=True, kw_only=True)
class WeightSettings:
    """How weights travel.

    Attributes:
        mode: "async" as in the RollArt paper (arXiv 2512.22560), or "blocking", its baseline.
        bucket_gb: size of a bucket, 1e9 B (the paper's 1 GB).
        push: the link from the trainer to the store.
        pull: the link of each engine to the store. No two engines share one, since the store is
            spread over the engines' own machines; it carries one version after another.
        install: from an engine's host memory into its GPUs; the engine pauses for it.
        keep: committed versions that the store holds, the newest ones.
    """

    mode: Literal["async", "blocking"] = "async"
    bucket_gb: float = 1.0
    push: LinkClass = field(default_factory=lambda: link("ethernet-200-push"))
    pull: LinkClass = field(default_factory=lambda: link("ethernet-200-pull"))
    install: LinkClass = field(default_factory=lambda: link("weights-install"))
    keep: int = 2

    def __post_init__(self) -> None:
        """Raises `ConfigError` for buckets or a store that hold nothing."""
        if not self.bucket_gb > 0:
            raise ConfigError(f"bucket_gb = {self.bucket_gb}; a bucket holds more than 0, say 1.0")
        if self.keep < 1:
            raise ConfigError(f"keep = {self.keep}; the newest version is always kept; use 1")


@dataclass(frozen=True, slots=True, kw_only=True)
class PullAccount:
    """What a version cost an engine, in seconds.

    Attributes:
        pull_s: that its bytes were on the engine's link, in the background or not.
        exposed_s: that the engine waited for it, all told.
    """

    version: int
    pull_s: float
    exposed_s: float


def pull_end(arrivals: Sequence[tuple[float, float]], begin: float, own: LinkClass) -> float:
    """When an engine has all buckets that it pulls one by one over a link of its own.

    Args:
        arrivals: of each bucket, when the store has it (s) and its bytes.
        begin: when the engine may begin (s).
    """
    at = begin
    for number, (arrived, nbytes) in enumerate(arrivals):
        at = max(at, arrived) + nbytes / (own.gb_s * 1e9)
        if number == 0:
            at += own.latency_s
    return at


@dataclass(slots=True, eq=False)
class _Puller:
    """An engine: since when it pulls, when its link is free, and when it has which version (s)."""

    since: float
    free_at: float
    has_at: dict[int, float] = field(default_factory=dict[int, float])


@dataclass(slots=True, eq=False)
class _Held:
    """A version in the store; `there` is set when all of it has crossed the slow link."""

    number: int
    crossed: Crossed | None
    there: asyncio.Future[None]
    readable: bool = False
    begun: float | None = None
    arrivals: list[tuple[float, float]] = field(default_factory=list[tuple[float, float]])
    transfer: Transfer | None = None
    readers: int = 0
    waiting: dict[asyncio.Future[None], str] = field(
        default_factory=dict[asyncio.Future[None], str]
    )


class ModelledStore:
    """Versions of one model's weights. Engines are known by id and attach at their first pull.

    The trainer calls `push`; an engine calls `pulled` in its update and `detach` when it is gone.
    """

    def __init__(self, *, model: ModelShape, settings: WeightSettings, network: Network) -> None:
        self._bytes = model.weight_bytes
        self._settings = settings
        self._network = network
        self._bucket = settings.bucket_gb * 1e9
        self._buckets = max(1, math.ceil(self._bytes / self._bucket))
        self._held: dict[int, _Held] = {}
        self._engines: dict[str, _Puller] = {}
        network.add(_PUSH, settings.push)

    # -- the trainer's side --------------------------------------------------------------------

    async def push(self, version: int, crossed: Crossed | None = None) -> None:
        """Commit a version; returns when engines may read it.

        Args:
            crossed: told when the weights were on the slow link; in the blocking mode that is at
                the first update to this version.

        Raises `RollartError` for a version that is there, `WeightsMissing` when it was
        abandoned meanwhile. Cancelled, it leaves nothing behind.
        """
        if version in self._held:
            raise RollartError(f"weights of version {version} are here already; push the next one")
        held = _Held(number=version, crossed=crossed, there=_future())
        self._held[version] = held
        if self._settings.mode == "async":
            try:
                self._cross(held)
                await asyncio.shield(held.there)
            except BaseException:
                self._drop(held, f"the push of version {version} was given up")
                raise
            self._pull_all(held)
        held.readable = True
        self._collect()

    def abandon(self, version: int, reason: str) -> None:
        """End a push that is under way: whoever awaits it gets `WeightsMissing` with the reason."""
        held = self._held.get(version)
        if held is not None and not held.there.done():
            self._drop(held, reason)

    # -- the engines' side ---------------------------------------------------------------------

    def attach(self, engine: str) -> None:
        """Have the engine pull every version from now on in the background. Idempotent."""
        if engine not in self._engines:
            self._engines[engine] = _Puller(since=_now(), free_at=_now())

    def detach(self, engine: str) -> None:
        """The engine is gone, and what it had pulled with it. Idempotent."""
        self._engines.pop(engine, None)
        for held in self._held.values():
            for waiter, name in held.waiting.items():
                if name == engine:
                    _fail(waiter, f"engine {engine} left the weight store")

    async def pulled(self, engine: str, version: int) -> PullAccount:
        """Returns when the engine has the version in its GPUs.

        What is pulled is used once: the same version again is pulled again.

        Raises `WeightsMissing`: it was never committed, is collected or abandoned, or the engine
        left. Cancelled, it leaves the pull to go on in the background.
        """
        began = _now()
        held = self._held.get(version)
        if held is None or not held.readable:
            raise WeightsMissing(
                f"weights of version {version} are not here; read one of {self.versions()}"
            )
        self.attach(engine)
        puller = self._engines[engine]
        held.readers += 1
        try:
            if held.begun is None:
                self._cross(held)
            await asyncio.shield(held.there)
            await self._until(self._has_at(held, puller), held, engine)
            await asyncio.sleep(self._settings.install.seconds(self._bytes))
        finally:
            held.readers -= 1
            self._collect()
        for older in [number for number in puller.has_at if number <= version]:
            del puller.has_at[older]
        pull_s = self._settings.pull.seconds(self._bytes)
        return PullAccount(version=version, pull_s=pull_s, exposed_s=_now() - began)

    # -- what there is -------------------------------------------------------------------------

    def versions(self) -> tuple[int, ...]:
        """Readable versions, oldest first."""
        return tuple(sorted(held.number for held in self._held.values() if held.readable))

    @property
    def held_bytes(self) -> float:
        """Bytes in the store now, those of a push under way included."""
        return sum(nbytes for held in self._held.values() for _, nbytes in held.arrivals)

    # -- how bytes move ------------------------------------------------------------------------

    def _cross(self, held: _Held) -> None:
        """Put the next bucket on the slow link; the last one is what is left."""
        follows = held.begun is not None
        if held.begun is None:
            held.begun = _now()
        size = min(self._bucket, self._bytes - len(held.arrivals) * self._bucket)
        arrived = partial(self._bucket_crossed, held, size)
        held.transfer = self._network.start(_PUSH, size, arrived, follows=follows)

    def _bucket_crossed(self, held: _Held, size: float) -> None:
        held.arrivals.append((_now(), size))
        if len(held.arrivals) < self._buckets:
            self._cross(held)
        else:
            self._tell_crossed(held)
            held.there.set_result(None)

    def _pull_all(self, held: _Held) -> None:
        """Reckon when each attached engine has the version that has just come whole."""
        ends: dict[float, float] = {}  # most engines begin at once
        for puller in self._engines.values():
            begin = max(held.begun or 0.0, puller.since, puller.free_at)
            if begin not in ends:
                ends[begin] = pull_end(held.arrivals, begin, self._settings.pull)
            puller.has_at[held.number] = puller.free_at = ends[begin]

    def _has_at(self, held: _Held, puller: _Puller) -> float:
        """When an engine has a version; it begins to pull now if it did not before."""
        found = puller.has_at.get(held.number)
        if found is None:
            begin = max(_now(), puller.free_at)
            found = pull_end(held.arrivals, begin, self._settings.pull)
            puller.has_at[held.number] = puller.free_at = found
        return found

    async def _until(self, when: float, held: _Held, engine: str) -> None:
        """Wait for the engine's link, unless the version or the engine is gone sooner."""
        if when <= _now():
            return
        waiter = _future()
        held.waiting[waiter] = engine
        timer = asyncio.get_running_loop().call_at(when, _end, waiter)
        try:
            await waiter
        finally:
            timer.cancel()
            del held.waiting[waiter]

    # -- how versions go -----------------------------------------------------------------------

    def _collect(self) -> None:
        for number in self.versions()[: -self._settings.keep]:
            held = self._held[number]
            if not held.readers:
                self._drop(held, f"version {number} was collected")

    def _drop(self, held: _Held, reason: str) -> None:
        if self._held.get(held.number) is not held:
            return
        del self._held[held.number]
        held.readable = False
        if held.transfer is not None and not held.transfer.over:
            held.transfer.cancel()
            self._tell_crossed(held)
        _fail(held.there, reason)
        for puller in self._engines.values():
            end = puller.has_at.pop(held.number, None)
            if end is not None and end == puller.free_at:
                puller.free_at = min(end, _now())

    def _tell_crossed(self, held: _Held) -> None:
        if held.crossed is not None and held.begun is not None:
            held.crossed(held.begun, _now())


def _now() -> float:
    return asyncio.get_running_loop().time()


def _future() -> asyncio.Future[None]:
    return asyncio.get_running_loop().create_future()


def _end(future: asyncio.Future[None]) -> None:
    if not future.done():
        future.set_result(None)


def _fail(future: asyncio.Future[None], reason: str) -> None:
    """Whoever waits gets the reason; it may be that nobody does."""
    if not future.done():
        future.set_exception(WeightsMissing(reason))
        future.exception()  # seen: an error that nobody awaits is no fault
