"""Which event an answer causes: pure functions of the event that the record has next."""

from rollart.core.events import (
    Committed,
    CreditsReturned,
    Disposed,
    Event,
    Phase,
    PhaseBegan,
    PhaseEnded,
    RequestDropped,
    TrajectoryEnded,
    TurnEnded,
)
from rollart.runtimes.sim.replay.comparing import Cause, Comparing


def when(holds: bool) -> Cause:
    return Cause.ANSWER if holds else Cause.NO


def is_turn(trajectory: str, turn: int, event: Event) -> Cause:
    found = isinstance(event, TurnEnded) and (event.trajectory, event.turn) == (trajectory, turn)
    return Cause.ANSWER if found else Cause.NO


def ends_by_refusal(trajectory: str, event: Event) -> Cause:
    found = isinstance(event, TrajectoryEnded) and event.trajectory == trajectory
    return Cause.ANSWER if found else Cause.NO


def is_drop_of(request: str, event: Event) -> Cause:
    found = isinstance(event, RequestDropped) and event.request == request
    return Cause.ANSWER if found else Cause.NO


def is_leaving(event: Event) -> Cause:
    return Cause.ANSWER if isinstance(event, Disposed | TrajectoryEnded) else Cause.NO


def is_same(mine: Event, event: Event) -> Cause:
    return Cause.ANSWER if event is mine else Cause.NO


def is_commit(event: Event) -> Cause:
    return Cause.ANSWER if isinstance(event, Committed) else Cause.NO


def ends_phase(conductor: Comparing, phase: Phase, event: Event) -> Cause:
    """Credits that come back at a resume are told just before its end."""
    if isinstance(event, PhaseBegan) and not conductor.phases_begun:
        return Cause.ANSWER
    if isinstance(event, CreditsReturned) and phase is Phase.RESUME:
        event = conductor.event_ahead(1) or event
    ends = isinstance(event, PhaseEnded) and event.phase is phase
    return Cause.ANSWER if ends else Cause.NO
