"""Errors of child processes and of the channels to them.

Every failure that a caller can meet has its own type, so that a boundary can tell a dead child
from a slow one. A message says what happened, the value, and what to do.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from rollart.core.errors import RollartError

if TYPE_CHECKING:
    from rollart.process.report import ExitReport


class ProcessError(RollartError):
    """Base of all errors of this room."""


class ChannelError(ProcessError):
    """A channel broke, or refused what it was given."""


class ChannelClosed(ChannelError):
    """The channel is closed: the peer ended, or this end was closed."""


class BadFrame(ChannelError):
    """The peer sent bytes that are not a message of the expected kind; the channel is closed."""


class FrameTooLarge(ChannelError):
    """A frame exceeds the channel's limit.

    On the sending side the message is refused and the channel stays usable; on the receiving side
    the stream cannot be trusted any more and the channel is closed.

    Attributes:
        size: bytes of the frame's payload (as sent, or as announced by the peer).
        limit: bytes allowed.
    """

    def __init__(self, size: int, limit: int) -> None:
        super().__init__(
            f"a frame of {size} bytes exceeds the limit of {limit} bytes; "
            "send smaller messages or raise frame_limit"
        )
        self.size = size
        self.limit = limit


class ChannelFull(ChannelError):
    """The peer does not read: too many bytes wait to be sent. The message was not sent.

    Attributes:
        pending: bytes that wait in this process.
        limit: bytes allowed to wait.
    """

    def __init__(self, pending: int, limit: int) -> None:
        super().__init__(
            f"{pending} bytes wait for a peer that does not read (limit {limit}); "
            "await drain() between large messages, or end the peer"
        )
        self.pending = pending
        self.limit = limit


class ChildStartError(ProcessError):
    """A child did not become ready; the message ends with the last lines of its output."""


class ChildDied(ProcessError):
    """The child that was asked has ended.

    Attributes:
        report: how it ended.
    """

    def __init__(self, report: ExitReport) -> None:
        super().__init__(str(report))
        self.report = report


class CallTimeout(ProcessError):
    """A call had no answer in time. The child may still work on it; a late answer is ignored."""

    def __init__(self, child: str, method: str, seconds: float) -> None:
        super().__init__(
            f"{child}.{method} gave no answer within {seconds:g} s; "
            "kill the child if it must not go on, or allow the call more time"
        )
        self.child = child
        self.method = method
        self.seconds = seconds


class RemoteError(ProcessError):
    """A handler in the child raised.

    Attributes:
        type_name: the exception's qualified name in the child, e.g. ``ValueError`` or ``pkg.Bad``.
        message: ``str()`` of the exception.
        traceback: the child's formatted traceback (its last part if it is long).
    """

    def __init__(self, type_name: str, message: str, traceback: str) -> None:
        super().__init__(f"{type_name}: {message}\n{traceback}".rstrip())
        self.type_name = type_name
        self.message = message
        self.traceback = traceback
