"""Alibaba Function Compute on loopback: its InvokeFunction in front of a custom runtime.

Invariant: one process a concurrent call, each a server on the port that FC_SERVER_PORT tells (the
service itself has a network for each and says 9000); it is asked to /initialize once and then to
/invoke. What is limited there is limited here: instances (429), body (32 MB), time.
It checks whose key signed a request, and not the signature.
"""

import asyncio
import json
import sys
import uuid
from collections.abc import Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path

from rollart.testing.loopback.cloud import Cloud, Ended
from rollart.testing.loopback.instances import (
    FunctionExited,
    FunctionTimedOut,
    Instance,
    Invoked,
    Scaling,
    Throttled,
)
from rollart.testing.loopback.runtime_process import RuntimeProcess, free_port
from rollart.testing.loopback.server import HttpReply, HttpRequest

REQUEST_BYTES = 33_554_432
ACCESS_KEY_ID = "LTAILOOPBACK"
"""The key that a caller must sign with; the secret may be any."""

_FUNCTIONS = "/2023-03-30/functions/"
_UNHANDLED = "UnhandledInvocationError"


@dataclass(frozen=True, slots=True, kw_only=True)
class CustomRuntime:
    """What is deployed.

    Attributes:
        folder: of the package; the process runs in it, with it first on its path.
        command: that starts its server; by default ``server.py`` on this interpreter.
        environment: variables that it declares.
    """

    folder: Path
    command: Sequence[str] = (sys.executable, "server.py")
    name: str = "judge"
    environment: Mapping[str, str] | None = None


def fc_cloud(function: CustomRuntime, scaling: Scaling | None = None) -> Cloud:
    """One function of Function Compute, for ``fc://name?endpoint=…``."""
    scaling = scaling or Scaling()
    return Cloud(_FunctionCompute(function, scaling.timeout_s), scaling)


class _FunctionCompute:
    """What the service does with one function."""

    def __init__(self, function: CustomRuntime, timeout_s: float) -> None:
        self._function = function
        self._timeout_s = timeout_s

    async def start(self) -> Instance:
        return await _FcInstance.start(self._function)

    def reply(self, ended: Ended) -> HttpReply:
        match ended:
            case Throttled():
                return _error(429, "ResourceExhausted", "reserve resource exceeded limit")
            case FunctionTimedOut():
                message = f"Function timed out after {self._timeout_s:g} seconds"
                return _failed(json.dumps({"errorMessage": message}).encode(), _UNHANDLED)
            case FunctionExited():
                return _failed(json.dumps({"errorMessage": str(ended)}).encode(), _UNHANDLED)
            case Invoked(error=""):
                headers = {"Content-Type": "application/octet-stream"}
                return HttpReply(headers=headers, body=ended.body)
            case Invoked():
                return _failed(ended.body, ended.error)

    def refusal(self, request: HttpRequest) -> HttpReply | None:
        if f"Credential={ACCESS_KEY_ID}," not in request.headers.get("authorization", ""):
            return _error(403, "InvalidAccessKeyID", "The AccessKeyID is invalid.")
        if request.path != f"{_FUNCTIONS}{self._function.name}/invocations":
            return _error(404, "FunctionNotFound", f"function does not exist: {request.path}")
        if len(request.body) > REQUEST_BYTES:
            message = f"payload size exceeds the limit of {REQUEST_BYTES} bytes"
            return _error(413, "PayloadTooLarge", message)
        return None


class _FcInstance:
    """A custom runtime's process, and the connection that it is asked over."""

    def __init__(self, process: RuntimeProcess, port: int) -> None:
        self._process = process
        self._port = port

    @classmethod
    async def start(cls, function: CustomRuntime) -> "_FcInstance":
        port = free_port()
        process = await RuntimeProcess.start(
            function.command,
            folder=function.folder,
            environment={
                "FC_FUNCTION_NAME": function.name,
                "FC_REGION": "loopback",
                "FC_SERVER_PORT": str(port),
                "PYTHONPATH": str(function.folder),
                **(function.environment or {}),
            },
            log=function.folder / "runtime.log",
        )
        self = cls(process, port)
        try:
            if not await process.listens(port):
                raise FunctionExited(f"Process exited unexpectedly: {process.last_words(200)}")
            await self._post("/initialize", b"")
        except TimeoutError:
            await self.stop()
            raise FunctionExited("the server of the runtime does not come up") from None
        except BaseException:
            await self.stop()
            raise
        return self

    async def invoke(self, body: bytes) -> Invoked:
        status, headers, answer = await self._post("/invoke", body)
        if status == 200 and headers.get("x-fc-status", "200") == "200":
            return Invoked(body=answer)
        return Invoked(body=answer, error="HandledInvocationError")

    async def stop(self) -> None:
        await self._process.stop()

    async def _post(self, path: str, body: bytes) -> tuple[int, dict[str, str], bytes]:
        """Ask the runtime; as the service does, over a connection of its own here."""
        try:
            reader, writer = await asyncio.open_connection("127.0.0.1", self._port)
        except ConnectionError as error:
            raise self._exited() from error
        try:
            lines = [
                f"POST {path} HTTP/1.1",
                f"Host: 127.0.0.1:{self._port}",
                "Content-Type: application/octet-stream",
                f"Content-Length: {len(body)}",
                f"x-fc-control-path: {path}",
                f"x-fc-request-id: {uuid.uuid4()}",
                "Connection: close",
                "",
                "",
            ]
            writer.write("\r\n".join(lines).encode() + body)
            await writer.drain()
            return await _reply(reader)
        except (ConnectionError, asyncio.IncompleteReadError) as error:
            raise self._exited() from error
        finally:
            writer.close()
            with suppress(ConnectionError):
                await writer.wait_closed()

    def _exited(self) -> FunctionExited:
        return FunctionExited(
            "Process exited unexpectedly before completing request "
            f"({self._process.last_words(200)})"
        )


async def _reply(reader: asyncio.StreamReader) -> tuple[int, dict[str, str], bytes]:
    line = await reader.readuntil(b"\r\n")
    headers: dict[str, str] = {}
    while (head := await reader.readuntil(b"\r\n")) != b"\r\n":
        name, _, value = head.decode("latin-1").partition(":")
        headers[name.strip().lower()] = value.strip()
    size = headers.get("content-length")
    body = await (reader.read() if size is None else reader.readexactly(int(size)))
    return int(line.split()[1]), headers, body


def _failed(body: bytes, kind: str) -> HttpReply:
    """A function's error, which Function Compute tells beside a status 200."""
    return HttpReply(headers={"X-Fc-Error-Type": kind}, body=body)


def _error(status: int, code: str, message: str) -> HttpReply:
    headers = {"Content-Type": "application/json", "X-Fc-Error-Type": "FcCommonError"}
    body = json.dumps({"Code": code, "Message": message, "RequestId": str(uuid.uuid4())}).encode()
    return HttpReply(status=status, headers=headers, body=body)
