"""Log-probs of the engine against full forwards: batches, turns, weight updates."""

from typing import Any

import numpy as np
import numpy.typing as npt
import pytest
from transformers import Qwen3ForCausalLM

from rollart.backends.engines.hf_batcher import HFBatcher
from rollart.backends.engines.kv_slots import KVSlots

AIM = 3e-5  # with logits as lively as here, float32 rounding alone comes to 1e-5
LIMIT = 1e-4


@pytest.mark.parametrize("kind", ["qwen3", "llama", "moe"])
def test_logprobs_equal_a_full_forward_in_a_mixed_batch(lab: Any, kind: str) -> None:
    model = lab.model(kind)
    engine = lab.engine(model, slots=5, step_tokens=24)
    prompts = {f"r{i}": lab.prompt(1 + 7 * i, i) for i in range(12)}
    answers = lab.run(
        engine,
        [lab.request(name, prompt, seed=at) for at, (name, prompt) in enumerate(prompts.items())],
    )
    assert set(answers) == set(prompts)
    for name, answer in answers.items():
        assert len(answer.ids) == 6
        assert lab.gap({0: model}, prompts[name], answer) < AIM


def test_a_class_of_model_that_is_not_known_runs_through_its_own_forward(lab: Any) -> None:
    class Unknown(Qwen3ForCausalLM):
        pass

    known = lab.model()
    unknown = Unknown(known.config).eval()
    unknown.load_state_dict(known.state_dict())
    requests = [lab.request(f"r{i}", lab.prompt(3 + 9 * i, i)) for i in range(4)]
    ours, theirs = lab.run(lab.engine(known), requests), lab.run(lab.engine(unknown), requests)
    for name, answer in ours.items():
        assert answer.ids == theirs[name].ids
        assert answer.logprobs == pytest.approx(theirs[name].logprobs, abs=AIM)


def play_turns(
    lab: Any, engine: HFBatcher, models: dict[int, Any], update_before: int
) -> tuple[float, list[int]]:
    """Three sessions of four turns; returns the largest gap and the cached tokens by turn."""
    history = {f"s{i}": lab.prompt(8 + i, i) for i in range(3)}
    worst, cached = 0.0, []
    for turn in range(4):
        if turn == update_before:
            engine.update(1, lab.tensors(models[1]))
        requests = [
            lab.request(f"{session}/{turn}", prompt, session=session, seed=turn, max_tokens=2)
            for session, prompt in history.items()
        ]
        answers = lab.run(engine, requests)
        for session, prompt in history.items():
            answer = answers[f"{session}/{turn}"]
            worst = max(worst, lab.gap(models, prompt, answer))
            history[session] = np.concatenate(
                [prompt, np.array(answer.ids, np.int32), lab.prompt(5, turn)]
            )
        costs = [answer.last.cost for answer in answers.values()]
        prompts = [len(request.prompt[0]) for request in requests]
        assert [c.cached_tokens + c.prefill_tokens for c in costs] == prompts
        cached.append(sum(cost.cached_tokens for cost in costs))
    return worst, cached


def test_turns_of_a_session_compute_only_their_suffix(lab: Any) -> None:
    model = lab.model()
    worst, cached = play_turns(lab, lab.engine(model), {0: model}, update_before=-1)
    assert worst < AIM
    # A turn adds 2 sampled and 5 observed tokens; the last sampled one is not in the cache yet.
    first = 8 + 9 + 10
    assert cached == [0, first + 3, first + 3 + 21, first + 3 + 42]


def test_an_idle_prefix_of_old_weights_is_not_used_when_the_session_returns(lab: Any) -> None:
    models = {0: lab.model(), 1: lab.model(seed=1)}
    worst, cached = play_turns(lab, lab.engine(models[0]), models, update_before=2)
    assert worst < AIM
    assert cached[1] > 0
    assert cached[2] == 0
    assert cached[3] > 0


class VersionNotInKey(KVSlots):
    """Planted bug: a prefix is found by its session and ids alone."""

    def reuse(self, slot: int, prompt: npt.NDArray[np.int32], writer: int) -> int:
        return super().reuse(slot, prompt, int(self.writer[slot]))

    def release_idle(self) -> None:
        pass


