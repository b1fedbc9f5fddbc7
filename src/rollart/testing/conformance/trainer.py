"""Conformance of a `Trainer`: one version a step, publication, scoring, saving, death."""

import asyncio
import math
from collections.abc import Awaitable, Callable
from dataclasses import dataclass

from rollart.core.identity import PolicyVersion
from rollart.core.ports import Trainer
from rollart.core.types import TrainBatch, TrainStats
from rollart.testing.conformance.contract import Contract, cancelled

MakeTrainer = Callable[[], Awaitable[Trainer]]


@dataclass(frozen=True, slots=True, kw_only=True)
class TrainerTrial:
    """What the suite may assume about the trainers it is given.

    Attributes:
        batch: a batch with a signal, for a step that trains the given version.
        silent: a batch in which no token carries a signal; without it that is not checked.
        stored: the versions that engines can read now; without it that is not checked.
        directory: where `save` may write.
        saved: whether the directory holds weights; without it that is not checked.
        kill: ends a trainer as a crash would; without it death is not checked.
        compares: False for a model of a trainer, which has no log-probs to compare.
    """

    batch: Callable[[int], TrainBatch]
    silent: Callable[[int], TrainBatch] | None = None
    stored: Callable[[], "tuple[PolicyVersion, ...]"] | None = None
    directory: str = "weights"
    saved: Callable[[str], bool] | None = None
    kill: Callable[[Trainer], None] | None = None
    compares: bool = True
    patience_s: float = 60.0
    quiet_s: float = 0.2


async def check_trainer(make: MakeTrainer, trial: TrainerTrial) -> None:
    """Every clause of the `Trainer` port; raises `ConformanceError` at the first broken one.

    Args:
        make: makes a trainer that has trained nothing; called twice. The suite closes it.
    """
    contract = Contract("Trainer", trial.patience_s)
    trainer = await contract.soon(make(), "a trainer can be made")
    await _publishes(contract, trial, trainer)
    await _trains(contract, trial, trainer)
    await _publishes(contract, trial, trainer)
    await _scores_and_saves(contract, trial, trainer)
    await _closes(contract, trial, trainer)
    if trial.kill is not None:
        await _dies(contract, trial, await contract.soon(make(), "a trainer can be made"))


async def _trains(contract: Contract, trial: TrainerTrial, trainer: Trainer) -> None:
    batches = [trial.batch, *((trial.silent,) if trial.silent else ()), trial.batch]
    for make_batch in batches:
        before = trainer.version
        step = asyncio.ensure_future(trainer.train_step(make_batch(before.number)))
        await asyncio.sleep(0)
        contract.require(
            step.done() or trainer.version == before,
            "the version changes at the end of a step",
            f"{trainer.version} while {before} was trained",
        )
        stats = await contract.soon(step, "train_step returns")
        clause = "each step makes the version one higher, also one without a signal"
        contract.require(trainer.version == before.next(), clause, f"{before}, {trainer.version}")
        said = f"says {stats.version}"
        contract.require(stats.version == before.number + 1, clause, said)
        _makes_sense(contract, stats, silent=make_batch is trial.silent)


def _makes_sense(contract: Contract, stats: TrainStats, *, silent: bool) -> None:
    contract.require(
        stats.skipped == silent, "a step is skipped when no token carries a signal", f"{stats}"
    )
    numbers = (stats.loss, stats.grad_norm, stats.learning_rate, stats.entropy, stats.approx_kl)
    contract.require(all(map(math.isfinite, numbers)), "what is reported is finite", f"{stats}")
    counted = 0 <= stats.trained_tokens <= stats.input_tokens and stats.seconds >= 0
    contract.require(counted, "trained tokens are among the input tokens", f"{stats}")


async def _publishes(contract: Contract, trial: TrainerTrial, trainer: Trainer) -> None:
    published = await contract.soon(trainer.publish(), "publish returns")
    contract.require(
        published == trainer.version,
        "publish commits the present version",
        f"{published} with {trainer.version}",
    )
    if trial.stored is not None:
        stored = trial.stored()
        contract.require(
            published in stored, "what was published can be read", f"{published} in {stored}"
        )


async def _scores_and_saves(contract: Contract, trial: TrainerTrial, trainer: Trainer) -> None:
    before = trainer.version
    batch = trial.batch(before.number)
    for trajectories in ((), batch.trajectories):
        gap = await contract.soon(trainer.score(trajectories, 1.0), "score returns")
        good = gap.tokens >= 0 and gap.maximum >= gap.mean >= 0 and math.isfinite(gap.maximum)
        contract.require(good, "a gap has a count, a maximum and a mean", f"{gap}")
        enough = bool(gap.tokens) == (bool(trajectories) and trial.compares)
        contract.require(enough, "tokens of the present version are compared", f"{gap}")
    await contract.soon(trainer.save(trial.directory), "save returns")
    if trial.saved is not None:
        clause = "save writes the weights"
        contract.require(trial.saved(trial.directory), clause, f"none in {trial.directory}")
    contract.require(
        trainer.version == before, "scoring and saving train nothing", f"{trainer.version}"
    )


async def _closes(contract: Contract, trial: TrainerTrial, trainer: Trainer) -> None:
    waiter = asyncio.ensure_future(trainer.wait_dead())
    await contract.waits(waiter, trial.quiet_s, "wait_dead waits while it lives")
    for _ in range(2):
        await contract.soon(trainer.close(), "close returns, also twice")
    await contract.soon(waiter, "wait_dead returns once it is closed")


async def _dies(contract: Contract, trial: TrainerTrial, trainer: Trainer) -> None:
    impatient = asyncio.ensure_future(trainer.wait_dead())
    await contract.waits(impatient, trial.quiet_s, "wait_dead waits while it lives")
    await cancelled(impatient)
    waiters = [asyncio.ensure_future(trainer.wait_dead()) for _ in range(2)]
    step = asyncio.ensure_future(trainer.train_step(trial.batch(trainer.version.number)))
    await contract.waits(waiters[0], 0.0, "one who stops waiting does not wake the others")
    assert trial.kill is not None
    trial.kill(trainer)
    for waiter in waiters:
        reason = await contract.soon(waiter, "wait_dead returns when it has died")
        contract.require(bool(reason), "wait_dead says why", repr(reason))
    if not (step.done() and step.exception() is None):
        await contract.raises(step, (Exception,), "a step of a trainer that dies fails soon")
    await contract.soon(trainer.close(), "a dead trainer can be closed")
