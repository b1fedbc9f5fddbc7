"""Evaluation on held-out tasks, each trajectory under one version.

Invariant: nothing here enters the ledger, takes a credit or is trained on; a trajectory whose
tokens came from another version than the one evaluated is not counted.
Who waits: the controller, for `evaluate`; bounded by the episodes' own deadlines and `compare_s`.
"""

import asyncio
from collections.abc import Mapping, Sequence
from dataclasses import dataclass

from rollart.control.deadline import now, within
from rollart.control.env_manager import EnvManager
from rollart.control.flight import Flight
from rollart.core.errors import TrainerLost
from rollart.core.events import Evaluated, GapMeasured, Warned
from rollart.core.identity import Purpose, TrajectoryId
from rollart.core.ports import EventSink, Trainer
from rollart.core.types import Task, Trajectory

GAP_TRAJECTORIES = 64
"""How many sampled trajectories the trainer scores to compare log-probs."""


@dataclass(frozen=True, slots=True, kw_only=True)
class EvaluationSettings:
    """`places` bounds a domain's trajectories at once, `beside` all of those beside a rollout;
    `compare_s` bounds one comparison (seconds).
    """

    run: str
    places: Mapping[str, int]
    beside: int
    compare_s: float


class Evaluator:
    """Evaluates every domain that has held-out tasks."""

    def __init__(
        self,
        *,
        managers: Mapping[str, EnvManager],
        heldout: Mapping[str, Sequence[Task]],
        temperatures: Mapping[str, float],
        trainer: Trainer,
        settings: EvaluationSettings,
        events: EventSink,
    ) -> None:
        self._managers = managers
        self._heldout = heldout
        self._temperatures = temperatures
        self._trainer = trainer
        self._settings = settings
        self._events = events
        self._round = 0

    async def evaluate(self, when: str, version: int) -> None:
        """Sample and play greedily on the held-out tasks; compare log-probs on the sampled."""
        for domain, tasks in self._heldout.items():
            if not tasks:
                continue
            temperature = self._temperatures[domain]
            room = asyncio.Semaphore(self._settings.places[domain])
            sampled = await self._play(domain, temperature, "sampled", when, version, room)
            await self._play(domain, 0.0, "greedy", when, version, room)
            await self._compare(sampled[:GAP_TRAJECTORIES], temperature, version)

    async def evaluate_beside(self, when: str, version: int) -> None:
        """Sample on every domain's held-out tasks, all domains together, while others roll out."""
        room = asyncio.Semaphore(self._settings.beside)
        async with asyncio.TaskGroup() as group:
            for domain, tasks in self._heldout.items():
                if tasks:
                    temperature = self._temperatures[domain]
                    group.create_task(
                        self._play(domain, temperature, "sampled", when, version, room)
                    )

    async def _play(  # noqa: PLR0917
        self,
        domain: str,
        temperature: float,
        mode: str,
        when: str,
        version: int,
        room: asyncio.Semaphore,
    ) -> list[Trajectory]:
        began = now()
        tasks = self._heldout[domain]
        self._round += 1
        number = self._round

        async def one(index: int, task: Task) -> Trajectory:
            async with room:
                ident = TrajectoryId(
                    run=self._settings.run,
                    domain=domain,
                    task=task.key,
                    group=number,
                    member=index,
                    purpose=Purpose.EVAL,
                )
                flight = Flight(id=ident, task=task, started_at=now())
                return await self._managers[domain].rollout(flight, temperature=temperature)

        async with asyncio.TaskGroup() as group:
            running = [group.create_task(one(i, task)) for i, task in enumerate(tasks)]
        ended = [task.result() for task in running]
        counted = [t for t in ended if t.score is not None and is_of_version(t, version)]
        if len(counted) < len(tasks):
            self._events.emit(
                Warned(
                    message=f"held-out {domain}, {mode}: only {len(counted)} of {len(tasks)} tasks "
                    "could be scored; the success shown is over those"
                )
            )
        successes = [value for t in counted if (value := t.metric("success")) is not None]
        scores = [t.score for t in counted if t.score is not None]
        self._events.emit(
            Evaluated(
                domain=domain,
                when=when,
                mode=mode,
                version=version,
                tasks=len(tasks),
                scored=len(counted),
                success=sum(successes) / len(successes) if successes else None,
                score=sum(scores) / len(scores) if scores else None,
                seconds=now() - began,
            )
        )
        return counted

    async def _compare(
        self, trajectories: Sequence[Trajectory], temperature: float, version: int
    ) -> None:
        if not trajectories:
            return
        seconds = self._settings.compare_s
        gap = await within(
            seconds,
            self._trainer.score(trajectories, temperature),
            lambda: TrainerLost(
                f"the trainer did not compare log-probs within {seconds:g} s; "
                "see its log, or raise timeouts.train_s"
            ),
        )
        self._events.emit(
            GapMeasured(version=version, tokens=gap.tokens, maximum=gap.maximum, mean=gap.mean)
        )


def is_of_version(trajectory: Trajectory, version: int) -> bool:
    """Whether every sampled token came from `version`."""
    return all(found == version for found, _ in trajectory.version_runs())
