"""A run with real processes, replayed: the same events in the same order, under virtual time."""

from collections.abc import Callable
from pathlib import Path

import pytest

from rollart.cli.replay import replay
from rollart.job import run

pytestmark = [pytest.mark.real, pytest.mark.timeout(400)]

JobWriter = Callable[..., Path]


def test_a_real_run_is_replayed_to_the_last_event(write_job: JobWriter):
    outcome = run(write_job(more="[protocol]\nalpha = 1"))
    assert outcome.ok, outcome.reason
    code, said = replay(outcome.directory)
    assert code == 0, said
    assert said.startswith("equal: ")
    assert int(said.split()[1]) > 300
