"""AWS Lambda on loopback: its Invoke call and its Runtime API around the real `awslambdaric`.

Invariant: one process a concurrent call, each with a Runtime API of its own; what Lambda limits is
limited here: concurrency (429), request and response (6 MB), time (the process is killed).
It checks whose key signed a request, and not the signature.
"""

import asyncio
import json
import sys
import time
import uuid
from collections.abc import Mapping, Sequence
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
from rollart.testing.loopback.runtime_process import RuntimeProcess
from rollart.testing.loopback.server import HttpReply, HttpRequest, LoopbackServer

REQUEST_BYTES = 6_291_456
RESPONSE_BYTES = 6_291_556
ACCESS_KEY_ID = "AKIALOOPBACK"
"""The key that a caller must sign with; the secret may be any."""

_RUNTIME = "/2018-06-01/runtime/"
_INVOKE = "/2015-03-31/functions/"


@dataclass(frozen=True, slots=True, kw_only=True)
class LambdaFunction:
    """What is deployed.

    Attributes:
        folder: of the package; the process runs in it, with it first on its path.
        handler: ``module.function`` in it.
        environment: variables that it declares.
        python: command of the interpreter; by default this one, with its packages.
    """

    folder: Path
    handler: str = "handler.handler"
    name: str = "judge"
    environment: Mapping[str, str] | None = None
    python: Sequence[str] = (sys.executable,)


def lambda_cloud(function: LambdaFunction, scaling: Scaling | None = None) -> Cloud:
    """One function of Lambda, for ``lambda://name?endpoint=…``."""
    scaling = scaling or Scaling()
    return Cloud(_Lambda(function, scaling.timeout_s), scaling)


class _Lambda:
    """What the service does with one function."""

    def __init__(self, function: LambdaFunction, timeout_s: float) -> None:
        self._function = function
        self._timeout_s = timeout_s

    async def start(self) -> Instance:
        return await _LambdaInstance.start(self._function, self._timeout_s)

    def reply(self, ended: Ended) -> HttpReply:
        match ended:
            case Throttled():
                return _error(429, "TooManyRequestsException", "Rate Exceeded.", retry_after="1")
            case FunctionTimedOut():
                stamp = time.strftime("%Y-%m-%dT%H:%M:%SZ", time.gmtime())
                after = f"Task timed out after {self._timeout_s:.2f} seconds"
                return _failed(errorMessage=f"{stamp} {uuid.uuid4()} {after}")
            case FunctionExited():
                return _failed(errorType="Runtime.ExitError", errorMessage=str(ended))
            case Invoked(body=body) if len(body) > RESPONSE_BYTES:
                return _failed(
                    errorType="Function.ResponseSizeTooLarge",
                    errorMessage="Response payload size exceeded maximum allowed payload size "
                    f"({RESPONSE_BYTES} bytes).",
                )
            case Invoked(body=body, error=""):
                return HttpReply(headers={"X-Amz-Executed-Version": "$LATEST"}, body=body)
            case Invoked(body=body):
                return _failed_with(body)

    def refusal(self, request: HttpRequest) -> HttpReply | None:
        if f"Credential={ACCESS_KEY_ID}/" not in request.headers.get("authorization", ""):
            return _error(
                403,
                "UnrecognizedClientException",
                "The security token included in the request is invalid.",
            )
        if request.path != f"{_INVOKE}{self._function.name}/invocations":
            return _error(404, "ResourceNotFoundException", f"Function not found: {request.path}")
        if len(request.body) > REQUEST_BYTES:
            return _error(
                413,
                "RequestTooLargeException",
                f"Request must be smaller than {REQUEST_BYTES} bytes for the InvokeFunction "
                "operation",
            )
        try:
            json.loads(request.body)
        except ValueError as error:
            message = f"Could not parse request body into json: {error}"
            return _error(400, "InvalidRequestContentException", message)
        return None


