"""Looking at a function by importing it, in a process of its own that is killed when it hangs.

Importing runs a user's code, which may do anything: so neither the command nor the run that asks is
at its mercy, and what it prints or leaves in memory stays there. The process is a plain one and no
`process.Child`, since for a package it must see the package's folder and not this project's.
"""

import json
import os
import signal
import subprocess
import sys
import tempfile
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from rollart.core.errors import ConfigError
from rollart.core.scoring.declared import ServerlessSettings

IMPORT_S = 60.0
_ENVIRONMENT = ("PATH", "HOME", "LANG", "TMPDIR", "LD_LIBRARY_PATH", "VIRTUAL_ENV")
_SHOWN = 1500  # characters of what a process said that ended without an answer

_LOOK = Path(__file__).with_name("_look.py")


@dataclass(frozen=True, slots=True, kw_only=True)
class Inspected:
    """A function that was found fit.

    Attributes:
        settings: what it declares.
        took_s: seconds that importing it took, which is most of a cold start.
    """

    settings: ServerlessSettings
    took_s: float


def inspect_function(path: str, folders: Sequence[Path], *, seconds: float = IMPORT_S) -> Inspected:
    """Import the function at ``module:function`` from these folders and look at it.

    It is run by this interpreter with its installed packages, in an environment without secrets.

    Raises:
        ConfigError: it cannot be imported, is no function of one trajectory, or takes too long.
    """
    try:
        found = _found(path, folders, seconds)
    except OSError as error:
        raise ConfigError(
            f"{path!r}: no process can look at it ({error}); $TMPDIR must be a folder where files "
            "can be written"
        ) from error
    if found["problem"]:
        raise ConfigError(f"{path!r}: {found['problem']}")
    return Inspected(settings=ServerlessSettings(**found["settings"]), took_s=found["took_s"])


def _found(path: str, folders: Sequence[Path], seconds: float) -> dict[str, Any]:
    """What the process found out. Raises `ConfigError`, or `OSError` where there can be none."""
    with tempfile.TemporaryDirectory(prefix="rollart-look-") as scratch:
        answer = Path(scratch) / "answer.json"
        command = [sys.executable, "-I", "-B", str(_LOOK), path, str(answer), *map(str, folders)]
        said = _run(command, path, scratch, seconds)
        if not answer.exists():
            raise ConfigError(
                f"{path!r}: importing it ended the process; move such work out of the module's "
                f"body. It said: {said[-_SHOWN:] or 'nothing'}"
            )
        return json.loads(answer.read_text(encoding="utf-8"))


def _run(command: Sequence[str], path: str, folder: str, seconds: float) -> str:
    """What the process said. It is killed with all it started, also when it ended by itself."""
    kept = {name: os.environ[name] for name in _ENVIRONMENT if name in os.environ}
    process = subprocess.Popen(
        command,
        cwd=folder,
        env={**kept, "OMP_NUM_THREADS": "1"},
        stdin=subprocess.DEVNULL,
        stdout=subprocess.PIPE,
        stderr=subprocess.STDOUT,
        start_new_session=True,
    )
    try:
        said, _ = process.communicate(timeout=seconds)
    except subprocess.TimeoutExpired as error:
        raise ConfigError(
            f"{path!r}: importing it took more than {seconds:g} s; move work out of the module's "
            "body into the function, and keep what it makes in a global"
        ) from error
    finally:
        _end(process)
    return " ".join(said.decode(errors="replace").split())


def _end(process: subprocess.Popen[bytes]) -> None:
    try:
        os.killpg(process.pid, signal.SIGKILL)
    except ProcessLookupError:
        pass
    finally:
        process.communicate()
