"""Links under virtual time: transfers that share a link share its rate evenly.

A fluid model: while n transfers are on a link, each gets 1/n of its rate. Work is done only when
one begins, ends or is taken off, O(log n) each: all on a link are served alike, so a link counts
the bytes that it gave each so far, and a transfer ends when that count reaches where it began plus
its size. Invariant: a link has at most one timer, for the transfer that ends next; transfers that
end at once end in the order they began. Nobody waits here but the caller of `transfer`; who cancels
it takes the rest of its bytes off the link.
"""

import asyncio
import heapq
from collections.abc import Callable, Mapping

from rollart.core.errors import ConfigError
from rollart.runtimes.sim.hardware.catalogue import LinkClass

_TOGETHER_BYTES = 1e-3
"""Ends this close together are one: sizes are whole bytes, their sums are not quite."""


class Transfer:
    """Bytes on their way, as `Network.start` returns them."""

    def __init__(self, done: Callable[[], None]) -> None:
        self._done = done
        self._over = False
        self._leave: Callable[[], None] | None = None

    @property
    def over(self) -> bool:
        """Whether the last byte came, or it was cancelled."""
        return self._over

    def cancel(self) -> None:
        """Take it off: `done` is not called, and the others on the link go faster from now on.

        Of one that is over it changes nothing.
        """
        if not self._over:
            self._over = True
            if self._leave is not None:
                self._leave()

    def finish(self) -> None:
        """The last byte came. For links only."""
        if not self._over:
            self._over = True
            self._done()

    def left_by(self, leave: Callable[[], None] | None) -> None:
        """How to take it off where it is now. For links only."""
        self._leave = leave


class _Pipe:
    """One link: what is on it, and how many bytes each has been given since it was last idle."""

    def __init__(self, link: LinkClass) -> None:
        self.link = link
        self._rate = link.gb_s * 1e9
        self._given = 0.0
        self._at = 0.0
        self._active = 0
        self._begun = 0
        self._ends: list[tuple[float, int, Transfer]] = []  # a heap; the cancelled stay until due
        self._timer: asyncio.TimerHandle | None = None

    def begin(self, transfer: Transfer, nbytes: float) -> None:
        self._advance()
        self._begun += 1
        heapq.heappush(self._ends, (self._given + nbytes, self._begun, transfer))
        self._active += 1
        transfer.left_by(self._one_left)
        self._set_timer()

    def _one_left(self) -> None:
        self._advance()
        self._active -= 1
        self._set_timer()

    def _advance(self) -> None:
        """Give everybody what the time since the last change was worth."""
        now = asyncio.get_running_loop().time()
        if self._active:
            self._given += (now - self._at) * self._rate / self._active
        self._at = now

    def _set_timer(self) -> None:
        if self._timer is not None:
            self._timer.cancel()
            self._timer = None
        while self._ends and self._ends[0][2].over:
            heapq.heappop(self._ends)
        if not self._ends:
            self._given = 0.0  # nobody counts from it; small numbers keep their digits
            return
        left = max(self._ends[0][0] - self._given, 0.0)
        seconds = left * self._active / self._rate
        self._timer = asyncio.get_running_loop().call_later(seconds, self._due)

    def _due(self) -> None:
        """The first in the heap has ended, and whoever ends with it."""
        self._timer = None
        self._advance()
        self._given = max(self._given, self._ends[0][0])  # the timer was set for it
        ended: list[Transfer] = []
        while self._ends and self._ends[0][0] <= self._given + _TOGETHER_BYTES:
            transfer = heapq.heappop(self._ends)[2]
            if not transfer.over:
                transfer.left_by(None)  # it counts no more, even if another's end cancels it
                self._active -= 1
                ended.append(transfer)
        self._set_timer()
        for transfer in ended:
            transfer.finish()


class Network:
    """Links by name. Names are whatever its users agree on; classes come from the catalogue."""

    def __init__(self, links: Mapping[str, LinkClass] | None = None) -> None:
        self._pipes: dict[str, _Pipe] = {}
        for name, link in (links or {}).items():
            self.add(name, link)

    def add(self, name: str, link: LinkClass) -> None:
        """Make a link; the same one again changes nothing.

        Raises `ConfigError` for a rate or latency that no link has, and for another link's name.
        """
        if not (link.gb_s > 0 and link.latency_s >= 0):
            raise ConfigError(
                f"link {name}: {link.gb_s:g} GB/s after {link.latency_s:g} s; "
                "a link has a rate above 0 and a latency of 0 or more"
            )
        pipe = self._pipes.setdefault(name, _Pipe(link))
        if pipe.link != link:
            raise ConfigError(f"link {name} is {pipe.link} already; give {link} another name")

    async def transfer(self, link: str, nbytes: float) -> None:
        """Carry bytes over a link; returns when the last one is there.

        Cancelled, it leaves the link. Raises `ConfigError` for an unknown link or a negative size.
        """
        arrived: asyncio.Future[None] = asyncio.get_running_loop().create_future()

        def done() -> None:
            if not arrived.done():
                arrived.set_result(None)

        transfer = self.start(link, nbytes, done)
        try:
            await arrived
        finally:
            transfer.cancel()

    def start(
        self, link: str, nbytes: float, done: Callable[[], None], *, follows: bool = False
    ) -> Transfer:
        """Put bytes on a link without waiting; `done` is called when the last one is there.

        Args:
            follows: it goes on where another ended, so that the link's latency is not paid again.

        Raises `ConfigError` for an unknown link or a negative size.
        """
        pipe = self._pipe(link)
        if not nbytes >= 0:
            raise ConfigError(f"link {link}: {nbytes} bytes; a transfer has 0 or more")
        transfer = Transfer(done)
        if follows or not pipe.link.latency_s:
            pipe.begin(transfer, nbytes)
        else:
            loop = asyncio.get_running_loop()
            timer = loop.call_later(pipe.link.latency_s, pipe.begin, transfer, nbytes)
            transfer.left_by(timer.cancel)
        return transfer

    def _pipe(self, link: str) -> _Pipe:
        pipe = self._pipes.get(link)
        if pipe is None:
            raise ConfigError(f"no link {link!r}; there are {', '.join(self._pipes) or 'none'}")
        return pipe
