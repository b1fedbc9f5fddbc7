"""Points to Weights & Biases, offline: they stay in the run's directory until `wandb sync`.

Invariant: each series is logged over its own axis as its step metric, never over the implicit
step that all writers share and that may only grow. Nothing is sent, printed or measured besides.
To be put behind a `BackgroundTracker`, which owns its thread.
"""

import json
from pathlib import Path

from rollart.observe.points import Point


class WandbTracker:
    """One offline run below `directory`/wandb. `config` is the run's configuration as JSON."""

    def __init__(self, directory: Path, *, run: str, config: str) -> None:
        import wandb

        self._axes: set[str] = set()
        self._run = wandb.init(
            project="rollart",
            name=run,
            dir=str(directory),
            config=json.loads(config),
            mode="offline",
            # Console capture would wrap the live view's output, and the rest asks for the
            # machine, the repository or the user, none of which a metric needs.
            settings=wandb.Settings(
                console="off",
                silent=True,
                disable_code=True,
                disable_git=True,
                disable_job_creation=True,
                x_disable_stats=True,
                x_disable_meta=True,
                x_disable_machine_info=True,
                x_save_requirements=False,
            ),
        )

    def log(self, point: Point) -> None:
        axis = f"{point.series}/{point.axis}"
        if axis not in self._axes:
            self._axes.add(axis)
            self._run.define_metric(axis, hidden=True)
            self._run.define_metric(f"{point.series}/*", step_metric=axis)
        values = {f"{point.series}/{name}": v for name, v in point.values if v is not None}
        if values:
            self._run.log({axis: point.at, "time": point.time, **values})

    def close(self) -> None:
        import wandb

        self._run.finish()
        # The file is written by a process of its own, whole only once that process has ended.
        wandb.teardown()
