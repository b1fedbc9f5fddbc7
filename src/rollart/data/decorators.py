"""Declarations on a Worker's methods, with the names of the RollArt paper (arXiv 2512.22560).

Invariant: a decorator tags and never wraps: it returns the very function it was given, so calling
the method calls the user's code and nothing else. Bad arguments are refused where they stand.
"""

import re
from collections.abc import Callable, Mapping
from dataclasses import dataclass, replace
from inspect import isfunction
from typing import TypeVar

from rollart.core.errors import ConfigError
from rollart.core.ports import Affinity

Function = TypeVar("Function", bound=Callable[..., object])

EXECUTE_ALL = "execute_all"
_MARK = "_rollart_declared"
_URL = re.compile(r"[a-z][a-z0-9+.-]*://\S+")


@dataclass(frozen=True, slots=True, kw_only=True)
class Serverless:
    """An attribute that becomes a callable on the platform at `url`."""

    attribute: str
    url: str


@dataclass(frozen=True, slots=True, kw_only=True)
class Declared:
    """What a method declares; nothing by default."""

    mode: str | None = None
    affinity: Affinity | None = None
    serverless: tuple[Serverless, ...] = ()


NOTHING = Declared()


def register(mode: str = EXECUTE_ALL) -> Callable[[Function], Function]:
    """A call of this method goes to every worker of the cluster, and the results are gathered."""
    if mode != EXECUTE_ALL:
        raise ConfigError(
            f"register(mode={mode!r}): unknown mode; use @register(mode={EXECUTE_ALL!r})"
        )

    def tag(method: Function) -> Function:
        old = _present(method, "register")
        _refuse_second(old.mode is not None, method, "register")
        return _tagged(method, replace(old, mode=mode))

    return tag


def hw_mapping(hw_affinity: Mapping[str, str]) -> Callable[[Function], Function]:
    """A call of this method carries `tag_name` and goes to workers on that tag's hardware class.

    Another class serves it where that one has no living worker.

    Args:
        hw_affinity: class by tag (a task domain), "default" for every other tag, such as
            ``{"FrozenLake": "H800", "default": "H20"}``.
    """
    table = _checked_affinity(hw_affinity)
    default = table.pop("default", None)

    def tag(method: Function) -> Function:
        old = _present(method, "hw_mapping")
        _refuse_second(old.affinity is not None, method, "hw_mapping")
        return _tagged(method, replace(old, affinity=Affinity(by_domain=table, default=default)))

    return tag


def register_serverless(attribute: str, serverless_url: str) -> Callable[[Function], Function]:
    """``self.<attribute>`` becomes a callable that runs at the URL, for use in this method.

    It is awaitable where the method is ``async def`` and blocks where it is not.

    Args:
        attribute: name of the attribute.
        serverless_url: such as ``local://judge:score``, a function of a module beside the job file,
            run in processes that come on demand and go when idle.
    """
    if not isinstance(attribute, str) or not attribute.isidentifier():
        raise ConfigError(
            f"register_serverless(attribute={attribute!r}): must be a name; use 'reward_proxy'"
        )
    if not isinstance(serverless_url, str) or not _URL.fullmatch(serverless_url):
        raise ConfigError(
            f"register_serverless(serverless_url={serverless_url!r}): is no URL; use "
            "'local://module:function'"
        )

    def tag(method: Function) -> Function:
        old = _present(method, "register_serverless")
        taken = any(one.attribute == attribute for one in old.serverless)
        _refuse_second(taken, method, f"register_serverless of {attribute!r}")
        new = Serverless(attribute=attribute, url=serverless_url)
        return _tagged(method, replace(old, serverless=(*old.serverless, new)))

    return tag


def declared(method: object) -> Declared:
    """What a method declares."""
    return getattr(method, _MARK, NOTHING)


def declared_by(kind: type) -> dict[str, Declared]:
    """The declarations of a class's methods, inherited ones included, by name."""
    found = {name: declared(getattr(kind, name, None)) for name in dir(kind)}
    return {name: one for name, one in found.items() if one != NOTHING}


def _checked_affinity(given: Mapping[str, str]) -> dict[str, str]:
    if not isinstance(given, Mapping) or not given:
        raise ConfigError(
            f"hw_mapping(hw_affinity={given!r}): must map tags to classes; use "
            '{"FrozenLake": "H800", "default": "H20"}'
        )
    for tag, hardware in given.items():
        if not (isinstance(tag, str) and tag and isinstance(hardware, str) and hardware):
            raise ConfigError(
                f"hw_mapping: {tag!r}: {hardware!r} is no tag with a class; use text for both, "
                'such as "FrozenLake": "H800"'
            )
    return dict(given)


def _present(method: object, decorator: str) -> Declared:
    if not isfunction(method):
        raise ConfigError(
            f"@{decorator} stands on {method!r}, which is no method; put it right above "
            "`def` or `async def`"
        )
    return declared(method)


def _refuse_second(taken: bool, method: object, what: str) -> None:
    if taken:
        name = getattr(method, "__qualname__", repr(method))
        raise ConfigError(f"{name}: {what} is declared twice; leave one out")


def _tagged(method: Function, what: Declared) -> Function:
    setattr(method, _MARK, what)
    return method
