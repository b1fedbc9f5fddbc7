"""The way to one platform: places, pauses, and every way of failing as one kind of fault.

Invariant: what goes over it ends by its seconds with bytes, a `PlatformFault` or a `ConfigError`,
whatever the platform raises; a wish for a pause is known to the limiter before anybody hears of it.
"""

import asyncio

from rollart.backends.rewards.calling.limiter import Limiter
from rollart.backends.rewards.platform import Fault, Platform, PlatformFault
from rollart.core.errors import ConfigError


class Line:
    """A platform behind the limiter that all functions on it share."""

    def __init__(self, platform: Platform, limiter: Limiter) -> None:
        self.platform = platform
        self.limiter = limiter

    @property
    def pause_s(self) -> float:
        """Seconds that the platform still wants no calls; below 0 for none."""
        return self.limiter.paused_until - asyncio.get_running_loop().time()

    async def ask(self, body: bytes, key: str, seconds: float) -> bytes:
        """Once there is a place: that the platform is busy, or asked for a pause, is no silence."""
        with self.limiter.ask() as place:
            await place.granted
            return await self.exchange(body, key, seconds)

    async def exchange(self, body: bytes, key: str, seconds: float) -> bytes:
        """The platform's answer, for who has a place. Raises `PlatformFault` or `ConfigError`."""
        try:
            async with asyncio.timeout(seconds) as scope:
                data = await self.platform.call(body, key=key, seconds=seconds)
        except PlatformFault as fault:
            if fault.retry_after_s is not None:
                self.limiter.pause(fault.retry_after_s)
            raise
        except ConfigError:
            raise
        except TimeoutError as error:
            raise PlatformFault(Fault.TIMEOUT, f"no answer within {seconds:.3g} s") from error
        except Exception as error:
            raise PlatformFault(Fault.GARBLED, f"{type(error).__name__}: {error}") from error
        if scope.expired():
            raise PlatformFault(Fault.TIMEOUT, f"the answer came after {seconds:.3g} s")
        return data