def test_a_kv_key_without_version_is_caught(lab: Any) -> None:
    models = {0: lab.model(), 1: lab.model(seed=1)}
    engine = lab.engine(models[0])
    engine.kv.__class__ = VersionNotInKey
    worst, _ = play_turns(lab, engine, models, update_before=2)
    assert worst > LIMIT


def interrupt(lab: Any, engine: HFBatcher, models: dict[int, Any], *, rebuild: bool) -> float:
    """Update in mid-generation; returns the largest gap. Some rows are in prefill at that time."""
    prompts = {f"r{i}": lab.prompt(6 + 9 * i, i) for i in range(5)}
    answers: dict[str, Any] = {}
    for at, (name, prompt) in enumerate(prompts.items()):
        engine.add(lab.request(name, prompt, seed=at, max_tokens=9))
    lab.drain(engine, answers, steps=4)
    engine.pause()
    engine.update(1, lab.tensors(models[1]))
    engine.resume()
    if rebuild:
        assert engine.rebuild_kv() > 0
        assert engine.rebuild_kv() == 0
    lab.drain(engine, answers)
    assert all(len(answer.ids) == 9 for answer in answers.values())
    assert any(set(answer.versions) == {0, 1} for answer in answers.values())
    return max(lab.gap(models, prompts[name], answer) for name, answer in answers.items())


@pytest.mark.parametrize("rebuild", [False, True])
@pytest.mark.parametrize("kind", ["qwen3", "llama", "moe"])
def test_tokens_of_two_versions_in_one_completion_fit_their_own_version(
    lab: Any, kind: str, rebuild: bool
) -> None:
    models = {0: lab.model(kind), 1: lab.model(kind, seed=1)}
    engine = lab.engine(models[0], slots=5, step_tokens=16)
    assert interrupt(lab, engine, models, rebuild=rebuild) < AIM


class NeverForgets(KVSlots):
    """Planted bug: rows in flight go on with the keys and values of the old weights."""

    def forget(self, slots: npt.NDArray[np.int64], writer: int) -> npt.NDArray[np.int64]:
        self.writer[slots] = writer
        return slots[:0]


def test_skipping_the_kv_rebuild_is_caught(lab: Any) -> None:
    models = {0: lab.model(), 1: lab.model(seed=1)}
    engine = lab.engine(models[0], slots=5, step_tokens=16)
    engine.kv.__class__ = NeverForgets
    assert interrupt(lab, engine, models, rebuild=False) > LIMIT


def test_kv_of_old_weights_is_used_on_where_the_engine_was_told_to_keep_it(lab: Any) -> None:
    models = {0: lab.model(), 1: lab.model(seed=1)}
    engine = lab.engine(models[0], slots=5, step_tokens=16, kv="keep")
    assert interrupt(lab, engine, models, rebuild=False) > LIMIT
    assert engine.rebuild_kv() == 0
    assert engine.rebuilt_tokens == 0


def test_logprobs_are_those_after_temperature(lab: Any) -> None:
    model, prompt = lab.model(), lab.prompt(9)
    for temperature in (0.3, 1.0, 1.7):
        request = lab.request("r", prompt, temperature=temperature)
        answer = lab.run(lab.engine(model), [request])["r"]
        assert lab.gap({0: model}, prompt, answer, temperature) < AIM
        assert lab.gap({0: model}, prompt, answer, temperature + 0.1) > 1e-3


def test_a_rebuild_counts_the_tokens_it_computes(lab: Any) -> None:
    models = {0: lab.model(), 1: lab.model(seed=1)}
    engine = lab.engine(models[0])
    for at in range(3):
        engine.add(lab.request(f"r{at}", lab.prompt(10 + at, at)))
    answers = lab.drain(engine, {}, steps=3)
    engine.update(1, lab.tensors(models[1]))
    # Prompts of 10, 11 and 12, with 2 sampled tokens each computed; the third is the next input.
    assert engine.rebuild_kv() == 12 + 13 + 14
    assert engine.rebuilt_tokens == 39
    answers = lab.drain(engine, answers)
    assert [answers[f"r{at}"].last.cost.prefill_tokens for at in range(3)] == [22, 24, 26]
    assert "rebuild" in [busy.work for busy in engine.take_busy()]
