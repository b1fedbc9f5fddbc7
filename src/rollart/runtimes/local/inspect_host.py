"""The inspecting child: imports user code, makes each environment once and says what does not fit.

Blocks in user code (it may do anything); its owner gives each question a deadline.
"""

import inspect
from collections.abc import Callable, Mapping, Sequence
from typing import Any

from rollart.core.authoring import environment_misfit, reward_misfit
from rollart.core.scoring.places import reward_place, shown_url
from rollart.data.decorators import declared_by
from rollart.process.serve import ChildPort, serve
from rollart.runtimes.local.reward_facts import reward_facts
from rollart.runtimes.local.user_code import describe, load

ENTRY = "rollart.runtimes.local.inspect_host:entry"


def entry(port: ChildPort, _config: Any) -> None:
    """Answer "environment", "reward" and "maker": a sentence that says what is wrong, or None.

    And "facts", see `reward_facts`.
    """
    handlers = {"environment": environment, "reward": reward, "maker": maker, "facts": reward_facts}
    serve(port, handlers)


def environment(path: str, options: Mapping[str, Any], per_process: int) -> str | None:
    """Whether the class at `path` can serve with these options, so many to a process."""

    def misfit(found: Any) -> str | None:
        problem = environment_misfit(found)
        if problem is not None:
            return problem
        try:
            inspect.signature(found).bind(**options)
        except TypeError as error:
            return f"does not take the options {dict(options)!r}: {error}"
        if per_process > 1 and not getattr(found, "replayable", False):
            return (
                f"does not declare replayable = True, so envs_per_process = {per_process} is "
                "impossible; use envs_per_process = 1"
            )
        return _making_problem(found, options)

    return _problem(path, misfit)


def _making_problem(kind: Any, options: Mapping[str, Any]) -> str | None:
    """What its constructor, which is where options are checked, has against them."""
    try:
        made = kind(**options)
        if callable(close := getattr(made, "close", None)):
            close()
    except BaseException as error:  # user code may raise anything, sys.exit() included
        return f"cannot be made with the options {dict(options)!r}: {describe(error)}"
    return None


def reward(places: Sequence[str]) -> str | None:
    """Whether the function or `Reward` class of a job's reward can score a trajectory.

    Of a function that is known only where it runs nothing is said: it is asked for its health.
    """
    if "://" not in places[0]:
        return _problem(places[0], _reward_problem)
    return next((problem for url in places if (problem := _url_problem(url)) is not None), None)


def _reward_problem(found: Any) -> str | None:
    if not inspect.isclass(found):
        return reward_misfit(found)
    compute = getattr(found, "compute_rewards", None)
    if not callable(compute):
        return "has no method compute_rewards(trajectory)"
    try:
        inspect.signature(compute).bind(None, None)
    except TypeError:
        return "has a method compute_rewards that does not take (trajectory)"
    try:
        inspect.signature(found).bind()
    except TypeError as error:
        return f"cannot be made without arguments: {error}"
    for name, declared in declared_by(found).items():
        for one in declared.serverless:
            problem = _url_problem(one.url)
            if problem is not None:
                return f"{name} is registered at serverless_url = {shown_url(one.url)!r}: {problem}"
    return None


def _url_problem(url: str) -> str | None:
    """What is wrong with a URL as the place of a reward function."""
    try:
        place = reward_place(url)
    except ValueError as error:
        return str(error)
    return _problem(place.function, reward_misfit) if place.function else None


def maker(path: str) -> str | None:
    """Whether the object at `path` can make a model directory."""

    def misfit(found: Any) -> str | None:
        if not callable(found):
            return f"is {type(found).__name__}, not a function"
        try:
            inspect.signature(found).bind("directory", seed=0)
        except TypeError:
            return "does not take (directory, seed)"
        return None

    return _problem(path, misfit)


def _problem(path: str, misfit: Callable[[Any], str | None]) -> str | None:
    try:
        found = load(path)
    except BaseException as error:  # importing may raise anything, sys.exit() included
        return f"cannot be imported: {describe(error)}"
    return misfit(found)
