"""The controller: a run from the first weights to the last, and its orderly end.

Invariant: however the run ends, what is in flight leaves the ledger, the balance is emitted, the
weights are saved if the trainer lives, and `RunEnded` says why.

    who waits            for what                          unblocked by
    admission            a credit; the next task           resume, a dropped group; a source
    group member         environment, LLMProxy, reward     their answer or deadline, cancellation
    LLMProxy request     a routable engine; tokens         update's commit, resume; deltas, loss
    get_batch            enough groups in SampleBuffer     a group that ends; the stall limit
    abort_stale          doomed groups to let go           the engines' acknowledgements
    update               one engine's acknowledgement      the engine, or the deadline
    train_step           the trainer                       its answer, death, or deadline
"""

import asyncio
from collections.abc import Callable, Coroutine
from dataclasses import dataclass

from rollart.control.deadline import now, within
from rollart.control.evaluation import Evaluator
from rollart.control.evaluation_beside import EvaluationBeside
from rollart.control.fleet import Fleet
from rollart.control.ledger import Ledger
from rollart.control.scheduler import OutOfTasks, RolloutScheduler
from rollart.control.tail import TailWatch
from rollart.control.weight_sync import WeightSync
from rollart.core.errors import TrainerLost, first_error
from rollart.core.events import RunEnded, Warned
from rollart.core.ports import EventSink, Trainer


@dataclass(frozen=True, slots=True, kw_only=True)
class ControllerSettings:
    """How far to go, and where the last weights are written."""

    steps: int
    time_limit_s: float | None
    alpha: int
    save_to: str | None
    save_s: float = 120.0


@dataclass(frozen=True, slots=True, kw_only=True)
class RunResult:
    """How a run ended. `interrupted`: somebody asked it to stop."""

    ok: bool
    reason: str
    steps: int
    interrupted: bool = False


