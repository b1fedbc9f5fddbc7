"""Whether one platform is up, as its calls and its own health say.

Owns the task that asks a platform in doubt, or down, for its health. Invariant: while the platform
is down that task lives, so it is found to be up again; each turn is told once.
"""

import asyncio
import math

from rollart.backends.rewards.calling.answers import own_answer
from rollart.backends.rewards.calling.breaker import Breaker
from rollart.backends.rewards.calling.health import KEY
from rollart.backends.rewards.calling.line import Line
from rollart.backends.rewards.calling.records import CallSettings, PlatformState, StateSink
from rollart.backends.rewards.calling.retries import try_s
from rollart.backends.rewards.platform import ALIVE, DOWN, Fault, PlatformFault
from rollart.core.errors import ConfigError
from rollart.core.scoring.wire import Request, encode_request


class Watch:
    """Over the platform at the end of a line.

    Args:
        url, fallback: as `PlatformState` tells them.

    Attributes:
        reason: why it went down last.
        signs: of life that it has given.
        turn: done when it next goes down or comes up.
    """

    def __init__(
        self, line: Line, *, url: str, fallback: str, settings: CallSettings, on_state: StateSink
    ) -> None:
        self.reason = ""
        self.signs = 0
        self.turn: asyncio.Future[None] = asyncio.get_running_loop().create_future()
        self._line = line
        self._url = url
        self._fallback = fallback
        self._settings = settings
        self._on_state = on_state
        self._breaker = Breaker(settings.breaker_failures)
        self._probing: asyncio.Task[None] | None = None
        self._closed = False

    @property
    def is_down(self) -> bool:
        """Whether calls have to wait, or to go elsewhere."""
        return self._breaker.is_down

    def note(self, key: str, fault: PlatformFault, *, full: bool) -> None:
        """A fault of the call of `key`, whose try was `full`, not cut short by its own deadline."""
        if fault.fault in ALIVE:
            self.lives()
        elif fault.fault in DOWN and (full or fault.fault is not Fault.TIMEOUT):
            if self._breaker.failed(key, asyncio.get_running_loop().time()):
                self._goes_down(fault)
            elif self._breaker.in_doubt:
                self._starts_probe()

    def lives(self) -> None:
        """It answered something."""
        self.signs += 1
        down_s = self._breaker.lives(asyncio.get_running_loop().time())
        if down_s is not None:
            self._turns()
            self._tell(PlatformState(url=self._url, down=False, down_s=down_s))

    async def close(self) -> None:
        """Ask no more."""
        self._closed = True
        if self._probing is not None:
            self._probing.cancel()
            await asyncio.wait((self._probing,))

    def _goes_down(self, fault: PlatformFault) -> None:
        self._starts_probe()  # before all else: without it the platform would never be up again
        self.reason = f"{fault.fault}: {fault}"
        self._turns()
        self._tell(
            PlatformState(url=self._url, down=True, reason=self.reason, fallback=self._fallback)
        )

    def _tell(self, state: PlatformState) -> None:
        """Whoever cannot be told must not cost a call its verdict, nor end the probe."""
        try:
            self._on_state(state)
        except Exception as error:
            told = {"message": f"{state} could not be told", "exception": error}
            asyncio.get_running_loop().call_exception_handler(told)

    def _starts_probe(self) -> None:
        if not self._closed and (self._probing is None or self._probing.done()):
            self._probing = asyncio.get_running_loop().create_task(self._probe())

    def _turns(self) -> None:
        turned, self.turn = self.turn, asyncio.get_running_loop().create_future()
        turned.set_result(None)

    async def _probe(self) -> None:
        """Ask for its health, one request at a time: if in doubt, and until it is up."""
        every_s, limit_s = self._settings.breaker_s, self._settings.function_s
        seconds = every_s if limit_s is None else max(every_s, try_s(math.inf, limit_s))
        if self._breaker.in_doubt:
            await self._probe_once(seconds)
        while self._breaker.is_down:
            await asyncio.wait((self.turn,), timeout=every_s)
            if self._breaker.is_down:
                await self._probe_once(seconds)

    async def _probe_once(self, seconds: float) -> None:
        try:
            own_answer(
                await self._line.ask(encode_request(Request(key=KEY)), KEY, seconds), key=KEY
            )
        except PlatformFault as fault:
            if fault.fault not in ALIVE:
                self.reason = f"{fault.fault}: {fault}"
                if self._breaker.silent(asyncio.get_running_loop().time()):
                    self._goes_down(fault)
                return
        except ConfigError:
            pass  # it lives; the calls that go there say what is wrong
        self.lives()
