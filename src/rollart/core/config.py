"""The job file: what may be said, and what is refused.

Invariant: every rule that can be checked without starting anything is checked here, and each
refusal names key, value, rule and a valid value. Numbers that follow from others are not asked.
"""

import re
from collections.abc import Mapping, Sequence
from typing import Annotated, Any, Literal, cast

from pydantic import BaseModel, BeforeValidator, ConfigDict, Field, model_validator

from rollart.core.scoring.declared import SCHEMES
from rollart.core.scoring.places import reward_place

Positive = Annotated[int, Field(gt=0)]
Seconds = Annotated[float, Field(gt=0)]
ImportPath = Annotated[str, Field(pattern=r"^[A-Za-z_][\w.]*:[A-Za-z_]\w*$")]
"""`module:name`, found beside the job file or among the installed packages."""


def _reward(value: object) -> object:
    """One rule in one sentence; a list of one is that one."""
    is_list = isinstance(value, list | tuple)
    places = list(cast("Sequence[object]", value)) if is_list else [value]
    if not places or not all(isinstance(place, str) for place in places):
        raise ValueError(
            "must be module:function, a URL, or a list of URLs, the first of which is used; use "
            '"local://module:function"'
        )
    words = cast("list[str]", places)
    if len(words) == 1 and _IS_PATH.fullmatch(words[0]):
        return words[0]
    for word in words:
        if "://" not in word:
            raise ValueError(
                f"{word!r} must be module:function by itself, or a URL of "
                f"{', '.join(f'{one}://' for one in SCHEMES)}; use local://module:function"
            )
        reward_place(word)
    return words[0] if len(words) == 1 else tuple(words)


_IS_PATH = re.compile(r"[A-Za-z_][\w.]*:[A-Za-z_]\w*")

RewardPlaces = Annotated[str | tuple[str, ...], BeforeValidator(_reward)]
"""An import path, the URL of a function (`local://module:function`, `lambda://judge`, …), or a list
of URLs: each is used while those before it are down."""


MOST_ENGINES = 4096


def _engines(value: object) -> object:
    """One rule in one sentence, where a union of types would give one refusal a member."""
    given = cast("Mapping[str, object] | int", value)
    table = given if isinstance(given, Mapping) else {"": given}
    if not all(type(count) is int and 0 < count <= MOST_ENGINES for count in table.values()):
        raise ValueError(
            f"must be a number of engines, greater than 0 and at most {MOST_ENGINES}, or such "
            "numbers by hardware class; use 1, or { H800 = 1, H20 = 2 }"
        )
    return given


Engines = Annotated[int | Mapping[str, int], BeforeValidator(_engines)]

ClipBound = Annotated[float, Field(gt=0)]

GROUP_RELATIVE = frozenset({"grpo", "rloo", "rloo_norm", "dr_grpo"})
"""Estimators whose advantage is relative to the group, so that one member carries no signal."""

LAG_OF_ONE_BATCH: Mapping[str, int] = {"sync": 0, "sync_plus": 0, "one_off": 1}
"""Protocols that roll out one batch at a time, with the token lag that follows from it."""


EVAL_BESIDE = 64
"""Held-out trajectories at once beside a rollout."""


class Section(BaseModel):
    model_config = ConfigDict(extra="forbid", frozen=True, strict=True, allow_inf_nan=False)


class RunConfig(Section):
    """How long, and where to."""

    name: Annotated[str, Field(pattern=r"^[A-Za-z0-9][\w.-]*$")] = "run"
    directory: str = "runs"
    seed: Annotated[int, Field(ge=0)] = 0
    steps: Positive = 100
    time_limit_s: Seconds | None = None
    trackers: Annotated[tuple[Literal["tensorboard", "wandb"], ...], Field(strict=False)] = ()


class ModelConfig(Section):
    """Where the model comes from: a Hugging Face directory, or a function that makes one."""

    path: str | None = None
    make: ImportPath | None = None
    context: Positive = 1024

    @model_validator(mode="after")
    def one_source(self) -> "ModelConfig":
        if (self.path is None) == (self.make is None):
            raise ValueError(
                "exactly one of model.path (a Hugging Face directory) and model.make "
                '(a function that writes one, as "module:function") must be given'
            )
        return self


