"""The life of a request: refusals, stops, budgets, abort, slots, pause, weights, busy time."""

import time
from collections.abc import Callable
from typing import Any

import numpy as np
import pytest
import torch

from rollart.backends.engines.hf_batcher import HFBatcher
from rollart.backends.engines.loading import WeightsRejected
from rollart.core.errors import EngineRefused
from rollart.core.types import StopReason


def test_greedy_tokens_equal_those_of_generate(lab: Any) -> None:
    model = lab.model()
    prompts = {f"r{i}": lab.prompt(5 + 4 * i, i) for i in range(4)}
    answers = lab.run(
        lab.engine(model),
        [lab.request(name, p, temperature=0.0, max_tokens=12) for name, p in prompts.items()],
    )
    for name, prompt in prompts.items():
        ids = torch.from_numpy(prompt).long()[None]
        out = model.generate(
            ids, attention_mask=torch.ones_like(ids), max_new_tokens=12, do_sample=False,
            pad_token_id=0,
        )  # fmt: skip
        assert answers[name].ids == out[0, len(prompt) :].tolist()
        assert lab.gap({0: model}, prompt, answers[name], temperature=1.0) < 3e-5


def test_members_of_a_group_differ_and_a_seed_repeats_alone_and_in_a_crowd(lab: Any) -> None:
    model, prompt = lab.model(), lab.prompt(9)
    crowd = [lab.request(f"m{seed}", prompt, seed=seed, temperature=1.0) for seed in range(16)]
    strangers = [lab.request(f"x{i}", lab.prompt(3 * i + 1, i), seed=i) for i in range(20)]
    together = lab.run(lab.engine(model, slots=24, step_tokens=64), [*strangers, *crowd])
    assert len({tuple(together[request.id].ids) for request in crowd}) == 16
    for request in crowd:
        alone = lab.run(lab.engine(model), [request])[request.id]
        assert alone.ids == together[request.id].ids


def test_a_continued_request_goes_on_in_its_own_noise(lab: Any) -> None:
    model, prompt = lab.model(), lab.prompt(9)
    whole = lab.run(lab.engine(model), [lab.request("r", prompt, max_tokens=8)])["r"]
    longer = np.concatenate([prompt, np.array(whole.ids[:3], np.int32)])
    rest = [
        lab.run(
            lab.engine(model), [lab.request("r", longer, max_tokens=5, offset=offset)]
        )["r"]
        for offset in (3, 0)
    ]  # fmt: skip
    assert rest[0].ids == whole.ids[3:]
    assert rest[1].ids != whole.ids[3:]  # planted bug: the seed is replayed from the start


def test_a_stop_token_ends_the_completion_and_is_its_last_token(lab: Any) -> None:
    model, prompt = lab.model(), lab.prompt(9)
    free = lab.run(lab.engine(model), [lab.request("r", prompt, max_tokens=10)])["r"]
    assert free.finish is StopReason.LENGTH
    stop = free.ids[4]
    assert stop not in free.ids[:4]
    engine = lab.engine(model, stop_ids=[stop])
    stopped = lab.run(engine, [lab.request("r", prompt, max_tokens=10)])["r"]
    assert stopped.ids == free.ids[:5]
    assert stopped.finish is StopReason.STOP


def test_a_stop_token_in_the_last_place_is_a_stop(lab: Any) -> None:
    model, prompt = lab.model(), lab.prompt(9)
    free = lab.run(lab.engine(model), [lab.request("r", prompt, max_tokens=3)])["r"]
    engine = lab.engine(model, stop_ids=[free.ids[2]])
    stopped = lab.run(engine, [lab.request("r", prompt, max_tokens=3)])["r"]
    assert (stopped.ids, stopped.finish) == (free.ids, StopReason.STOP)


def test_a_request_may_fill_the_context_to_the_last_token(lab: Any) -> None:
    model, prompt = lab.model(), lab.prompt(12)
    engine = lab.engine(model, max_len=20)
    answer = lab.run(engine, [lab.request("r", prompt, max_tokens=8)])["r"]
    assert len(answer.ids) == 8
    assert lab.gap({0: model}, prompt, answer) < 3e-5


@pytest.mark.parametrize(
    ("prompt", "fields", "words"),
    [
        (20, {"max_tokens": 13}, ["20 tokens", "max_tokens 13", "33", "32", "at most 12"]),
        (0, {}, ["0 tokens"]),
        (4, {"max_tokens": 0}, ["max_tokens 0"]),
        (4, {"temperature": -1.0}, ["-1.0"]),
        (4, {"temperature": float("nan")}, ["nan"]),
    ],
)
def test_an_impossible_request_is_refused_with_its_numbers(
    lab: Any, prompt: int, fields: dict[str, Any], words: list[str]
) -> None:
    engine = lab.engine(lab.model(), max_len=32)
    with pytest.raises(EngineRefused) as refusal:
        engine.add(lab.request("r", lab.prompt(prompt), **fields))
    for word in ["request r", *words]:
        assert word in str(refusal.value)
    assert not engine.has_work


