"""The shop: orders that need look-ups, split between training and evaluation, with baselines."""

import json
from collections.abc import Mapping
from itertools import islice

import pytest

from rollart.backends.envs.shop import Shop, cost_of, is_heldout
from rollart.core.types import JsonValue, Message, StepResult, Task, ToolCall

PAYLOAD: dict[str, JsonValue] = {
    "order": {"fig": 3, "jar": 2},
    "prices": {"fig": 4, "jar": 7, "lamp": 1},
}


def call(name: str, **arguments: object) -> Message:
    tool = ToolCall(id="c", name=name, arguments=json.dumps(arguments))
    return Message(role="assistant", content="", tool_calls=(tool,))


def say(text: str) -> Message:
    return Message(role="assistant", content=text)


def heard(result: StepResult) -> str:
    return result.observation.messages[0].content


def solve(payload: Mapping[str, JsonValue], kinds: int) -> tuple[StepResult, int]:
    """Look up, multiply, add and answer; the last result and the number of calls."""
    shop = Shop(kinds=kinds)
    shop.reset(Task(domain="shop", key="t", payload=payload), 0)
    order = payload["order"]
    assert isinstance(order, Mapping)
    parts: list[int] = []
    for item, count in order.items():
        price = int(heard(shop.step(call("price", item=item))))
        parts.append(int(heard(shop.step(call("multiply", a=count, b=price)))))
    total = heard(shop.step(call("add", numbers=parts)))
    return shop.step(say(total)), 2 * len(order) + 1


def test_an_order_is_worked_out_by_several_calls() -> None:
    shop = Shop()
    (question,) = shop.reset(Task(domain="shop", key="t", payload=PAYLOAD), 0).messages
    assert "3 fig, 2 jar" in question.content
    assert [tool.name for tool in question.tools] == ["price", "multiply", "add"]
    assert "4" not in question.content
    result, calls = solve(PAYLOAD, 2)
    assert (result.done, result.reward, calls) == (True, 1.0, 5)
    assert dict(result.metrics)["tool_calls"] == 5.0


@pytest.mark.parametrize("kinds", [1, 3])
def test_every_task_can_be_solved_and_a_wrong_sum_scores_nothing(kinds: int) -> None:
    for payload in islice(Shop.train_tasks(3, kinds=kinds), 20):
        assert solve(payload, kinds)[0].reward == 1.0
        shop = Shop(kinds=kinds)
        shop.reset(Task(domain="shop", key="t", payload=payload), 0)
        wrong = shop.step(say(str(cost_of(payload) + 1)))
        assert (wrong.done, wrong.reward, dict(wrong.metrics)["success"]) == (True, 0.0, 0.0)


def test_an_unknown_item_is_told_with_what_there_is() -> None:
    shop = Shop()
    shop.reset(Task(domain="shop", key="t", payload=PAYLOAD), 0)
    assert heard(shop.step(call("price", item="boat"))) == (
        "error: there is no 'boat'; there are: fig, jar, lamp"
    )


def test_training_and_heldout_orders_are_disjoint_and_repeat_by_seed() -> None:
    training = list(islice(Shop.train_tasks(1), 2000))
    heldout = Shop.heldout_tasks(300, 1)
    assert training == list(islice(Shop.train_tasks(1), 2000))
    assert heldout == Shop.heldout_tasks(300, 1)
    met = {json.dumps(task["order"], sort_keys=True) for task in training}
    kept = {json.dumps(task["order"], sort_keys=True) for task in heldout}
    assert len(kept) == 300
    assert not met & kept
    assert all(map(is_heldout, heldout))
    assert not any(map(is_heldout, training))


def test_baselines_leave_room_to_learn() -> None:
    measured = Shop.baselines(Shop.heldout_tasks(400, 0))
    assert set(measured) == {"always the commonest sum", "the mean price for every item"}
    assert all(0 <= success < 0.1 for success in measured.values())
    assert max(measured.values()) > 0


def test_impossible_options_and_tasks_are_refused() -> None:
    with pytest.raises(ValueError, match="kinds = 11: from 1 to 10"):
        Shop(kinds=11)
    with pytest.raises(ValueError, match=r"only \d+ distinct orders of 1 kinds"):
        Shop.heldout_tasks(100, 0, kinds=1)
    with pytest.raises(ValueError, match="has order None"):
        Shop().reset(Task(domain="shop", key="t"), 0)
