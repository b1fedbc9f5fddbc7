"""Conformance of a `WeightStore`: whole or not at all, once, pinned while read, collected after."""

from collections.abc import Callable, Iterator
from dataclasses import dataclass

import numpy as np

from rollart.core.errors import WeightsCorrupt, WeightsMissing
from rollart.core.identity import PolicyVersion
from rollart.core.ports import WeightStore, WeightTensor
from rollart.testing.conformance.contract import Contract

MakeStore = Callable[[], WeightStore]


@dataclass(frozen=True, slots=True, kw_only=True)
class StoreTrial:
    """What the suite may do to the stores it is given.

    Attributes:
        other: another handle on the same store, as another process has; without it the suite reads
            through the handle that wrote.
        corrupt: changes a byte of a committed version; without it that is not checked.
        close: lets go of a store.
    """

    other: Callable[[WeightStore], WeightStore] = lambda store: store
    corrupt: Callable[[WeightStore, PolicyVersion], None] | None = None
    close: Callable[[WeightStore], None] = lambda store: None


def version(number: int) -> PolicyVersion:
    return PolicyVersion("agent", number)


def tensors(number: int) -> tuple[WeightTensor, ...]:
    """A matrix that depends on `number`, a tied copy of it, a scalar and an empty tensor."""
    matrix = np.full((3, 4), number, np.float32) + np.arange(12, dtype=np.float32).reshape(3, 4)
    data = matrix.reshape(-1).view(np.uint8)
    scalar = np.array([number], np.int64).view(np.uint8)
    return (
        WeightTensor(name="embed.weight", shape=(3, 4), dtype="float32", data=data),
        WeightTensor(name="head.weight", shape=(3, 4), dtype="float32", data=data),
        WeightTensor(name="steps", shape=(), dtype="int64", data=scalar),
        WeightTensor(name="nothing", shape=(0, 4), dtype="float32", data=np.zeros(0, np.uint8)),
    )


class _Suite:
    def __init__(self, store: WeightStore, trial: StoreTrial) -> None:
        self.store = store
        self.reader = trial.other(store)
        self.trial = trial
        self.require = Contract("WeightStore").require

    def holds(self, number: int, clause: str) -> None:
        """The reader must find exactly the tensors of `number`."""
        try:
            with self.reader.read(version(number)) as found:
                self.equal(dict(found), number, clause)
        except (WeightsMissing, WeightsCorrupt) as error:
            self.require(False, clause, repr(error))

    def equal(self, found: dict[str, WeightTensor], number: int, clause: str) -> None:
        wanted = {tensor.name: tensor for tensor in tensors(number)}
        self.require(set(found) == set(wanted), clause, f"names {sorted(found)}")
        for name, tensor in wanted.items():
            got = found[name]
            form = (got.shape, got.dtype) == (tensor.shape, tensor.dtype)
            self.require(form, clause, f"{name} is {got.dtype} {got.shape}")
            same = bytes(got.data) == bytes(tensor.data)
            self.require(same, clause, f"{name} of {version(number)} has other bytes")

    def fails(
        self, what: Callable[[], object], errors: tuple[type[Exception], ...], clause: str
    ) -> None:
        try:
            what()
        except errors:
            return
        except Exception as error:
            self.require(False, clause, f"it raised {error!r}")
        self.require(False, clause, "it raised nothing")

    def is_missing(self, number: int, clause: str) -> None:
        self.fails(lambda: self.reader.read(version(number)).__enter__(), (WeightsMissing,), clause)


def check_weight_store(make: MakeStore, trial: StoreTrial | None = None) -> None:
    """Every clause of the `WeightStore` port; raises `ConformanceError` at the first broken one.

    Args:
        make: makes an empty store; called once a check.
    """
    trial = trial or StoreTrial()
    for check in (
        keeps_what_was_published,
        publishes_a_version_once,
        commits_whole_or_not_at_all,
        collects_all_but_the_newest,
        never_collects_what_is_read,
        notices_damage,
    ):
        suite = _Suite(make(), trial)
        check(suite)
        if suite.reader is not suite.store:
            trial.close(suite.reader)
        trial.close(suite.store)


