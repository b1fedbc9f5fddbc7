"""Which serverless functions a domain's reward needs, told by its code and its job file.

For use in a child: user code is imported to read its declarations.
"""

import inspect
from collections.abc import Sequence
from dataclasses import dataclass, replace

from rollart.core.errors import ConfigError
from rollart.core.scoring.declared import NO_SETTINGS, declared_settings
from rollart.core.scoring.places import LOCAL, RewardPlace, reward_place
from rollart.core.scoring.sources import sources_of
from rollart.data.decorators import declared_by
from rollart.runtimes.local.gateway_records import FunctionWish, Place
from rollart.runtimes.local.user_code import load


@dataclass(frozen=True, slots=True, kw_only=True)
class RewardFacts:
    """What a domain's reward is.

    Attributes:
        functions: serverless ones, to be opened.
        own_scorers: it runs in its domain's own scorers, and asks for `functions` from there.
    """

    functions: tuple[FunctionWish, ...]
    own_scorers: bool


def reward_facts(places: Sequence[str], roots: Sequence[str]) -> RewardFacts:
    """What a job and the code that it names say of a reward.

    Args:
        places: an import path, or URLs, as the job has them.
        roots: folders of the user's modules.
    """
    if "://" in places[0]:
        return RewardFacts(functions=(_wish(places, roots),), own_scorers=False)
    path = places[0]
    found = load(path)
    if inspect.isclass(found):
        declared = declared_by(found).values()
        urls = dict.fromkeys(one.url for some in declared for one in some.serverless)
        return RewardFacts(functions=tuple(_wish([url], roots) for url in urls), own_scorers=True)
    settings = declared_settings(found)
    if settings is NO_SETTINGS:
        return RewardFacts(functions=(), own_scorers=True)
    wish = _wish([settings.url or f"{LOCAL}{path}"], roots, function=path)
    return RewardFacts(functions=(wish,), own_scorers=False)


def _wish(urls: Sequence[str], roots: Sequence[str], *, function: str = "") -> FunctionWish:
    return FunctionWish(places=tuple(_place(reward_place(url), roots, function) for url in urls))


def _place(at: RewardPlace, roots: Sequence[str], function: str) -> Place:
    path = at.function or function
    if not path:
        return Place(at=at, version=at.version)
    settings = declared_settings(load(path))
    if at.platform.startswith(
        LOCAL
    ):  # elsewhere the platform has been told so when it was deployed
        at = replace(at, concurrency=at.concurrency or settings.concurrency)
    return Place(
        at=replace(at, function=path),
        version=at.version or sources_of(path, roots).version,
        timeout_s=settings.timeout_s,
    )


def refuse_long_functions(wish: FunctionWish, limit_s: float, key: str) -> None:
    """Raises `ConfigError` where a function says that it may take longer than a verdict may."""
    for place in wish.places:
        if place.timeout_s is not None and place.timeout_s > limit_s:
            raise ConfigError(
                f"{key}: {place.at.shown} declares timeout={place.timeout_s:g}, and a verdict may "
                f"take timeouts.reward_s = {limit_s:g} in all; use timeouts.reward_s = "
                f"{2 * place.timeout_s:g}"
            )
