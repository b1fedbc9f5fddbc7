"""Planted bugs by name: control's parts with one of them broken, and the promise that it breaks.

Invariant: each breaks one thing; with all other parts as they are, the checks must find it.
"""

from collections.abc import Mapping
from dataclasses import dataclass

from rollart.control.assembly import ControlParts
from rollart.testing import request_plants as requests
from rollart.testing import scheduling_plants as scheduling


@dataclass(frozen=True, slots=True, kw_only=True)
class Plant:
    """A planted bug: the number of the promise that it breaks, and what says so of it."""

    promise: int
    words: str
    parts: ControlParts


def _plant(promise: int, words: str, **parts: type) -> Plant:
    return Plant(promise=promise, words=words, parts=ControlParts(**parts))


PLANTS: Mapping[str, Plant] = {
    "leaves-twice": _plant(
        1, "ledger", scheduler=scheduling.LeavesTwice, ledger=scheduling.CountsTwice
    ),
    "loses-the-failed": _plant(1, "ledger", runner=scheduling.LosesTheFailed),
    "takes-late-results": _plant(1, "late", proxy=requests.TakesLateResults),
    "reencodes": _plant(2, "tokens", proxy=requests.Reencodes),
    "never-stale": _plant(3, "alpha", scheduler=scheduling.NeverStale),
    "starts-when-it-ends": _plant(3, "alpha", proxy=requests.StartsWhenItEnds),
    "resumes-only-on-success": _plant(4, "six steps", sync=requests.ResumesOnlyOnSuccess),
    "aborts-after-resume": _plant(4, "six steps", sync=requests.AbortsAfterResume),
    "recomputes-nothing": _plant(5, "six steps", sync=requests.RecomputesNothing),
    "sends-while-suspended": _plant(4, "six steps", proxy=requests.SendsWhileSuspended),
    "trains-uncommitted": _plant(4, "commit", sync=requests.TrainsUncommitted),
    "routes-before-the-answer": _plant(4, "commit", fleet=requests.RoutesBeforeTheAnswer),
    "forgets-tokens": _plant(5, "continuation", proxy=requests.ForgetsTokens),
    "whole-budget-again": _plant(5, "continuation", proxy=requests.WholeBudgetAgain),
    "labels-with-the-newest": _plant(5, "versions", proxy=requests.LabelsWithTheNewest),
    "credits-at-get-batch": _plant(6, "credits", scheduler=scheduling.CreditsAtGetBatch),
    "loses-a-credit": _plant(6, "credits", credits=scheduling.LosesACredit),
    "one-more": _plant(6, "admission", credits=scheduling.OneMore),
    "newest-first": _plant(7, "order", buffer=scheduling.NewestFirst),
    "forgets-stale-tasks": _plant(7, "order", scheduler=scheduling.ForgetsStaleTasks),
    "requeues-twice": _plant(7, "order", scheduler=scheduling.RequeuesTwice),
    "no-deadline": _plant(7, "deadline", manager=scheduling.NoDeadline),
    "asks-without-deadline": _plant(7, "deadline", fleet=requests.AsksWithoutDeadline),
    "overlooks-deaths": _plant(7, "liveness", fleet=requests.OverlooksDeaths),
    "keeps-environments": _plant(7, "liveness", manager=scheduling.KeepsEnvironments),
    "forgets-on-drop": _plant(7, "memory", proxy=requests.ForgetsOnDrop),
    "carries-surplus-over": _plant(8, "surplus", scheduler=scheduling.CarriesSurplusOver),
    "keeps-the-fast": _plant(8, "spares", scheduler=scheduling.KeepsTheFast),
    "takes-silence-for-zero": _plant(9, "numbers", manager=scheduling.TakesSilenceForZero),
    "keeps-prefixes": _plant(10, "memory", proxy=requests.KeepsPrefixes),
    "watches-for-ever": _plant(10, "memory", proxy=requests.WatchesForEver),
    "hides-lost-turns": _plant(11, "events", manager=scheduling.HidesLostTurns),
}
