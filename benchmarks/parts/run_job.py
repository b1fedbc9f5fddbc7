"""Runs a job on the local runtime and leaves its event log, without the checks and the report.

    python -m benchmarks.parts.run_job JOB.toml [--set key=value]...

Control plane, engines, trainer and environments are those of `rollart train`; what is left out is
outside of what is measured and takes as long as a short run. An engine of a hardware class that
`pace.py` names is slowed down to its pace.
"""

import argparse
import asyncio
import sys
from collections.abc import Mapping
from pathlib import Path

from benchmarks.parts.pace import ENTRY, PACES, SlowedConfig
from rollart.control.assembly import assemble, declared_placement
from rollart.core.config import JobConfig
from rollart.core.jobfile import load_job
from rollart.job import run_started
from rollart.observe.eventlog import EVENTS_FILE, EventLog
from rollart.observe.recorder import Recorder
from rollart.process.child import Child
from rollart.runtimes.local.engine_child import EngineChildConfig
from rollart.runtimes.local.launcher import LocalLauncher

ROOT = Path(__file__).parents[2]


class PacedLauncher(LocalLauncher):
    """Starts engines of a hardware class at its pace. `hardware` is the class of each worker."""

    hardware: Mapping[str, str]

    async def _spawn(self, entry: str, config: object, worker: str) -> Child:
        if isinstance(config, EngineChildConfig) and self.hardware[worker] in PACES:
            slowed = SlowedConfig(engine=config, pace=PACES[self.hardware[worker]])
            return await super()._spawn(ENTRY, slowed, worker)
        return await super()._spawn(entry, config, worker)


async def run(job: JobConfig, directory: Path, code: Path) -> str | None:
    """Train; returns why it failed, None if it did not."""
    run_id = job.run.name
    recorder = Recorder(asyncio.get_running_loop().time)
    log = EventLog(directory / EVENTS_FILE, warn=recorder.warn)
    recorder.attach("the event log", log.append)
    recorder.emit(run_started(job, run_id, "local"))
    launcher = PacedLauncher(
        job,
        run_id=run_id,
        run_directory=directory,
        python_path=(str(code), str(ROOT)),
        events=recorder,
    )
    placement = declared_placement(job)
    launcher.hardware = {engine.worker: engine.hardware for engine in placement.engines}
    try:
        controller = await assemble(
            job,
            launcher,
            run_id=run_id,
            placement=placement,
            save_to=None,
            events=recorder,
        )
        result = await controller.run()
    finally:
        await launcher.close()
        log.close()
    return None if result.ok else result.reason


def main() -> None:
    parser = argparse.ArgumentParser(description=(__doc__ or "").splitlines()[0])
    parser.add_argument("job", type=Path)
    parser.add_argument("--set", action="append", default=[])
    chosen = parser.parse_args()
    job = load_job(chosen.job, chosen.set)
    directory = Path(job.run.directory).absolute() / job.run.name
    directory.mkdir(parents=True)
    sys.exit(asyncio.run(run(job, directory, chosen.job.parent.absolute())))


if __name__ == "__main__":
    main()