class Controller:
    """Drives one run over parts that are made elsewhere."""

    def __init__(
        self,
        *,
        fleet: Fleet,
        scheduler: RolloutScheduler,
        sync: Callable[[Callable[[int], float]], WeightSync],
        trainer: Trainer,
        evaluator: Evaluator,
        beside: EvaluationBeside,
        ledger: Ledger,
        settings: ControllerSettings,
        events: EventSink,
    ) -> None:
        self._fleet = fleet
        self._scheduler = scheduler
        self._sync = sync(self.progress)
        self._trainer = trainer
        self._evaluator = evaluator
        self._beside = beside
        self._ledger = ledger
        self._settings = settings
        self._events = events
        self._main: asyncio.Task[RunResult] | None = None
        self._stop: str | None = None
        self._fatal: Exception | None = None
        self._interrupted = False
        self._tail = TailWatch()
        self._began = 0.0
        self._done = 0

    def stop(self, reason: str) -> None:
        """Ask the run to end in order: what is in flight is cancelled, weights are saved."""
        self._stop = self._stop or reason
        self._interrupt()

    def fail(self, error: Exception) -> None:
        """End the run with an error that no waiting part will see by itself."""
        self._fatal = self._fatal or error
        self._interrupt()

    def _interrupt(self) -> None:
        """Once: a second cancellation would end the resume that follows the first."""
        if self._main is not None and not self._interrupted:
            self._interrupted = True
            self._main.cancel()

    def progress(self, step: int) -> float:
        """Share of the run that is over, by steps or by time, whichever is further."""
        by_steps = step / self._settings.steps
        limit = self._settings.time_limit_s
        return min(1.0, max(by_steps, (now() - self._began) / limit if limit else 0.0))

    async def run(self) -> RunResult:
        """Train to the end. Errors of the run become its result; only cancellation passes."""
        return await self._drive(self._train)

    async def measure(self) -> RunResult:
        """Evaluate the weights as they are, and train nothing; otherwise as `run`."""
        return await self._drive(self._measure)

    async def _drive(
        self, work: Callable[[asyncio.TaskGroup], Coroutine[None, None, RunResult]]
    ) -> RunResult:
        self._began = now()
        self._fleet.on_fatal = self.fail
        async with asyncio.TaskGroup() as group:
            watch = group.create_task(self._watch_trainer())
            self._main = group.create_task(work(group))
            if self._stop is not None or self._fatal is not None:
                self._interrupt()
            result = await self._result_of(self._main)
            self._main = None
            watch.cancel()
            result = await self._finish(result)
            await self._fleet.close()
        self._events.emit(
            RunEnded(
                reason=result.reason,
                ok=result.ok,
                steps=result.steps,
                seconds=now() - self._began,
            )
        )
        return result

    async def _watch_trainer(self) -> None:
        reason = await self._trainer.wait_dead()
        self.fail(TrainerLost(f"the trainer died: {reason}"))

    async def _result_of(self, main: "asyncio.Task[RunResult]") -> RunResult:
        await asyncio.wait([main])
        if not main.cancelled() and not (main.result().ok and self._fatal is not None):
            return main.result()
        if self._fatal is not None:
            return RunResult(ok=False, reason=describe(self._fatal), steps=self._done)
        if self._stop is not None:
            return RunResult(ok=True, reason=self._stop, steps=self._done, interrupted=True)
        return RunResult(ok=False, reason="the run was cancelled from within", steps=self._done)

    async def _train(self, group: asyncio.TaskGroup) -> RunResult:
        try:
            await self._fleet.start(group)
            await self._sync.first_sync()
            await self._evaluator.evaluate("before", self._trainer.version.number)
            self._began = now()
            self._beside.start(group)
            self._scheduler.start(group)
            reason = await self._steps()
            await self._beside.settled()
            await self._scheduler.stop()
            await self._sync.last_sync()
            await self._evaluator.evaluate("after", self._trainer.version.number)
        except Exception as error:
            return RunResult(ok=False, reason=describe(error), steps=self._done)
        return RunResult(ok=True, reason=reason, steps=self._done)

    async def _measure(self, group: asyncio.TaskGroup) -> RunResult:
        try:
            await self._fleet.start(group)
            await self._sync.first_sync()
            await self._evaluator.evaluate("before", self._trainer.version.number)
        except Exception as error:
            return RunResult(ok=False, reason=describe(error), steps=0)
        return RunResult(ok=True, reason="the held-out tasks are played", steps=0)

    async def _steps(self) -> str:
        """Iterate until steps, time or tasks run out; returns which."""
        for step in range(self._settings.steps):
            if self.progress(step) >= 1.0:
                return f"the time limit of {self._settings.time_limit_s:g} s is over"
            began = now()
            try:
                await self._sync.iteration(step)
            except OutOfTasks as error:
                if not self._done:
                    raise OutOfTasks(f"nothing was trained: {error}") from error
                return str(error)
            self._done = step + 1
            self._balance()
            warning = self._tail.after_step(
                now() - began, self._scheduler.durations, alpha=self._settings.alpha
            )
            if warning is not None:
                self._events.emit(Warned(message=warning))
        return "all steps are done"

    def _balance(self) -> None:
        self._events.emit(
            self._ledger.balance(
                step=self._done,
                buffered=self._scheduler.buffered,
                in_flight=self._scheduler.in_flight,
            )
        )

    async def _finish(self, result: RunResult) -> RunResult:
        """Close the books and save the weights, whatever happened before."""
        self._beside.stop()
        await self._beside.settled()
        await self._scheduler.stop()
        self._balance()
        if self._settings.save_to is None or isinstance(self._fatal, TrainerLost):
            return result
        try:
            await within(
                self._settings.save_s,
                self._trainer.save(self._settings.save_to),
                lambda: TrainerLost(f"weights were not saved in {self._settings.save_s:g} s"),
            )
        except Exception as error:
            self._events.emit(Warned(message=f"the final weights are not saved: {error}"))
            return RunResult(
                ok=False,
                reason=f"{result.reason}; the final weights are not saved: {describe(error)}",
                steps=result.steps,
                interrupted=result.interrupted,
            )
        return result


def describe(error: Exception) -> str:
    """One line for people: our own errors speak for themselves, others are named."""
    if isinstance(error, BaseExceptionGroup):
        return describe(first_error(error))
    if type(error).__module__.startswith("rollart."):
        return str(error)
    return f"{type(error).__name__}: {error}"
