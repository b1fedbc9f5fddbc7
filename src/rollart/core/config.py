"""The job file: what may be said, and what is refused.

Invariant: every rule that can be checked without starting anything is checked here, and each
refusal names key, value, rule and a valid value. Numbers that follow from others are not asked.
"""

from collections.abc import Mapping
from typing import Annotated, Any, Literal

from pydantic import BaseModel, ConfigDict, Field, model_validator

Positive = Annotated[int, Field(gt=0)]
Seconds = Annotated[float, Field(gt=0)]
ImportPath = Annotated[str, Field(pattern=r"^[A-Za-z_][\w.]*:[A-Za-z_]\w*$")]
"""`module:name`, found beside the job file or among the installed packages."""

GROUP_RELATIVE = frozenset({"grpo", "rloo", "rloo_norm", "dr_grpo"})
"""Estimators whose advantage is relative to the group, so that one member carries no signal."""


class Section(BaseModel):
    model_config = ConfigDict(extra="forbid", frozen=True, strict=True, allow_inf_nan=False)


class RunConfig(Section):
    """How long, and where to."""

    name: Annotated[str, Field(pattern=r"^[A-Za-z0-9][\w.-]*$")] = "run"
    directory: str = "runs"
    seed: Annotated[int, Field(ge=0)] = 0
    steps: Positive = 100
    time_limit_s: Seconds | None = None


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
    """Batches, groups and engines."""

    batch_groups: Positive = 8
    group_size: Positive = 8
    engines: Positive = 1
    slots: Positive = 256
    step_tokens: Positive = 4096
    kv: Literal["recompute", "keep"] = "recompute"
    dtype: Literal["float32", "bfloat16"] = "float32"


class ProtocolConfig(Section):
    """How training and rollout take turns. Synchronous is `rollart` with alpha = 0."""

    name: Literal["rollart"] = "rollart"
    alpha: Annotated[int, Field(ge=0, le=64)] = 1


class TrainConfig(Section):
    """The objective and the optimiser."""

    advantage: Literal["grpo", "rloo", "rloo_norm", "dr_grpo"] = "grpo"
    advantage_eps: Annotated[float, Field(gt=0)] = 1e-4
    drop_zero_variance: bool = True
    clip_low: Annotated[float, Field(gt=0, lt=1)] = 0.2
    clip_high: Annotated[float, Field(gt=0)] = 0.28
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
    """One kind of task: its environment, its reward, its limits."""

    tag: Annotated[str, Field(pattern=r"^[A-Za-z0-9][\w.-]*$")]
    environment: ImportPath
    reward: ImportPath = "rollart.backends.rewards.episode:episode_return"
    options: Mapping[str, Any] = Field(default_factory=dict[str, Any])
    weight: Annotated[float, Field(gt=0)] = 1.0
    max_turns: Positive = 32
    max_tokens: Positive = 64
    temperature: Annotated[float, Field(gt=0, le=10)] = 1.0
    envs_per_process: Positive = 1


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
    """How much loss is borne before the run ends with the reasons."""

    attempts: Positive = 3
    max_dead_groups: Positive = 200
    engine_restarts: Annotated[int, Field(ge=0)] = 3


class EvalConfig(Section):
    """Held-out tasks, sampled at the domain's temperature and greedily."""

    tasks: Annotated[int, Field(ge=0)] = 0


class JobConfig(Section):
    """A whole job. `schema` is the version of this format."""

    schema_: Literal[1] = Field(alias="schema")
    run: RunConfig = RunConfig()
    model: ModelConfig
    rollout: RolloutConfig = RolloutConfig()
    protocol: ProtocolConfig = ProtocolConfig()
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
    def capacity_groups(self) -> int:
        """Groups that may be in flight or buffered at once: (alpha + 1) batches."""
        return (self.protocol.alpha + 1) * self.rollout.batch_groups

    @property
    def capacity_trajectories(self) -> int:
        return self.capacity_groups * self.rollout.group_size


def broken_rules(job: JobConfig) -> list[str]:
    """Rules that tie several keys together: each as "key = value: rule; use a valid value"."""
    rollout, train, protocol = job.rollout, job.train, job.protocol
    problems: list[str] = []
    if rollout.group_size == 1 and train.advantage in GROUP_RELATIVE:
        problems.append(
            f"rollout.group_size = 1: train.advantage = {train.advantage!r} compares the members "
            "of a group, and one member carries no signal; use rollout.group_size = 2 or more"
        )
    off_policy = protocol.alpha > 0 or train.optimizer_steps > 1
    if off_policy and train.correction == "none":
        why = (
            f"protocol.alpha = {protocol.alpha} trains on tokens of older versions"
            if protocol.alpha > 0
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
    if rollout.slots * rollout.engines < rollout.group_size:
        problems.append(
            f"rollout.slots = {rollout.slots}: rollout.engines * slots must hold one group of "
            f"{rollout.group_size}; use rollout.slots = {rollout.group_size} or more"
        )
    if protocol.alpha >= job.run.steps and protocol.alpha > 0:
        problems.append(
            f"protocol.alpha = {protocol.alpha}: a run of run.steps = {job.run.steps} never "
            f"reaches that lag; use protocol.alpha = {max(job.run.steps - 1, 0)} or less"
        )
    if train.microbatch_tokens < job.model.context:
        problems.append(
            f"train.microbatch_tokens = {train.microbatch_tokens}: must hold one sequence of "
            f"model.context = {job.model.context}; use {job.model.context} or more"
        )
    problems.extend(_domain_rules(job))
    return problems


def _domain_rules(job: JobConfig) -> list[str]:
    problems: list[str] = []
    tags = [domain.tag for domain in job.domains]
    for tag in sorted({tag for tag in tags if tags.count(tag) > 1}):
        problems.append(
            f"domains.tag = {tag!r}: given {tags.count(tag)} times; each domain needs its own tag"
        )
    for domain in job.domains:
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


def largest_divisor(number: int, at_most: int) -> int:
    """The largest divisor of `number` that is not above `at_most`."""
    return next(d for d in range(min(number, at_most), 0, -1) if number % d == 0)
