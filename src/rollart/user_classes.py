"""A user's role classes in a run: what they change in the job, and what they stand around.

Invariant: what a class declares is read once, before anything starts; what cannot be honoured is
refused then. Control sees only ports and callables, and the data plane no control: they meet here.
Code of `ActorGen` and `ActorTrain` runs on the control loop; that of rewards and environments in
killable children, so of those only the import paths are used.
"""

import inspect
from collections.abc import Mapping
from dataclasses import dataclass

from rollart.control.assembly import WrapGenerate
from rollart.control.env_manager import Generate
from rollart.control.llm_proxy import Answer, GenerateCall, StartSink
from rollart.core.config import DomainConfig, JobConfig
from rollart.core.errors import (
    ConfigError,
    FailureKind,
    RollartError,
    TokenMismatch,
    TrajectoryFailure,
)
from rollart.core.identity import PolicyVersion, TrajectoryId
from rollart.core.ports import Affinity, Binding, Launcher, Trainer
from rollart.core.types import TrainBatch, TrainStats
from rollart.data.classes import find_class
from rollart.data.decorators import declared, declared_by
from rollart.data.roles import ActorGen, ActorTrain, GenerationRequest, Reward, Worker
from rollart.resource.placement import Wishes

OneOrByTag = type | Mapping[str, type] | None
"""A class for every domain, or classes by domain tag; domains left out keep what the job says."""


@dataclass(frozen=True, slots=True, kw_only=True)
class UserClasses:
    """The classes given to a run, each optional."""

    actor_gen: type[ActorGen] | None = None
    actor_train: type[ActorTrain] | None = None
    reward: OneOrByTag = None
    environment: OneOrByTag = None


NO_CLASSES = UserClasses()


@dataclass(frozen=True, slots=True, kw_only=True)
class Applied:
    """A job with a user's classes in their places.

    Attributes:
        folders: where children import the classes from.
        wishes: the hardware that the classes want.
    """

    job: JobConfig
    folders: tuple[str, ...]
    wishes: Wishes


def apply(classes: UserClasses, job: JobConfig) -> Applied:
    """Put the classes into the job. Raises `ConfigError` for what cannot be honoured."""
    rewards = _by_tag("reward", classes.reward, job)
    environments = _by_tag("environment", classes.environment, job)
    for kind in rewards.values():
        _check_reward(kind)
    for kind in environments.values():
        _refuse_serverless(kind, "environment")
    found = {kind: find_class(kind) for kind in (*rewards.values(), *environments.values())}

    def changed(domain: DomainConfig) -> DomainConfig:
        update = {
            key: found[kinds[domain.tag]].path
            for key, kinds in (("reward", rewards), ("environment", environments))
            if domain.tag in kinds
        }
        return domain.model_copy(update=update)

    return Applied(
        job=job.model_copy(update={"domains": tuple(map(changed, job.domains))}),
        folders=tuple(dict.fromkeys(where.folder for where in found.values())),
        wishes=Wishes(
            generation=_generation_affinity(classes.actor_gen),
            training=_training_hardware(classes.actor_train),
            environments=_environment_hardware(environments),
        ),
    )


# -- generation ----------------------------------------------------------------------------------


def generation_through(kind: type[ActorGen]) -> WrapGenerate:
    """Every generation through a user's `generate`, whose `super().generate` is the proxy's.

    What it raises, a call that it may not change so, or an answer that is none, fails that
    trajectory and no other.
    """

    def wrap(generate: Generate) -> Generate:
        asked: dict[tuple[TrajectoryId, int], tuple[GenerateCall, StartSink]] = {}

        async def engines(request: GenerationRequest) -> Answer:
            call = _a_call(request.call)
            found = asked.get((call.trajectory, call.turn))
            if found is None:
                raise ConfigError(
                    f"generate: nobody asks for turn {call.turn} of {call.trajectory} now; leave "
                    "trajectory and turn of request.call as they are, and do not ask later"
                )
            check_change(found[0], call)
            return await generate(call, found[1])

        actor = kind()
        actor.attach(engines)

        async def through(call: GenerateCall, on_start: StartSink) -> Answer:
            tag = call.trajectory.domain
            key = (call.trajectory, call.turn)
            asked[key] = (call, on_start)
            try:
                answer = await actor.generate(
                    GenerationRequest(tag_name=tag, call=call), tag_name=tag
                )
            except (TrajectoryFailure, TokenMismatch):
                raise
            except Exception as error:
                reason = f"{kind.__name__}.generate raised {type(error).__name__}: {error}"
                raise TrajectoryFailure(FailureKind.ENGINE, reason) from error
            finally:
                del asked[key]
            if not isinstance(answer, Answer):
                raise TrajectoryFailure(
                    FailureKind.ENGINE,
                    f"{kind.__name__}.generate returned {type(answer).__name__}; return what "
                    "super().generate(request, tag_name) returned",
                )
            return answer

        return through

    return wrap


