"""The trainer as a whole: versions, steps, refusals, publication, saving, learning."""

import math
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from transformers import AutoModelForCausalLM

from rollart.backends.trainers.optim import FIRST_SHARE
from rollart.backends.weights.shm import SharedMemoryWeightStore
from rollart.backends.weights.torch_state import torch_state
from rollart.core.errors import ConfigError
from rollart.core.identity import PolicyVersion
from rollart.core.tokens import VersionRuns
from rollart.core.types import Piece, Segment, Trajectory

Make = Any


def weights(trainer: Any) -> dict[str, torch.Tensor]:
    return {name: tensor.clone() for name, tensor in trainer.model.state_dict().items()}


def largest_change(before: dict[str, torch.Tensor], after: dict[str, torch.Tensor]) -> float:
    return max(float((after[name] - before[name]).abs().max()) for name in before)


def test_a_batch_makes_one_version_however_many_optimiser_steps_it_takes(make: Make) -> None:
    trainer = make.trainer(optimizer_steps=3, final_learning_rate=0.1)
    assert trainer.version == PolicyVersion("agent", 0)
    rates = []
    for number in range(1, 5):
        before = weights(trainer)
        batch = make.batch(*make.random_groups(6, 4))
        stats = trainer.train_step(replace(batch, progress=(number - 1) / 3))
        assert trainer.version == PolicyVersion("agent", number)
        assert (stats.version, stats.optimizer_steps, stats.skipped) == (number, 3, False)
        assert largest_change(before, weights(trainer)) > 0
        assert all(parameter.grad is None for parameter in trainer.model.parameters())
        rates.append(stats.learning_rate)
    assert rates == pytest.approx([FIRST_SHARE * 1e-2, 7e-3, 4e-3, 1e-3])


def test_what_a_step_reports_is_finite_and_counted(make: Make) -> None:
    groups = make.random_groups(6, 4)
    stats = make.trainer(optimizer_steps=2, entropy=0.01).train_step(make.batch(*groups))
    trajectories = [member for members in groups for member in members]
    assert stats.trained_tokens == sum(t.sampled_tokens for t in trajectories)
    assert stats.trained_tokens < stats.input_tokens < sum(t.tokens for t in trajectories)
    assert 0 < stats.entropy < math.log(make.vocabulary)
    assert stats.grad_norm > 0
    assert stats.approx_kl > 0
    assert stats.ratio_max > 1
    assert 0 <= stats.clip_fraction <= 1
    assert stats.seconds > 0


def test_the_order_in_which_a_batch_arrives_changes_no_bit_of_the_result(make: Make) -> None:
    groups = make.random_groups(6, 4)
    settings = {"optimizer_steps": 2, "microbatch_tokens": 64}
    first, second = make.trainer(**settings), make.trainer(**settings)
    other_seed = make.trainer(seed=1, **settings)
    first.train_step(make.batch(*groups))
    shuffled = [list(reversed(members)) for members in groups[3:] + groups[:3]]
    second.train_step(make.batch(*shuffled))
    other_seed.train_step(make.batch(*groups))
    assert largest_change(weights(first), weights(second)) == 0.0
    assert largest_change(weights(first), weights(other_seed)) > 0.0


def silent_batches(make: Make) -> dict[str, list[list[Trajectory]]]:
    return {
        "equal scores": [[make.trajectory("oss", member=m, score=1.0) for m in range(4)]],
        "one member": [[make.trajectory("oss", score=1.0)]],
        "no verdicts": [[make.trajectory("oss", member=m, score=None) for m in range(4)]],
        "nothing sampled": [[make.trajectory("ooo", member=m, score=float(m)) for m in range(4)]],
        "no group": [],
    }


@pytest.mark.parametrize(
    "kind", ["equal scores", "one member", "no verdicts", "nothing sampled", "no group"]
)
def test_a_batch_without_a_signal_is_skipped_and_still_makes_a_version(
    make: Make, kind: str
) -> None:
    trainer = make.trainer(optimizer_steps=2, entropy=0.01, weight_decay=0.1)
    trainer.train_step(make.batch(*make.random_groups(4, 4)))  # the optimiser has momentum now
    before = weights(trainer)
    stats = trainer.train_step(make.batch(*silent_batches(make)[kind]))
    assert (stats.skipped, stats.optimizer_steps, stats.trained_tokens) == (True, 0, 0)
    assert (stats.loss, stats.grad_norm, stats.version) == (0.0, 0.0, 2)
    assert largest_change(before, weights(trainer)) == 0.0
    assert not trainer.train_step(make.batch(*make.random_groups(4, 4))).skipped


