"""A function's instances behind its platform's endpoint; what the platform says is a `Service`'s.

Invariant: a request that is refused reaches no instance; when this is left, no process, socket or
task of it is there.
"""

from typing import Protocol, Self

from rollart.testing.loopback.instances import (
    Figures,
    FunctionExited,
    FunctionTimedOut,
    Instance,
    InstancePool,
    Invoked,
    Scaling,
    Throttled,
)
from rollart.testing.loopback.server import HttpReply, HttpRequest, LoopbackServer

Ended = Invoked | Throttled | FunctionTimedOut | FunctionExited


class Service(Protocol):
    """One function as one platform serves it."""

    async def start(self) -> Instance:
        """Raises `FunctionExited`."""
        ...

    def refusal(self, request: HttpRequest) -> HttpReply | None:
        """What a request gets that reaches no instance: of a stranger, too large, …"""
        ...

    def reply(self, ended: Ended) -> HttpReply:
        """How the platform tells how a call ended."""
        ...


class Cloud:
    """An async context manager. A caller that leaves ends the instance as well."""

    def __init__(self, service: Service, scaling: Scaling) -> None:
        self._service = service
        self._pool = InstancePool(service.start, scaling)
        self._server = LoopbackServer(self._answer)

    @property
    def url(self) -> str:
        """Of the endpoint, for ``?endpoint=``."""
        return self._server.url

    @property
    def server(self) -> LoopbackServer:
        """The endpoint; it may be stopped and started again."""
        return self._server

    @property
    def instances(self) -> int:
        """Processes that there are now."""
        return self._pool.size

    def figures(self) -> Figures:
        """What happened up to now."""
        return self._pool.figures()

    async def __aenter__(self) -> Self:
        await self._server.start()
        return self

    async def __aexit__(self, *exc: object) -> None:
        try:
            await self._server.stop()
        finally:
            await self._pool.close()

    async def _answer(self, request: HttpRequest) -> HttpReply:
        refusal = self._service.refusal(request)
        if refusal is not None:
            return refusal
        try:
            return self._service.reply(await self._pool.invoke(request.body))
        except (Throttled, FunctionTimedOut, FunctionExited) as ended:
            return self._service.reply(ended)
