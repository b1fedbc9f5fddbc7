"""The world file: the hardware, the network and the workload that a simulated run meets.

Invariant: only what can be said without a look at the job or at the catalogues is checked here
(`fitting` does the rest); units are seconds, tokens, GB (1e9 bytes) and GPUs.
"""

from collections.abc import Mapping
from typing import Annotated, Literal

from pydantic import Field, model_validator

from rollart.core.config import Positive, Section
from rollart.runtimes.sim.world.distributions import (
    Above0,
    Chance,
    Distribution,
    NotNegative,
    constant,
)

Share = Annotated[float, Field(gt=0, le=1)]

LEAST_BUCKET_GB = 0.01
"""Smaller ones are no use: each pays the latency of its link, and is an event of a simulation."""


class ModelSection(Section):
    """Which model is trained: one of the catalogue, or a Hugging Face directory or config.json."""

    name: str | None = None
    config: str | None = None

    @model_validator(mode="after")
    def one_source(self) -> "ModelSection":
        if (self.name is None) == (self.config is None):
            raise ValueError(
                'needs either name (of the catalogue) or config (a path); use name = "Qwen3-8B"'
            )
        return self

    @property
    def named(self) -> str:
        """Catalogue name or path, whichever was given."""
        return self.name or self.config or ""


class TrainerSection(Section):
    """GPUs that train. A step takes its operations at `mfu`, and `fixed_s` beside it.

    `logprob_passes` are forward passes before it (old and reference log-probs); `recompute` is
    whether activations are computed twice. `mfu` is the share of the peak over all operations done,
    recomputation included; the hardware's own where it is left out.
    """

    hardware: str
    gpus: Positive
    mfu: Share | None = None
    fixed_s: NotNegative = 50.0
    logprob_passes: Annotated[int, Field(ge=0)] = 1
    recompute: bool = True


class PhaseSection(Section):
    """One side of a prefill/decode group: `count` workers of `gpus` GPUs (tensor parallel)."""

    hardware: str
    gpus: Positive = 1
    count: Positive = 1


class EngineSection(Section):
    """What an engine of a class of `rollout.engines` is made of.

    `gpus` is its tensor-parallel degree, and `hardware` its GPU class (the class itself where left
    out); or else it is a group with `prefill` and `decode`, between which KV goes over `link`.
    """

    hardware: str | None = None
    gpus: Positive = 1
    prefill: PhaseSection | None = None
    decode: PhaseSection | None = None
    link: str = "infiniband-400"

    @model_validator(mode="after")
    def whole_or_split(self) -> "EngineSection":
        if (self.prefill is None) != (self.decode is None):
            raise ValueError(
                "a prefill/decode group needs both sides; use prefill = { hardware = "
                '"H800" } and decode = { hardware = "H20", count = 3 }'
            )
        if self.prefill is not None and self.hardware is not None:
            raise ValueError(
                "says hardware beside prefill and decode, which have their own; leave it out"
            )
        return self


class GpuSection(Section):
    """A class of GPU, instead of or beside those of the catalogue.

    `tflops` is the dense bf16 peak (1e12/s), `hbm_tb_s` the memory's bandwidth (1e12 B/s), `price`
    of an hour where an H20's is 1. `prefill_efficiency` is the share of the peak that a prefill
    reaches, `training_mfu` that of all operations done in a train step.
    """

    tflops: Above0
    hbm_tb_s: Above0
    memory_gb: Above0
    price: Above0 | None = None
    prefill_efficiency: Share
    training_mfu: Share


class LinkSection(Section):
    """A link, instead of or beside those of the catalogue: seconds, and effective GB/s."""

    latency_s: NotNegative
    gb_s: Above0


