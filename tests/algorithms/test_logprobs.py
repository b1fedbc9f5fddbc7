"""Token log-probs: known values, temperature, chunking."""

import pytest
import torch
from torch import Tensor
from torch.utils._python_dispatch import TorchDispatchMode

from rollart.algorithms.logprobs import token_scores


def test_log_probs_are_those_after_temperature() -> None:
    # [2, 1, 0] / 0.6 = [10/3, 5/3, 0]; ln(e^(10/3) + e^(5/3) + 1) = 3.535906 by hand, so
    # [-0.2026, -1.8692, -3.5359]. Log-probs at temperature 1 divided by 0.6 would begin -0.6793.
    logits = torch.tensor([[2.0, 1.0, 0.0]] * 3, dtype=torch.float64)
    got = token_scores(logits, torch.arange(3), temperature=0.6).logprobs
    assert got.tolist() == pytest.approx([-0.2026, -1.8692, -3.5359], abs=1e-4)


def test_entropy_is_that_of_the_tempered_distribution() -> None:
    # Logits [ln 4, 0] at T = 2: weights 2 and 1, p = (2/3, 1/3).
    # H = -(2/3) ln(2/3) - (1/3) ln(1/3) = 0.2703101 + 0.3662041 = 0.6365142.
    logits = torch.tensor([[4.0, 1.0]], dtype=torch.float64).log()
    got = token_scores(logits, torch.tensor([0]), temperature=2.0)
    assert got.entropy.item() == pytest.approx(0.6365142, abs=1e-7)
    assert got.logprobs.item() == pytest.approx(-0.4054651, abs=1e-7)


def test_scores_have_the_shape_of_the_ids() -> None:
    logits, ids = torch.randn(2, 5, 7), torch.randint(7, (2, 5))
    got = token_scores(logits, ids, temperature=1.0)
    direct = torch.log_softmax(logits, -1)
    assert got.logprobs.shape == got.entropy.shape == (2, 5)
    for row in range(2):
        for column in range(5):
            assert got.logprobs[row, column] == direct[row, column, ids[row, column]]


@pytest.mark.parametrize("rows_in_a_chunk", [3, 5, 100])
def test_values_and_gradient_do_not_depend_on_the_chunk(rows_in_a_chunk: int) -> None:
    torch.manual_seed(0)
    logits = torch.randn(10, 5, dtype=torch.float64, requires_grad=True)
    ids = torch.randint(5, (10,))
    grad_logprob, grad_entropy = torch.randn(2, 10, dtype=torch.float64)

    got = token_scores(logits, ids, temperature=0.7, chunk_elements=5 * rows_in_a_chunk)
    direct = torch.distributions.Categorical(logits=logits / 0.7)
    pairs = ((got.logprobs, direct.log_prob(ids)), (got.entropy, direct.entropy()))
    for ours, theirs in pairs:
        torch.testing.assert_close(ours, theirs, rtol=0, atol=1e-12)

    def gradient(logprobs: Tensor, entropy: Tensor) -> Tensor:
        objective = (grad_logprob * logprobs + grad_entropy * entropy).sum()
        return torch.autograd.grad(objective, logits)[0]

    torch.testing.assert_close(
        gradient(got.logprobs, got.entropy),
        gradient(direct.log_prob(ids), direct.entropy()),
        rtol=0,
        atol=1e-12,
    )


def test_low_precision_logits_are_scored_in_float32() -> None:
    logits = torch.tensor([[2.0, 1.0, 0.0]], dtype=torch.bfloat16)
    got = token_scores(logits, torch.tensor([0]), temperature=0.6)
    assert got.logprobs.dtype == got.entropy.dtype == torch.float32
    # bfloat16 has 3 significant digits; the exact value is -0.2025731.
    assert got.logprobs.item() == pytest.approx(-0.2025731, abs=1e-6)


class _LargestFloat32(TorchDispatchMode):
    """Records the largest float32 result of any operation."""

    def __init__(self) -> None:
        super().__init__()
        self.elements = 0

    def __torch_dispatch__(self, func, types, args=(), kwargs=None):
        result = func(*args, **(kwargs or {}))
        for value in result if isinstance(result, tuple | list) else (result,):
            if isinstance(value, Tensor) and value.dtype == torch.float32:
                self.elements = max(self.elements, value.numel())
        return result


def assert_no_float32_copy_beyond_a_chunk(chunk_elements: int) -> None:
    logits = torch.randn(64, 32).bfloat16().requires_grad_()
    ids = torch.randint(32, (64,))
    with _LargestFloat32() as seen:
        scores = token_scores(logits, ids, temperature=1.0, chunk_elements=chunk_elements)
        (scores.logprobs + scores.entropy).sum().backward()
    assert seen.elements <= 256


def test_no_float32_copy_of_all_logits_is_made() -> None:
    assert_no_float32_copy_beyond_a_chunk(256)
    with pytest.raises(AssertionError):
        assert_no_float32_copy_beyond_a_chunk(64 * 32)


def test_no_token_at_all_has_scores_with_a_graph() -> None:
    logits = torch.zeros(0, 5, requires_grad=True)
    got = token_scores(logits, torch.zeros(0, dtype=torch.long), temperature=1.0)
    assert got.logprobs.shape == (0,)
    assert got.logprobs.requires_grad


@pytest.mark.parametrize("temperature", [0.0, -1.0, float("nan")])
def test_a_temperature_without_log_probs_is_refused(temperature: float) -> None:
    with pytest.raises(ValueError, match="temperature is"):
        token_scores(torch.zeros(1, 2), torch.zeros(1, dtype=torch.long), temperature=temperature)


def test_ids_that_are_not_aligned_with_the_logits_are_refused() -> None:
    with pytest.raises(ValueError, match="do not agree"):
        token_scores(torch.zeros(4, 2), torch.zeros(3, dtype=torch.long), temperature=1.0)
