"""Is the function there, and is it the right one? Asked once, before anything depends on it.

Invariant: whatever is wrong is a `ConfigError` with what to do about it.
"""

import asyncio
import urllib.parse
from collections.abc import Awaitable, Callable

from rollart.backends.rewards.calling.answers import own_answer
from rollart.backends.rewards.calling.retries import GiveUp, Retries
from rollart.backends.rewards.platform import Fault, PlatformFault
from rollart.backends.rewards.urls import ray_command
from rollart.core.errors import ConfigError
from rollart.core.scoring.places import LOCAL
from rollart.core.scoring.wire import Answer, Request

KEY = "health"
TRIES = 5  # pauses of 0.1 s to 1.6 s lie between; enough for what scales from zero

Exchange = Callable[[Request, float], Awaitable[bytes]]
"""Sends a request within seconds; raises `PlatformFault` or `ConfigError`."""

_TARGETS = {"lambda": "lambda", "fc": "fc", "http": "cloudrun", "https": "cloudrun"}


async def check_health(
    exchange: Exchange, *, url: str, version: str | None, seconds: float
) -> Answer:
    """What the function says of itself. `version` None takes any. Raises `ConfigError`."""
    loop = asyncio.get_running_loop()
    deadline = loop.time() + seconds
    retries = Retries(f"{KEY} {url}")
    tries = 0
    while True:
        tries += 1
        try:
            answer = own_answer(await exchange(Request(key=KEY), deadline - loop.time()), key=KEY)
            break
        except PlatformFault as fault:
            try:
                pause_s = retries.pause_s(fault, deadline - loop.time())
            except GiveUp:
                raise _unhealthy(url, fault, tries) from fault
            if tries == TRIES:
                raise _unhealthy(url, fault, tries) from fault
        await asyncio.sleep(pause_s)
    if answer.error or not answer.function:
        raise ConfigError(
            f"{url}: answers to a health call with {answer.error or 'no function'!r}; deploy the "
            f"function again: {_command(url, '')}"
        )
    if version is not None and answer.version != version:
        raise ConfigError(
            f"{url}: version {answer.version or 'unknown'} of {answer.function} is deployed there, "
            f"and this run has version {version}; deploy it again: "
            f"{_command(url, answer.function)}{_pinned(answer.version)}"
        )
    return answer


def _pinned(version: str) -> str:
    """How a URL asks for what is deployed; it is not shown whole, so it may have a query."""
    if not version:
        return ""
    return (
        f"; or, if that one is meant, say so in the job's URL before any #: ?version={version}, or "
        f"&version={version} where it has a ? already, in place of a version that it names"
    )


def _unhealthy(url: str, fault: PlatformFault, tries: int) -> ConfigError:
    if url.startswith(LOCAL):
        return _unhealthy_here(url, fault, tries)
    if fault.fault in (Fault.FOREIGN, Fault.GARBLED):
        return ConfigError(
            f"{url}: answers, but is no reward function of this project ({fault}); deploy one "
            f"there: {_command(url, '')}, or correct the URL"
        )
    if fault.fault in (Fault.REFUSED, Fault.TOO_LARGE):
        return ConfigError(
            f"{url}: refuses a health call ({fault.fault}: {fault}); correct the URL, or deploy "
            f"the function there: {_command(url, '')}"
        )
    if fault.fault is Fault.CRASHED:
        return ConfigError(
            f"{url}: the function does not start ({fault}); see its log there, try it here with "
            f"`rollart rewards serve {_FUNCTION}`, and deploy it again"
        )
    return ConfigError(
        f"{url}: does not answer ({tries} tries, the last: {fault.fault}: {fault}); check that it "
        f"is deployed and can be reached from here: {_TEST}"
    )


def _unhealthy_here(url: str, fault: PlatformFault, tries: int) -> ConfigError:
    """Of a function in processes of this machine: nothing is deployed, and its code is at hand."""
    if fault.fault is Fault.TIMEOUT:
        return ConfigError(
            f"{url}: does not answer ({tries} tries, the last: {fault}); if that is its own "
            "@serverless(timeout=…), declare a longer one; if importing it takes so long, move "
            "that work out of its module's body"
        )
    return ConfigError(
        f"{url}: cannot be run here ({tries} tries, the last: {fault.fault}: {fault}); mend what "
        "it raised; all of its words are in its log, which `rollart rewards` has on standard error"
    )


def _command(url: str, function: str) -> str:
    parts = urllib.parse.urlsplit(url)
    if parts.scheme == "serve":
        return f"`{ray_command(parts.netloc, function or _FUNCTION)}`"
    target = _TARGETS.get(parts.scheme)
    if target is None:
        return f"{_TEST} says more"
    return (
        f"`rollart rewards package {function or _FUNCTION} --target {target} --out DIR` prints how"
    )


_FUNCTION = "module:function"
# The URL here is what may be shown of the job's: without what it is reached and compared by.
_TEST = "`rollart rewards test` with the job's own URL"
