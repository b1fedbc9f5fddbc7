"""How a class that a script hands over is found again in a child process.

Invariant: a child imports the class by ``module:name`` from a folder; nothing is pickled. A script
is found as the module that its file name makes, and reading it ends where it starts a run, so a
script needs no guard around `rollart.run`.
"""

import os
import sys
from pathlib import Path

from rollart.core.errors import ConfigError
from rollart.core.ports import ClassPath

CHILD_VARIABLE = "ROLLART_RUN_ID"
"""Is set in every child of a run."""


class RunReached(BaseException):  # not for `except Exception` in the script that is being read
    """A child reads a script and has come to where it starts a run; all it needs stands above."""


def stop_reading_here() -> None:
    """In a child: end the reading of a script that would start a run. Else nothing."""
    if os.environ.get(CHILD_VARIABLE):
        raise RunReached("rollart.run() is for the process that starts a run, not for its children")


def is_script(module: str) -> bool:
    """Whether `module` is the script that this process runs, under the name that children use."""
    main = sys.modules["__main__"]
    file = getattr(main, "__file__", None)
    return file is not None and main.__spec__ is None and Path(file).stem == module


def find_class(kind: type) -> ClassPath:
    """The import path of a class.

    Raises:
        ConfigError: a child could not import it: it was made inside a function or another class,
            typed into an interactive session, or its script cannot be imported by name.
    """
    name = kind.__qualname__
    if "." in name:
        raise ConfigError(
            f"class {name}: stands inside {name.rpartition('.')[0]!r}, where child processes "
            "cannot import it; move it to the top level of its module"
        )
    module = sys.modules.get(kind.__module__)
    file = getattr(module, "__file__", None)
    if file is None:
        raise ConfigError(
            f"class {name}: module {kind.__module__!r} has no file (an interactive session?), so "
            "child processes cannot import it; write it to a file such as my_roles.py and import "
            "it from there"
        )
    if kind.__module__ == "__main__":
        return _in_script(name, module, Path(file).resolve())
    depth = kind.__module__.count(".") + (Path(file).name == "__init__.py")
    folder = Path(file).resolve().parents[depth]
    return ClassPath(path=f"{kind.__module__}:{name}", folder=str(folder))


def _in_script(name: str, module: object, file: Path) -> ClassPath:
    spec = getattr(module, "__spec__", None)
    if spec is not None:  # python -m package.module
        depth = spec.name.count(".")
        return ClassPath(path=f"{spec.name}:{name}", folder=str(file.parents[depth]))
    stem = file.stem
    other = getattr(sys.modules.get(stem), "__file__", None)
    taken = stem in sys.stdlib_module_names or (other is not None and Path(other) != file)
    if file.suffix != ".py" or not stem.isidentifier() or taken:
        why = "is another module's name" if taken else "is no module name"
        raise ConfigError(
            f"class {name}: child processes import it from its script, and {file.name!r} {why}; "
            "rename the script, such as my_run.py, or move the class to a module of its own"
        )
    return ClassPath(path=f"{stem}:{name}", folder=str(file.parent))