def _a_call(call: object) -> GenerateCall:
    if not isinstance(call, GenerateCall):
        raise ConfigError(
            f"generate: request.call = {call!r}: is no call; change the one that came with "
            "dataclasses.replace(request.call, max_tokens=8)"
        )
    return call


def check_change(asked: GenerateCall, call: GenerateCall) -> None:
    """Refuse another prompt or temperature, and more tokens, than were asked for.

    Training scores the tokens by the trajectory's own prompt and its domain's temperature: sampled
    otherwise, their importance ratios would be wrong, and nothing would tell. Raises `ConfigError`.
    """
    may = "only max_tokens (to a smaller one) and seed may be changed"
    if call.prompt is not asked.prompt or call.prompt_tokens != asked.prompt_tokens:
        raise ConfigError(
            f"generate: another prompt in request.call: the trajectory keeps its own; {may}"
        )
    if call.temperature != asked.temperature:
        raise ConfigError(
            f"generate: temperature = {call.temperature!r} in request.call: training scores by the "
            f"domain's {asked.temperature!r}; set domains.temperature in the job, {may}"
        )
    if not 0 < call.max_tokens <= asked.max_tokens:
        raise ConfigError(
            f"generate: max_tokens = {call.max_tokens!r} in request.call: must be from 1 to the "
            f"{asked.max_tokens} asked for; set domains.max_tokens in the job for more"
        )


def _generation_affinity(kind: type[ActorGen] | None) -> Affinity | None:
    if kind is None:
        return None
    _check_role(kind, ActorGen, "actor_gen")
    _check_coroutine(kind, "generate")
    _refuse_serverless(kind, "actor_gen")
    return declared(kind.generate).affinity


# -- training ------------------------------------------------------------------------------------


class LauncherWith:
    """A launcher whose trainer works through a user's `ActorTrain`; the rest is as it was."""

    def __init__(self, launcher: Launcher, kind: type[ActorTrain]) -> None:
        self._launcher = launcher
        self._kind = kind
        self.engine = launcher.engine
        self.environments = launcher.environments
        self.tasks = launcher.tasks
        self.heldout = launcher.heldout
        self.baselines = launcher.baselines
        self.reward = launcher.reward
        self.renderer = launcher.renderer
        self.worker = launcher.worker
        self.close = launcher.close

    async def trainer(self, binding: Binding) -> Trainer:
        """The launcher's own trainer, with the user's code around its train step."""
        return TrainerThrough(await self._launcher.trainer(binding), self._kind, binding)


def training_through(kind: type[ActorTrain], launcher: Launcher) -> Launcher:
    """Every train step through a user's `train_step`, whose `super().train_step` trains."""
    return LauncherWith(launcher, kind)