@pytest.mark.parametrize("broken", [math.nan, -math.inf])
def test_a_gradient_that_is_not_finite_never_reaches_the_weights(make: Make, broken: float) -> None:
    groups = make.random_groups(2, 4)
    groups[1][0] = make.trajectory("ooss", group=1, member=0, score=3.0, logprob=broken)
    trainer = make.trainer(optimizer_steps=2, correction="behaviour")
    stats = trainer.train_step(make.batch(*groups))
    assert all(tensor.isfinite().all() for tensor in weights(trainer).values())
    assert trainer.version.number == 1
    finite = (stats.loss, stats.grad_norm, stats.entropy, stats.approx_kl, stats.ratio_max)
    assert all(map(math.isfinite, finite))
    if math.isnan(broken):  # a ratio without bound is bounded; one that is no number is refused
        assert (stats.skipped, stats.optimizer_steps) == (True, 1)


def test_off_policy_tokens_without_a_correction_are_refused_and_nothing_changes(
    make: Make,
) -> None:
    trainer = make.trainer(correction="none")
    before = weights(trainer)
    stale = [[make.trajectory("oss", member=m, score=float(m), version=3) for m in range(2)]]
    with pytest.raises(ConfigError, match=r"tokens of version 3 .* is at 0.*\"behaviour\" or"):
        trainer.train_step(make.batch(*stale))
    foreign = [[make.trajectory("oss", member=m, score=float(m), policy="judge") for m in range(2)]]
    with pytest.raises(ValueError, match=r"'judge'.*'agent'"):
        trainer.train_step(make.batch(*foreign))
    long = [[make.trajectory("o" * 50 + "s", member=m, score=float(m)) for m in range(2)]]
    with pytest.raises(ValueError, match="more than the 20"):
        make.trainer(microbatch_tokens=20).train_step(make.batch(*long))
    assert trainer.version.number == 0
    assert largest_change(before, weights(trainer)) == 0.0
    fresh = [[make.trajectory("oss", member=m, score=float(m)) for m in range(2)]]
    assert trainer.train_step(make.batch(*fresh)).ratio_max == 1.0


def test_truncated_importance_equals_the_plain_ratio_when_the_engine_agrees(make: Make) -> None:
    """Then every weight is 1; log-probs taken after the first update would give other ratios."""
    trainers = {
        name: make.trainer(correction=name, optimizer_steps=3, learning_rate=0.05)
        for name in ("tis", "behaviour")
    }
    model = trainers["tis"].model
    groups = [
        [make.as_sampled(member, model) for member in members]
        for members in make.random_groups(6, 4)
    ]
    stats = {name: t.train_step(make.batch(*groups)) for name, t in trainers.items()}
    assert stats["tis"].ratio_max == pytest.approx(stats["behaviour"].ratio_max, rel=1e-4)
    assert stats["tis"].ratio_max > 1.2
    left, right = (weights(trainer) for trainer in trainers.values())
    assert largest_change(left, right) < 1e-3


def test_the_gap_is_measured_before_the_first_update(make: Make) -> None:
    told: list[str] = []
    trainer = make.trainer(
        correction="tis",
        optimizer_steps=2,
        learning_rate=0.5,
        progress=lambda work, _begin, _end: told.append(work),
    )
    groups = [
        [make.as_sampled(member, trainer.model) for member in members]
        for members in make.random_groups(4, 4)
    ]
    stats = trainer.train_step(make.batch(*groups))
    assert stats.same_version_gap is not None
    assert stats.same_version_gap < 1e-5
    assert told == ["recompute", "train", "train"]
    assert trainer.train_step(make.batch(*groups)).same_version_gap is None


def test_each_domain_is_trained_at_its_own_temperature(make: Make) -> None:
    trainer = make.trainer(temperatures={"hot": 1.5, "cold": 0.4})
    groups = [
        [
            make.as_sampled(
                make.trajectory("oosos", group=g, member=m, score=float(m), domain=domain),
                trainer.model,
                temperature,
            )
            for m in range(3)
        ]
        for g, (domain, temperature) in enumerate((("hot", 1.5), ("cold", 0.4)))
    ]
    swapped = make.trainer(temperatures={"hot": 0.4, "cold": 1.5})
    assert trainer.train_step(make.batch(*groups)).same_version_gap < 1e-5
    assert swapped.train_step(make.batch(*groups)).same_version_gap > 0.1


def test_score_finds_a_wrong_temperature_and_ignores_other_versions(make: Make) -> None:
    trainer = make.trainer(dtype="bfloat16")
    mine = make.as_sampled(make.trajectory("oossos"), trainer.model, 0.6)
    other = make.trajectory("ooss", member=1, version=4)
    gap = trainer.score([mine, other], 0.6)
    assert gap.tokens == 3
    assert 0 < gap.mean <= gap.maximum < 1e-5
    assert trainer.score([mine], 1.0).maximum > 0.05
    assert trainer.score([other], 1.0).tokens == 0
    assert trainer.version.number == 0


def test_progress_is_told_after_every_micro_batch_in_order(make: Make) -> None:
    told: list[tuple[str, float, float]] = []
    trainer = make.trainer(microbatch_tokens=40, progress=lambda *note: told.append(note))
    trainer.train_step(make.batch(*make.random_groups(4, 4)))
    assert len(told) > 4
    assert {work for work, _, _ in told} == {"train"}
    times = [moment for _, begin, end in told for moment in (begin, end)]
    assert times == sorted(times)


