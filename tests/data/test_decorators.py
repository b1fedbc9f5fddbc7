from collections.abc import Callable
from typing import Any

import pytest

import rollart as ra
from rollart.core.errors import ConfigError
from rollart.core.ports import Affinity
from rollart.data.decorators import NOTHING, Serverless, declared, declared_by


def plain(self: Any, tag_name: str = "default") -> str:
    return tag_name


@pytest.mark.parametrize(
    "decorator",
    [
        ra.register(mode="execute_all"),
        ra.hw_mapping(hw_affinity={"Lake": "H800", "default": "H20"}),
        ra.register_serverless(attribute="proxy", serverless_url="local://judge:score"),
    ],
)
def test_a_decorator_returns_the_very_function_and_tags_it(
    decorator: Callable[[Any], Any],
) -> None:
    def method(self: Any) -> int:
        return 7

    assert decorator(method) is method
    assert method(None) == 7
    assert declared(method) != NOTHING
    assert declared(plain) == NOTHING


class Several(ra.Worker):
    @ra.register_serverless("first", "local://judge:score")
    @ra.register_serverless("second", "fc://account/other")
    @ra.hw_mapping({"Lake": "H800"})
    def work(self, tag_name: str = "default") -> None: ...

    @ra.register()
    def load(self) -> None: ...


class Heir(Several):
    def load(self) -> None: ...


def test_declarations_add_up_and_are_inherited_with_their_method() -> None:
    found = declared_by(Several)
    assert set(found) == {"work", "load"}
    assert found["work"].affinity == Affinity(by_domain={"Lake": "H800"})
    assert {one.attribute for one in found["work"].serverless} == {"first", "second"}
    assert Serverless(attribute="first", url="local://judge:score") in found["work"].serverless
    assert found["load"].mode == "execute_all"
    assert set(declared_by(Heir)) == {"work"}


wrong: Any = plain
number: Any = 3


@pytest.mark.parametrize(
    ("declare", "told"),
    [
        (lambda: ra.register(mode="all"), r"unknown mode; use @register\(mode='execute_all'\)"),
        (lambda: ra.register(wrong), "unknown mode"),
        (lambda: ra.hw_mapping({}), "must map tags to classes"),
        (lambda: ra.hw_mapping(wrong), "must map tags to classes"),
        (lambda: ra.hw_mapping({"Lake": number}), "'Lake': 3 is no tag with a class"),
        (lambda: ra.register_serverless("a b", "local://x:y"), "must be a name"),
        (lambda: ra.register_serverless("proxy", "judge:score"), "is no URL; use 'local://"),
        (lambda: ra.register()(number), "stands on 3, which is no method"),
        (lambda: ra.register()(staticmethod(plain)), "which is no method"),
        (lambda: ra.register()(ra.register()(lambda self: None)), "register is declared twice"),
        (
            lambda: ra.hw_mapping({"a": "b"})(ra.hw_mapping({"a": "b"})(lambda self: None)),
            "hw_mapping is declared twice",
        ),
        (
            lambda: ra.register_serverless("p", "a://b")(
                ra.register_serverless("p", "a://c")(lambda self: None)
            ),
            "register_serverless of 'p' is declared twice",
        ),
    ],
)
def test_bad_arguments_are_refused_where_they_stand(
    declare: Callable[[], object], told: str
) -> None:
    with pytest.raises(ConfigError, match=told):
        declare()