class TrainerThrough:
    """The `Trainer` port around another, with a user's code around `train_step`."""

    def __init__(self, trainer: Trainer, kind: type[ActorTrain], binding: Binding) -> None:
        self._trainer = trainer
        self._actor = kind()
        self._actor.worker, self._actor.hardware = binding.worker, binding.hardware
        self._actor.attach(trainer.train_step)
        self.publish = trainer.publish
        self.score = trainer.score
        self.save = trainer.save
        self.wait_dead = trainer.wait_dead
        self.close = trainer.close

    @property
    def version(self) -> PolicyVersion:
        return self._trainer.version

    async def train_step(self, batch: TrainBatch) -> TrainStats:
        """Train once. Raises what the trainer does, and `RollartError` for the user's code."""
        before = self._trainer.version
        name = type(self._actor).__name__
        try:
            stats = await self._actor.train_step(batch)
        except RollartError:
            raise
        except Exception as error:
            raise RollartError(
                f"{name}.train_step raised {type(error).__name__}: {error}"
            ) from error
        if not isinstance(stats, TrainStats) or self._trainer.version != before.next():
            raise RollartError(
                f"{name}.train_step must train once and return the statistics; return what "
                "super().train_step(batch) returned"
            )
        return stats


def _training_hardware(kind: type[ActorTrain] | None) -> str | None:
    if kind is None:
        return None
    _check_role(kind, ActorTrain, "actor_train")
    _check_coroutine(kind, "train_step")
    _refuse_serverless(kind, "actor_train")
    affinity = declared(kind.train_step).affinity
    if affinity is not None and affinity.by_domain:
        raise ConfigError(
            f"{kind.__name__}.train_step: hw_affinity names the tag "
            f"{next(iter(affinity.by_domain))!r}, and a batch has every domain in it; use "
            '{"default": "H800"}'
        )
    return None if affinity is None else affinity.default


# -- rewards and environments ----------------------------------------------------------------------


def _check_reward(kind: type) -> None:
    """Its methods are looked at in a child, where its module is imported."""
    _check_role(kind, Reward, "reward")
    for name, one in declared_by(kind).items():
        if one.affinity is not None:
            raise ConfigError(
                f"{kind.__name__}.{name}: hw_mapping is not supported for rewards yet, which run "
                "on the control process's machine; leave it out, or use register_serverless"
            )


def _environment_hardware(kinds: Mapping[str, type]) -> dict[str, str]:
    """The class wanted for each tag, from hw_mapping on any of the environment's methods."""
    found: dict[str, str] = {}
    for tag, kind in kinds.items():
        for one in declared_by(kind).values():
            wanted = one.affinity.wanted(tag) if one.affinity is not None else None
            if wanted is not None:
                found.setdefault(tag, wanted)
    return found


def _by_tag(what: str, given: OneOrByTag, job: JobConfig) -> dict[str, type]:
    tags = [domain.tag for domain in job.domains]
    if given is None:
        return {}
    table = given if isinstance(given, Mapping) else dict.fromkeys(tags, given)
    for tag, kind in table.items():
        if tag not in tags:
            raise ConfigError(f"{what}[{tag!r}]: no domain has this tag; use {', '.join(tags)}")
        if not inspect.isclass(kind):
            raise ConfigError(f"{what} = {kind!r}: is no class; give the class itself")
    return dict(table)


# -- what all have in common ----------------------------------------------------------------------


def _check_role(kind: object, role: type[Worker], what: str) -> None:
    if not (inspect.isclass(kind) and issubclass(kind, role)):
        raise ConfigError(
            f"{what} = {kind!r}: must be a class derived from rollart.{role.__name__}"
        )


def _check_coroutine(kind: type[Worker], method: str) -> None:
    function = getattr(kind, method)
    if not inspect.iscoroutinefunction(function):
        raise ConfigError(
            f"{kind.__name__}.{method}: runs beside the control plane and must not block it; "
            f"write async def {method}"
        )
    try:
        inspect.signature(function).bind(None, None, tag_name="default")
    except TypeError:
        raise ConfigError(
            f"{kind.__name__}.{method}: must take (self, "
            f'{"batch" if method == "train_step" else "request"}, tag_name="default")'
        ) from None
    try:
        inspect.signature(kind).bind()
    except TypeError as error:
        raise ConfigError(f"{kind.__name__}: cannot be made without arguments: {error}") from None


def _refuse_serverless(kind: type, what: str) -> None:
    for name, one in declared_by(kind).items():
        if one.serverless:
            raise ConfigError(
                f"{kind.__name__}.{name}: register_serverless is for a Reward, not for {what}; "
                "leave it out"
            )
