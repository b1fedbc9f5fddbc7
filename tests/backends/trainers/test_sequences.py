"""Who is trained, with which advantage, in which optimiser step."""

import random
from dataclasses import replace
from typing import Any

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from rollart.backends.trainers.sequences import (
    GroupShare,
    group_shares,
    sequences_by_key,
    sequences_of,
    split_steps,
    trained_score,
)
from rollart.core.tokens import LengthOnly, VersionRuns
from rollart.core.types import Piece, Segment, Status, Verdict

Make = Any


def shares(groups: Any, *, drop: bool = True) -> tuple[GroupShare, ...]:
    return group_shares(groups, "dr_grpo", eps=1e-4, drop_zero_variance=drop)


def advantages(found: tuple[GroupShare, ...]) -> dict[tuple[int, int], float]:
    return {
        (share.group, trajectory.id.member): advantage
        for share in found
        for trajectory, advantage in share.members
    }


def test_targets_are_the_ids_that_were_sampled_and_only_those_are_trained(make: Make) -> None:
    trajectory = make.trajectory("oosso" + "s" + "oo", version=3)
    (sequence,) = sequences_of(trajectory, temperature=0.7, advantage=2.0)
    segment = trajectory.segments[0]
    ids = segment.ids()
    assert sequence.inputs.tolist() == ids[:5].tolist()
    assert sequence.targets.tolist() == ids[1:6].tolist()
    assert sequence.mask.tolist() == [False, True, True, False, True]
    assert sequence.versions.tolist() == [-1, 3, 3, -1, 3]
    assert np.array_equal(sequence.behaviour, segment.logprobs()[1:6])
    assert (sequence.temperature, sequence.advantage, len(sequence)) == (0.7, 2.0, 5)


def test_each_segment_carries_the_advantage_and_one_without_samples_is_left_out(
    make: Make,
) -> None:
    trajectory = make.trajectory("os", "ooo", "oss")
    found = sequences_of(trajectory, temperature=1.0, advantage=-0.5)
    assert [sequence.key.segment for sequence in found] == [0, 2]
    assert {sequence.advantage for sequence in found} == {-0.5}


def test_only_tokens_of_the_version_asked_for_count(make: Make) -> None:
    old, new = make.trajectory("oos", version=1), make.trajectory("oss", version=2, seed=3)
    mixed = replace(
        old, segments=(Segment(pieces=old.segments[0].pieces + new.segments[0].pieces),)
    )
    (sequence,) = sequences_of(mixed, temperature=1.0, version=1)
    assert (len(sequence), int(sequence.mask.sum())) == (2, 1)
    assert sequences_of(mixed, temperature=1.0, version=5) == ()


def test_a_segment_that_begins_with_a_sample_is_refused(make: Make) -> None:
    with pytest.raises(ValueError, match=r"begins with a sampled token.*prompt"):
        sequences_of(make.trajectory("ss"), temperature=1.0)


def test_a_trajectory_of_modelled_tokens_cannot_be_trained(make: Make) -> None:
    piece = Piece(ids=LengthOnly(2), logprobs=LengthOnly(2), versions=VersionRuns(((0, 2),)))
    modelled = replace(
        make.trajectory("o"), segments=(Segment(pieces=(Piece(ids=LengthOnly(3)), piece)),)
    )
    with pytest.raises(TypeError, match="has no"):
        sequences_of(modelled, temperature=1.0)


@pytest.mark.parametrize(
    ("change", "counts"),
    [
        ({"status": Status.FINISHED}, True),
        ({"status": Status.TRUNCATED}, True),
        ({"status": Status.INVALID}, False),
        ({"status": Status.FAILED}, False),
        ({"verdict": None}, False),
        ({"verdict": Verdict(score=None, reason="the judge timed out")}, False),
        ({"segments": ()}, False),
    ],
)
def test_no_verdict_is_not_a_score_of_zero(make: Make, change: Any, counts: bool) -> None:
    changed = replace(make.trajectory("os", score=5.0), **change)
    assert trained_score(changed) == (5.0 if counts else None)


def test_a_member_without_a_score_moves_no_siblings_advantage(make: Make) -> None:
    scores = (100.0, 1.0, 3.0)
    members = [make.trajectory("os", member=m, score=score) for m, score in enumerate(scores)]
    empty = replace(members[0], segments=())
    assert advantages(shares([make.group([empty, *members[1:]])])) == {(0, 1): -1.0, (0, 2): 1.0}
    assert advantages(shares([make.group([empty, members[1]])])) == {}
    assert advantages(shares([make.group([empty, members[1]])], drop=False)) == {(0, 1): 0.0}


def test_a_group_of_equal_scores_is_dropped_or_kept_with_advantage_zero(make: Make) -> None:
    equal = make.group([make.trajectory("os", member=m, score=0.1) for m in range(3)])
    assert shares([equal]) == ()
    assert set(advantages(shares([equal], drop=False)).values()) == {0.0}


def test_groups_are_told_apart_by_id_whatever_their_size_and_order(make: Make) -> None:
    sizes = {4: 4, 9: 3, 2: 1}
    groups = [
        make.group(
            [make.trajectory("os", group=g, member=m, score=float(g * m)) for m in range(size)]
        )
        for g, size in sizes.items()
    ]
    found = shares(groups)
    assert [share.group for share in found] == [4, 9]
    assert advantages(found) == {
        **{(4, m): 4 * (m - 1.5) for m in range(4)},
        **{(9, m): 9 * (m - 1.0) for m in range(3)},
    }
    shuffled = [replace(g, members=tuple(reversed(g.members))) for g in reversed(groups)]
    assert shares(shuffled) == found


def test_a_trajectory_or_group_that_comes_twice_is_refused(make: Make) -> None:
    one = make.trajectory("os")
    with pytest.raises(ValueError, match=r"g0\.0\.0 stands in the batch twice"):
        shares([make.group([one, one])])
    with pytest.raises(ValueError, match="group 0 stands in the batch twice"):
        shares([make.group([one]), make.group([make.trajectory("os", member=1)])])


def test_every_domain_needs_a_temperature(make: Make) -> None:
    groups = [make.group([make.trajectory("os", member=m, score=float(m)) for m in range(2)])]
    with pytest.raises(ValueError, match=r"domain 'lake' \(known: sokoban\)"):
        sequences_by_key(shares(groups), {"sokoban": 1.0})


@given(
    count=st.integers(0, 40), steps=st.integers(1, 12), seed=st.integers(0, 5), order=st.randoms()
)
def test_optimiser_steps_share_the_groups_out_evenly_whatever_their_order(
    count: int, steps: int, seed: int, order: random.Random
) -> None:
    groups = [GroupShare(group=number, members=()) for number in range(count)]
    shuffled = list(groups)
    order.shuffle(shuffled)
    parts = split_steps(shuffled, steps, seed=seed)
    assert parts == split_steps(groups, steps, seed=seed)
    assert sorted(share.group for part in parts for share in part) == list(range(count))
    sizes = [len(part) for part in parts]
    assert len(sizes) == min(steps, count)
    assert max(sizes, default=0) - min(sizes, default=0) <= 1


def test_another_seed_deals_the_groups_differently() -> None:
    groups = [GroupShare(group=number, members=()) for number in range(12)]
    assert split_steps(groups, 2, seed=0) != split_steps(groups, 2, seed=1)