class _LambdaInstance:
    """A process of `awslambdaric`, and the Runtime API that it asks for work."""

    def __init__(self, function: LambdaFunction, timeout_s: float) -> None:
        self._function = function
        self._timeout_s = timeout_s
        self._api = LoopbackServer(self._runtime_asks)
        self._next: asyncio.Queue[tuple[str, bytes]] = asyncio.Queue()
        self._answers: dict[str, asyncio.Future[Invoked]] = {}
        self._unready = ""
        self._process: RuntimeProcess | None = None

    @classmethod
    async def start(cls, function: LambdaFunction, timeout_s: float) -> "_LambdaInstance":
        self = cls(function, timeout_s)
        await self._api.start()
        environment = {
            "AWS_EXECUTION_ENV": "AWS_Lambda_python3.11",
            "AWS_LAMBDA_FUNCTION_MEMORY_SIZE": "512",
            "AWS_LAMBDA_FUNCTION_NAME": function.name,
            "AWS_LAMBDA_FUNCTION_VERSION": "$LATEST",
            "AWS_LAMBDA_RUNTIME_API": self._api.address,
            "AWS_REGION": "loopback-1",
            "LAMBDA_TASK_ROOT": str(function.folder),
            "PYTHONPATH": str(function.folder),
            **(function.environment or {}),
        }
        command = [*function.python, "-m", "awslambdaric", function.handler]
        log = function.folder / "runtime.log"
        self._process = await RuntimeProcess.start(
            command, folder=function.folder, environment=environment, log=log
        )
        return self

    async def invoke(self, body: bytes) -> Invoked:
        process = self._process
        assert process is not None
        identity = str(uuid.uuid4())
        answer: asyncio.Future[Invoked] = asyncio.get_running_loop().create_future()
        self._answers[identity] = answer
        self._next.put_nowait((identity, body))
        ended = asyncio.ensure_future(process.ended.wait())
        try:
            await asyncio.wait((answer, ended), return_when=asyncio.FIRST_COMPLETED)
            if answer.done():
                return answer.result()
            reason = self._unready or f"Runtime exited with error: exit status {process.status}"
            raise FunctionExited(f"RequestId: {identity} Error: {reason}")
        finally:
            ended.cancel()
            del self._answers[identity]

    async def stop(self) -> None:
        if self._process is not None:
            await self._process.stop()
        await self._api.stop()

    async def _runtime_asks(self, request: HttpRequest) -> HttpReply:
        what = request.path.removeprefix(_RUNTIME)
        if what == "invocation/next":
            identity, body = await self._next.get()
            deadline_ms = int((time.time() + self._timeout_s) * 1000)
            headers = {
                "Content-Type": "application/json",
                "Lambda-Runtime-Aws-Request-Id": identity,
                "Lambda-Runtime-Deadline-Ms": str(deadline_ms),
                "Lambda-Runtime-Invoked-Function-Arn": "arn:aws:lambda:loopback-1:0:function:"
                + self._function.name,
            }
            return HttpReply(headers=headers, body=body)
        if what == "init/error":
            self._unready = request.body.decode("utf-8", errors="replace")
        else:
            _, identity, outcome = what.split("/")
            error = "Unhandled" if outcome == "error" else ""
            answer = self._answers.get(identity)
            if answer is not None and not answer.done():
                answer.set_result(Invoked(body=request.body, error=error))
        return HttpReply(status=202)


def _failed(**told: str) -> HttpReply:
    return _failed_with(json.dumps(told).encode())


def _failed_with(body: bytes) -> HttpReply:
    """A function's error, which Lambda tells beside a status 200."""
    return HttpReply(headers={"X-Amz-Function-Error": "Unhandled"}, body=body)


def _error(status: int, kind: str, message: str, *, retry_after: str = "") -> HttpReply:
    headers = {"x-amzn-ErrorType": kind, "Content-Type": "application/json"}
    if retry_after:
        headers["Retry-After"] = retry_after
    body = json.dumps({"Type": "User", "message": message}).encode()
    return HttpReply(status=status, headers=headers, body=body)
