"""`Child`: the owner's handle on one child process, however it was started.

Owns the channel, the pending calls, the heartbeat deadline and the end of the child. Invariants:
every pending call ends, with an answer, `CallTimeout` or `ChildDied`; `died` resolves exactly once,
after the process is reaped and all its descriptors here are closed. Who waits on whom: callers wait
for answers or their deadline; `close` waits for `died`; the child's end is an event of the loop
(end of the process, end of the stream, silence), never a poll. One loop, no threads.
"""

from __future__ import annotations

import asyncio
import itertools
from collections.abc import Callable
from typing import Any, Protocol

from rollart.process.channel import AsyncChannel
from rollart.process.errors import CallTimeout, ChannelError, ChildDied, ProcessError, RemoteError
from rollart.process.messages import Beat, Call, Event, Failure, Ready, Result, Stop, ToOwner
from rollart.process.output import OutputTail
from rollart.process.report import ExitCause, ExitReport, exit_report

REAP_LIMIT = 5.0
"""Seconds to wait for a killed process; longer only if it hangs in the kernel."""

_LAST_WORDS = 0.25  # seconds to read what an ended child still left in its socket
_EXIT_GRACE = 2.0  # seconds from the end of the stream to the end of the process, then it is killed


class ProcessHandle(Protocol):
    """One operating-system process, as seen by its owner."""

    @property
    def pid(self) -> int: ...

    def watch(self, on_exit: Callable[[int | None], None]) -> None:
        """Call back once in the loop, after the process ended and was reaped.

        The argument is the return code as `subprocess` gives it, or None when it is unknown.
        """
        ...

    def kill(self) -> None:
        """SIGKILL the process and its group; harmless when it has ended."""
        ...


