"""A function on Alibaba Function Compute 3.0, event function or custom runtime, by its SDK.

Invariant: the SDK makes and signs requests; the bytes travel over `Exchange`. By itself the SDK
opens a connection and loads the certificates for every call, knows no exception from HTTP_PROXY,
and drops the headers of an error, where a platform says how long to wait.
"""

import hashlib
import io
import json
import os
import time
from collections.abc import Mapping, Sequence
from typing import Any

from alibabacloud_fc20230330.client import Client
from alibabacloud_fc20230330.models import InvokeFunctionHeaders, InvokeFunctionRequest
from alibabacloud_tea_openapi.utils import Utils
from alibabacloud_tea_openapi.utils_models import Config
from darabonba.core import DaraCore
from darabonba.request import DaraRequest
from darabonba.runtime import RuntimeOptions

from rollart.backends.rewards.asked_wait import asked_wait
from rollart.backends.rewards.exchange import Exchange, Reply
from rollart.backends.rewards.platform import Fault, PlatformFault, PlatformLimits
from rollart.backends.rewards.under_way import UnderWay
from rollart.backends.rewards.urls import PlatformUrl
from rollart.core.errors import ConfigError
from rollart.core.scoring.wire import Garbled, decode_answer

BODY_BYTES = 33_554_432
"""Of a synchronous call: 32 MB."""

KEY_ID = "ALIBABA_CLOUD_ACCESS_KEY_ID"
KEY_SECRET = "ALIBABA_CLOUD_ACCESS_KEY_SECRET"
SECURITY_TOKEN = "ALIBABA_CLOUD_SECURITY_TOKEN"
"""Environment variables; the last for temporary credentials only."""

_SIGNATURE = "ACS3-HMAC-SHA256"
_ERROR_TYPE = "x-fc-error-type"
_PLATFORMS_OWN = "FcCommonError"  # an error of the request or the platform, not of the function
_SHOWN = 300  # characters of an error that a message quotes


class FunctionComputePlatform:
    """One function in one region. Arguments as `HttpPlatform`'s.

    Raises:
        ConfigError: the environment has no credentials.
    """

    def __init__(
        self,
        where: PlatformUrl,
        *,
        connections: int = 64,
        allow_hosts: Sequence[str] | None = None,
    ) -> None:
        scheme, _, address = where.options.get("endpoint", where.host).rpartition("://")
        if not scheme:
            scheme = "http" if "endpoint" in where.options else "https"
        address = address.rstrip("/")
        self._where = where
        self._exchange = Exchange(
            f"{scheme}://{address}",
            shown=where.shown,
            connections=connections,
            allow_hosts=allow_hosts,
        )
        self._client = _Invoker(_configured(where, address), scheme, address, self._exchange)
        self._under_way = UnderWay(where.shown)
        self._limits = PlatformLimits(name=f"fc {where.host}", body_bytes=BODY_BYTES)

    @property
    def limits(self) -> PlatformLimits:
        return self._limits

    async def call(self, body: bytes, *, key: str, seconds: float) -> bytes:
        """See `Platform.call`; the key travels in the body only."""
        if len(body) > BODY_BYTES:
            raise PlatformFault(
                Fault.TOO_LARGE,
                f"{self._where.shown}: a request of {len(body)} bytes; Function Compute takes "
                f"{BODY_BYTES}",
            )
        return await self._under_way.bounded(lambda: self._call(body), seconds)

    async def close(self) -> None:
        """See `Platform.close`."""
        await self._under_way.close()
        await self._exchange.close()

    async def _call(self, body: bytes) -> bytes:
        asked = InvokeFunctionRequest(body=io.BytesIO(body))
        asked.qualifier = self._where.qualifier
        told = InvokeFunctionHeaders(x_fc_invocation_type="Sync", x_fc_log_type="None")
        reply = await self._client.invoke(self._where.target, asked, told)
        return answer_of(reply, self._where, now=time.time())


