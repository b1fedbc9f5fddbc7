"""Every planted bug is found within 200 seeds, by the promise that it breaks."""

import itertools

import pytest

from rollart.chaos import drawn_scene, parts_of
from rollart.control.assembly import STANDARD
from rollart.runtimes.sim.chaos.search import play_seed
from rollart.testing.plants import PLANTS

WITHIN = 200

FIRST = {
    "loses-the-failed": 1,
    "takes-late-results": 114,
    "never-stale": 17,
    "starts-when-it-ends": 17,
    "resumes-only-on-success": 22,
    "forgets-tokens": 3,
    "whole-budget-again": 3,
    "newest-first": 1,
    "forgets-stale-tasks": 17,
    "requeues-twice": 17,
    "no-deadline": 16,
    "asks-without-deadline": 65,
    "overlooks-deaths": 8,
    "keeps-the-fast": 3,
    "takes-silence-for-zero": 2,
    "hides-lost-turns": 1,
}
"""The first seed that finds it, where that is not 0: only to look there first."""


def test_each_promise_that_virtual_time_can_show_has_a_planted_bug() -> None:
    """Promise 12 is about processes and networks, of which there are none here."""
    assert {plant.promise for plant in PLANTS.values()} == set(range(1, 12))


@pytest.mark.parametrize("name", PLANTS)
def test_a_planted_bug_is_found_within_200_seeds(name: str) -> None:
    parts, words = parts_of(name), PLANTS[name].words
    assert parts != STANDARD
    seeds = itertools.chain((FIRST.get(name, 0),), range(WITHIN))
    hit = next(
        (s for s in seeds if words in play_seed(s, drawn_scene, parts=parts).broken_words), None
    )
    assert hit is not None
    assert hit < WITHIN
    assert words not in play_seed(hit, drawn_scene).broken_words
