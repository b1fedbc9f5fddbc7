"""Run as a script, not imported: imports a function and writes down what it found.

``_look.py module:function ANSWER FOLDER…``; the answer is JSON. Only the standard library, and
`rollart` as the folders have it.
"""

import importlib
import inspect
import json
import sys
import time
import traceback
from pathlib import Path
from typing import Any


def look(path: str) -> dict[str, Any]:
    """What is wrong with the function, or what it declares."""
    module_name, _, name = path.partition(":")
    began = time.monotonic()
    try:
        module = importlib.import_module(module_name)
    except ModuleNotFoundError as error:
        return _problem(_missing(error))
    except BaseException as error:  # importing may raise anything, sys.exit() included
        where = traceback.extract_tb(error.__traceback__)[-1]
        return _problem(
            f"cannot be imported: {type(error).__name__}: {error} ({where.filename}:{where.lineno})"
        )
    took_s = time.monotonic() - began
    if not hasattr(module, name):
        functions = [one for one, value in vars(module).items() if inspect.isfunction(value)]
        return _problem(
            f"module {module_name} has no function {name!r}; it has: "
            f"{', '.join(functions[:12]) or 'none'}"
        )
    function = getattr(module, name)
    problem = _misfit(function)
    if problem:
        return _problem(problem)
    from rollart.core.scoring.declared import declared_settings

    declared = declared_settings(function)
    settings = {field: getattr(declared, field) for field in declared.__dataclass_fields__}
    return {"problem": "", "settings": settings, "took_s": took_s}


def _misfit(function: object) -> str:
    if inspect.isclass(function):
        return (
            "is a class; a function is shipped: give a plain or async function of one trajectory, "
            "which may keep one object of the class in a global"
        )
    if not callable(function):
        return f"is {type(function).__name__}, not a function of one trajectory"
    try:
        inspect.signature(function).bind(None)
    except TypeError:
        return (
            "does not take exactly one argument, the trajectory; write "
            "def score(trajectory: TrajectoryDocument) -> float | Verdict"
        )
    return ""


def _missing(error: ModuleNotFoundError) -> str:
    name = error.name or str(error)
    if name.partition(".")[0] == "rollart":
        return (
            f"imports {name}, which does not travel with a reward function; use what `from rollart "
            "import …` gives: Judge, JudgeFailed, TrajectoryDocument, Verdict, serverless"
        )
    return (
        f"needs the module {name}, which is not here; install it, or put it into the folder that "
        "this command is run in"
    )


def _problem(text: str) -> dict[str, Any]:
    return {"problem": text}


if __name__ == "__main__":
    sys.path[:0] = sys.argv[3:]
    found = json.dumps(look(sys.argv[1]))
    Path(sys.argv[2]).write_text(found, encoding="utf-8")
