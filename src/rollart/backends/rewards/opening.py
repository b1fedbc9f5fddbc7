"""From a URL to the platform behind it, whose technology is imported only then."""

import os
from collections.abc import Callable, Sequence
from importlib import import_module
from typing import cast

from rollart.backends.rewards.addresses import check_host
from rollart.backends.rewards.platform import Platform
from rollart.backends.rewards.urls import PlatformUrl, parse_url
from rollart.core.errors import ConfigError

_HERE = "rollart.backends.rewards"
_OPENERS = {
    "http": (f"{_HERE}.http", "HttpPlatform"),
    "https": (f"{_HERE}.http", "HttpPlatform"),
    "lambda": (f"{_HERE}.aws_lambda", "LambdaPlatform"),
    "fc": (f"{_HERE}.alibaba_fc", "FunctionComputePlatform"),
    "serve": (f"{_HERE}.ray_serve", "RayServePlatform"),
}
_EXTRAS = {"serve": "ray"}


def open_platform(
    url: str, *, allow_hosts: Sequence[str] | None, connections: int = 64
) -> Platform:
    """The platform of a URL; nothing is sent yet. Call it in the event loop that will use it.

    Args:
        allow_hosts: see `addresses.allowed_hosts`; None allows what URLs name.
        connections: calls under way at once, at most.

    Raises:
        ConfigError: an unknown scheme or query key, a host that is not allowed, an extra that is
            not installed, or what the platform itself needs and lacks.
    """
    where = parse_url(url)
    if where.scheme not in _OPENERS:
        raise ConfigError(
            f"{where.shown}: local functions run in the job's own processes; give a URL of "
            f"{', '.join(f'{scheme}://' for scheme in _OPENERS)}"
        )
    where = _with_region(where)
    if where.host:
        check_host(where.host, where.shown, allow_hosts)
    module, name = _OPENERS[where.scheme]
    try:
        opener = getattr(import_module(module), name)
    except ModuleNotFoundError as error:
        if error.name is not None and error.name.partition(".")[0] == "rollart":
            raise
        extra = _EXTRAS.get(where.scheme, "serverless")
        raise ConfigError(
            f"{where.shown}: {where.scheme}:// needs {error.name}, which is not installed; "
            f"pip install 'rollart[{extra}]'"
        ) from error
    make = cast("Callable[..., Platform]", opener)
    return make(where, connections=connections, allow_hosts=allow_hosts)


def _with_region(where: PlatformUrl) -> PlatformUrl:
    """A Lambda URL without a region has that of the environment."""
    if where.scheme != "lambda" or "region" in where.options:
        return where
    region = os.environ.get("AWS_REGION") or os.environ.get("AWS_DEFAULT_REGION")
    if not region:
        raise ConfigError(
            f"{where.shown}: in which region? Use lambda://name?region=eu-west-1, or set AWS_REGION"
        )
    return where.in_region(region)
