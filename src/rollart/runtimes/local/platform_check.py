"""What the platforms of a job's rewards say, before anything of the job starts.

Invariant: each function on a platform is asked for its health once; nothing is left running.
"""

import os
from collections.abc import Mapping, Sequence
from pathlib import Path
from tempfile import TemporaryDirectory

from rollart.core.errors import ConfigError
from rollart.core.events import Event
from rollart.core.scoring.places import LOCAL
from rollart.runtimes.local.child_env import child_environment
from rollart.runtimes.local.gateway import Gateway
from rollart.runtimes.local.reward_facts import RewardFacts, refuse_long_functions


class _Nobody:
    """Takes events of a gateway that serves no run."""

    def emit(self, event: Event) -> None:
        """Forget it."""


async def platform_problems(
    facts: Mapping[str, RewardFacts], *, limit_s: float, python_path: Sequence[str]
) -> list[str]:
    """A line for each reward whose platform refuses, by the key of its domain."""
    problems: list[str] = []
    wishes = [(key, wish) for key, of_key in facts.items() for wish in of_key.functions]
    for key, wish in wishes:
        try:
            refuse_long_functions(wish, limit_s, key)
        except ConfigError as error:
            problems.append(str(error))
    elsewhere = [
        (key, wish)
        for key, wish in wishes
        if any(not place.at.platform.startswith(LOCAL) for place in wish.places)
    ]
    if problems or not elsewhere:
        return problems
    with TemporaryDirectory(prefix="rollart-check-") as logs:
        gateway = Gateway(
            children=child_environment(os.environ, "preflight"),
            python_path=python_path,
            logs=Path(logs),
            events=_Nobody(),
        )
        try:
            for key, wish in elsewhere:
                try:
                    await gateway.open(wish)
                except ConfigError as error:
                    problems.append(f"{key}: {error}")
        finally:
            await gateway.close()
    return problems
