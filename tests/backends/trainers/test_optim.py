"""Learning rate and optimiser."""

import itertools

import pytest
import torch

from rollart.backends.trainers.optim import FIRST_SHARE, WARM_UP, adamw, learning_rate


def test_the_rate_decays_linearly_with_the_progress_of_the_run_once_it_is_warm() -> None:
    rates = [learning_rate(1e-3, 0.05, progress=step / 19) for step in range(1, 20)]
    assert rates[-1] == pytest.approx(5e-5, rel=1e-12)
    steps = {round(a - b, 15) for a, b in itertools.pairwise(rates)}
    assert steps == {round(0.95e-3 / 19, 15)}


def test_the_rate_rises_from_a_small_share_over_the_first_steps() -> None:
    rates = [learning_rate(1e-3, 1.0, progress=WARM_UP * step / 4) for step in range(6)]
    assert rates[0] == pytest.approx(FIRST_SHARE * 1e-3)
    assert rates == sorted(rates)
    assert rates[4] == rates[5] == pytest.approx(1e-3)


@pytest.mark.parametrize(
    ("final", "progress", "rate"),
    [(1.0, 0.7, 1e-3), (0.0, 1.0, 0.0), (0.1, 5.0, 1e-4), (0.1, -1.0, 5e-5), (0.5, 0.5, 7.5e-4)],
)
def test_the_rate_is_constant_or_clamped_where_it_must_be(
    final: float, progress: float, rate: float
) -> None:
    assert learning_rate(1e-3, final, progress=progress) == pytest.approx(rate)


def test_decay_pulls_on_matrices_only_and_frozen_parameters_are_left_alone() -> None:
    module = torch.nn.Sequential(
        torch.nn.Linear(3, 3), torch.nn.LayerNorm(3), torch.nn.Linear(3, 3)
    )
    module[2].weight.requires_grad_(False)
    matrices, vectors = adamw(module, 0.1).param_groups
    assert (matrices["weight_decay"], vectors["weight_decay"]) == (0.1, 0.0)
    assert [parameter.ndim for parameter in matrices["params"]] == [2]
    assert len(vectors["params"]) == 4
