"""Random sequences of everything that can happen to an engine, with its invariants."""

from typing import Any, ClassVar

import numpy as np
import pytest
from hypothesis import Phase, settings
from hypothesis import strategies as st
from hypothesis.stateful import Bundle, RuleBasedStateMachine, consumes, invariant, rule

from rollart.core.types import StopReason

SLOTS = 3
SESSIONS = "abcd"


class Machine(RuleBasedStateMachine):
    """Sessions take turns, are aborted and released, while weights come and engines pause."""

    lab: ClassVar[Any]
    models: ClassVar[dict[int, Any]]
    answer: ClassVar[Any]
    names = Bundle("names")

    def __init__(self) -> None:
        super().__init__()
        self.engine = self.lab.engine(
            self.models[0], slots=SLOTS, step_tokens=8, max_len=32, stop_ids=[7]
        )
        self.live: dict[str, Any] = {}
        self.done: set[str] = set()
        self.prompts: dict[str, np.ndarray] = {}
        self.grown: dict[str, np.ndarray] = {}

    @rule(
        target=names, session=st.sampled_from(SESSIONS), more=st.integers(1, 6),
        tokens=st.integers(1, 6), seed=st.integers(0, 9),
    )  # fmt: skip
    def add(self, session: str, more: int, tokens: int, seed: int) -> str:
        name = f"{session}{len(self.prompts)}"
        old = self.grown.get(session, np.zeros(0, np.int32))
        prompt = np.concatenate([old, self.lab.prompt(more, seed)])
        if len(prompt) + tokens > 32:
            prompt = self.lab.prompt(more, seed)
        self.prompts[name] = self.grown[session] = prompt
        self.live[name] = (self.answer(), tokens, session)
        self.engine.add(
            self.lab.request(name, prompt, session=session, max_tokens=tokens, seed=seed)
        )
        return name

    @rule(name=consumes(names))
    def abort(self, name: str) -> None:
        assert self.engine.abort([name]) == ((name,) if name in self.live else ())
        self.live.pop(name, None)

    @rule(session=st.sampled_from(SESSIONS))
    def release(self, session: str) -> None:
        self.engine.release(session)

    @rule(count=st.integers(1, 6))
    def steps(self, count: int) -> None:
        for _ in range(count):
            self.step()

    def step(self) -> None:
        for delta in self.engine.step():
            answer, tokens, session = self.live[delta.request_id]
            answer.take(delta)
            assert len(answer.ids) <= tokens
            if answer.finish is not None:
                del self.live[delta.request_id]
                self.finished(delta.request_id, answer, tokens, session)

    def finished(self, name: str, answer: Any, tokens: int, session: str) -> None:
        assert answer.finish is (
            StopReason.STOP if answer.ids[-1] == 7 else StopReason.LENGTH
        )  # fmt: skip
        assert 7 not in answer.ids[:-1]
        assert len(answer.ids) == tokens or answer.ids[-1] == 7
        models = {version: self.models[version % 2] for version in set(answer.versions)}
        assert self.lab.gap(models, self.prompts[name], answer) < 1e-4
        self.grown[session] = np.concatenate(
            [self.prompts[name], np.array(answer.ids, np.int32)]
        )  # fmt: skip

    @rule(rebuild=st.booleans())
    def update(self, rebuild: bool) -> None:
        version = self.engine.version + 1
        self.engine.update(version, self.lab.tensors(self.models[version % 2]))
        if rebuild:
            self.engine.rebuild_kv()

    @rule()
    def pause_or_resume(self) -> None:
        if self.engine.paused:
            self.engine.resume()
        else:
            self.engine.pause()

    @invariant()
    def every_slot_is_free_idle_or_running(self) -> None:
        kv = self.engine.kv
        assert kv.free + kv.idle + self.engine.running == SLOTS
        assert self.engine.running + self.engine.waiting == len(self.live)
        assert (kv.cached <= kv.known).all()
        assert kv.known.max() <= 32

    def teardown(self) -> None:
        self.engine.resume()
        for _ in range(500):
            if not self.engine.has_work:
                break
            self.step()
        assert not self.live
        for session in SESSIONS:
            self.engine.release(session)
        assert self.engine.kv.free == SLOTS
        assert self.engine.kv.cached.sum() == 0


@pytest.mark.parametrize("kind", ["qwen3", "llama"])
def test_slots_never_leak_and_every_token_fits_its_version(
    lab: Any, new_answer: Any, kind: str
) -> None:
    class Bound(Machine):
        pass

    Bound.lab, Bound.answer = lab, new_answer
    Bound.models = {0: lab.model(kind), 1: lab.model(kind, seed=1)}
    run = Bound.TestCase
    run.settings = settings(
        max_examples=20,
        stateful_step_count=40,
        deadline=None,
        derandomize=True,
        database=None,
        phases=[Phase.generate],
    )
    run("runTest").runTest()
