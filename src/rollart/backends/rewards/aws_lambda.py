"""A function on AWS Lambda, by boto3's `invoke`.

Invariant: boto3 makes, signs and reads requests in a thread of a bounded pool; the bytes travel
over `Exchange` in the event loop, so that a deadline, a cancellation and `close` end a call at
once, its thread included. A socket that boto3 reads itself could not be interrupted.
"""

import asyncio
import io
import json
import threading
import time
from collections.abc import Awaitable, Callable, Iterator, Mapping, Sequence
from concurrent.futures import Future, ThreadPoolExecutor
from typing import Any, cast

from boto3.session import Session
from botocore.awsrequest import AWSPreparedRequest, AWSResponse
from botocore.config import Config
from botocore.exceptions import (
    BotoCoreError,
    ClientError,
    CredentialRetrievalError,
    NoCredentialsError,
    PartialCredentialsError,
    SSOError,
    TokenRetrievalError,
)

from rollart.backends.rewards.asked_wait import asked_wait
from rollart.backends.rewards.exchange import Exchange, Reply
from rollart.backends.rewards.platform import Fault, PlatformFault, PlatformLimits
from rollart.backends.rewards.under_way import UnderWay
from rollart.backends.rewards.urls import PlatformUrl
from rollart.core.errors import ConfigError
from rollart.core.scoring.wire import Garbled, decode_answer

BODY_BYTES = 6_291_456
"""Of a synchronous call: 6 MB of 1,048,576 bytes, of the payload as encoded."""

CREDENTIALS = "AWS_ACCESS_KEY_ID and AWS_SECRET_ACCESS_KEY (and AWS_SESSION_TOKEN), or AWS_PROFILE"

_THROTTLED = frozenset(
    {"EC2ThrottledException", "RequestLimitExceeded", "Throttling", "ThrottlingException"}
)
_UNREADY = frozenset({"ResourceConflictException", "SnapStartNotReadyException"})
_SHOWN = 300  # characters of a function's error that a message quotes


class LambdaPlatform:
    """One function in one region. Arguments as `HttpPlatform`'s, with a region in `where`."""

    def __init__(
        self,
        where: PlatformUrl,
        *,
        connections: int = 64,
        allow_hosts: Sequence[str] | None = None,
    ) -> None:
        region = where.options["region"]
        self._where = where
        self._client: Any = Session().client(
            "lambda",
            region_name=region,
            endpoint_url=where.options.get("endpoint"),
            config=Config(retries={"total_max_attempts": 1, "mode": "standard"}),
        )
        self._client.meta.events.register("before-send.lambda.Invoke", self._send)
        self._exchange = Exchange(
            self._client.meta.endpoint_url,
            shown=where.shown,
            connections=connections,
            allow_hosts=allow_hosts,
        )
        self._threads = ThreadPoolExecutor(connections, thread_name_prefix="lambda")
        self._own = threading.local()
        self._under_way = UnderWay(where.shown)
        self._limits = PlatformLimits(name=f"lambda {region}", body_bytes=BODY_BYTES)

    @property
    def limits(self) -> PlatformLimits:
        return self._limits

    async def call(self, body: bytes, *, key: str, seconds: float) -> bytes:
        """See `Platform.call`; the key travels in the body only."""
        if len(body) > BODY_BYTES:
            raise PlatformFault(
                Fault.TOO_LARGE,
                f"{self._where.shown}: a request of {len(body)} bytes; Lambda takes {BODY_BYTES}",
            )
        return await self._under_way.bounded(lambda: self._call(body), seconds)

    async def close(self) -> None:
        """See `Platform.close`."""
        await self._under_way.close()
        await asyncio.to_thread(self._threads.shutdown)
        await self._exchange.close()
        self._client.close()

    async def _call(self, body: bytes) -> bytes:
        loop = asyncio.get_running_loop()
        way = _WayBack(loop)
        try:
            return await loop.run_in_executor(self._threads, self._invoke, way, body)
        finally:
            way.cut()

    def _invoke(self, way: "_WayBack", body: bytes) -> bytes:
        """In a thread."""
        self._own.way = way
        asked: dict[str, str] = {"FunctionName": self._where.target}
        if self._where.qualifier is not None:
            asked["Qualifier"] = self._where.qualifier
        try:
            answer = self._client.invoke(InvocationType="RequestResponse", Payload=body, **asked)
        except ClientError as error:
            raise error_of(error, self._where) from error
        except _NO_CREDENTIALS as error:
            raise ConfigError(
                f"{self._where.shown}: no AWS credentials ({error}); set {CREDENTIALS}"
            ) from error
        except BotoCoreError as error:
            raise PlatformFault(Fault.GARBLED, f"{self._where.shown}: {error}") from error
        payload = answer["Payload"].read()
        if "FunctionError" in answer:
            return _failed(payload, self._where.shown)
        return payload

    def _send(self, request: AWSPreparedRequest, **_: object) -> AWSResponse:
        """In a thread: what boto3 asks before it would send itself."""
        url = str(request.url)
        headers = {
            name.lower(): value.decode("latin-1") if isinstance(value, bytes) else str(value)
            for name, value in cast("Mapping[str, str | bytes]", request.headers).items()
            if name.lower() not in ("content-length", "host")
        }
        body = cast("bytes", request.body or b"")
        way = cast("_WayBack", self._own.way)
        reply = way.result(lambda: self._exchange.post(url, body, headers))
        return AWSResponse(url, reply.status, dict(reply.headers), _Raw(reply.body))