class RolloutConfig(Section):
    """Batches, groups and engines.

    `engines` is a count, or counts by hardware class: `{ H800 = 1, H20 = 2 }`. `affinity` names the
    class that serves a domain, by tag, and the `default`; another serves it when that is gone.
    """

    batch_groups: Positive = 8
    group_size: Positive = 8
    engines: Engines = 1
    affinity: Mapping[str, str] = Field(default_factory=dict[str, str])
    slots: Positive = 256
    step_tokens: Positive = 4096
    kv: Literal["recompute", "keep"] = "recompute"
    dtype: Literal["float32", "bfloat16"] = "float32"


class ProtocolConfig(Section):
    """How training and rollout take turns.

    `alpha` bounds the staleness of `rollart` and `areal`; the other three have none to choose.
    """

    name: Literal["rollart", "sync", "sync_plus", "one_off", "areal"] = "rollart"
    alpha: Annotated[int, Field(ge=0, le=64)] = 1


class RedundancyConfig(Section):
    """More rollouts than a batch needs; those it does not need are ended at once, as surplus.

    `members` spares a group and `groups` spares a batch. Mode "race" keeps the first to finish,
    which favours the short; "adaptive" does so with as many spare members as the measured failures
    and tail are worth, at most `members`; in "unbiased" a spare only replaces what failed.
    """

    members: Annotated[int, Field(ge=0, le=64)] = 0
    groups: Annotated[int, Field(ge=0, le=1024)] = 0
    mode: Literal["race", "adaptive", "unbiased"] = "race"


class TrainConfig(Section):
    """The objective and the optimiser.

    `clip` bounds the importance ratio to 1 - clip[0] .. 1 + clip[1].
    """

    advantage: Literal["grpo", "rloo", "rloo_norm", "dr_grpo"] = "grpo"
    advantage_eps: Annotated[float, Field(gt=0)] = 1e-4
    drop_zero_variance: bool = True
    clip: Annotated[tuple[ClipBound, ClipBound], Field(strict=False)] = (0.2, 0.28)
    correction: Literal["none", "behaviour", "tis"] = "none"
    correction_cap: Annotated[float, Field(ge=1)] = 2.0
    entropy: Annotated[float, Field(ge=0)] = 0.0
    learning_rate: Annotated[float, Field(gt=0)] = 1e-5
    final_learning_rate: Annotated[float, Field(ge=0, le=1)] = 1.0
    weight_decay: Annotated[float, Field(ge=0)] = 0.0
    grad_clip: Annotated[float, Field(gt=0)] = 1.0
    optimizer_steps: Positive = 1
    microbatch_tokens: Positive = 8192
    dtype: Literal["float32", "bfloat16"] = "float32"


class DomainConfig(Section):
    """One kind of task: its environment, its reward, its limits.

    `weight` is its share of the groups; `group_size` is rollout.group_size if left out. `reward` is
    a function here, or a URL where one runs; of several URLs, each is for while those before are
    down.
    """

    tag: Annotated[str, Field(pattern=r"^[A-Za-z0-9][\w.-]*$")]
    environment: ImportPath
    reward: RewardPlaces = "rollart.backends.rewards.episode:episode_return"
    options: Mapping[str, Any] = Field(default_factory=dict[str, Any])
    weight: Annotated[float, Field(gt=0)] = 1.0
    group_size: Positive | None = None
    max_turns: Positive = 32
    max_tokens: Positive = 64
    temperature: Annotated[float, Field(gt=0, le=10)] = 1.0
    envs_per_process: Positive = 1

    @property
    def reward_places(self) -> tuple[str, ...]:
        """What `reward` names, first to last."""
        return (self.reward,) if isinstance(self.reward, str) else self.reward


class TimeoutConfig(Section):
    """Nothing waits without a deadline (seconds)."""

    env_reset_s: Seconds = 60.0
    env_step_s: Seconds = 30.0
    reward_s: Seconds = 30.0
    episode_s: Seconds = 600.0
    engine_s: Seconds = 60.0
    weights_s: Seconds = 60.0
    train_s: Seconds = 600.0
    stall_s: Seconds = 120.0


class FaultConfig(Section):
    """How much loss is borne before a domain is closed, an engine given up, or the run ended.

    `attempts` are the tries at each place of a group, and how often a lost engine is started again.
    `max_no_verdict` is the share of the latest 100 trajectories that may end without a verdict;
    above it the run stops with the reasons counted. 1 bears any share.
    """

    attempts: Positive = 3
    max_no_verdict: Annotated[float, Field(gt=0, le=1)] = 0.5
    max_dead_groups: Positive = 200


