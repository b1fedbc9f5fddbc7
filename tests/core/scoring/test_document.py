import json

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from rollart.core.scoring.document import (
    DOCUMENT_VERSION,
    TaskDocument,
    ToolCallDocument,
    TrajectoryDocument,
    TurnDocument,
)

finite = st.floats(allow_nan=False, allow_infinity=False)
counts = st.integers(min_value=0, max_value=1 << 40)
json_values = st.recursive(
    st.none() | st.booleans() | st.integers() | finite | st.text(),
    lambda inner: st.lists(inner) | st.dictionaries(st.text(), inner),
    max_leaves=5,
)
turns = st.builds(
    TurnDocument,
    observation=st.text(),
    action=st.text(),
    tool_calls=st.lists(
        st.builds(ToolCallDocument, id=st.text(), name=st.text(), arguments=st.text()), max_size=2
    ).map(tuple),
    stop=st.sampled_from(["stop", "length", "context_overflow"]),
    reward=st.none() | finite,
    prompt_tokens=counts,
    sampled_tokens=counts,
    env_s=finite,
)
documents = st.builds(
    TrajectoryDocument,
    id=st.text(),
    run=st.text(),
    policy=st.text(),
    task=st.builds(
        TaskDocument,
        domain=st.text(),
        key=st.text(),
        payload=st.dictionaries(st.text(), json_values, max_size=3),
    ),
    turns=st.lists(turns, max_size=3).map(tuple),
    start_version=st.none() | counts,
    metrics=st.dictionaries(st.text(), finite, max_size=3),
    elapsed_s=finite,
)


def document(**more: object) -> TrajectoryDocument:
    task = TaskDocument(domain="Shop", key="7")
    return TrajectoryDocument(id="a", run="r", policy="p", task=task, turns=(), **more)  # type: ignore[arg-type]


@given(documents)
@settings(max_examples=30, deadline=None, suppress_health_check=[HealthCheck.too_slow])
def test_a_document_comes_back_from_json_as_it_was(one: TrajectoryDocument) -> None:
    assert TrajectoryDocument.from_json(json.loads(json.dumps(one.to_json()))) == one


def test_fields_of_later_additions_are_passed_over_at_every_level() -> None:
    turn = TurnDocument(
        observation="", action="", tool_calls=(ToolCallDocument(id="", name="", arguments=""),)
    )
    one = TrajectoryDocument(
        id="a", run="r", policy="p", task=TaskDocument(domain="d", key="k"), turns=(turn,)
    )
    plain = one.to_json()
    for table in (plain, plain["task"], plain["turns"][0], plain["turns"][0]["tool_calls"][0]):
        table["of a later version"] = 1
    assert TrajectoryDocument.from_json(plain) == one


def test_fields_with_defaults_may_be_missing() -> None:
    least = {
        "version": DOCUMENT_VERSION,
        "id": "a",
        "run": "r",
        "policy": "p",
        "task": {"domain": "Shop", "key": "7"},
        "turns": [],
    }
    assert TrajectoryDocument.from_json(least) == document()


def test_another_version_is_refused_with_what_to_do() -> None:
    plain = {**document().to_json(), "version": 99}
    with pytest.raises(ValueError, match="version 99; this function reads version 1: package and"):
        TrajectoryDocument.from_json(plain)


@pytest.mark.parametrize(
    "broken",
    [
        None,
        "text",
        [],
        {"version": DOCUMENT_VERSION},
        {**document().to_json(), "turns": None},
        {**document().to_json(), "turns": [1]},
        {**document().to_json(), "turns": [{"action": "no observation"}]},
        {**document().to_json(), "task": {"domain": "Shop"}},
    ],
)
def test_what_is_no_document_is_refused(broken: object) -> None:
    with pytest.raises(ValueError, match="trajectory document"):
        TrajectoryDocument.from_json(broken)


def test_a_metric_that_was_not_given_is_none_and_not_zero() -> None:
    one = document(metrics={"success": 0.0})
    assert one.metric("success") == 0.0
    assert one.metric("steps") is None
