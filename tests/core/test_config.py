from typing import Any

import pytest
from pydantic import ValidationError

from rollart.core.config import JobConfig, RolloutConfig, broken_rules, largest_divisor
from rollart.core.jobfile import parse_job


def job(**sections: Any) -> JobConfig:
    table: dict[str, Any] = {
        "schema": 1,
        "model": {"path": "models/tiny"},
        "train": {"correction": "behaviour"},
        "domains": [{"tag": "FrozenLake", "environment": "lake:FrozenLake"}],
    }
    return parse_job(table | sections)


def test_capacity_follows_from_alpha_and_the_batch() -> None:
    made = job(protocol={"alpha": 2}, rollout={"batch_groups": 4, "group_size": 8})
    assert made.capacity_groups == 12
    assert made.capacity_trajectories == 96


def test_a_good_job_breaks_no_rule() -> None:
    assert broken_rules(job()) == []


def test_every_broken_rule_is_found_and_not_only_the_first() -> None:
    made = job()
    broken = made.model_copy(
        update={
            "rollout": RolloutConfig(group_size=1),
            "train": made.train.model_copy(update={"correction": "none", "optimizer_steps": 3}),
        }
    )
    keys = [problem.split(" = ")[0] for problem in broken_rules(broken)]
    assert keys == ["train.correction", "train.optimizer_steps", "rollout.group_size"]


def test_several_optimizer_steps_need_a_correction_even_where_alpha_is_zero() -> None:
    made = job(protocol={"alpha": 0}, train={"correction": "tis", "optimizer_steps": 2})
    off = made.model_copy(update={"train": made.train.model_copy(update={"correction": "none"})})
    (problem,) = broken_rules(off)
    assert "train.optimizer_steps = 2" in problem


def test_a_lag_that_a_short_run_never_reaches_is_refused() -> None:
    made = job(run={"steps": 3}, protocol={"alpha": 2})
    short = made.model_copy(update={"run": made.run.model_copy(update={"steps": 2})})
    (problem,) = broken_rules(short)
    assert "protocol.alpha = 2" in problem
    assert "use protocol.alpha = 1 or less" in problem


@pytest.mark.parametrize(
    ("name", "remedy"), [("rollart", "; use protocol.alpha = 0"), ("areal", "; use run.steps = 2")]
)
def test_of_a_single_step_the_remedy_is_one_that_can_be_used(name: str, remedy: str) -> None:
    made = job(run={"steps": 3}, protocol={"name": name, "alpha": 1})
    short = made.model_copy(update={"run": made.run.model_copy(update={"steps": 1})})
    (problem,) = broken_rules(short)
    assert problem.endswith(remedy)


def test_a_job_cannot_be_changed_once_it_is_made() -> None:
    made = job()
    with pytest.raises(ValidationError, match="frozen"):
        made.run.steps = 5  # pyright: ignore[reportAttributeAccessIssue]


@pytest.mark.parametrize(
    ("number", "at_most", "expected"), [(8, 3, 2), (8, 8, 8), (8, 100, 8), (7, 6, 1), (12, 5, 4)]
)
def test_the_largest_divisor_is_a_valid_value_for_sizes_that_must_divide(
    number: int, at_most: int, expected: int
) -> None:
    assert largest_divisor(number, at_most) == expected
