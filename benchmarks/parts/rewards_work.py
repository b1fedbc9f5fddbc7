"""Reward functions that cost what they are told, for `benchmarks/rewards.py`.

Also the source of what is deployed: it needs nothing of this folder.
"""

import os
import time
from hashlib import sha256

from rollart import TrajectoryDocument, Verdict

WAIT_S = 0.05
"""Of the reward that waits, as one that asks a server does."""


def score(trajectory: TrajectoryDocument) -> Verdict:
    """Hash `hashes` times, then wait `wait_s`, as the payload says; says what CPU time it took."""
    began = time.thread_time()
    digest = b""
    for _ in range(int(trajectory.task.payload["hashes"])):
        digest = sha256(digest).digest()
    if wait_s := float(trajectory.task.payload["wait_s"]):
        time.sleep(wait_s)
    spent = time.thread_time() - began
    return Verdict(score=float(trajectory.sampled_tokens), components=(("cpu_s", spent),))


def timed(trajectory: TrajectoryDocument) -> tuple[Verdict, float, str]:
    """The verdict, the seconds it took, and the process that gave it."""
    began = time.monotonic()
    verdict = score(trajectory)
    return verdict, time.monotonic() - began, str(os.getpid())


def at_once(trajectory: TrajectoryDocument) -> float:
    """What the environment gave."""
    return float(sum(turn.reward for turn in trajectory.turns if turn.reward is not None))


def waits(trajectory: TrajectoryDocument) -> float:
    """The same, `WAIT_S` later."""
    time.sleep(WAIT_S)
    return at_once(trajectory)
