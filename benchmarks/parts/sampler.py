"""Whose CPU time it is: the stack of the main thread, looked at every few milliseconds of it.

A sample belongs to the innermost frame that lies in one of the named folders; what such code calls
elsewhere (the standard library, records, seeds) is thereby its own. The share of a folder is its
share of the samples; n samples say it to within 1/sqrt(n).
"""

import signal
from collections import Counter
from collections.abc import Mapping
from types import FrameType, TracebackType

EVERY_S = 0.004
"""CPU seconds between two samples; one costs some microseconds."""


class Sampler:
    """A context in which samples are taken; `shares` may be asked for afterwards.

    Args:
        owners: the owner's name by a part of the file's path; the first that is found counts.
    """

    def __init__(self, owners: Mapping[str, str]) -> None:
        self._owners = owners
        self._of_file: dict[str, str | None] = {}
        self.samples: Counter[str] = Counter()

    def __enter__(self) -> "Sampler":
        signal.signal(signal.SIGPROF, self._take)
        signal.setitimer(signal.ITIMER_PROF, EVERY_S, EVERY_S)
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        signal.setitimer(signal.ITIMER_PROF, 0.0)
        signal.signal(signal.SIGPROF, signal.SIG_DFL)

    def share(self, owner: str) -> float:
        """0 to 1."""
        return self.samples[owner] / max(1, self.samples.total())

    def _take(self, number: int, frame: FrameType | None) -> None:
        while frame is not None:
            owner = self._owner(frame.f_code.co_filename)
            if owner is not None:
                self.samples[owner] += 1
                return
            frame = frame.f_back
        self.samples["other"] += 1

    def _owner(self, file: str) -> str | None:
        if file not in self._of_file:
            found = (name for part, name in self._owners.items() if part in file)
            self._of_file[file] = next(found, None)
        return self._of_file[file]
