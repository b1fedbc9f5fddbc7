"""Points as TensorBoard scalars, without TensorFlow or torch.

Invariant: each series has its own tags, each with its own steps, so none overtakes another. Values
that are not known are left out. To be put behind a `BackgroundTracker`, which owns its thread.
"""

import time
from importlib import import_module
from pathlib import Path
from typing import Any

from rollart.observe.points import Point


class TensorBoardTracker:
    """Writes an event file into a directory, for `tensorboard --logdir`."""

    def __init__(self, directory: Path) -> None:
        from tensorboard.summary.writer.event_file_writer import EventFileWriter

        # Message types are made at import, where no type checker sees them.
        self._event: Any = import_module("tensorboard.compat.proto.event_pb2").Event
        self._summary: Any = import_module("tensorboard.compat.proto.summary_pb2").Summary
        self._writer = EventFileWriter(str(directory), flush_secs=5)

    def log(self, point: Point) -> None:
        values = [
            self._summary.Value(tag=f"{point.series}/{name}", simple_value=value)
            for name, value in point.values
            if value is not None
        ]
        if values:
            self._writer.add_event(
                self._event(
                    wall_time=time.time(), step=point.at, summary=self._summary(value=values)
                )
            )

    def close(self) -> None:
        self._writer.close()