def keeps_what_was_published(suite: _Suite) -> None:
    """Names, shapes, dtypes and bytes come back; versions are listed oldest first."""
    suite.require(
        suite.reader.versions() == (), "a new store is empty", f"{suite.reader.versions()}"
    )
    suite.is_missing(0, "a version that was never committed is WeightsMissing")
    for number in (2, 10, 11):
        suite.store.publish(version(number), tensors(number))
    listed = suite.reader.versions()
    wanted = tuple(map(version, (2, 10, 11)))
    suite.require(listed == wanted, "versions are listed oldest first", f"{listed}")
    for number in (10, 2, 11):
        suite.holds(number, "what was published is read, tied, scalar and empty tensors too")


def publishes_a_version_once(suite: _Suite) -> None:
    """A second publication is an error and changes nothing."""
    clause = "publishing a version twice is an error and changes nothing"
    suite.store.publish(version(1), tensors(1))
    suite.fails(lambda: suite.store.publish(version(1), tensors(5)), (Exception,), clause)
    suite.holds(1, clause)


def commits_whole_or_not_at_all(suite: _Suite) -> None:
    """A writer that fails in the middle leaves no version, and may try again."""

    def breaks_off() -> Iterator[WeightTensor]:
        yield tensors(3)[0]
        raise OSError("scripted failure in the middle of a publication")

    clause = "a version is readable only once committed whole"
    suite.fails(lambda: suite.store.publish(version(3), breaks_off()), (OSError,), clause)
    suite.require(
        suite.reader.versions() == (), clause, f"{suite.reader.versions()} after a failure"
    )
    suite.is_missing(3, clause)
    seen: list[tuple[PolicyVersion, ...]] = []

    def watched() -> Iterator[WeightTensor]:
        for tensor in tensors(3):
            seen.append(suite.reader.versions())
            yield tensor

    suite.store.publish(version(3), watched())
    suite.require(not any(seen), clause, f"{seen} while it was written")
    suite.holds(3, "a failed publication can be repeated")


def collects_all_but_the_newest(suite: _Suite) -> None:
    """`collect` drops the old ones, says which, and leaves the others whole."""
    for number in range(1, 6):
        suite.store.publish(version(number), tensors(number))
    dropped = suite.store.collect(2)
    wanted = tuple(map(version, (1, 2, 3)))
    clause = "collect drops all but the newest and returns the dropped"
    suite.require(tuple(sorted(dropped)) == wanted, clause, f"{dropped}")
    left = suite.reader.versions()
    suite.require(left == tuple(map(version, (4, 5))), clause, f"{left} are left")
    suite.is_missing(1, "a collected version is WeightsMissing")
    for number in (4, 5):
        suite.holds(number, "collect leaves the newest whole")
    suite.require(suite.store.collect(2) == (), "collect drops nothing twice", "it did")


def never_collects_what_is_read(suite: _Suite) -> None:
    """A pinned version stays, whole, until nobody reads it."""
    clause = "a version that somebody reads is never collected"
    for number in (1, 2, 3):
        suite.store.publish(version(number), tensors(number))
    with suite.reader.read(version(1)) as outer:
        with suite.reader.read(version(1)):
            suite.store.collect(1)
        dropped = suite.store.collect(1)
        suite.require(version(1) not in dropped, clause, f"{dropped} were dropped")
        suite.equal(dict(outer), 1, clause)
        suite.holds(1, clause)
    dropped = suite.store.collect(1)
    suite.require(
        dropped == (version(1),), "a pin ends with the reading", f"{dropped} were dropped"
    )


def notices_damage(suite: _Suite) -> None:
    """Bytes that are not those of the manifest are never handed out."""
    if suite.trial.corrupt is None:
        return
    suite.store.publish(version(1), tensors(1))
    suite.store.publish(version(2), tensors(2))
    suite.trial.corrupt(suite.store, version(1))

    def read() -> None:
        with suite.reader.read(version(1)):
            return

    suite.fails(read, (WeightsCorrupt,), "damaged bytes are WeightsCorrupt")
    suite.holds(2, "damage to one version leaves the others")
