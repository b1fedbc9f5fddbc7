"""`@serverless`: what a reward function declares about where and how it runs.

Invariant: the decorator tags and never wraps; bad arguments are refused where they stand.
"""

import re
from collections.abc import Callable
from dataclasses import dataclass
from typing import TypeVar

from rollart.core.errors import ConfigError

Function = TypeVar("Function", bound=Callable[..., object])

SCHEMES = ("local", "http", "https", "fc", "lambda", "serve")
"""Platforms, by the scheme of a URL."""

_MARK = "_rollart_serverless"
_URL = re.compile(r"([a-z][a-z0-9+.-]*)://\S+")
_MEMORY = re.compile(r"(\d{1,18})\s*(MB|GB)")
_MIB = {"MB": 1, "GB": 1024}

# Far above what any platform takes, and below what breaks a process limit, a file or a conversion.
LONGEST_S = 7 * 86_400
LARGEST_MIB = 1 << 20  # 1 TiB
MOST_INSTANCES = 1_000_000


@dataclass(frozen=True, slots=True, kw_only=True)
class ServerlessSettings:
    """How one function wants to be run; None leaves it to the platform.

    Attributes:
        url: where, such as ``lambda://judge?region=eu-west-1``; None is the job's own pool.
        timeout_s: seconds one call may take.
        memory_mib: memory of one instance.
        concurrency: instances at most.
        network: whether it may reach the network; of `local` and of its children it is enforced,
            as is that without it files are written in a folder of its own only, as far as the
            operating system lets a process take that from itself.
        reuse: whether a local process answers several calls in one memory.
    """

    url: str | None = None
    timeout_s: float | None = None
    memory_mib: int | None = None
    concurrency: int | None = None
    network: bool = False
    reuse: bool = False


NO_SETTINGS = ServerlessSettings()


def serverless(
    url: str | None = None,
    *,
    timeout: float | None = None,
    memory: int | str | None = None,
    concurrency: int | None = None,
    network: bool = False,
    reuse: bool = False,
) -> Callable[[Function], Function]:
    """Declare a reward function ``score(trajectory) -> float | Verdict`` to run serverless.

    Args:
        url: ``local://module:function``, ``http(s)://…``, ``fc://…``, ``lambda://…`` or
            ``serve://…``; left out, it runs in the job's own pool of processes. A job that
            names a URL uses that instead.
        timeout: seconds that one call may take in its process, a week at most, after which this
            project's own processes are killed; a job's ``timeouts.reward_s`` is above it.
        memory: of one instance, such as ``"512MB"``, 1 TiB at most; a number is MiB.
        concurrency: instances at most, itself 1,000,000 at most.
        network: whether it may reach the network, and write files anywhere, where this project
            runs it. Refusing that is best effort: where the system does not, the log says so.
        reuse: whether a process of this project's answers several calls in one memory, for what
            loads much at its first call; else each call has a fork of its own, and nothing that an
            answer does to its scorer is there for the next.

    Raises:
        ConfigError: at import, naming argument, value and a valid one.
    """
    where = "serverless"
    if url is not None:
        found = _URL.fullmatch(str(url))
        if found is None or found[1] not in SCHEMES:
            known = ", ".join(f"{scheme}://" for scheme in SCHEMES)
            raise ConfigError(f"{where}(url={url!r}): no platform has this URL; use one of {known}")
    if timeout is not None and not _positive(timeout, LONGEST_S):
        raise ConfigError(
            f"{where}(timeout={_told(timeout)}): must be seconds above 0, {LONGEST_S} at most; use "
            "timeout=10"
        )
    if concurrency is not None and not (
        _positive(concurrency, MOST_INSTANCES) and concurrency % 1 == 0
    ):
        raise ConfigError(
            f"{where}(concurrency={_told(concurrency)}): must be a whole number above 0, "
            f"{MOST_INSTANCES} at most; use concurrency=8"
        )
    settings = ServerlessSettings(
        url=url,
        timeout_s=None if timeout is None else float(timeout),
        memory_mib=None if memory is None else _mebibytes(memory),
        concurrency=None if concurrency is None else int(concurrency),
        network=bool(network),
        reuse=bool(reuse),
    )

    def tag(function: Function) -> Function:
        if not callable(function) or isinstance(function, type):
            raise ConfigError(
                f"@{where} stands on {function!r}, which is no function; put it right above `def` "
                "or `async def` of a function of one trajectory"
            )
        setattr(function, _MARK, settings)
        return function

    return tag


def declared_settings(function: object) -> ServerlessSettings:
    """What a function declares; nothing by default."""
    return getattr(function, _MARK, NO_SETTINGS)


def _positive(value: object, most: int) -> bool:
    """Whether it is a number above 0 and no larger than that; neither infinity nor NaN is."""
    return isinstance(value, int | float) and not isinstance(value, bool) and 0 < value <= most


def _mebibytes(memory: object) -> int:
    mebibytes = memory
    if isinstance(memory, str) and (found := _MEMORY.fullmatch(memory.strip())):
        mebibytes = int(found[1]) * _MIB[found[2]]
    if isinstance(mebibytes, int) and _positive(mebibytes, LARGEST_MIB):
        return mebibytes
    raise ConfigError(
        f'serverless(memory={_told(memory)}): must be MiB or such as "512MB", {LARGEST_MIB} MiB at '
        'most; use memory="512MB"'
    )


def _told(value: object) -> str:
    """A value in a message of one line; Python itself has no digits for the longest numbers."""
    try:
        shown = repr(value)
    except ValueError:
        return "a number of thousands of digits"
    return shown if len(shown) <= 100 else f"{shown[:100]}…"
