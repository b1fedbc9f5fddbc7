"""The child that makes a model directory with a user's function, before a run begins."""

from pathlib import Path
from typing import Any

from rollart.process.serve import ChildPort, serve
from rollart.runtimes.local.user_code import load, show_prints_at_once

ENTRY = "rollart.runtimes.local.make_host:entry"


def entry(port: ChildPort, _config: Any) -> None:
    """Answer "make"."""
    show_prints_at_once()
    serve(port, {"make": make})


def make(path: str, directory: str, seed: int) -> None:
    """Call the function at `path` with the directory and `seed`."""
    load(path)(Path(directory), seed=seed)
