"""What of this project travels with a function: the room that meets it, and a slim front.

Invariant: the standard library is all that these files import, and the front exports nothing that
is not among them.
"""

from collections.abc import Iterator
from importlib import resources
from importlib.resources.abc import Traversable

from rollart.core.scoring.sources import PROJECT

_FRONT = '''"""RollArt, as much of it as a reward function needs where it is deployed."""

from importlib import import_module

_SCORING = "rollart.core.scoring"
_EXPORTED = {
    "Judge": f"{_SCORING}.judge",
    "JudgeFailed": f"{_SCORING}.judge",
    "TrajectoryDocument": f"{_SCORING}.document",
    "Verdict": f"{_SCORING}.verdict",
    "serverless": f"{_SCORING}.declared",
}
__all__ = ["Judge", "JudgeFailed", "TrajectoryDocument", "Verdict", "serverless"]


def __getattr__(name):
    if name not in _EXPORTED:
        raise AttributeError(
            f"a packaged reward function has {', '.join(__all__)} of rollart, and no {name!r}"
        )
    return getattr(import_module(_EXPORTED[name]), name)
'''


def vendored_files() -> Iterator[tuple[str, bytes]]:
    """The project's files in a package: where each lies, and its content."""
    core = resources.files(PROJECT) / "core"
    yield f"{PROJECT}/__init__.py", _FRONT.encode()
    for name in ("__init__.py", "errors.py"):
        yield f"{PROJECT}/core/{name}", (core / name).read_bytes()
    for file in sorted(_modules(core / "scoring"), key=lambda file: file.name):
        yield f"{PROJECT}/core/scoring/{file.name}", file.read_bytes()


def _modules(folder: Traversable) -> Iterator[Traversable]:
    return (file for file in folder.iterdir() if file.name.endswith(".py"))