class EvalConfig(Section):
    """Held-out tasks a domain, sampled at the domain's temperature and greedily.

    Before and after training, and sampled beside it after each `every` steps (0: never).
    """

    tasks: Annotated[int, Field(ge=0)] = 0
    every: Annotated[int, Field(ge=0)] = 0


class JobConfig(Section):
    """A whole job. `schema` is the version of this format."""

    schema_: Literal[1] = Field(alias="schema")
    run: RunConfig = RunConfig()
    model: ModelConfig
    rollout: RolloutConfig = RolloutConfig()
    protocol: ProtocolConfig = ProtocolConfig()
    redundancy: RedundancyConfig = RedundancyConfig()
    train: TrainConfig = TrainConfig()
    domains: Annotated[tuple[DomainConfig, ...], Field(min_length=1, strict=False)]
    timeouts: TimeoutConfig = TimeoutConfig()
    faults: FaultConfig = FaultConfig()
    eval: EvalConfig = EvalConfig()

    @model_validator(mode="after")
    def rules_across_sections(self) -> "JobConfig":
        for problem in broken_rules(self):
            raise ValueError(problem)
        return self

    @property
    def alpha(self) -> int:
        """The staleness bound in force, which some protocols fix."""
        return LAG_OF_ONE_BATCH.get(self.protocol.name, self.protocol.alpha)

    @property
    def capacity_groups(self) -> int:
        """Groups that may be in flight or buffered at once: batches, plus declared redundancy."""
        batches = 1 if self.protocol.name in LAG_OF_ONE_BATCH else self.alpha + 1
        return batches * self.rollout.batch_groups + self.redundancy.groups

    @property
    def engine_counts(self) -> Mapping[str, int]:
        """Engines by hardware class; where the job names none, the class is "local"."""
        engines = self.rollout.engines
        return {"local": engines} if isinstance(engines, int) else engines

    def group_size_of(self, domain: DomainConfig) -> int:
        """Members that a whole group of this domain has."""
        return domain.group_size or self.rollout.group_size

    def training_places_of(self, domain: DomainConfig) -> int:
        """Trajectories of this domain that may be in training's rollout at once, with spares."""
        return self.capacity_groups * (self.group_size_of(domain) + self.redundancy.members)

    @property
    def evaluation_places(self) -> int:
        """Held-out trajectories of a domain that may be played beside training at once."""
        return EVAL_BESIDE if self.eval.every and self.eval.tasks else 0

    def places_of(self, domain: DomainConfig) -> int:
        """Trajectories of this domain that may be under way at once, for whatever purpose."""
        return self.training_places_of(domain) + self.evaluation_places

    @property
    def capacity_trajectories(self) -> int:
        """Trajectories that training may have outstanding at once, whatever their domains."""
        return max(self.training_places_of(domain) for domain in self.domains)


def broken_rules(job: JobConfig) -> list[str]:
    """Rules that tie several keys together: each as "key = value: rule; use a valid value"."""
    rollout, train, protocol = job.rollout, job.train, job.protocol
    problems: list[str] = []
    off_policy = job.alpha > 0 or train.optimizer_steps > 1
    if off_policy and train.correction == "none":
        why = (
            f"protocol.alpha = {protocol.alpha} trains on tokens of older versions"
            if job.alpha > 0
            else f"train.optimizer_steps = {train.optimizer_steps} moves the policy within a batch"
        )
        problems.append(
            f'train.correction = "none": {why}, which needs an importance correction; '
            'use train.correction = "behaviour" or "tis"'
        )
    if rollout.batch_groups % train.optimizer_steps:
        problems.append(
            f"train.optimizer_steps = {train.optimizer_steps}: must divide "
            f"rollout.batch_groups = {rollout.batch_groups}; use "
            f"{largest_divisor(rollout.batch_groups, train.optimizer_steps)}"
        )
    if protocol.name == "areal" and protocol.alpha == 0:
        problems.append(
            'protocol.alpha = 0: protocol.name = "areal" overlaps training and rollout, which '
            'needs a bound of at least 1; use protocol.alpha = 1, or protocol.name = "sync_plus"'
        )
    if job.run.steps <= job.alpha == protocol.alpha > 0:
        problems.append(
            f"protocol.alpha = {protocol.alpha}: a run of run.steps = {job.run.steps} never "
            f"reaches that lag; use {_lag_within(job)}"
        )
    if train.microbatch_tokens < job.model.context:
        problems.append(
            f"train.microbatch_tokens = {train.microbatch_tokens}: must hold one sequence of "
            f"model.context = {job.model.context}; use {job.model.context} or more"
        )
    if job.eval.every and not job.eval.tasks:
        problems.append(
            f"eval.every = {job.eval.every}: there are no held-out tasks to evaluate on; use "
            "eval.tasks = 64, or leave eval.every out"
        )
    problems.extend(_placement_rules(job))
    problems.extend(_redundancy_rules(job))
    problems.extend(_domain_rules(job))
    return problems


