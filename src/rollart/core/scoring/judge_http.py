"""One try at a judge's endpoint over HTTP, with the standard library.

Invariant: a try is over when its seconds are, whatever trickles in once it is connected (before,
each read of a TLS greeting has this bound); nothing is followed elsewhere; what goes to this
machine goes by no proxy, and what goes elsewhere by the environment's.
"""

import http.client
import socket
import ssl
import threading
import urllib.error
import urllib.request
from dataclasses import dataclass, field
from typing import Any

from rollart.core.errors import RollartError
from rollart.core.scoring.judge_calls import Endpoint, Reply

LARGEST = 16 << 20
"""Bytes of the largest answer that is read."""


class Unreached(RollartError):
    """A try without an answer. `lasting`: another would end alike."""

    def __init__(self, reason: str, *, lasting: bool = False) -> None:
        super().__init__(reason)
        self.lasting = lasting


@dataclass(frozen=True, slots=True, kw_only=True)
class Post:
    """A request to send; `key` is not shown where it is printed."""

    endpoint: Endpoint
    body: bytes
    key: str = field(default="", repr=False)


def send(post: Post, seconds: float) -> Reply:
    """Send once and wait at most `seconds`. Raises `Unreached`."""
    watch = _Watch()
    timer = threading.Timer(seconds, watch.cut)
    timer.daemon = True
    timer.start()
    host = post.endpoint.host
    try:
        reply = _sent(post, seconds, watch)
    except (OSError, http.client.HTTPException, ValueError) as error:
        cause = getattr(error, "reason", error)
        if watch.is_cut or isinstance(cause, TimeoutError):
            raise _silent(host) from error
        lasting = isinstance(cause, ssl.SSLCertVerificationError)
        raise Unreached(_unreached(host, cause), lasting=lasting) from error
    finally:
        timer.cancel()
    if watch.is_cut:  # a body without a length ends where its connection does
        raise _silent(host)
    return reply


def _sent(post: Post, seconds: float, watch: "_Watch") -> Reply:
    headers = {"Content-Type": "application/json", "User-Agent": "rollart"}
    if post.key:
        headers["Authorization"] = f"Bearer {post.key}"
    request = urllib.request.Request(
        post.endpoint.url, data=post.body, headers=headers, method="POST"
    )
    try:
        answer = _opener(post.endpoint, watch).open(request, timeout=seconds)
    except urllib.error.HTTPError as error:
        answer = error
    with answer:
        body = answer.read(LARGEST + 1)
        if len(body) > LARGEST:
            raise Unreached(
                f"the judge at {post.endpoint.host} answers over {LARGEST} bytes", lasting=True
            )
        length = answer.headers.get("Content-Length") or ""
        if length.isdigit() and len(body) < int(length):  # read(n) takes a broken end for one
            raise http.client.IncompleteRead(body, int(length) - len(body))
        return Reply(
            status=answer.status or 0,
            body=body,
            retry_after=answer.headers.get("Retry-After") or "",
        )


def _opener(endpoint: Endpoint, watch: "_Watch") -> urllib.request.OpenerDirector:
    """What sends a request, and nothing more: what follows redirects is left out."""
    opener = urllib.request.OpenerDirector()
    for handler in (
        urllib.request.ProxyHandler({} if endpoint.loopback else None),
        _Secure(watch) if endpoint.url.startswith("https:") else _Plain(watch),
        urllib.request.HTTPErrorProcessor(),
        urllib.request.HTTPDefaultErrorHandler(),
    ):
        opener.add_handler(handler)
    return opener


class _Watch:
    """Ends the connections of one try from another thread.

    A socket's own time-out counts from byte to byte, and so never ends an answer that trickles.
    """

    def __init__(self) -> None:
        self._lock = threading.Lock()
        self._sockets: list[socket.socket] = []
        self.is_cut = False

    def take(self, sock: socket.socket) -> None:
        with self._lock:
            self._sockets.append(sock)
            if self.is_cut:
                _shut(sock)

    def cut(self) -> None:
        with self._lock:
            self.is_cut = True
            for sock in self._sockets:
                _shut(sock)


def _shut(sock: socket.socket) -> None:
    try:
        socket.socket.shutdown(sock, socket.SHUT_RDWR)  # also under TLS, whose state stays whole
    except OSError:
        return  # it has ended already


class _Plain(urllib.request.HTTPHandler):
    def __init__(self, watch: _Watch) -> None:
        super().__init__()
        self._watch = watch

    def http_open(self, req: urllib.request.Request) -> http.client.HTTPResponse:
        def make(host: str, **named: Any) -> http.client.HTTPConnection:
            return _WatchedPlain(self._watch, host, **named)

        return self.do_open(make, req)


class _Secure(urllib.request.HTTPSHandler):
    def __init__(self, watch: _Watch) -> None:
        super().__init__()
        self._watch = watch

    def https_open(self, req: urllib.request.Request) -> http.client.HTTPResponse:
        def make(host: str, **named: Any) -> http.client.HTTPConnection:
            return _WatchedSecure(self._watch, host, **named)

        return self.do_open(make, req)


class _WatchedPlain(http.client.HTTPConnection):
    def __init__(self, watch: _Watch, host: str, **named: Any) -> None:
        super().__init__(host, **named)
        self._watch = watch

    def connect(self) -> None:
        super().connect()
        self._watch.take(self.sock)


class _WatchedSecure(http.client.HTTPSConnection):
    def __init__(self, watch: _Watch, host: str, **named: Any) -> None:
        super().__init__(host, **named)
        self._watch = watch

    def connect(self) -> None:
        super().connect()
        self._watch.take(self.sock)


def _silent(host: str) -> Unreached:
    return Unreached(f"the judge at {host} did not answer in time")


def _unreached(host: str, cause: object) -> str:
    if isinstance(cause, ssl.SSLCertVerificationError):
        return f"the judge at {host} shows a certificate that does not hold"
    if isinstance(cause, socket.gaierror):
        return f"the judge's host {host} has no address"
    if isinstance(cause, ConnectionRefusedError):
        return f"nothing listens at {host}, where the judge should be"
    return f"the connection to the judge at {host} broke ({type(cause).__name__})"