def test_ids_outside_the_vocabulary_twins_and_floods_are_refused(lab: Any) -> None:
    engine = lab.engine(lab.model(), max_waiting=2)
    for bad in (-1, 50):
        with pytest.raises(EngineRefused, match="vocabulary is 0 to 49"):
            engine.add(lab.request("r", np.array([1, bad], np.int32)))
    engine.add(lab.request("r", lab.prompt(4)))
    with pytest.raises(EngineRefused, match="already here"):
        engine.add(lab.request("r", lab.prompt(4)))
    engine.add(lab.request("s", lab.prompt(4)))
    with pytest.raises(EngineRefused, match="2 requests wait"):
        engine.add(lab.request("t", lab.prompt(4)))


def test_a_model_that_cannot_be_served_is_refused(lab: Any) -> None:
    with pytest.raises(EngineRefused, match="max_len 129"):
        lab.engine(lab.model(), max_len=129)
    sliding = lab.model(layer_types=["sliding_attention", "full_attention"], sliding_window=8)
    with pytest.raises(EngineRefused, match="sliding_attention"):
        lab.engine(sliding)


def test_abort_frees_slots_drops_queued_requests_and_names_the_live_ones(lab: Any) -> None:
    engine = lab.engine(lab.model(), slots=2)
    for at in range(4):
        engine.add(lab.request(f"r{at}", lab.prompt(5, at), max_tokens=50))
    assert len(engine.step()) == 2
    assert (engine.running, engine.waiting, engine.kv.free) == (2, 2, 0)
    assert engine.abort(["r0", "r3", "nobody"]) == ("r0", "r3")
    assert engine.abort(["r0"]) == ()
    assert (engine.running, engine.waiting, engine.kv.free) == (1, 1, 1)
    assert {delta.request_id for delta in engine.step()} == {"r1", "r2"}
    engine.abort(["r1", "r2"])
    assert (engine.kv.free, engine.kv.idle) == (2, 0)


def test_abort_and_release_free_the_prefix_of_a_session_between_turns(lab: Any) -> None:
    engine = lab.engine(lab.model(), slots=2)
    for session in ("a", "b"):
        lab.run(engine, [lab.request(session, lab.prompt(5))])
    assert (engine.kv.free, engine.kv.idle) == (0, 2)
    engine.release("a")
    engine.release("a")
    assert (engine.kv.free, engine.kv.idle) == (1, 1)
    engine.add(lab.request("b2", lab.prompt(9), session="b"))
    engine.abort(["b2"])
    assert (engine.kv.free, engine.kv.idle) == (2, 0)


def test_the_prefix_used_longest_ago_gives_way(lab: Any) -> None:
    engine = lab.engine(lab.model(), slots=2)

    def turn(name: str, session: str) -> int:
        request = lab.request(name, lab.prompt(8, ord(session)), session=session)
        return lab.run(engine, [request])[name].last.cost.cached_tokens

    assert [turn("a", "a"), turn("b", "b"), turn("a2", "a")] == [0, 0, 7]
    assert turn("c", "c") == 0
    assert [turn("a3", "a"), turn("b2", "b")] == [7, 0]


def test_a_prompt_that_leaves_the_cached_path_reuses_only_what_is_common(lab: Any) -> None:
    model = lab.model()
    engine = lab.engine(model)
    prompt = lab.prompt(20)
    lab.run(engine, [lab.request("a", prompt, session="s")])
    other = prompt.copy()
    other[13] = (other[13] + 1) % 50
    answer = lab.run(engine, [lab.request("b", other, session="s")])["b"]
    assert answer.last.cost.cached_tokens == 13
    assert lab.gap({0: model}, other, answer) < 3e-5


def test_two_requests_of_one_session_at_once_do_not_share_a_slot(lab: Any) -> None:
    model, prompt = lab.model(), lab.prompt(6)
    engine = lab.engine(model, slots=3)
    answers = lab.run(engine, [lab.request(f"r{i}", prompt, session="s", seed=i) for i in range(2)])
    assert all(lab.gap({0: model}, prompt, answer) < 3e-5 for answer in answers.values())
    assert (engine.kv.free, engine.kv.idle) == (2, 1)


def test_a_long_prompt_does_not_hold_decoding_back(lab: Any) -> None:
    engine = lab.engine(lab.model(), step_tokens=80)
    engine.add(lab.request("short", lab.prompt(4), max_tokens=40))
    engine.step()
    for at in range(3):
        engine.add(lab.request(f"long{at}", lab.prompt(100, at), max_tokens=4))
    for _ in range(3):
        before = engine.kv.cached.sum()
        assert "short" in {delta.request_id for delta in engine.step()}
        assert engine.kv.cached.sum() - before == 80