def _placement_rules(job: JobConfig) -> list[str]:
    problems: list[str] = []
    rollout, counts = job.rollout, job.engine_counts
    if not counts:
        return ["rollout.engines = {}: needs at least one engine; use rollout.engines = 1"]
    largest = max(job.group_size_of(domain) for domain in job.domains)
    if rollout.slots * sum(counts.values()) < largest:
        problems.append(
            f"rollout.slots = {rollout.slots}: the engines' slots must hold one group of "
            f"{largest}; use rollout.slots = {largest} or more"
        )
    tags = [domain.tag for domain in job.domains]
    for tag, hardware in rollout.affinity.items():
        if tag not in (*tags, "default"):
            problems.append(
                f"rollout.affinity.{tag} = {hardware!r}: no domain has this tag; use "
                f"{', '.join(tags)} or default"
            )
        if hardware not in counts:
            problems.append(
                f"rollout.affinity.{tag} = {hardware!r}: no engine is of this class; use "
                f"{', '.join(counts)}, or add it to rollout.engines"
            )
    return problems


def _redundancy_rules(job: JobConfig) -> list[str]:
    spare = job.redundancy
    if spare.mode == "adaptive" and not spare.members:
        return [
            'redundancy.mode = "adaptive": chooses up to redundancy.members = 0 spares, which is '
            "none; use redundancy.members = 2 or more"
        ]
    if spare.mode == "unbiased" and not (spare.members or spare.groups):
        return [
            'redundancy.mode = "unbiased": there are no spares that could bias anything; use '
            "redundancy.members = 1 or more, or leave the mode out"
        ]
    return []


def _domain_rules(job: JobConfig) -> list[str]:
    problems: list[str] = []
    tags = [domain.tag for domain in job.domains]
    if "default" in tags:
        problems.append(
            'domains.tag = "default": names every other domain in rollout.affinity; use another tag'
        )
    for tag in sorted({tag for tag in tags if tags.count(tag) > 1}):
        problems.append(
            f"domains.tag = {tag!r}: given {tags.count(tag)} times; each domain needs its own tag"
        )
    for domain in job.domains:
        if job.group_size_of(domain) == 1 and job.train.advantage in GROUP_RELATIVE:
            key = f"domains[{domain.tag}]" if domain.group_size else "rollout"
            problems.append(
                f"{key}.group_size = 1: train.advantage = {job.train.advantage!r} compares the "
                f"members of a group, and one member carries no signal; use {key}.group_size = 2 "
                "or more"
            )
        if domain.max_tokens >= job.model.context:
            problems.append(
                f"domains[{domain.tag}].max_tokens = {domain.max_tokens}: must leave room for the "
                f"prompt in model.context = {job.model.context}; use "
                f"{max(1, job.model.context // 2)} or less"
            )
    times = job.timeouts
    for key, value in (("env_reset_s", times.env_reset_s), ("env_step_s", times.env_step_s)):
        if value > times.episode_s:
            problems.append(
                f"timeouts.{key} = {value}: longer than timeouts.episode_s = {times.episode_s}, "
                f"which ends the episode first; use {times.episode_s} or less"
            )
    return problems


def _lag_within(job: JobConfig) -> str:
    """What keeps the bound below the steps that there are."""
    least = 1 if job.protocol.name == "areal" else 0
    most = job.run.steps - 1
    if most < least:
        return f"run.steps = {job.protocol.alpha + 1}"
    return f"protocol.alpha = {most}" + (" or less" if most > least else "")


def largest_divisor(number: int, at_most: int) -> int:
    """The largest divisor of `number` that is not above `at_most`."""
    return next(d for d in range(min(number, at_most), 0, -1) if number % d == 0)
