"""The child's side: what an entry function is given, and a ready-made loop for requests.

An entry is ``def entry(port: ChildPort, config) -> None``. It sets itself up, then either calls
`serve` with its handlers or runs a loop of its own around `ChildPort.poll`. It should return when
`stopping` is True; the child then ends. What it does not do in time, the owner's SIGKILL does.
"""

from __future__ import annotations

import contextlib
import inspect
import traceback
from collections.abc import Callable, Generator, Mapping
from dataclasses import dataclass
from typing import Any

from rollart.process.blocking import BlockingChannel
from rollart.process.errors import ChannelClosed
from rollart.process.messages import Beat, Call, Event, Failure, Ready, Result, Stop

_TRACEBACK_CHARS = 16_384
_MESSAGE_CHARS = 8_192


@dataclass(frozen=True, slots=True, kw_only=True)
class Request:
    """What the owner asks. `id` is None when it wants no answer."""

    id: int | None
    method: str
    args: tuple[Any, ...]


class ChildPort:
    """The child's connection to its owner.

    One thread receives (`poll`, `requests`); any thread may send. Sending blocks while the owner
    does not read. When the owner dies, the process is ended from outside this class.
    """

    def __init__(self, channel: BlockingChannel, name: str) -> None:
        self.name = name
        self._channel = channel
        self._stopping = False
        self._is_ready = False

    @property
    def stopping(self) -> bool:
        """True once the owner asked to stop, or is gone (known after `poll` or `requests`)."""
        return self._stopping

    def fileno(self) -> int:
        """A descriptor that is readable when `poll` has something, for selectors."""
        return self._channel.fileno()

    def ready(self) -> None:
        """Tell the owner that set-up is done; only the first time counts."""
        if not self._is_ready:
            self._is_ready = True
            self._channel.send(Ready())

    def poll(self) -> list[Request]:
        """Return the requests that are there, without blocking."""
        return self.requests(0.0)

    def requests(self, timeout: float | None) -> list[Request]:
        """Wait up to `timeout` seconds (None: as long as it takes) for requests or a stop.

        Raises:
            BadFrame, FrameTooLarge: the owner sent something that is no message.
        """
        try:
            messages = self._channel.poll(timeout)
        except ChannelClosed:
            self._stopping = True
            return []
        found: list[Request] = []
        for message in messages:
            match message:
                case Call():
                    found.append(Request(id=message.id, method=message.method, args=message.args))
                case Stop():
                    self._stopping = True
                case _:
                    pass  # a second Start says nothing new
        return found

    def reply(self, request_id: int | None, value: Any) -> None:
        """Answer a request; nothing is sent for None.

        Raises:
            TypeError: msgpack cannot express the value.
            FrameTooLarge: it exceeds the channel's limit.
            ChannelClosed: the owner is gone.
        """
        if request_id is not None:
            self._channel.send(Result(request_id, value))

    def reply_error(self, request_id: int, error: BaseException) -> None:
        """Answer a request with an exception; the owner's call raises `RemoteError`."""
        kind = type(error)
        name = kind.__qualname__
        if kind.__module__ != "builtins":
            name = f"{kind.__module__}.{name}"
        trace = "".join(traceback.format_exception(error))
        self._channel.send(
            Failure(request_id, name, str(error)[:_MESSAGE_CHARS], trace[-_TRACEBACK_CHARS:])
        )

    def event(self, value: Any) -> None:
        """Tell the owner something unasked. Raises as `reply` does."""
        self._channel.send(Event(value))

    def events(self, values: list[Any]) -> None:
        """Tell several things with one write. Raises as `reply` does, and then sends none."""
        self._channel.send_many([Event(value) for value in values])

    def beat(self) -> None:
        """A heartbeat, for children that run without the heartbeat thread."""
        self._channel.send(Beat())


Handler = Callable[..., Any]
"""Takes the request's arguments; may be ``async def``. What it raises goes to the caller."""


def serve(port: ChildPort, handlers: Mapping[str, Handler]) -> None:
    """Answer requests until the owner stops this child.

    Sync handlers run one after another, in the order of the requests. If at least one handler is a
    coroutine function, an asyncio loop runs here and its calls overlap; a sync handler then blocks
    that loop. A cast whose handler raises ends the child, since nobody else would learn of it.
    """
    port.ready()
    if any(inspect.iscoroutinefunction(handler) for handler in handlers.values()):
        from rollart.process.serve_async import run_async_handlers

        run_async_handlers(port, handlers)
        return
    while not port.stopping:
        for request in port.requests(None):
            with answering(port, request):
                port.reply(request.id, find_handler(handlers, request)(*request.args))


def find_handler(handlers: Mapping[str, Handler], request: Request) -> Handler:
    """Return the handler of a request, or raise LookupError with the names there are."""
    handler = handlers.get(request.method)
    if handler is None:
        raise LookupError(
            f"no method {request.method!r} here; there are: {', '.join(sorted(handlers))}"
        )
    return handler


@contextlib.contextmanager
def answering(port: ChildPort, request: Request) -> Generator[None, None, None]:
    """The one boundary where a handler's exception is caught: it becomes the answer."""
    try:
        yield
    except ChannelClosed:
        raise
    except Exception as error:
        if request.id is None:
            raise
        port.reply_error(request.id, error)
