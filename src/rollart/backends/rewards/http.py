"""A function behind an HTTP URL: Cloud Run, Knative, Function Compute's HTTP triggers, any server.

Invariant: the bearer token is read from the environment, travels only over TLS or to this machine,
and never stands in a message, nor does what a server echoes of it.
"""

import asyncio
import os
import time
from collections.abc import Awaitable, Callable, Mapping, Sequence
from email.utils import parsedate_to_datetime

from rollart.backends.rewards.addresses import is_loopback
from rollart.backends.rewards.exchange import Exchange, Reply
from rollart.backends.rewards.platform import Fault, PlatformFault, PlatformLimits
from rollart.backends.rewards.under_way import UnderWay
from rollart.backends.rewards.urls import PlatformUrl
from rollart.core.errors import ConfigError
from rollart.core.scoring.wire import CONTENT_TYPE

TOKEN = "ROLLART_REWARD_TOKEN"
"""Environment variable with the bearer token of functions that want one."""

BODY_BYTES = 33_554_432
"""Cloud Run's limit of a request over HTTP/1; ``?limit=`` says another."""

GOOGLE_TOKEN_S = 2700.0  # an identity token is valid for an hour; it is fetched again well before

_SHOWN = 200  # characters of an error's body that a message quotes

TokenSource = Callable[[], Awaitable[str]]
"""Gives a bearer token; raises `ConfigError` where there is none."""


class HttpPlatform:
    """One function at one URL.

    Args:
        where: of scheme http or https.
        connections: at most, which is also how many calls are under way at once.
        allow_hosts: the job's allow-list, for what a name resolves to.
        token: source of the bearer token; by default the environment, or Google (``?auth=google``).

    Raises:
        ConfigError: a token would travel over plain HTTP to another machine.
    """

    def __init__(
        self,
        where: PlatformUrl,
        *,
        connections: int = 64,
        allow_hosts: Sequence[str] | None = None,
        token: TokenSource | None = None,
    ) -> None:
        if token is None and where.options.get("auth") == "google":
            token = GoogleToken(where)
        if token is None and (given := os.environ.get(TOKEN)):
            token = _constant(given)
        if token is not None and where.scheme != "https" and not is_loopback(where.host):
            raise ConfigError(
                f"{where.shown}: a token would be sent unencrypted to {where.host}; use https://, "
                f"or unset {TOKEN}"
            )
        self._where = where
        self._token = token
        self._under_way = UnderWay(where.shown)
        self._exchange = Exchange(
            where.target, shown=where.shown, connections=connections, allow_hosts=allow_hosts
        )
        self._limits = PlatformLimits(
            name=f"http {where.host}", body_bytes=int(where.options.get("limit", BODY_BYTES))
        )

    @property
    def limits(self) -> PlatformLimits:
        return self._limits

    async def call(self, body: bytes, *, key: str, seconds: float) -> bytes:
        """See `Platform.call`."""
        if len(body) > self._limits.body_bytes:
            raise PlatformFault(
                Fault.TOO_LARGE,
                f"{self._where.shown}: a request of {len(body)} bytes; at most "
                f"{self._limits.body_bytes} (?limit=)",
            )
        return await self._under_way.bounded(lambda: self._call(body, key), seconds)

    async def close(self) -> None:
        """See `Platform.close`."""
        await self._under_way.close()
        await self._exchange.close()

    async def _call(self, body: bytes, key: str) -> bytes:
        headers = {"content-type": CONTENT_TYPE, "x-rollart-key": _ascii(key)}
        token = "" if self._token is None else await self._token()
        if token:
            headers["authorization"] = f"Bearer {token}"
        reply = await self._exchange.post(self._where.target, body, headers)
        return answer_of(reply, shown=self._where.shown, secret=token, now=time.time())


