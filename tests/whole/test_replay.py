"""A run with real processes, replayed: the same events in the same order, under virtual time."""

import random
import time
from collections import Counter
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from rollart.cli.replay import replay
from rollart.core.events import Answered
from rollart.data.roles import ActorGen
from rollart.job import run
from rollart.observe.eventlog import EVENTS_FILE, read_events
from rollart.user_classes import NO_CLASSES, UserClasses

pytestmark = [pytest.mark.real, pytest.mark.timeout(400)]

JobWriter = Callable[..., Path]

OTHERS = """
envs_per_process = 16
[[domains]]
tag = "TicTacToe"
environment = "rollart.backends.envs.tic_tac_toe:TicTacToe"
max_turns = 5
max_tokens = 1
envs_per_process = 16
[[domains]]
tag = "LetterShift"
environment = "rollart.backends.envs.letter_shift:LetterShift"
max_turns = 1
max_tokens = 8
envs_per_process = 16
"""
OVERLAP = "[protocol]\nalpha = 1"
SPARES = '[protocol]\nname = "sync"\n[redundancy]\nmembers = 1'


class Stalling(ActorGen):
    """Stops the loop in some generations, as a machine with other work would."""

    async def generate(self, request: Any, tag_name: str = "default") -> Any:
        stop_the_loop(request.call.seed)
        return await super().generate(request, tag_name)


def stop_the_loop(seed: int) -> None:
    time.sleep(random.Random(seed).choice([0.0] * 8 + [0.01, 0.08]))


STALLED = UserClasses(actor_gen=Stalling)


@pytest.mark.parametrize(
    ("classes", "more"),
    [(NO_CLASSES, OVERLAP), (STALLED, OVERLAP), (STALLED, SPARES)],
    ids=["overlapped", "overlapped, stalled", "in lockstep, with spares, stalled"],
)
def test_a_real_run_is_replayed_to_the_last_event(
    classes: UserClasses, more: str, write_job: JobWriter
):
    lake = 'environment = "rollart.backends.envs.frozen_lake:FrozenLake"'
    outcome = run(write_job(f"{lake}{OTHERS}", more=more), classes=classes)
    assert outcome.ok, outcome.reason
    code, said = replay(outcome.directory)
    assert code == 0, said
    assert said.startswith("equal: ")
    assert int(said.split()[1]) > 300
    crowds = Counter(
        len(stamped.event.who)
        for stamped in read_events(outcome.directory / EVENTS_FILE)
        if isinstance(stamped.event, Answered)
    )
    assert max(crowds) > 4, crowds
