"""Noise by seed and offset, and draws from the distribution after temperature."""

import numpy as np
import pytest
import torch

from rollart.backends.engines.sampling import draw, uniforms


def numbers(*values: int) -> np.ndarray:
    return np.array(values, np.uint64)


def test_uniforms_are_even_and_unrelated_across_seeds_and_offsets() -> None:
    seeds, offsets = np.meshgrid(np.arange(200, dtype=np.uint64), np.arange(200, dtype=np.uint64))
    values = uniforms(seeds.ravel(), offsets.ravel()).reshape(200, 200)
    assert 0 < values.min() < values.max() < 1
    assert len(np.unique(values)) == 40_000
    counts = np.histogram(values, bins=20, range=(0, 1))[0]
    assert ((counts - 2000) ** 2 / 2000).sum() < 43.8  # chi-squared, 19 degrees, p = 0.001
    for left, right in ((values[1:], values[:-1]), (values[:, 1:], values[:, :-1])):
        assert abs(np.corrcoef(left.ravel(), right.ravel())[0, 1]) < 0.02


def test_the_log_prob_is_that_of_the_distribution_after_temperature() -> None:
    logits = torch.tensor([[2.0, 1.0, 0.0]]).repeat(300, 1)
    seeds = np.arange(300, dtype=np.uint64)
    ids, logprobs = draw(logits, np.full(300, 0.6, np.float32), seeds, seeds * 0)
    expected = np.array([-0.2026, -1.8692, -3.5359])
    assert set(ids) == {0, 1, 2}
    assert logprobs == pytest.approx(expected[ids], abs=5e-5)


def test_draws_follow_the_distribution() -> None:
    count = 20_000
    logits = torch.tensor([[0.3, -1.0, 1.1, -0.2]])
    seeds = np.arange(count, dtype=np.uint64)
    ids, _ = draw(logits.repeat(count, 1), np.ones(count, np.float32), seeds, seeds * 0)
    expected = torch.softmax(logits[0], 0).numpy() * count
    seen = np.bincount(ids, minlength=4)
    assert ((seen - expected) ** 2 / expected).sum() < 16.3  # chi-squared, 3 degrees, p = 0.001


def test_a_token_of_no_probability_is_never_drawn() -> None:
    logits = torch.full((2000, 64), -torch.inf)
    logits[:, 40:43] = 0
    seeds = np.arange(2000, dtype=np.uint64)
    ids, logprobs = draw(logits, np.ones(2000, np.float32), seeds, seeds * 0)
    assert set(ids) == {40, 41, 42}
    assert logprobs == pytest.approx(-np.log(3), abs=1e-6)


def test_greedy_and_sampled_rows_share_a_batch() -> None:
    logits = torch.tensor([[0.0, 3.0, 1.0], [0.0, 3.0, 1.0]])
    ids, logprobs = draw(logits, np.array([0, 2], np.float32), numbers(1, 1), numbers(0, 0))
    assert ids[0] == 1
    assert logprobs[0] == pytest.approx(torch.log_softmax(logits[0], 0)[1].item(), abs=1e-6)
    assert logprobs[1] == pytest.approx(
        torch.log_softmax(logits[1] / 2, 0)[ids[1]].item(), abs=1e-6
    )
    assert (ids.dtype, logprobs.dtype) == (np.int32, np.float32)
