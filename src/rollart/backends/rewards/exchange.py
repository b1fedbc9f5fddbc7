"""One POST over HTTP by httpx2, for platforms that are reached so.

Invariant: no redirect is followed, no answer above `LARGEST_ANSWER` is read, no address that
`addresses` forbids is sent to, whatever a name resolves to. Deadlines are the caller's
(`UnderWay`): one for the whole exchange, which trickling bytes do not extend.

Calls to this machine use no proxy; others use the environment's (HTTPS_PROXY, NO_PROXY).
"""

import ipaddress
import ssl
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any
from urllib.parse import urlsplit
from urllib.request import getproxies, proxy_bypass

import httpx2

from rollart.backends.rewards.addresses import inside, is_loopback, named, never
from rollart.backends.rewards.platform import Fault, PlatformFault

LARGEST_ANSWER = 8_000_000
"""Bytes of an answer at most; a verdict takes a few hundred."""

POOL = 32
"""Connections of one client: each call makes it look at all of its connections, twice."""

KEEPALIVE_S = 60.0  # an idle connection is closed after so long; servers often close it sooner


@dataclass(frozen=True, slots=True, kw_only=True)
class Reply:
    """What came back. Names of headers are in lower case."""

    status: int
    headers: Mapping[str, str]
    body: bytes


@dataclass(slots=True, eq=False)
class _Client:
    """Some of the connections, and the calls that use them; opened when they are needed."""

    size: int
    calls: int = 0
    http: httpx2.AsyncClient | None = None


class Exchange:
    """Connections to one host, those used before first.

    Args:
        url: any of the host's.
        shown: the function, in messages.
        connections: at most.
        allow_hosts: see `addresses.named`; an address of a private network needs an exact name.
    """

    def __init__(
        self, url: str, *, shown: str, connections: int, allow_hosts: Sequence[str] | None
    ) -> None:
        parts = urlsplit(url)
        host = (parts.hostname or "").lower()
        self._shown = shown
        self._proxy = None if is_loopback(host) else _proxy(parts.scheme, host)
        self._inside_allowed = self._proxy is not None or named(host, allow_hosts)
        self._trust = _trust(parts.scheme)
        full, rest = divmod(connections, POOL)
        self._clients = [_Client(size) for size in (*[POOL] * full, *([rest] if rest else []))]

    async def post(self, url: str, body: bytes, headers: Mapping[str, str]) -> Reply:
        """Send and receive once.

        Raises:
            PlatformFault: `UNAVAILABLE` without a connection, `LOST` for one that is closed
                without an answer, `CRASHED` in the midst of one, `REFUSED` for a forbidden address,
                `GARBLED` for an answer that is too large.
        """
        free = (one for one in self._clients if one.calls < one.size)
        client = next(free, None) or min(self._clients, key=lambda one: one.calls)
        client.calls += 1
        try:
            return await self._post(self._opened(client), url, body, headers)
        finally:
            client.calls -= 1

    async def close(self) -> None:
        for client in self._clients:
            if client.http is not None:
                await client.http.aclose()

    def _opened(self, client: "_Client") -> httpx2.AsyncClient:
        if client.http is None:
            client.http = httpx2.AsyncClient(
                trust_env=False,  # neither .netrc nor a proxy of which we would not know
                proxy=self._proxy,
                verify=self._trust,
                follow_redirects=False,
                timeout=None,
                limits=httpx2.Limits(
                    max_connections=client.size,
                    max_keepalive_connections=client.size,
                    keepalive_expiry=KEEPALIVE_S,
                ),
            )
        return client.http

    async def _post(
        self, client: httpx2.AsyncClient, url: str, body: bytes, headers: Mapping[str, str]
    ) -> Reply:
        request = client.build_request(
            "POST",
            url,
            content=body,
            headers={"accept-encoding": "identity", **headers},
            extensions={"trace": self._check_peer},
        )
        answers = False
        try:
            response = await client.send(request, stream=True)
            answers = True
            try:
                content = await self._read(response)
            finally:
                await response.aclose()
        except (httpx2.ReadError, httpx2.RemoteProtocolError) as error:
            when = "in the midst of an answer" if answers else "without an answer"
            raise PlatformFault(
                Fault.CRASHED if answers else Fault.LOST,
                f"{self._shown}: the connection was closed {when} ({_of(error)})",
            ) from error
        except httpx2.TransportError as error:
            raise PlatformFault(
                Fault.UNAVAILABLE, f"{self._shown}: cannot be reached ({_of(error)})"
            ) from error
        return Reply(
            status=response.status_code,
            headers={name.lower(): value for name, value in response.headers.items()},
            body=content,
        )

    async def _read(self, response: httpx2.Response) -> bytes:
        parts: list[bytes] = []
        size = 0
        async for part in response.aiter_raw():
            size += len(part)
            if size > LARGEST_ANSWER:
                raise PlatformFault(
                    Fault.GARBLED,
                    f"{self._shown}: its answer is larger than {LARGEST_ANSWER} bytes; a function "
                    "answers with a verdict only",
                )
            parts.append(part)
        return b"".join(parts)

    async def _check_peer(self, event: str, info: Mapping[str, Any]) -> None:
        """Look at whom we are connected to, before anything is sent."""
        if event != "connection.connect_tcp.complete":
            return
        stream = info["return_value"]
        peer = stream.get_extra_info("server_addr")
        address = ipaddress.ip_address(str(peer[0]).partition("%")[0])
        if never(address) or (inside(address) and not self._inside_allowed):
            await stream.aclose()
            raise PlatformFault(
                Fault.REFUSED,
                f"{self._shown}: its name leads to {address}, an address of this machine's own "
                "network; if that is meant, name the host itself in ROLLART_REWARD_HOSTS "
                "(never possible for link-local and metadata addresses)",
            )


def _proxy(scheme: str, host: str) -> str | None:
    proxies = getproxies()
    proxy = proxies.get(scheme) or proxies.get("all")
    return None if not proxy or proxy_bypass(host) else proxy


def _trust(scheme: str) -> ssl.SSLContext:
    if scheme == "https":
        return httpx2.create_ssl_context()
    return ssl.SSLContext(ssl.PROTOCOL_TLS_CLIENT)  # trusts nobody, and is not used without TLS


def _of(error: Exception) -> str:
    return f"{type(error).__name__}: {error}" if str(error) else type(error).__name__
