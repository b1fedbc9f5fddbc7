"""Waiting under a deadline, measured by the event loop's own clock."""

import asyncio
from collections.abc import Awaitable, Callable
from typing import TypeVar

T = TypeVar("T")


def now() -> float:
    """Loop time in seconds."""
    return asyncio.get_running_loop().time()


async def within(seconds: float, what: Awaitable[T], otherwise: Callable[[], Exception]) -> T:
    """The result of `what`; after `seconds` it is cancelled and `otherwise()` is raised."""
    scope = asyncio.timeout(seconds)
    try:
        async with scope:
            return await what
    except TimeoutError as error:
        if scope.expired():
            raise otherwise() from error
        raise
