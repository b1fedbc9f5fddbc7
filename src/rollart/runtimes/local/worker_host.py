"""A cluster worker's child: one instance of a user's class, and calls of its methods."""

import inspect
from dataclasses import dataclass
from typing import Any

import msgspec

from rollart.process.serve import ChildPort, serve
from rollart.runtimes.local.codec import Packed
from rollart.runtimes.local.user_code import load, show_prints_at_once
from rollart.runtimes.local.values import pack_value, unpack_value

ENTRY = "rollart.runtimes.local.worker_host:entry"


@dataclass(frozen=True, slots=True, kw_only=True)
class WorkerHostConfig:
    """Import path of the class, its constructor's keywords, and where it is bound."""

    path: str
    options: Packed
    worker: str
    hardware: str


def entry(port: ChildPort, config: Any) -> None:
    """Make the instance, then answer "call" until stopped; calls of async methods overlap."""
    settings = msgspec.convert(config, WorkerHostConfig)
    show_prints_at_once()
    instance = load(settings.path)(**unpack_value(settings.options))
    instance.worker, instance.hardware = settings.worker, settings.hardware

    async def call(method: str, args: Packed, kwargs: Packed) -> Packed:
        result = getattr(instance, method)(*unpack_value(args), **unpack_value(kwargs))
        return pack_value(await result if inspect.isawaitable(result) else result)

    serve(port, {"call": call})