class WeightsSection(Section):
    """How weights reach the engines.

    async: buckets are pushed over `push` to a store while rollout goes on, and each engine pulls
    them over `pull` as they come. blocking: at the update they cross `push`, then `pull`. Either
    way they are loaded into the GPUs over `install`.
    """

    mode: Literal["async", "blocking"] = "async"
    bucket_gb: Annotated[float, Field(ge=LEAST_BUCKET_GB)] = 1.0
    push: str = "ethernet-200-push"
    pull: str = "ethernet-200-pull"
    install: str = "weights-install"


class RegistrySection(Section):
    """Where images of containers come from: so many cold pulls at once, the others wait."""

    pulls_at_once: Positive = 64


class Mishap(Section):
    """Something that happens with a chance each time, and takes so long."""

    chance: Chance
    seconds: Distribution


class ImageSection(Section):
    """The container of an environment: found in a cache with a chance, else pulled."""

    hit: Chance
    pull_s: Distribution


class DomainSection(Section):
    """What an agent meets in one domain, and says there.

    `prefix_hit` is the share of the earlier context that an engine's cache still has when a
    trajectory comes back. A reset with `reset_failure` takes that long and fails; one with
    `reset_hang` takes so much longer. `tasks` are endless where left out.
    """

    turns: Distribution
    first_tokens: Distribution
    observation_tokens: Distribution
    answer_tokens: Distribution
    prefix_hit: Chance = 1.0
    step_s: Distribution = constant(0.0)
    reset_s: Distribution = constant(0.0)
    step_failure: Mishap | None = None
    reset_failure: Mishap | None = None
    reset_hang: Mishap | None = None
    image: ImageSection | None = None
    success: Chance = 0.5
    tasks: Positive | None = None


class DedicatedSection(Section):
    """GPUs that score and do nothing else; each takes `at_once` calls."""

    hardware: str
    gpus: Positive
    at_once: Positive = 1


class ServerlessSection(Section):
    """Instances that come with the calls and go when idle: none at rest, at most `limit`.

    `platform` is of the catalogue and says what is left out here (cold start, how long an idle one
    is kept, the limit, how fast instances may be added). `hardware` is what an instance occupies:
    a GPU class, or the platform itself where left out.
    """

    platform: str = "function"
    hardware: str | None = None
    cold_start_s: NotNegative | None = None
    keep_s: NotNegative | None = None
    limit: Positive | None = None
    at_once: Positive = 1


class RewardSection(Section):
    """What scoring a trajectory takes. Without GPUs or instances of its own nothing queues.

    `failure` is the chance of no verdict; `equal` that all members of a group score the same, so
    that it carries no signal.
    """

    seconds: Distribution = constant(0.01)
    failure: Chance = 0.0
    equal: Chance = 0.0
    dedicated: DedicatedSection | None = None
    serverless: ServerlessSection | None = None

    @model_validator(mode="after")
    def one_place(self) -> "RewardSection":
        if self.dedicated is not None and self.serverless is not None:
            raise ValueError("is both dedicated and serverless; leave one of them out")
        return self

    @property
    def pooled(self) -> bool:
        """Whether calls queue for places."""
        return self.dedicated is not None or self.serverless is not None


class RecordedSection(Section):
    """A run whose event log gives the workload of domains that have none here."""

    run: str


class World(Section):
    """A whole world. `schema` is the version of this format."""

    schema_: Literal[1] = Field(alias="schema")
    model: ModelSection
    pools: Mapping[str, Positive]
    trainer: TrainerSection
    engines: Mapping[str, EngineSection]
    gpu: Mapping[str, GpuSection] = Field(default_factory=dict[str, GpuSection])
    network: Mapping[str, LinkSection] = Field(default_factory=dict[str, LinkSection])
    weights: WeightsSection = WeightsSection()
    registry: RegistrySection = RegistrySection()
    domains: Mapping[str, DomainSection] = Field(default_factory=dict[str, DomainSection])
    rewards: Mapping[str, RewardSection] = Field(default_factory=dict[str, RewardSection])
    recorded: RecordedSection | None = None