_NO_CREDENTIALS = (
    CredentialRetrievalError,
    NoCredentialsError,
    PartialCredentialsError,
    SSOError,
    TokenRetrievalError,
)


def error_of(error: ClientError, where: PlatformUrl) -> PlatformFault | ConfigError:
    """What an error that Lambda answered means."""
    answered = cast("Mapping[str, Any]", error.response)
    code = str(answered.get("Error", {}).get("Code", ""))
    message = str(answered.get("Error", {}).get("Message", ""))[:_SHOWN]
    metadata = cast("Mapping[str, Any]", answered.get("ResponseMetadata", {}))
    status = int(metadata.get("HTTPStatusCode", 0))
    said = f"{where.shown}: Lambda answered {status} {code}: {message}"
    if status in (401, 403) or code.startswith(("ExpiredToken", "UnrecognizedClient")):
        return ConfigError(f"{said}; check {CREDENTIALS}, and that they may lambda:InvokeFunction")
    if status == 404:
        return ConfigError(
            f"{said}; deploy it: rollart rewards package module:function --target lambda --out "
            f"DIR, then the command that it prints, with the name {where.target}"
        )
    if status == 429 or code in _THROTTLED:
        return PlatformFault(Fault.THROTTLED, said, retry_after_s=_retry_after(answered))
    if status == 413:
        return PlatformFault(Fault.TOO_LARGE, said)
    if status == 504:
        return PlatformFault(Fault.TIMEOUT, said)
    if status >= 500 or code in _UNREADY:
        return PlatformFault(Fault.UNAVAILABLE, said, retry_after_s=_retry_after(answered))
    return PlatformFault(Fault.REFUSED, said)


def _retry_after(answered: Mapping[str, Any]) -> float | None:
    """Seconds, of the header Retry-After, which boto3 also tells by name."""
    headers = answered.get("ResponseMetadata", {}).get("HTTPHeaders", {})
    value = answered.get("retryAfterSeconds") or headers.get("retry-after")
    return asked_wait(None if value is None else str(value), now=time.time())


def _failed(payload: bytes, shown: str) -> bytes:
    """The payload beside a function's error where it is an answer with an error; else raises."""
    try:
        if decode_answer(payload).error:
            return payload
    except Garbled:
        pass
    try:
        told = json.loads(payload)
        message = f"{told.get('errorType', 'error')}: {told.get('errorMessage', '')}"
    except (ValueError, AttributeError):
        message = payload[:_SHOWN].decode("utf-8", errors="replace")
    timed_out = "Task timed out" in message
    raise PlatformFault(
        Fault.TIMEOUT if timed_out else Fault.CRASHED,
        f"{shown}: the function failed: {message[:_SHOWN]}",
    )


class _Raw(io.BytesIO):
    """A whole body, as boto3 reads one."""

    def stream(self, *_: object, **__: object) -> Iterator[bytes]:
        yield self.read()


class _WayBack:
    """From a thread to the event loop, until it is cut: then what waits ends at once."""

    def __init__(self, loop: asyncio.AbstractEventLoop) -> None:
        self._loop = loop
        self._lock = threading.Lock()
        self._future: Future[Reply] | None = None
        self._is_cut = False

    def result(self, work: Callable[[], Awaitable[Reply]]) -> Reply:
        """In the thread: what `work` gives in the loop."""

        async def working() -> Reply:
            return await work()

        with self._lock:
            if self._is_cut:
                raise asyncio.CancelledError
            self._future = asyncio.run_coroutine_threadsafe(working(), self._loop)
        return self._future.result()

    def cut(self) -> None:
        """In the loop, when nobody waits for the thread any more."""
        with self._lock:
            self._is_cut = True
            if self._future is not None:
                self._future.cancel()
