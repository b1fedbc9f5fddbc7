"""A mean that is kept as a sum, so that a long run costs no more than a short one."""

from dataclasses import dataclass


@dataclass(slots=True)
class Average:
    """Of the values that were known; `mean` is None where there were none."""

    total: float = 0.0
    count: int = 0

    def add(self, value: float | None) -> None:
        if value is not None:
            self.total += value
            self.count += 1

    @property
    def mean(self) -> float | None:
        return self.total / self.count if self.count else None
