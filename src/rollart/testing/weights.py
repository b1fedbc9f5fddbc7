"""A weight store in this process's memory, with the semantics of the real ones."""

from collections import Counter
from collections.abc import Iterable, Iterator, Mapping
from contextlib import contextmanager
from dataclasses import replace

from rollart.core.errors import RollartError, WeightsCorrupt, WeightsMissing
from rollart.core.identity import PolicyVersion
from rollart.core.ports import WeightTensor


class MemoryWeightStore:
    """Versions by number; what is read is pinned.

    Invariant: a version is there once its last tensor has been copied, and never changes.
    """

    def __init__(self) -> None:
        self._held: dict[PolicyVersion, dict[str, WeightTensor]] = {}
        self._digests: dict[PolicyVersion, int] = {}
        self._readers: Counter[PolicyVersion] = Counter()

    def publish(self, version: PolicyVersion, tensors: Iterable[WeightTensor]) -> None:
        """Raises `RollartError` for a version that is there, `ValueError` for a repeated name."""
        if version in self._held:
            raise RollartError(f"weights {version} are published already; publish the next version")
        copied: dict[str, WeightTensor] = {}
        for tensor in tensors:
            if tensor.name in copied:
                raise ValueError(f"tensor {tensor.name!r} is given twice; each name comes once")
            copied[tensor.name] = replace(tensor, data=tensor.data.copy())
        self._held[version] = copied
        self._digests[version] = _digest(copied)

    @contextmanager
    def read(self, version: PolicyVersion) -> Iterator[Mapping[str, WeightTensor]]:
        if version not in self._held:
            raise WeightsMissing(f"weights {version} are not here; read one of {self.versions()}")
        if _digest(self._held[version]) != self._digests[version]:
            raise WeightsCorrupt(f"weights {version} are damaged; read a newer version")
        self._readers[version] += 1
        try:
            yield self._held[version]
        finally:
            self._readers[version] -= 1

    def versions(self) -> tuple[PolicyVersion, ...]:
        return tuple(sorted(self._held))

    def collect(self, keep: int) -> tuple[PolicyVersion, ...]:
        if keep < 1:
            raise ValueError(f"keep = {keep}: the newest version is always kept; use 1 or more")
        old = [version for version in self.versions()[:-keep] if not self._readers[version]]
        for version in old:
            del self._held[version], self._digests[version], self._readers[version]
        return tuple(old)

    def corrupt(self, version: PolicyVersion) -> None:
        """Change one byte, as a broken memory or a careless writer would."""
        tensor = next(tensor for tensor in self._held[version].values() if len(tensor.data))
        tensor.data[0] ^= 0xFF


def _digest(tensors: Mapping[str, WeightTensor]) -> int:
    return hash(tuple((name, bytes(tensor.data)) for name, tensor in tensors.items()))