def answer_of(reply: Reply, *, shown: str, secret: str, now: float) -> bytes:
    """The body of a good reply.

    Args:
        secret: taken out of what is quoted; empty for none.
        now: Unix time, for a Retry-After that is a date.

    Raises:
        PlatformFault: by status; 408 and 504 are time-outs, other 5xx mean that it is unavailable.
        ConfigError: 401 and 403.
    """
    status = reply.status
    if 200 <= status < 300:
        return reply.body
    said = _quoted(reply.body, secret)
    if status in (401, 403):
        have = f"refused the token in {TOKEN}" if secret else f"needs a token: set {TOKEN}"
        raise ConfigError(
            f"{shown}: answered {status}: it {have} (a Google service: use ?auth=google){said}"
        )
    if 300 <= status < 400:
        target = reply.headers.get("location", "nowhere").partition("?")[0]
        raise PlatformFault(
            Fault.REFUSED,
            f"{shown}: answered {status}, a redirect to {target}, which is not followed; if that "
            "is the function, give its URL",
        )
    fault = _FAULTS.get(status, Fault.UNAVAILABLE if status >= 500 else Fault.REFUSED)
    raise PlatformFault(
        fault,
        f"{shown}: answered {status}{said}",
        retry_after_s=retry_after(reply.headers.get("retry-after"), now=now),
    )


_FAULTS: Mapping[int, Fault] = {
    408: Fault.TIMEOUT,
    413: Fault.TOO_LARGE,
    429: Fault.THROTTLED,
    504: Fault.TIMEOUT,
}


def retry_after(value: str | None, *, now: float) -> float | None:
    """Seconds that a Retry-After asks for, as seconds or as a date (RFC 9110, 10.2.3).

    None where it asks for nothing, or for nothing that can be read.
    """
    if value is None:
        return None
    value = value.strip()
    if value.isascii() and value.isdigit():
        return float(value)
    try:
        return max(0.0, parsedate_to_datetime(value).timestamp() - now)
    except (TypeError, ValueError, OverflowError):
        return None


class GoogleToken:
    """Identity tokens of a Google service account for a Cloud Run service (``?auth=google``).

    Made by google-auth with its own search for credentials (GOOGLE_APPLICATION_CREDENTIALS, or the
    machine's account). This was written after its documentation and never run against the service.
    """

    def __init__(self, where: PlatformUrl) -> None:
        self._shown = where.shown
        self._audience = f"{where.scheme}://{where.host}"
        self._fetching = asyncio.Lock()
        self._token, self._until = "", 0.0

    async def __call__(self) -> str:
        async with self._fetching:
            now = asyncio.get_running_loop().time()
            if now >= self._until:
                self._token = await asyncio.to_thread(self._fetch)
                self._until = now + GOOGLE_TOKEN_S
            return self._token

    def _fetch(self) -> str:
        try:
            from google.auth.exceptions import GoogleAuthError
            from google.auth.transport.requests import Request
            from google.oauth2.id_token import fetch_id_token
        except ImportError as error:
            raise ConfigError(
                f"{self._shown}: ?auth=google needs google-auth: pip install google-auth requests"
            ) from error
        try:
            return str(fetch_id_token(Request(), self._audience))
        except GoogleAuthError as error:
            raise ConfigError(
                f"{self._shown}: no Google identity token ({type(error).__name__}); set "
                "GOOGLE_APPLICATION_CREDENTIALS to a service account's file"
            ) from error


def _constant(token: str) -> TokenSource:
    async def give() -> str:
        return token

    return give


def _ascii(key: str) -> str:
    """A key as a header may hold it; the whole of it is in the body."""
    return "".join(c if c.isascii() and c.isprintable() else "?" for c in key)


def _quoted(body: bytes, secret: str) -> str:
    text = body[: _SHOWN * 4].decode("utf-8", errors="replace")
    if secret:
        text = text.replace(secret, "***")
    text = " ".join(text.split())[:_SHOWN]
    return f": {text}" if text else ""
