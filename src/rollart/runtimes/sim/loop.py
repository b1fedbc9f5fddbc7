"""An asyncio event loop whose clock jumps to the next timer instead of sleeping.

Owns virtual time, the ready queue, the timer heap and every unfinished task. Invariants:

- time, in seconds, moves only when nothing is ready, and only to the earliest timer;
- callbacks run in the order they were scheduled, timers by (time, order in which they were set),
  so a program's order depends on the program alone: not on hash seeds, addresses or the machine;
- nothing from outside can wake the loop. When nothing is ready and no timer is set, no wait can
  ever end, and that is raised as `SimulationDeadlock`; threads, sockets and processes are refused.

`run_virtual` waits for its main coroutine, then for the tasks that it leaves behind, cancelled.
"""

import asyncio
import inspect
import logging
import math
import sys
import weakref
from collections import deque
from collections.abc import AsyncGenerator, Callable, Coroutine
from contextlib import closing
from contextvars import Context, copy_context
from heapq import heapify, heappop, heappush
from threading import get_ident
from typing import Any, NoReturn, TypeVar

T = TypeVar("T")
_Callback = Callable[..., object]
_ExceptionHandler = Callable[[asyncio.AbstractEventLoop, dict[str, Any]], object]

_COMPACT_FROM = 64  # cancelled timers; below this a rebuilt heap costs more than it frees
_LISTED_TASKS = 100  # in an error's text; the attribute `waiting` has them all
_LISTED_FRAMES = 6  # innermost frames of a task

_log = logging.getLogger(__name__)


class VirtualLoopError(RuntimeError):
    """The program asked a virtual loop for something that only a real one can do."""


class SimulationStuck(RuntimeError):
    """The simulation cannot reach its end.

    `time` is the virtual time in seconds; `waiting` describes the unfinished tasks, oldest first.
    """

    def __init__(self, reason: str, time: float, waiting: tuple[str, ...]) -> None:
        super().__init__(reason, time, waiting)
        self.reason, self.time, self.waiting = reason, time, waiting

    def __str__(self) -> str:
        hidden = len(self.waiting) - _LISTED_TASKS
        listed = self.waiting[:_LISTED_TASKS] + ((f"and {hidden} more",) if hidden > 0 else ())
        head = f"at virtual time {self.time:g} s: {self.reason}\nunfinished tasks:"
        return "\n  ".join((head, *(listed or ("none",))))


class SimulationDeadlock(SimulationStuck):
    """Nothing is ready and no timer is set, so what is awaited will never happen."""


class SimulationLivelock(SimulationStuck):
    """Too many callbacks ran without virtual time moving: something spins."""


class SimulationOverrun(SimulationStuck):
    """Virtual time would pass `max_virtual_time` before what is awaited has happened."""


class _Task(asyncio.Task[Any]):
    """A task whose hash is its creation number.

    `TaskGroup` and `asyncio.wait` keep tasks in sets. The default hash is the address, so the
    order in which a group cancels its members would differ from run to run.
    """

    __slots__ = ("_number",)

    def __init__(self, coro: Any, number: int, **options: Any) -> None:
        self._number = number  # first: the constructor of Task already hashes the task
        super().__init__(coro, **options)

    def __hash__(self) -> int:
        return self._number


class _Handle(asyncio.Handle):
    """As asyncio's, but it asks the loop nothing: a turn of a trajectory takes half a dozen."""

    __slots__ = ()

    def __init__(
        self, callback: _Callback, args: tuple[Any, ...], loop: "VirtualLoop", context: Context
    ) -> None:
        self._callback = callback
        self._args = args
        self._loop = loop
        self._context = context
        self._cancelled = False
        self._repr = self._source_traceback = None

    def cancel(self) -> None:
        self._cancelled = True
        self._callback, self._args = None, ()