def test_clipping_bounds_the_gradient_and_reports_the_norm_before_it(make: Make) -> None:
    groups = make.random_groups(4, 4)
    tiny, loose = make.trainer(grad_clip=1e-12), make.trainer(grad_clip=1e9)
    before = weights(tiny)
    stats = [trainer.train_step(make.batch(*groups)) for trainer in (tiny, loose)]
    assert stats[0].grad_norm == stats[1].grad_norm > 1e-3
    # A gradient far below AdamW's epsilon moves nothing; a normal one moves by the rate.
    assert largest_change(before, weights(tiny)) < 1e-5
    assert largest_change(before, weights(loose)) == pytest.approx(1e-2, rel=0.01)


def test_published_weights_give_another_model_the_same_logits_and_leave_it_tied(
    make: Make, model_dir: Path, tmp_path: Path
) -> None:
    trainer = make.trainer()
    store = SharedMemoryWeightStore(tmp_path, "run")
    assert trainer.publish(store) == PolicyVersion("agent", 0)
    trainer.train_step(make.batch(*make.random_groups(4, 4)))
    assert trainer.publish(store) == PolicyVersion("agent", 1)
    engine = AutoModelForCausalLM.from_pretrained(model_dir).eval()
    ids = torch.arange(10).unsqueeze(0)
    with torch.no_grad():
        assert not torch.equal(engine(ids).logits, trainer.model(ids).logits)
        with store.read(PolicyVersion("agent", 1)) as tensors:
            assert {"lm_head.weight", "model.embed_tokens.weight"} <= set(tensors)
            engine.load_state_dict(torch_state(tensors))
        assert torch.equal(engine(ids).logits, trainer.model(ids).logits)
    assert engine.lm_head.weight is engine.model.embed_tokens.weight
    assert torch.equal(engine.lm_head.weight, trainer.model.lm_head.weight)
    store.close()


def test_saved_weights_load_with_transformers_and_bring_the_tokenizers_files(
    make: Make, tmp_path: Path
) -> None:
    trainer = make.trainer(dtype="bfloat16")
    trainer.train_step(make.batch(*make.random_groups(4, 4)))
    trainer.save(tmp_path / "final")
    loaded = AutoModelForCausalLM.from_pretrained(tmp_path / "final", dtype="auto").eval()
    assert loaded.dtype == torch.float32
    for name, tensor in weights(trainer).items():
        assert torch.equal(loaded.state_dict()[name], tensor)
    assert (tmp_path / "final" / "tokenizer_config.json").read_text() == "{}"
    again = make.trainer(model=tmp_path / "final")
    again.save(tmp_path / "final")
    assert (tmp_path / "final" / "tokenizer_config.json").read_text() == "{}"


def test_a_trainer_that_was_not_loaded_says_so(model_dir: Path, make: Make) -> None:
    trainer = make.trainer()
    trainer._loaded = None
    with pytest.raises(RuntimeError, match=r"'agent': call load\(\) first"):
        trainer.train_step(make.batch())


def bandit_group(make: Make, trainer: Any, group: int, good: int) -> list[Trajectory]:
    """Eight answers of one token to the same prompt, drawn from the model; `good` earns 1."""
    prompt = np.array([3, 5], np.int32)
    with torch.no_grad():
        logits = trainer.model(torch.from_numpy(prompt).long().unsqueeze(0)).logits[0, -1]
    scores = torch.log_softmax(logits.double(), -1)
    generator = torch.Generator().manual_seed(group)
    drawn = torch.multinomial(scores.exp(), 8, replacement=True, generator=generator)
    members = []
    for member, token in enumerate(drawn.tolist()):
        answer = Piece(
            ids=np.array([token], np.int32),
            logprobs=np.array([float(scores[token])], np.float32),
            versions=VersionRuns(((trainer.version.number, 1),)),
        )
        made = make.trajectory("os", group=group, member=member, score=float(token == good))
        members.append(replace(made, segments=(Segment(pieces=(Piece(ids=prompt), answer)),)))
    return members


@pytest.mark.parametrize("correction", ["none", "behaviour", "tis"])
def test_a_token_that_is_rewarded_becomes_likely(make: Make, correction: str) -> None:
    trainer = make.trainer(correction=correction, learning_rate=1e-2)
    good = 11

    def probability() -> float:
        with torch.no_grad():
            logits = trainer.model(torch.tensor([[3, 5]])).logits[0, -1]
        return float(torch.softmax(logits, -1)[good])

    before = probability()
    for step in range(25):
        groups = [bandit_group(make, trainer, 10 * step + g, good) for g in range(6)]
        stats = trainer.train_step(make.batch(*groups))
        assert stats.same_version_gap is None or stats.same_version_gap < 1e-5
    assert before < 0.2
    assert probability() > 0.9
