"""Promises about requests, checked from what engines were sent and what they sampled."""

from bisect import bisect_right
from collections.abc import Iterator

from rollart.core.events import Committed, EngineAcknowledged
from rollart.runtimes.sim.chaos.evidence import Dispatched, Evidence, turn_of


def engines_serve_the_committed_version(run: Evidence) -> Iterator[str]:
    """Promise 4: an engine gets requests only under a version that it has acknowledged.

    That is the committed one; a newer one only where an update was broken off before its commit.
    """
    committed = _Steps()
    acknowledged = dict[str, _Steps]()
    for time, event in run.events:
        if isinstance(event, Committed):
            committed.add(time, event.version)
        elif isinstance(event, EngineAcknowledged):
            acknowledged.setdefault(event.engine, _Steps()).add(time, event.version)
    for engine in run.engines:
        for dispatch in engine.dispatches:
            least = committed.at(dispatch.at)
            said = acknowledged.get(engine.id, _Steps()).at(dispatch.at)
            if not least <= dispatch.version == said:
                yield (
                    f"commit: {engine.id} was sent {dispatch.request.id} with version "
                    f"{dispatch.version}; it had acknowledged {said}, {least} was committed"
                )


class _Steps:
    """A number that changes at times."""

    def __init__(self) -> None:
        self._times: list[float] = []
        self._values: list[int] = []

    def add(self, time: float, value: int) -> None:
        self._times.append(time)
        self._values.append(value)

    def at(self, time: float) -> int:
        """The value at `time`, a change at that very time included; -1 before the first."""
        index = bisect_right(self._times, time)
        return self._values[index - 1] if index else -1


def continuations_lose_nothing(run: Evidence) -> Iterator[str]:
    """Promise 5: a request that moves keeps its tokens, and its budget shrinks by them."""
    for turn, dispatches in by_turn(run).items():
        first, sampled = dispatches[0].request, len(dispatches[0].sampled)
        for dispatch in dispatches[1:]:
            request = dispatch.request
            found = (request.offset, request.prompt_tokens, request.max_tokens)
            wanted = (sampled, first.prompt_tokens + sampled, first.max_tokens - sampled)
            if found != wanted:
                yield f"continuation: {turn}: (offset, prompt, budget) {found} for {wanted}"
            sampled += len(dispatch.sampled)


def tokens_keep_their_version(run: Evidence) -> Iterator[str]:
    """Promise 5: each trained token has the version that sampled it, as its engine tells."""
    dispatched = by_turn(run)
    for _, batch in run.batches:
        for trajectory in batch.trajectories:
            pieces = [p for s in trajectory.segments for p in s.pieces if p.sampled]
            for turn, piece in enumerate(pieces):
                name = f"{trajectory.id.session}/t{turn}"
                sampled = [v for d in dispatched.get(name, []) for v in d.sampled.expand()]
                if piece.versions.expand() != sampled:
                    yield f"versions: {name} has {piece.versions}, its engines sampled by {sampled}"


def by_turn(run: Evidence) -> dict[str, list[Dispatched]]:
    """The dispatches of each turn, in order."""
    turns = dict[str, list[Dispatched]]()
    for engine in run.engines:
        for dispatch in engine.dispatches:
            turns.setdefault(turn_of(dispatch.request.id), []).append(dispatch)
    for dispatches in turns.values():
        dispatches.sort(key=lambda dispatch: int(dispatch.request.id.rpartition("#")[2]))
    return turns