class Child:
    """A running child; made by `spawn` or `ForkServer.fork`.

    Attributes:
        name: for messages and process lists.
        died: resolves with the report when the child has ended and was reaped.
        ready: resolves when the child said so.
        on_event: called in the loop with each unsolicited message of the child; None drops them.
            If it raises, the child is killed.
    """

    def __init__(
        self,
        *,
        name: str,
        process: ProcessHandle,
        output: OutputTail,
        heartbeat_timeout: float,
        on_event: Callable[[Any], None] | None,
    ) -> None:
        self._loop = asyncio.get_running_loop()
        self.name = name
        self.died: asyncio.Future[ExitReport] = self._loop.create_future()
        self.ready: asyncio.Future[None] = self._loop.create_future()
        self.on_event = on_event
        self._process = process
        self._output = output
        self._heartbeat_timeout = heartbeat_timeout
        self._channel: AsyncChannel | None = None
        self._ids = itertools.count(1)
        self._pending: dict[int, asyncio.Future[Any]] = {}
        self._timers: list[asyncio.TimerHandle] = []
        self._heart: asyncio.TimerHandle | None = None
        self._exited = False
        self._returncode: int | None = None
        self._cause = ExitCause.ITSELF
        self._why = ""

    def attach(self, channel: AsyncChannel | None) -> None:
        """Bind the channel (None: it could not be opened) and watch the process.

        Called once, by whoever starts the child; before that its end is not noticed.
        """
        self._channel = channel
        if channel is not None:
            channel.closed.add_done_callback(self._on_channel_closed)
        self._process.watch(self._on_exit)

    @property
    def pid(self) -> int:
        return self._process.pid

    @property
    def alive(self) -> bool:
        """False once the child is known to have ended."""
        return not self.died.done()

    @property
    def output(self) -> str:
        """The last lines that the child wrote to stdout and stderr so far."""
        return self._output.last_lines()

    async def call(self, method: str, *args: Any, timeout: float) -> Any:
        """Ask the child and return its answer as msgpack gives it (lists, dicts, bytes, numbers).

        Args:
            timeout: seconds; afterwards the answer is no longer waited for.

        Raises:
            ChildDied: the child has ended, or ended before it answered.
            CallTimeout: no answer in time; other calls are not affected.
            RemoteError: the child's handler raised.
            FrameTooLarge, ChannelFull, TypeError: the request could not be sent.
        """
        if self.died.done():
            raise ChildDied(self.died.result())
        call_id = next(self._ids)
        self._send(Call(call_id, method, args))
        answer: asyncio.Future[Any] = self._loop.create_future()
        self._pending[call_id] = answer
        timer = self._loop.call_later(timeout, self._expire, call_id, method, timeout)
        try:
            return await answer
        finally:
            timer.cancel()
            self._pending.pop(call_id, None)
            if answer.done() and not answer.cancelled():
                answer.exception()  # a caller cancelled in this very turn will not look at it

    def cast(self, method: str, *args: Any) -> None:
        """Tell the child something; no answer. A handler that raises ends the child.

        Raises:
            ChildDied: the child has ended.
            FrameTooLarge, ChannelFull, TypeError: it could not be sent.
        """
        if self.died.done():
            raise ChildDied(self.died.result())
        self._send(Call(None, method, args))

    async def drain(self) -> None:
        """Wait until the child has taken most of what was sent, or its channel is closed."""
        if self._channel is not None:
            await self._channel.drain()

    def kill(self) -> None:
        """SIGKILL the child and its process group now; `died` resolves a moment later."""
        self._end(ExitCause.KILLED, "kill() was called")

    async def close(self, grace: float) -> ExitReport:
        """Ask the child to end, kill it after `grace` seconds, and wait until it is reaped.

        Raises:
            ProcessError: the kernel does not let it go.
        """
        try:
            await self._stop(grace)
        except asyncio.CancelledError:
            self.kill()
            raise
        if not self.died.done():
            raise ProcessError(
                f"{self.name} (pid {self.pid}) did not end within {REAP_LIMIT:g} s of SIGKILL; "
                "it hangs in the kernel, look at its device or file system"
            )
        return self.died.result()

    def handle(self, message: ToOwner) -> None:
        """Take one message of the child; the channel calls it."""
        match message:
            case Result(id=call_id, value=value):
                answer = self._pending.get(call_id)
                if answer is not None and not answer.done():
                    answer.set_result(value)
            case Event(value=value):
                if self.on_event is not None:
                    self.on_event(value)
            case Failure():
                answer = self._pending.get(message.id)
                if answer is not None and not answer.done():
                    answer.set_exception(
                        RemoteError(message.type_name, message.message, message.traceback)
                    )
            case Ready():
                if not self.ready.done():
                    self.ready.set_result(None)
            case Beat():
                pass
        if self._heart is None and not self._exited:
            # Silence counts from the first word on; before that the start's deadline does.
            self._heart = self._loop.call_later(self._heartbeat_timeout, self._check_heart)

    def _send(self, message: object) -> None:
        # Between the end of the stream and the end of the process there is nobody to send to;
        # a call made then is answered by the end.
        if self._channel is not None and not self._channel.closed.done():
            self._channel.send(message)

    async def _stop(self, grace: float) -> None:
        if self.died.done():
            return
        if self._cause is ExitCause.ITSELF:
            self._cause = ExitCause.CLOSED
        try:
            self._send(Stop())
            await asyncio.wait((self.died,), timeout=grace)
        except ChannelError:
            pass  # it does not read any more, so it cannot be asked
        if not self.died.done():
            self._end(ExitCause.KILLED, f"still running {grace:g} s after close()")
            await asyncio.wait((self.died,), timeout=REAP_LIMIT)

    def _expire(self, call_id: int, method: str, seconds: float) -> None:
        answer = self._pending.get(call_id)
        if answer is not None and not answer.done():
            answer.set_exception(CallTimeout(self.name, method, seconds))

    def _check_heart(self) -> None:
        # The loop runs readers before timers, so after a stall of the owner itself the beats that
        # waited in the socket have been counted by now.
        if self._exited or self._channel is None or self._channel.closed.done():
            return
        silence = self._loop.time() - self._channel.last_received
        if silence >= self._heartbeat_timeout:
            self._end(
                ExitCause.SILENT,
                f"no heartbeat for {silence:.1f} s (limit {self._heartbeat_timeout:g} s)",
            )
        else:
            self._heart = self._loop.call_later(
                self._heartbeat_timeout - silence, self._check_heart
            )

    def _end(self, cause: ExitCause, why: str) -> None:
        if self._exited:
            return
        if self._cause in (ExitCause.ITSELF, ExitCause.CLOSED):
            self._cause, self._why = cause, why
        self._process.kill()

    def _on_channel_closed(self, closed: asyncio.Future[ChannelError | None]) -> None:
        fault = closed.result()
        if self._exited:
            self._finish()
        elif fault is not None:
            self._end(ExitCause.CHANNEL, str(fault))
        else:
            self._timers.append(
                self._loop.call_later(
                    _EXIT_GRACE,
                    self._end,
                    ExitCause.CHANNEL,
                    f"it closed its channel and did not end within {_EXIT_GRACE:g} s",
                )
            )

    def _on_exit(self, returncode: int | None) -> None:
        self._exited = True
        self._returncode = returncode
        if self._channel is None or self._channel.closed.done():
            self._finish()
        else:
            self._timers.append(self._loop.call_later(_LAST_WORDS, self._channel.close))

    def _finish(self) -> None:
        if self.died.done():
            return
        self._output.close()
        for timer in (*self._timers, self._heart):
            if timer is not None:
                timer.cancel()
        report = exit_report(
            name=self.name,
            pid=self._process.pid,
            cause=self._cause,
            why=self._why,
            returncode=self._returncode,
            output=self._output.last_lines(),
        )
        self.died.set_result(report)
        for answer in self._pending.values():
            if not answer.done():
                answer.set_exception(ChildDied(report))
        self._pending.clear()
        if not self.ready.done():
            self.ready.cancel()