def test_paused_no_step_is_taken_and_nothing_is_lost(lab: Any) -> None:
    model, prompt = lab.model(), lab.prompt(7)
    engine = lab.engine(model)
    engine.add(lab.request("r", prompt))
    answers = lab.drain(engine, {}, steps=2)
    engine.pause()
    engine.add(lab.request("late", prompt, seed=2))
    assert not engine.has_work
    assert engine.step() == []
    assert (engine.running, engine.waiting) == (1, 1)
    engine.resume()
    answers = lab.drain(engine, answers)
    assert all(answers[name].finish is StopReason.LENGTH for name in ("r", "late"))
    assert answers["r"].last.cost.queued_s > 0


def test_costs_and_busy_intervals_account_for_the_time(lab: Any) -> None:
    engine = lab.engine(lab.model(), slots=1)
    begin = time.monotonic()
    answers = lab.run(engine, [lab.request(f"r{i}", lab.prompt(9), max_tokens=5) for i in range(2)])
    end = time.monotonic()
    busy = engine.take_busy()
    assert engine.take_busy() == []
    assert [one.work for one in busy] == ["prefill", *["decode"] * 4] * 2
    ends = [end for one in busy for end in (one.begin, one.end)]
    assert ends == sorted(ends)
    first, second = answers["r0"].last.cost, answers["r1"].last.cost
    assert (second.prefill_tokens, second.decode_tokens) == (9, 5)
    assert min(first.prefill_s, first.decode_s, second.prefill_s, second.decode_s) > 0
    assert second.queued_s >= first.prefill_s + first.decode_s
    live = second.queued_s + second.prefill_s + second.decode_s
    assert busy[-1].begin - busy[0].begin <= live <= end - begin


def spoiled(
    change: Callable[[dict[str, torch.Tensor]], object],
) -> Callable[[dict[str, torch.Tensor]], list[tuple[str, torch.Tensor]]]:
    def apply(tensors: dict[str, torch.Tensor]) -> list[tuple[str, torch.Tensor]]:
        change(tensors)
        return list(tensors.items())

    return apply


NORM = "model.norm.weight"
ERRORS = {
    f"missing {NORM}": spoiled(lambda tensors: tensors.pop(NORM)),
    "unexpected extra": spoiled(lambda tensors: tensors.update(extra=torch.zeros(1))),
    r"float32 \(31,\), not torch.float32 \(32,\)": spoiled(
        lambda tensors: tensors.update({NORM: torch.zeros(31)})
    ),
    "torch.float64": spoiled(lambda tensors: tensors.update({NORM: torch.zeros(32).double()})),
    f"{NORM} given 2 times": lambda tensors: [*tensors.items(), (NORM, tensors[NORM])],
    "lm_head.weight is tied": spoiled(
        lambda tensors: tensors.update({"lm_head.weight": torch.zeros(50, 32)})
    ),
}


@pytest.mark.parametrize("message", ERRORS)
def test_weights_that_do_not_fit_leave_the_old_ones_whole(lab: Any, message: str) -> None:
    model, prompt = lab.model(), lab.prompt(9)
    engine = lab.engine(model)
    with pytest.raises(WeightsRejected, match=message):
        engine.update(1, ERRORS[message](dict(lab.tensors(lab.model(seed=1)))))
    answer = lab.run(engine, [lab.request("r", prompt)])["r"]
    assert set(answer.versions) == {0}
    assert lab.gap({0: model}, prompt, answer) < 3e-5


@pytest.mark.parametrize("names", ["first", "other", "both"])
def test_tied_weights_arrive_under_any_of_their_names(lab: Any, names: str) -> None:
    model, prompt = lab.model(seed=1), lab.prompt(9)
    tensors = dict(model.state_dict())
    if names != "both":
        tensors.pop("lm_head.weight" if names == "first" else "model.embed_tokens.weight")
    engine: HFBatcher = lab.engine(lab.model())
    engine.update(3, tensors.items())
    answer = lab.run(engine, [lab.request("r", prompt)])["r"]
    assert set(answer.versions) == {3}
    assert lab.gap({3: model}, prompt, answer) < 3e-5


def test_weights_that_are_not_finite_end_in_an_error_not_in_tokens(lab: Any) -> None:
    engine = lab.engine(lab.model())
    engine.update(1, [(name, new * torch.nan) for name, new in lab.tensors(lab.model())])
    engine.add(lab.request("r", lab.prompt(4)))
    with pytest.raises(FloatingPointError, match="sound weights"):
        engine.step()
