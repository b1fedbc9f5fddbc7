"""Which serverless functions a domain's reward needs, told by its code and its job file.

For use in a child: user code is imported to read its declarations.
"""

import inspect
from collections.abc import Sequence
from dataclasses import dataclass, replace

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
    return Place(
        at=replace(at, function=path, concurrency=at.concurrency or settings.concurrency),
        version=at.version or sources_of(path, roots).version,
        timeout_s=settings.timeout_s,
    )
