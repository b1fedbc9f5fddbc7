"""What events say in words of an engine's end and of loads that failed."""

import re

from rollart.core.events import Stamped, Warned
from rollart.core.identity import PolicyVersion
from rollart.runtimes.sim.replay.record import Record

NO_TOKEN = "no token for "
NOT_TAKEN = "could not take "
NOT_ACKNOWLEDGED = "no acknowledgement within "
FOUND_BY_CONTROL = (NO_TOKEN, NOT_TAKEN, NOT_ACKNOWLEDGED, "no answer within ")
"""How the reasons begin that control gives for an engine's loss, and no engine."""


def demotion(record: Record, place: int, engine: str) -> tuple[Stamped, Warned] | None:
    """The telling, from `place` on, that an update went on without this engine."""
    head = f"engine {engine} is not routable, "
    return record.next_of(Warned, place - 1, lambda event: event.message.startswith(head))


def refusal(record: Record, place: int, engine: str, version: PolicyVersion) -> str:
    """The words of a failed load, where the record has them."""
    told = demotion(record, place, engine)
    if told is not None:
        return told[1].message.partition(" requests moved: ")[2]
    found = re.search(rf"[(; ]{re.escape(engine)}: (.*?)(?:; [\w-]+: |\); see )", record.reason())
    return found.group(1) if found else f"{version} was not loaded"
