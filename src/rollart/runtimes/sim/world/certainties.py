"""What distributions of a world make certain: a domain in which nothing can end well is refused.

Invariant: only what holds of every draw is refused; what is merely unlikely is a world like others.
Times are seconds, lengths tokens.
"""

from collections.abc import Iterator

from rollart.core.config import DomainConfig, JobConfig
from rollart.core.errors import ConfigError
from rollart.runtimes.sim.world.distributions import least, most_of
from rollart.runtimes.sim.world.sections import DomainSection, RewardSection, World


def refuse_certain_failure(job: JobConfig, world: World) -> None:
    """Raises `ConfigError` for the first domain that the job has and the world lets fail always."""
    for domain in job.domains:
        section = world.domains.get(domain.tag)
        if section is not None:
            for problem in _in_domain(job, domain, section):
                raise ConfigError(f"domains.{domain.tag}.{problem}")
        reward = world.rewards.get(domain.tag)
        if reward is not None:
            for problem in _in_reward(job, reward):
                raise ConfigError(f"rewards.{domain.tag}.{problem}")


def _in_domain(job: JobConfig, domain: DomainConfig, section: DomainSection) -> Iterator[str]:
    yield from _lengths(job, domain, section)
    yield from _times(job, section)
    for key, mishap in (
        ("step_failure", section.step_failure),
        ("reset_failure", section.reset_failure),
    ):
        if mishap is not None and mishap.chance == 1:
            yield f"{key}.chance = 1: no trajectory can ever end well; use a chance below 1"


def _lengths(job: JobConfig, domain: DomainConfig, section: DomainSection) -> Iterator[str]:
    if most_of(section.turns) < 0.5:
        yield "turns: always 0, and an episode has a turn at least; use turns = 1"
    context, first = job.model.context, least(section.first_tokens)
    if first >= context:
        yield (
            f"first_tokens: {first:g} or more, which leaves no answer any room in the job's "
            f"model.context = {context}; use less, such as first_tokens = {context // 2}"
        )
    answer, limit = least(section.answer_tokens), min(domain.max_tokens, context - first)
    if answer > limit:
        cut = "max_tokens" if domain.max_tokens == limit else "model.context"
        yield (
            f"answer_tokens: {answer:g} or more, so that the job's {cut} cuts every answer at "
            f"{limit:g}; use less, such as answer_tokens = {limit:g}"
        )


def _times(job: JobConfig, section: DomainSection) -> Iterator[str]:
    times = job.timeouts
    reset, step = least(section.reset_s), least(section.step_s)
    if section.reset_hang is not None and section.reset_hang.chance == 1:
        reset += least(section.reset_hang.seconds)
    if section.image is not None and section.image.hit == 0:
        reset += least(section.image.pull_s)
    if reset >= times.env_reset_s:
        yield _too_long("reset_s", "reset", reset, "env_reset_s", times.env_reset_s)
    if step >= times.env_step_s:
        yield _too_long("step_s", "step", step, "env_step_s", times.env_step_s)
    whole = reset + step * max(1.0, least(section.turns))
    if whole >= times.episode_s:
        yield _too_long("step_s", "episode", whole, "episode_s", times.episode_s)


def _in_reward(job: JobConfig, section: RewardSection) -> Iterator[str]:
    seconds, limit = least(section.seconds), job.timeouts.reward_s
    if seconds >= limit:
        yield _too_long("seconds", "verdict", seconds, "reward_s", limit)
    if section.failure == 1:
        yield "failure = 1: there is never a verdict; use a share below 1"


def _too_long(key: str, what: str, seconds: float, timeout: str, limit: float) -> str:
    return (
        f"{key}: each {what} takes {seconds:g} s or more, longer than the job's timeouts.{timeout} "
        f"= {limit:g}; use less, or raise that one with --set timeouts.{timeout}={2 * seconds:g}"
    )
