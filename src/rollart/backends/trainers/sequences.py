"""From a batch to training sequences: who is trained, with which advantage, in which step.

Invariant: everything is joined by identity, and groups and members are put in the order of their
identities first, so the order a batch arrives in changes nothing. An advantage belongs to its
trajectory; each of its segments carries it. A token is trained exactly if an engine sampled it.
"""

import random
from collections.abc import Mapping, Sequence
from dataclasses import dataclass

import numpy as np
import numpy.typing as npt

from rollart.algorithms.advantages import AdvantageEstimator, group_advantages
from rollart.core.identity import TrajectoryId
from rollart.core.tokens import Float32Array, Int32Array
from rollart.core.types import Group, Segment, Status, Trajectory

_TRAINED_STATUS = frozenset({Status.FINISHED, Status.TRUNCATED})


@dataclass(frozen=True, slots=True)
class SegmentKey:
    """Which segment of which trajectory."""

    trajectory: TrajectoryId
    segment: int


@dataclass(frozen=True, slots=True, kw_only=True, eq=False)
class TrainSequence:
    """A segment as a causal model is trained on it: at place t it reads inputs[t], says targets[t].

    All arrays are [L]; L ends with the last trained token, since what follows changes nothing.

    Attributes:
        temperature: the one its tokens were sampled with.
        advantage: that of its trajectory.
        mask: true where targets[t] is trained; elsewhere `behaviour` is 0 and `versions` -1.
        behaviour: log-probs the engine reported, in nats.
        versions: number of the policy version that sampled targets[t].
    """

    key: SegmentKey
    temperature: float
    advantage: float
    inputs: Int32Array
    targets: Int32Array
    mask: npt.NDArray[np.bool_]
    behaviour: Float32Array
    versions: Int32Array

    def __len__(self) -> int:
        return len(self.inputs)


@dataclass(frozen=True, slots=True, kw_only=True)
class GroupShare:
    """What a group gives to the batch: its trained members, each with its advantage."""

    group: int
    members: tuple[tuple[Trajectory, float], ...]


def trained_score(trajectory: Trajectory) -> float | None:
    """The score that enters the group's statistics, or None where there is nothing to train.

    None for a failed or invalid trajectory, one without a verdict, and one without sampled tokens.
    """
    if trajectory.status not in _TRAINED_STATUS or trajectory.sampled_tokens == 0:
        return None
    return trajectory.score


def group_shares(
    groups: Sequence[Group],
    estimator: AdvantageEstimator,
    *,
    eps: float,
    drop_zero_variance: bool,
) -> tuple[GroupShare, ...]:
    """Return the groups that train, in order of their ids, members in order of theirs.

    Args:
        drop_zero_variance: leave out groups in which no member has an advantage; else their
            tokens count in the mean and in the entropy, and add nothing to the policy's term.

    Raises:
        ValueError: a trajectory or a group stands in the batch twice.
    """
    _no_duplicates(groups)
    shares: list[GroupShare] = []
    for group in sorted(groups, key=lambda group: group.id):
        members = sorted(group.members, key=lambda member: (member.id.member, member.id.attempt))
        scores = [trained_score(member) for member in members]
        advantages = group_advantages(scores, estimator, eps=eps)
        trained = tuple(
            (member, advantage)
            for member, advantage in zip(members, advantages, strict=True)
            if advantage is not None
        )
        without_signal = all(advantage == 0.0 for _, advantage in trained)
        if trained and not (drop_zero_variance and without_signal):
            shares.append(GroupShare(group=group.id, members=trained))
    return tuple(shares)


def split_steps(
    shares: Sequence[GroupShare], steps: int, *, seed: int
) -> tuple[tuple[GroupShare, ...], ...]:
    """Deal groups out to at most `steps` optimiser steps of nearly equal size, none empty.

    Which group goes where depends on the seed and the groups' ids only.
    """
    dealt = sorted(shares, key=lambda share: share.group)
    random.Random(seed).shuffle(dealt)
    parts = min(steps, len(dealt))
    return tuple(
        tuple(dealt[len(dealt) * part // parts : len(dealt) * (part + 1) // parts])
        for part in range(parts)
    )


def sequences_of(
    trajectory: Trajectory,
    *,
    temperature: float,
    advantage: float = 0.0,
    version: int | None = None,
) -> tuple[TrainSequence, ...]:
    """Return a sequence for each segment that has something to train or to score.

    Args:
        version: if given, only the tokens that this version sampled count.

    Raises:
        ValueError: a segment begins with a sampled token, which nothing predicts.
    """
    found = (
        _sequence(
            segment,
            key=SegmentKey(trajectory.id, number),
            temperature=temperature,
            advantage=advantage,
            version=version,
        )
        for number, segment in enumerate(trajectory.segments)
    )
    return tuple(sequence for sequence in found if sequence is not None)


def sequences_by_key(
    shares: Sequence[GroupShare], temperatures: Mapping[str, float]
) -> dict[SegmentKey, TrainSequence]:
    """Return all sequences of `shares`; `temperatures` is by domain tag.

    Raises:
        ValueError: a domain has no temperature, or a segment begins with a sampled token.
    """
    sequences: dict[SegmentKey, TrainSequence] = {}
    for share in shares:
        for trajectory, advantage in share.members:
            domain = trajectory.id.domain
            if domain not in temperatures:
                known = ", ".join(sorted(temperatures)) or "none"
                raise ValueError(
                    f"trajectory {trajectory.id}: no temperature is known for domain {domain!r} "
                    f"(known: {known}); give the trainer every domain's sampling temperature"
                )
            for sequence in sequences_of(
                trajectory, temperature=temperatures[domain], advantage=advantage
            ):
                sequences[sequence.key] = sequence
    return sequences


def _sequence(
    segment: Segment,
    *,
    key: SegmentKey,
    temperature: float,
    advantage: float,
    version: int | None,
) -> TrainSequence | None:
    mask, versions = segment.loss_mask(), segment.versions()
    if version is not None:
        mask = mask & (versions == version)
    trained = np.flatnonzero(mask)
    if len(trained) == 0:
        return None
    if trained[0] == 0:
        raise ValueError(
            f"segment {key.segment} of {key.trajectory} begins with a sampled token; a segment "
            "needs a prompt of at least one token before it"
        )
    end = int(trained[-1]) + 1
    ids = segment.ids()
    return TrainSequence(
        key=key,
        temperature=temperature,
        advantage=advantage,
        inputs=ids[: end - 1],
        targets=ids[1:end],
        mask=mask[1:end],
        behaviour=segment.logprobs()[1:end],
        versions=versions[1:end],
    )


def _no_duplicates(groups: Sequence[Group]) -> None:
    seen_groups: set[int] = set()
    seen: set[TrajectoryId] = set()
    for group in groups:
        if group.id in seen_groups:
            raise ValueError(f"group {group.id} stands in the batch twice; join results by id")
        seen_groups.add(group.id)
        for member in group.members:
            if member.id in seen:
                raise ValueError(f"{member.id} stands in the batch twice; join results by id")
            seen.add(member.id)