class _Timer(asyncio.TimerHandle):
    __slots__ = ("stands",)

    stands: bool  # neither due nor cancelled yet

    def __init__(
        self,
        when: float,
        callback: _Callback,
        args: tuple[Any, ...],
        loop: "VirtualLoop",
        context: Context,
    ) -> None:
        self._when = when
        self._callback = callback
        self._args = args
        self._loop = loop
        self._context = context
        self._cancelled = self._scheduled = False
        self._repr = self._source_traceback = None
        self.stands = True

    def cancel(self) -> None:
        self._cancelled = True
        self._callback, self._args = None, ()
        if self.stands:
            self.stands = False
            self._loop._timer_falls()


class VirtualLoop(asyncio.AbstractEventLoop):
    """An event loop under virtual time, for the one thread that made it.

    `start` is the first virtual time and `max_virtual_time` the last allowed one, in seconds;
    `max_callbacks_per_instant` bounds the callbacks that run without time moving. A callback's
    exception goes to the exception handler; the default one has the run raise it.
    """

    def __init__(
        self,
        *,
        start: float = 0.0,
        max_virtual_time: float = math.inf,
        max_callbacks_per_instant: int = 1_000_000,
        debug: bool = False,
    ) -> None:
        self._now, self._max_time = float(start), max_virtual_time
        self._max_callbacks = max_callbacks_per_instant
        self._ready: deque[asyncio.Handle] = deque()
        self._timers: list[tuple[float, int, _Timer]] = []
        self._timers_set = 0
        self._timers_cancelled = 0  # since the heap was last compacted
        self._tasks: dict[_Task, None] = {}  # unfinished, in creation order
        self._tasks_created = 0
        # Ordered by first use, where the usual weak set is not.
        self._generators = weakref.WeakKeyDictionary[AsyncGenerator[Any, Any], None]()
        self._fault: BaseException | None = None  # for the run to raise
        self.passes = 0  # that have ended; each runs what was ready when it began
        self._at_end: list[Callable[[], None]] = []
        self._exception_handler: _ExceptionHandler | None = None
        self._awaited: asyncio.Future[Any] | None = None
        self._thread = get_ident()
        self._running = self._stopping = self._closed = False
        self._debug = debug or sys.flags.dev_mode

    def time(self) -> float:
        return self._now

    def call_soon(
        self, callback: _Callback, *args: Any, context: Context | None = None
    ) -> asyncio.Handle:
        if self._debug or self._closed or get_ident() != self._thread:
            self._check_call(callback)
        handle = _Handle(callback, args, self, context or copy_context())
        self._ready.append(handle)
        return handle

    call_soon_threadsafe = call_soon  # which refuses any other thread

    def call_later(
        self, delay: float, callback: _Callback, *args: Any, context: Context | None = None
    ) -> asyncio.TimerHandle:
        return self.call_at(self._now + delay, callback, *args, context=context)

    def call_at(
        self, when: float, callback: _Callback, *args: Any, context: Context | None = None
    ) -> asyncio.TimerHandle:
        """Call at virtual time `when`, in seconds; infinity is never, so no such timer is due."""
        if self._debug or self._closed or get_ident() != self._thread:
            self._check_call(callback)
        if math.isnan(when):
            raise ValueError(f"a timer needs a time, got {when!r}: check the delay's arithmetic")
        timer = _Timer(when, callback, args, self, context or copy_context())
        self._timers_set += 1
        heappush(self._timers, (when, self._timers_set, timer))
        return timer

    def _timer_falls(self) -> None:
        """One that stood was cancelled."""
        self._timers_cancelled += 1
        if self._timers_cancelled > max(_COMPACT_FROM, len(self._timers) // 2):
            self._timers[:] = [entry for entry in self._timers if entry[2].stands]
            heapify(self._timers)
            self._timers_cancelled = 0

    def _check_call(self, callback: _Callback) -> None:
        if get_ident() != self._thread:
            text = (
                "a virtual loop was called from another thread, whose timing no replay repeats: "
                "keep threads out of control code and model what they do with asyncio.sleep()"
            )
            if self._running:  # the caller (a future's callback, say) may swallow the error
                self._fail(VirtualLoopError(text))
            raise VirtualLoopError(text)
        if self._closed:
            raise RuntimeError("the virtual loop is closed: make a new one, or use run_virtual()")
        if self._debug and (inspect.iscoroutine(callback) or inspect.iscoroutinefunction(callback)):
            raise TypeError(f"{callback!r} is a coroutine, not a callback: use create_task()")

    def create_future(self) -> asyncio.Future[Any]:
        return asyncio.Future(loop=self)

    def create_task(self, coro: Any, *, name: object = None, **options: Any) -> asyncio.Task[Any]:
        """As in asyncio, but the loop holds the task until it is done, and names it by its number.

        asyncio numbers tasks over the whole process, so the names in a second run would differ.
        """
        self._check_call(self.create_task)
        self._tasks_created += 1
        label = f"task-{self._tasks_created}" if name is None else str(name)
        task = _Task(coro, self._tasks_created, loop=self, name=label, **options)
        self._tasks[task] = None
        task.add_done_callback(self._tasks.pop)
        return task

    def unfinished_tasks(self) -> list[asyncio.Task[Any]]:
        """In creation order."""
        return [task for task in self._tasks if not task.done()]

    def run_until_complete(self, future: Any) -> Any:
        """Run until `future` (or the task made of a coroutine) is done, and give its result.

        Raises `SimulationDeadlock` when it can never be done, `SimulationLivelock` when time
        stands still, `SimulationOverrun` past `max_virtual_time`, and the exception of a callback.
        """
        self._check_can_run()
        awaited = self._awaited = asyncio.ensure_future(future, loop=self)
        awaited.add_done_callback(self._stop_on)
        try:
            self.run_forever()
        except BaseException as error:
            own = awaited.exception() if awaited.done() and not awaited.cancelled() else None
            if own is not None and own is not error:
                error.add_note(f"what was awaited had failed as well: {_brief(own)}")
            raise
        finally:
            awaited.remove_done_callback(self._stop_on)
            self._awaited = None
        if not awaited.done():
            raise RuntimeError(f"stop() was called before {awaited!r} was done: await it instead")
        return awaited.result()

    def run_forever(self) -> None:
        """Run until `stop()`; raises what `run_until_complete` raises."""
        self._check_can_run()
        hooks, depth = sys.get_asyncgen_hooks(), sys.get_coroutine_origin_tracking_depth()
        self._running = True
        asyncio._set_running_loop(self)
        sys.set_asyncgen_hooks(firstiter=self._generator_used, finalizer=self._generator_dropped)
        if self._debug:
            sys.set_coroutine_origin_tracking_depth(10)
        try:
            self._run()
        finally:
            sys.set_coroutine_origin_tracking_depth(depth)
            sys.set_asyncgen_hooks(*hooks)
            asyncio._set_running_loop(None)
            self._running = self._stopping = False

    def _run(self) -> None:
        ready, timers = self._ready, self._timers
        callbacks = 0  # since time last moved
        while True:
            if timers and timers[0][0] <= self._now:
                self._take_due_timers()
            if not ready and not self._stopping:
                self._advance()
                callbacks = 0
            batch = len(ready)  # what these schedule comes behind the timers that are due by then
            for _ in range(batch):
                handle = ready.popleft()
                if handle._cancelled:
                    continue
                try:
                    handle._context.run(handle._callback, *handle._args)
                except BaseException as error:
                    self._callback_failed(handle, error)
            self.passes += 1
            if self._at_end:
                self._end_pass()
            if self._fault:
                fault, self._fault = self._fault, None
                raise fault
            if self._stopping:
                return
            callbacks += batch
            if callbacks > self._max_callbacks:
                reason = (
                    f"{callbacks} callbacks ran without virtual time moving, past "
                    f"max_callbacks_per_instant={self._max_callbacks}: await a condition instead "
                    f"of polling it, or raise the limit. Next would be {list(ready)[:3]}"
                )
                raise self._stuck(SimulationLivelock, reason)

    def _callback_failed(self, handle: asyncio.Handle, error: BaseException) -> None:
        """As asyncio has it: what ends a program is raised, all else is the handler's."""
        if isinstance(error, SystemExit | KeyboardInterrupt):
            raise error
        self.call_exception_handler(
            {"message": f"a callback failed: {handle!r}", "exception": error, "handle": handle}
        )

    def at_pass_end(self, callback: Callable[[], None]) -> None:
        """Call it once, when the present pass has ended and before the next begins."""
        self._at_end.append(callback)

    def _end_pass(self) -> None:
        calls, self._at_end = self._at_end, []
        for call in calls:
            asyncio.Handle(call, (), self)._run()

    def _take_due_timers(self) -> None:
        timers, now = self._timers, self._now
        while timers and timers[0][0] <= now:
            timer = heappop(timers)[2]
            if timer.stands:
                timer.stands = False
                self._ready.append(timer)

    def _advance(self) -> None:
        """Jump to the earliest timer that still stands, and make those of that instant ready."""
        timers = self._timers
        while timers and not timers[0][2].stands:
            heappop(timers)
        when = timers[0][0] if timers else math.inf
        if when == math.inf or when > self._max_time:
            raise self._end_of_time(when)
        self._now = when
        ready = self._ready
        while timers and timers[0][0] == when:
            timer = heappop(timers)[2]
            if timer.stands:
                timer.stands = False
                ready.append(timer)

    def _end_of_time(self, when: float) -> SimulationStuck:
        """Why time cannot go on to `when`, infinity being never."""
        if when == math.inf:
            reason = (
                "nothing is ready and no timer is set, so no wait can end: resolve what the tasks "
                "wait for, or bound the wait with asyncio.timeout()"
            )
            return self._stuck(SimulationDeadlock, reason)
        reason = f"the next timer, at {when:g} s, is past max_virtual_time={self._max_time:g} s"
        return self._stuck(SimulationOverrun, f"{reason}: raise it, or end what runs on")

    def _stuck(self, kind: type[SimulationStuck], reason: str) -> SimulationStuck:
        waiting = (f"{task.get_name()}: {_where(task)}" for task in self.unfinished_tasks())
        return kind(reason, self._now, tuple(waiting))

    def _check_can_run(self) -> None:
        self._check_call(self.stop)
        if asyncio._get_running_loop() is not None:
            raise VirtualLoopError("an event loop is running already: await the coroutine instead")

    def _stop_on(self, done: asyncio.Future[Any]) -> None:
        if done is self._awaited:  # else left over from a run that an exception had ended
            self._stopping = True

    def stop(self) -> None:
        self._stopping = True

    def is_running(self) -> bool:
        return self._running

    def is_closed(self) -> bool:
        return self._closed

    def close(self) -> None:
        if self._running:
            raise RuntimeError("a running loop cannot be closed: stop() it, or let its main end")
        self._closed = True
        self._ready.clear()
        self._timers.clear()

    def _generator_used(self, generator: AsyncGenerator[Any, Any]) -> None:
        self._generators[generator] = None

    def _generator_dropped(self, generator: AsyncGenerator[Any, Any]) -> None:
        def close() -> None:
            self.create_task(generator.aclose(), name="aclose")

        # The collector calls this, in whichever thread it happens to run: only append.
        if not self._closed:
            self._ready.append(asyncio.Handle(close, (), self))

    async def shutdown_asyncgens(self) -> None:
        """Close every open async generator, in order of first use."""
        for generator in list(self._generators):
            try:
                await generator.aclose()
            except Exception as error:
                text = f"an async generator failed to close: {generator!r}"
                self.call_exception_handler({"message": text, "exception": error})

    async def shutdown_default_executor(self, timeout: float | None = None) -> None:
        """There is none: a virtual loop refuses executors."""

    def get_exception_handler(self) -> _ExceptionHandler | None:
        return self._exception_handler

    def set_exception_handler(self, handler: _ExceptionHandler | None) -> None:
        self._exception_handler = handler

    def default_exception_handler(self, context: dict[str, Any]) -> None:
        """Have the run raise the error. Outside a run nobody could, so it is logged."""
        error = context.get("exception")
        if self._running:
            self._fail(error or VirtualLoopError(context["message"]))
        else:
            _log.error("%s: %r", context["message"], context, exc_info=error)

    def _fail(self, error: BaseException) -> None:
        if self._fault is None:
            self._fault = error
        else:
            self._fault.add_note(f"in the same pass of the loop also: {_brief(error)}")

    def call_exception_handler(self, context: dict[str, Any]) -> None:
        if self._exception_handler is None:
            self.default_exception_handler(context)
            return
        try:
            self._exception_handler(self, context)
        except Exception as error:
            text = f"the exception handler failed on: {context['message']}"
            self.default_exception_handler({"message": text, "exception": error})

    def get_debug(self) -> bool:
        return self._debug

    def set_debug(self, enabled: bool) -> None:
        self._debug = enabled


def _refusal(name: str) -> Callable[..., NoReturn]:
    def refuse(*_args: object, **_options: object) -> NoReturn:
        raise VirtualLoopError(
            f"{name}() does not exist under virtual time, where no thread, socket, process or "
            "signal has a reproducible timing: call a function directly, and model what takes "
            "time or comes from outside with asyncio.sleep() and asyncio.Queue"
        )

    return refuse


for _name in vars(asyncio.AbstractEventLoop).keys() - vars(VirtualLoop).keys():
    if not _name.startswith("_"):
        setattr(VirtualLoop, _name, _refusal(_name))


def _where(task: asyncio.Task[Any]) -> str:
    """The frames in which a task is suspended, outermost first."""
    frames: list[str] = []
    awaited: Any = task.get_coro()
    while frame := getattr(awaited, "cr_frame", None) or getattr(awaited, "gi_frame", None):
        code = frame.f_code
        frames.append(f"{code.co_filename}:{frame.f_lineno} in {code.co_qualname}")
        awaited = getattr(awaited, "cr_await", None) or getattr(awaited, "gi_yieldfrom", None)
    return " > ".join(frames[-_LISTED_FRAMES:]) or "in no frame"


def _brief(error: BaseException) -> str:
    return f"{type(error).__name__}: {error}"


def run_virtual(
    main: Coroutine[Any, Any, T] | Callable[[], Coroutine[Any, Any, T]],
    *,
    start: float = 0.0,
    max_virtual_time: float = math.inf,
    max_callbacks_per_instant: int = 1_000_000,
    debug: bool = False,
) -> T:
    """Run `main` (a coroutine, or a function that makes it) on a fresh `VirtualLoop`.

    Afterwards, also after an error, the tasks that are left are cancelled in creation order and
    awaited, async generators are closed, and so is the loop. A failure of this winding down is
    raised, or noted on the error that is already on its way.

    Raises what `main` and `VirtualLoop.run_until_complete` raise; `VirtualLoopError` inside a
    running event loop.
    """
    if asyncio._get_running_loop() is not None:
        if inspect.iscoroutine(main):
            main.close()
        raise VirtualLoopError("run_virtual() inside a running event loop: await the coroutine")
    coroutine = main() if callable(main) else main
    loop = VirtualLoop(
        start=start,
        max_virtual_time=max_virtual_time,
        max_callbacks_per_instant=max_callbacks_per_instant,
        debug=debug,
    )
    with closing(loop):
        try:
            result = loop.run_until_complete(loop.create_task(coroutine, name="main"))
        except BaseException as error:
            for late in _wind_down(loop):
                error.add_note(f"while winding down also: {_brief(late)}")
            raise
        for late in _wind_down(loop):
            raise late
        return result


def _wind_down(loop: VirtualLoop) -> list[BaseException]:
    failures: list[BaseException] = []
    left = loop.unfinished_tasks()

    def keep(_loop: asyncio.AbstractEventLoop, context: dict[str, Any]) -> None:
        failures.append(context.get("exception") or VirtualLoopError(context["message"]))

    async def cancel() -> None:
        for task in left:
            task.cancel()
        outcomes = await asyncio.gather(*left, return_exceptions=True)
        errors = (outcome for outcome in outcomes if isinstance(outcome, BaseException))
        failures.extend(e for e in errors if not isinstance(e, asyncio.CancelledError))

    loop.set_exception_handler(keep)  # so that one failure does not end the others' winding down
    for step in (cancel(), loop.shutdown_asyncgens()):
        try:
            loop.run_until_complete(step)
        except BaseException as error:
            failures.append(error)
    return failures
