"""The weight store suite passes a right store, and names the clause that a wrong one breaks."""

from collections.abc import Iterable, Iterator, Mapping
from contextlib import contextmanager
from dataclasses import replace

import numpy as np
import pytest

from rollart.core.errors import RollartError, WeightsCorrupt
from rollart.core.identity import PolicyVersion
from rollart.core.ports import WeightStore, WeightTensor
from rollart.testing.conformance import ConformanceError, StoreTrial, check_weight_store
from rollart.testing.weights import MemoryWeightStore


def corrupt(store: WeightStore, version: PolicyVersion) -> None:
    assert isinstance(store, MemoryWeightStore)
    store.corrupt(version)


TRIAL = StoreTrial(corrupt=corrupt)


def test_the_store_in_memory_conforms() -> None:
    check_weight_store(MemoryWeightStore, TRIAL)


class WritesOver(MemoryWeightStore):
    """The second publication of a version replaces the first."""

    def publish(self, version: PolicyVersion, tensors: Iterable[WeightTensor]) -> None:
        self._held.pop(version, None)
        super().publish(version, tensors)


class WritesInPlace(MemoryWeightStore):
    """A version is there from its first tensor on."""

    def publish(self, version: PolicyVersion, tensors: Iterable[WeightTensor]) -> None:
        if version in self._held:
            raise RollartError("published already")
        self._held[version], self._digests[version] = {}, hash(())
        listed = list(tensors)
        del self._held[version]
        super().publish(version, listed)


class KeepsBorrowedBytes(MemoryWeightStore):
    """Gives the reader one name of each tied pair."""

    def publish(self, version: PolicyVersion, tensors: Iterable[WeightTensor]) -> None:
        seen = dict[bytes, WeightTensor]()
        for tensor in tensors:
            seen.setdefault(bytes(tensor.data), tensor)
        super().publish(version, seen.values())


class SortsByName(MemoryWeightStore):
    """Lists versions as text: 10 before 2."""

    def versions(self) -> tuple[PolicyVersion, ...]:
        return tuple(sorted(self._held, key=str))


class CollectsWhatIsRead(MemoryWeightStore):
    def collect(self, keep: int) -> tuple[PolicyVersion, ...]:
        self._readers.clear()
        return super().collect(keep)


class NeverUnpins(MemoryWeightStore):
    @contextmanager
    def read(self, version: PolicyVersion) -> Iterator[Mapping[str, WeightTensor]]:
        with super().read(version) as found:
            yield found
        self._readers[version] += 1


class TrustsItsBytes(MemoryWeightStore):
    @contextmanager
    def read(self, version: PolicyVersion) -> Iterator[Mapping[str, WeightTensor]]:
        try:
            with super().read(version) as found:
                yield found
        except WeightsCorrupt:
            yield self._held[version]


class FlattensScalars(MemoryWeightStore):
    def publish(self, version: PolicyVersion, tensors: Iterable[WeightTensor]) -> None:
        super().publish(version, (replace(t, shape=t.shape or (1,)) for t in tensors))


class ReusesOneBuffer(MemoryWeightStore):
    """All versions share the memory of the newest one."""

    def publish(self, version: PolicyVersion, tensors: Iterable[WeightTensor]) -> None:
        super().publish(version, tensors)
        newest = self._held[version]
        for held in self._held.values():
            for name, tensor in held.items():
                np.copyto(tensor.data, newest[name].data)


@pytest.mark.parametrize(
    ("kind", "clause"),
    [
        (WritesOver, "publishing a version twice is an error"),
        (WritesInPlace, "readable only once committed whole"),
        (KeepsBorrowedBytes, "what was published is read"),
        (SortsByName, "versions are listed oldest first"),
        (CollectsWhatIsRead, "a version that somebody reads is never collected"),
        (NeverUnpins, "a pin ends with the reading"),
        (TrustsItsBytes, "damaged bytes are WeightsCorrupt"),
        (FlattensScalars, "what was published is read"),
        (ReusesOneBuffer, "what was published is read"),
    ],
)
def test_each_broken_store_fails_its_own_clause(kind: type[MemoryWeightStore], clause: str) -> None:
    with pytest.raises(ConformanceError) as caught:
        check_weight_store(kind, TRIAL)
    assert clause in caught.value.clause
