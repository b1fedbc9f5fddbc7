"""A function behind an HTTP URL: Cloud Run, Knative, Function Compute's HTTP triggers, any server.

Invariant: a bearer token is sent only where the URL names it (``?auth=``), travels only over TLS or
to this machine, and never stands in a message, nor does what a server echoes of it or of the URL's
query.
"""

import asyncio
import os
import re
import time
from collections.abc import Awaitable, Callable, Mapping, Sequence
from urllib.parse import urlsplit

from rollart.backends.rewards.addresses import is_loopback
from rollart.backends.rewards.asked_wait import asked_wait
from rollart.backends.rewards.exchange import Exchange, Reply
from rollart.backends.rewards.platform import Fault, PlatformFault, PlatformLimits
from rollart.backends.rewards.under_way import UnderWay
from rollart.backends.rewards.urls import GOOGLE, PlatformUrl
from rollart.core.errors import ConfigError
from rollart.core.scoring.wire import CONTENT_TYPE

BODY_BYTES = 33_554_432
"""Cloud Run's limit of a request over HTTP/1; ``?limit=`` says another."""

GOOGLE_TOKEN_S = 2700.0  # an identity token is valid for an hour; it is fetched again well before

_SHOWN = 200  # characters of an error's body that a message quotes
_READ = 1 << 16  # bytes of it that are looked at, so that no secret is shown in part
_HOST = re.compile(r"[A-Za-z0-9.:_-]{1,253}")

TokenSource = Callable[[], Awaitable[str]]
"""Gives a bearer token; raises `ConfigError` where there is none."""


class HttpPlatform:
    """One function at one URL.

    Args:
        where: of scheme http or https.
        connections: at most, which is also how many calls are under way at once.
        allow_hosts: see `addresses.allowed_hosts`, for what a name resolves to.
        token: source of the bearer token; by default what ``?auth=`` of the URL says.

    Raises:
        ConfigError: a token would travel over plain HTTP to another machine, or there is none in
            the variable that the URL names.
    """

    def __init__(
        self,
        where: PlatformUrl,
        *,
        connections: int = 64,
        allow_hosts: Sequence[str] | None = None,
        token: TokenSource | None = None,
    ) -> None:
        if where.auth and where.scheme != "https" and not is_loopback(where.host):
            raise ConfigError(
                f"{where.shown}: a token would be sent unencrypted to {where.host}; use https://, "
                "or leave ?auth= out"
            )
        if token is None and where.auth:
            token = GoogleToken(where) if where.auth == GOOGLE else _constant(_token_of(where))
        self._where = where
        self._token = token
        self._under_way = UnderWay(where.shown)
        self._exchange = Exchange(
            where.target, shown=where.shown, connections=connections, allow_hosts=allow_hosts
        )
        self._limits = PlatformLimits(
            name=f"http {urlsplit(where.target).netloc}",
            body_bytes=int(where.options.get("limit", BODY_BYTES)),
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
        return answer_of(reply, self._where, token=token, now=time.time())


def answer_of(reply: Reply, where: PlatformUrl, *, token: str, now: float) -> bytes:
    """The body of a good reply.

    Args:
        token: taken out of what is quoted, as are `where.secrets`; empty for none.
        now: Unix time, for a Retry-After that is a date.

    Raises:
        PlatformFault: by status; 408 and 504 are time-outs, other 5xx mean that it is unavailable.
        ConfigError: 401 and 403.
    """
    status, shown = reply.status, where.shown
    if 200 <= status < 300:
        return reply.body
    said = _quoted(reply.body, (token, *where.secrets))
    if status in (401, 403):
        raise ConfigError(f"{shown}: answered {status}: {_refused(where)}{said}")
    if 300 <= status < 400:
        raise PlatformFault(
            Fault.REFUSED,
            f"{shown}: answered {status}, a redirect to {_host_of(reply.headers.get('location'))}, "
            "which is not followed; if that is the function, give its URL",
        )
    fault = _FAULTS.get(status, Fault.UNAVAILABLE if status >= 500 else Fault.REFUSED)
    raise PlatformFault(
        fault,
        f"{shown}: answered {status}{said}",
        retry_after_s=asked_wait(reply.headers.get("retry-after"), now=now),
    )


_FAULTS: Mapping[int, Fault] = {
    408: Fault.TIMEOUT,
    413: Fault.TOO_LARGE,
    429: Fault.THROTTLED,
    504: Fault.TIMEOUT,
}


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


def _token_of(where: PlatformUrl) -> str:
    """The token in the variable that a URL names. Raises `ConfigError`, which never shows it."""
    token = os.environ.get(where.auth, "").strip()
    if not token:
        raise ConfigError(
            f"{where.shown}: ?auth={where.auth}: this environment variable is not set; put the "
            "token into it, or leave ?auth= out"
        )
    if not all("!" <= letter <= "~" for letter in token):
        raise ConfigError(
            f"{where.shown}: {where.auth} holds characters that a header cannot; a token is of "
            "letters, digits and signs of ASCII"
        )
    return token


def _refused(where: PlatformUrl) -> str:
    """What a 401 or 403 means, and what to do."""
    if where.auth == GOOGLE:
        return "it refused Google's identity token: let its account invoke the service"
    if where.auth:
        return f"it refused the token in {where.auth}"
    return (
        "it needs a token: name the environment variable that holds it, such as "
        "?auth=ROLLART_REWARD_TOKEN (a Google service: ?auth=google)"
    )


def _host_of(location: str | None) -> str:
    """Where a redirect leads, by its host only: what follows may hold what was sent."""
    try:
        parts = urlsplit(location or "")
        host = parts.hostname or ""
    except ValueError:
        host = ""
    if not _HOST.fullmatch(host):
        return "another path" if location else "nowhere"
    return host


def _constant(token: str) -> TokenSource:
    async def give() -> str:
        return token

    return give


def _ascii(key: str) -> str:
    """A key as a header may hold it; the whole of it is in the body."""
    return "".join(c if c.isascii() and c.isprintable() else "?" for c in key)


def _quoted(body: bytes, secrets: Sequence[str]) -> str:
    text = body[:_READ].decode("utf-8", errors="replace")
    for secret in sorted(filter(None, secrets), key=len, reverse=True):
        text = text.replace(secret, "***")
    text = " ".join(text.split())[:_SHOWN]
    return f": {text}" if text else ""
