"""A function on Ray Serve, by a handle of its application (see `ray_serve_app`).

Invariant: a process joins one cluster at most, and stays in it until it ends: Serve keeps what
belongs to a session for the whole process, and a second session would find it. No proxy is used.
"""

import asyncio
import logging
import socket
import threading
from collections.abc import Sequence
from typing import Any, ClassVar, cast
from urllib.parse import urlsplit

import ray
import ray.exceptions
import ray.serve
import ray.serve.exceptions

from rollart.backends.rewards.platform import Fault, PlatformFault, PlatformLimits
from rollart.backends.rewards.under_way import UnderWay
from rollart.backends.rewards.urls import PlatformUrl, ray_command
from rollart.core.errors import ConfigError

BODY_BYTES = 100_000_000
"""Our own bound: Ray knows none, and a body is held three times while it travels."""

PORT = 6379
"""Of a cluster whose address names none."""

LOOK_S = 5.0
"""Seconds in which a cluster's address must take a connection."""

_SHOWN = 300  # characters of an error that a message quotes

_BUSY = (ray.serve.exceptions.BackPressureError,)
_AWAY = (
    ConnectionError,
    ray.exceptions.ActorUnavailableError,
    ray.exceptions.RaySystemError,
    ray.exceptions.RpcError,
    ray.exceptions.TaskCancelledError,
    ray.serve.exceptions.DeploymentUnavailableError,
    ray.serve.exceptions.ReplicaUnavailableError,
    ray.serve.exceptions.RequestCancelledError,
)
_DIED = (ray.exceptions.RayError,)


class RayServePlatform:
    """One application of one cluster. Arguments as `HttpPlatform`'s; Ray bounds connections."""

    _joining: ClassVar[threading.Lock] = threading.Lock()
    _joined: ClassVar[str | None] = None
    """Address of the cluster that this process was joined to from here."""

    def __init__(
        self,
        where: PlatformUrl,
        *,
        connections: int = 64,
        allow_hosts: Sequence[str] | None = None,
    ) -> None:
        del connections, allow_hosts
        self._where = where
        self._address = where.options.get("address", "auto")
        self._connecting: asyncio.Task[Any] | None = None
        self._under_way = UnderWay(where.shown)
        self._limits = PlatformLimits(name=f"serve {self._address}", body_bytes=BODY_BYTES)

    @property
    def limits(self) -> PlatformLimits:
        return self._limits

    async def call(self, body: bytes, *, key: str, seconds: float) -> bytes:
        """See `Platform.call`; the key travels in the body only."""
        if len(body) > BODY_BYTES:
            raise PlatformFault(
                Fault.TOO_LARGE,
                f"{self._where.shown}: a request of {len(body)} bytes; at most {BODY_BYTES}",
            )
        return await self._under_way.bounded(lambda: self._call(body), seconds)

    async def close(self) -> None:
        """See `Platform.close`. Waits for a connection that is being made: Ray cannot stop it."""
        await self._under_way.close()
        if self._connecting is not None:
            await asyncio.gather(self._connecting, return_exceptions=True)

    async def _call(self, body: bytes) -> bytes:
        handle = await self._handle()
        try:
            response = handle.remote(body)
            try:
                return cast("bytes", await response)
            except asyncio.CancelledError:
                response.cancel()
                raise
        except _BUSY as error:
            raise self._fault(Fault.THROTTLED, error) from error
        except _AWAY as error:
            raise self._fault(Fault.UNAVAILABLE, error) from error
        except _DIED as error:
            raise self._fault(Fault.CRASHED, error) from error

    async def _handle(self) -> Any:
        """The application's handle; a connection that failed is tried again by the next call."""
        if self._connecting is None or (
            self._connecting.done() and self._connecting.exception() is not None
        ):
            self._connecting = asyncio.create_task(asyncio.to_thread(self._connected))
        try:
            return await asyncio.shield(self._connecting)
        except ray.serve.exceptions.RayServeException as error:
            raise ConfigError(
                f"{self._where.shown}: {str(error)[:_SHOWN]}; deploy it: "
                + ray_command(self._where.target, "module:function")
            ) from error
        except (OSError, RuntimeError, ray.exceptions.RayError) as error:
            raise self._fault(Fault.UNAVAILABLE, error) from error

    def _connected(self) -> Any:
        """In a thread."""
        with RayServePlatform._joining:
            joined = RayServePlatform._joined
            if not ray.is_initialized():
                self._look()
                ray.init(
                    address=self._address,
                    namespace="serve",
                    log_to_driver=False,
                    logging_level=logging.ERROR,
                )
                RayServePlatform._joined = self._address
            elif joined not in (None, self._address):
                raise ConfigError(
                    f"{self._where.shown}: ?address={self._address}, but this run already uses "
                    f"the cluster {joined}; one run can use one Ray cluster"
                )
        handle: Any = ray.serve.get_app_handle(self._where.target)
        return handle.options(method_name="score")

    def _look(self) -> None:
        """Raises `OSError` where nothing listens: Ray would try for minutes, and not be stopped."""
        if self._address != "auto":
            parts = urlsplit(self._address if "://" in self._address else f"//{self._address}")
            where = (parts.hostname or "", parts.port or PORT)
            socket.create_connection(where, timeout=LOOK_S).close()

    def _fault(self, fault: Fault, error: BaseException) -> PlatformFault:
        told = " ".join(str(error).split())[:_SHOWN]
        return PlatformFault(fault, f"{self._where.shown}: {type(error).__name__}: {told}")
