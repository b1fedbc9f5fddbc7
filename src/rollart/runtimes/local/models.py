"""The model directory of a run: the one that was named, or one made for it.

Invariant: a directory under its final name is whole, for it is made under another and renamed.
"""

import shutil
from collections.abc import Mapping, Sequence
from pathlib import Path

from rollart.core.config import JobConfig
from rollart.core.errors import ConfigError
from rollart.process.errors import ProcessError
from rollart.process.spawn import spawn
from rollart.runtimes.local import make_host
from rollart.runtimes.local.preflight import model_problems

MAKE_S = 3600.0
"""Seconds that making a model may take."""


async def prepared_model(
    job: JobConfig,
    run_directory: Path,
    *,
    env: Mapping[str, str],
    python_path: Sequence[str],
    log_file: Path,
) -> Path:
    """The directory to load from; made in the run directory if the job says how.

    Raises:
        ConfigError: the directory is unfit, or making it failed.
    """
    if job.model.path is not None:
        folder = Path(job.model.path)
    else:
        folder = run_directory / "model"
        if not folder.is_dir():
            await _make(job, folder, env=env, python_path=python_path, log_file=log_file)
    problems = model_problems(str(folder), job.model.context)
    if problems:
        raise ConfigError("\n".join(problems))
    return folder


async def _make(
    job: JobConfig,
    folder: Path,
    *,
    env: Mapping[str, str],
    python_path: Sequence[str],
    log_file: Path,
) -> None:
    draft = folder.with_name(f"{folder.name}.draft")
    shutil.rmtree(draft, ignore_errors=True)
    draft.mkdir(parents=True)
    try:
        child = await spawn(
            make_host.ENTRY,
            None,
            name="make-model",
            env=env,
            inherit_env=False,
            python_path=python_path,
            log_file=log_file,
        )
        try:
            await child.call("make", job.model.make, str(draft), job.run.seed, timeout=MAKE_S)
        finally:
            await child.close(1.0)
    except ProcessError as error:
        last = str(error).strip().splitlines()
        raise ConfigError(f"model.make = {job.model.make!r}: {last[0]} (see {log_file})") from error
    draft.rename(folder)