class _Invoker(Client):
    """The SDK's client with another way to send; it has no place where one could be given."""

    def __init__(self, config: Config, scheme: str, address: str, exchange: Exchange) -> None:
        super().__init__(config)
        self._scheme = scheme
        self._address = address
        self._exchange = exchange

    async def invoke(
        self, name: str, asked: InvokeFunctionRequest, told: InvokeFunctionHeaders
    ) -> Reply:
        answer: Any = await self.invoke_function_with_options_async(
            name, asked, told, RuntimeOptions()
        )
        return Reply(status=answer.status_code, headers=answer.headers, body=answer.body.read())

    async def call_api_async(
        self, params: Any, request: Any, runtime: RuntimeOptions
    ) -> dict[str, Any]:
        """Sign as the SDK does, send by `Exchange`, and give every status back as an answer.

        Of `Params` and `OpenApiRequest`, all fields are declared as such that may be missing.
        """
        body: bytes = request.stream.read()
        digest = hashlib.sha256(body).hexdigest()
        credentials = await self._credential.get_credential_async()
        sent = DaraRequest()
        sent.protocol, sent.method = self._scheme, params.method
        sent.pathname, sent.query = params.pathname, request.query
        sent.headers = {
            "host": self._address,
            "x-acs-version": params.version,
            "x-acs-action": params.action,
            "x-acs-date": Utils.get_timestamp(),
            "x-acs-signature-nonce": Utils.get_nonce(),
            "x-acs-content-sha256": digest,
            "accept": "application/json",
            "content-type": "application/octet-stream",
            **request.headers,
        }
        if credentials.security_token:
            sent.headers["x-acs-accesskey-id"] = credentials.access_key_id
            sent.headers["x-acs-security-token"] = credentials.security_token
        sent.headers["authorization"] = Utils.get_authorization(
            sent, _SIGNATURE, digest, credentials.access_key_id, credentials.access_key_secret
        )
        reply = await self._exchange.post(DaraCore.compose_url(sent), body, sent.headers)
        return {"body": reply.body, "headers": dict(reply.headers), "statusCode": reply.status}


def _configured(where: PlatformUrl, address: str) -> Config:
    missing = [name for name in (KEY_ID, KEY_SECRET) if not os.environ.get(name)]
    if missing:
        raise ConfigError(
            f"{where.shown}: no credentials: set {' and '.join(missing)} (and {SECURITY_TOKEN} for "
            "temporary ones)"
        )
    return Config(
        access_key_id=os.environ[KEY_ID],
        access_key_secret=os.environ[KEY_SECRET],
        security_token=os.environ.get(SECURITY_TOKEN, ""),
        endpoint=address,
    )


def answer_of(reply: Reply, where: PlatformUrl, *, now: float) -> bytes:
    """The function's answer.

    A function's failure has a header X-Fc-Error-Type beside a status 200, or 502 over HTTP.

    Args:
        now: Unix time, for a Retry-After that is a date.

    Raises:
        PlatformFault: by error type and status.
        ConfigError: wrong credentials, no such function.
    """
    failed = reply.headers.get(_ERROR_TYPE, "")
    if failed and failed != _PLATFORMS_OWN:
        return _failed(reply.body, failed, where.shown)
    status = reply.status
    if 200 <= status < 300:
        return reply.body
    code, message = _error_of(reply.body)
    said = f"{where.shown}: Function Compute answered {status} {code}: {message[:_SHOWN]}"
    if status in (401, 403) or code in _CREDENTIALS:
        raise ConfigError(f"{said}; check {KEY_ID} and {KEY_SECRET}, and their fc:InvokeFunction")
    if status == 404:
        raise ConfigError(
            f"{said}; deploy it: rollart rewards package module:function --target fc --out DIR, "
            f"then the command that it prints, with the name {where.target}"
        )
    fault = _FAULTS.get(status, Fault.UNAVAILABLE if status >= 500 else Fault.REFUSED)
    wait = asked_wait(reply.headers.get("retry-after"), now=now)
    raise PlatformFault(fault, said, retry_after_s=wait)


_CREDENTIALS = frozenset({"InvalidAccessKeyId", "InvalidAccessKeyID", "SignatureNotMatch"})
_FAULTS: Mapping[int, Fault] = {
    408: Fault.TIMEOUT,
    412: Fault.CRASHED,  # FunctionNotStarted: its own server did not come up
    413: Fault.TOO_LARGE,
    429: Fault.THROTTLED,
    504: Fault.TIMEOUT,
}


def _failed(body: bytes, kind: str, shown: str) -> bytes:
    """The body beside a function's error where it is an answer with an error; else raises."""
    try:
        if decode_answer(body).error:
            return body
    except Garbled:
        pass
    _, message = _error_of(body)
    timed_out = "timed out" in message.lower() or "timeout" in kind.lower()
    raise PlatformFault(
        Fault.TIMEOUT if timed_out else Fault.CRASHED,
        f"{shown}: the function failed: {kind}: {message[:_SHOWN]}",
    )


def _error_of(body: bytes) -> tuple[str, str]:
    """Code and message of an error's body; both services and functions have their spellings."""
    try:
        told = json.loads(body)
        lower = {str(name).lower(): str(value) for name, value in told.items()}
    except (ValueError, AttributeError):
        return "", " ".join(body[: _SHOWN * 4].decode("utf-8", errors="replace").split())
    code = lower.get("code") or lower.get("errorcode") or lower.get("errortype") or ""
    return code, lower.get("message") or lower.get("errormessage") or ""
