"""Everything that happens in a run, as a versioned set of frozen records.

Invariant: report, replay, calibration and idle-time accounting read these and nothing else; what
is not here did not happen. `Stamped` adds loop time (seconds), a gapless sequence number and the
incarnation (how often the run was restarted). Fields are only added, never given a new meaning.
"""

from enum import StrEnum

from rollart.core.records import record
from rollart.core.types import Disposition, RequestCost, TrainStats

SCHEMA = 1


class Phase(StrEnum):
    """The six steps of an iteration, with the abort of step 2 named apart."""

    GET_BATCH = "get_batch"
    ABORT_STALE = "abort_stale"
    SUSPEND = "suspend"
    UPDATE = "update"
    RESUME = "resume"
    RECOMPUTE = "recompute"
    TRAIN_STEP = "train_step"
    PUBLISH = "publish"


class Work(StrEnum):
    """What a device can be busy with."""

    PREFILL = "prefill"
    DECODE = "decode"
    MIXED = "mixed"
    REBUILD = "rebuild"
    UPDATE = "update"
    TRAIN = "train"
    PUBLISH = "publish"
    SCORE = "score"
    SAVE = "save"
    REWARD = "reward"


_MOVING = frozenset({Work.UPDATE, Work.PUBLISH})


def is_computing(work: str) -> bool:
    """Whether a device at such work is busy, by any account: all but moving weights is."""
    return work not in _MOVING


@record
class RunStarted:
    schema: int
    run: str
    runtime: str
    protocol: str
    alpha: int
    seed: int
    steps: int
    batch_groups: int
    group_size: int
    domains: tuple[str, ...]
    config: str


@record
class WorkerBound:
    """A worker got its place: in which pool and slots, what it wanted, and why it is there."""

    worker: str
    role: str
    pool: str
    hardware: str
    slots: tuple[int, ...]
    wanted: str
    reason: str


@record
class TaskDrawn:
    """A domain's source gave a task, one ahead of need."""

    domain: str
    task: str


@record
class SourceEnded:
    """A domain's source has no more tasks."""

    domain: str


@record
class DomainClosed:
    """A domain admits no more tasks; the others go on."""

    domain: str
    reason: str


@record
class EngineUp:
    engine: str
    hardware: str


@record
class EngineDown:
    engine: str
    reason: str
    moved_requests: int


@record
class EngineAcknowledged:
    """The engine holds this version; only now is it routable for it."""

    engine: str
    version: int
    seconds: float


@record
class Committed:
    """The newest version that a routable engine has acknowledged."""

    version: int


@record
class Admitted:
    """A group took a credit."""

    group: int
    domain: str
    task: str
    requeued: bool
    outstanding: int
    capacity: int


@record
class CreditsReturned:
    groups: int
    outstanding: int
    capacity: int


@record
class TrajectoryStarted:
    trajectory: str
    purpose: str
    domain: str
    task: str
    group: int
    member: int
    attempt: int


@record
class EnvironmentReset:
    trajectory: str
    seconds: float
    ok: bool


@record
class TurnEnded:
    """One turn's tokens and seconds.

    `versions` are the (version, tokens) runs of what was sampled; the first and the last stand
    apart because most readers need only those. `asked_at` and `answered_at` are loop times (s) of
    the request and of its last token.
    """

    trajectory: str
    turn: int
    engine: str
    prompt_tokens: int
    sampled_tokens: int
    cost: RequestCost
    proxy_queued_s: float
    env_s: float
    first_version: int
    last_version: int
    versions: tuple[tuple[int, int], ...]
    stop: str
    interruptions: int
    asked_at: float | None = None
    answered_at: float | None = None


@record
class RequestDropped:
    """A turn was cut off in the proxy or at its engine; what had been sampled is lost work."""

    request: str
    engine: str
    prompt_tokens: int
    sampled_tokens: int
    asked_at: float | None = None


@record
class TrajectoryEnded:
    trajectory: str
    purpose: str
    domain: str
    status: str
    failure: str
    detail: str
    turns: int
    prompt_tokens: int
    sampled_tokens: int
    start_version: int | None
    score: float | None
    success: float | None
    elapsed_s: float
    reset_s: float
    reward_s: float


@record
class Disposed:
    """A started trajectory left, once. `elapsed_s` is censored where it was cancelled."""

    trajectory: str
    domain: str
    group: int
    disposition: Disposition
    reason: str
    start_version: int | None
    elapsed_s: float
    censored: bool


@record
class GroupReady:
    group: int
    domain: str
    members: int
    start_version: int


@record
class LateResult:
    """A result of something that had already left; it changed nothing."""

    what: str
    identity: str


@record
class Answered:
    """The world's answers came in to control, at the end of one pass of its event loop.

    `who` was answered, in order: a trajectory by its environment or reward, a request by its last
    token, a worker's command. `loop_pass` counts the passes that had ended since the run began.
    Only runs on a real machine tell this; under virtual time it follows from the rest.
    """

    loop_pass: int
    who: tuple[str, ...]


@record
class PhaseBegan:
    step: int
    phase: Phase


@record
class PhaseEnded:
    step: int
    phase: Phase
    seconds: float
    ok: bool


@record
class DeviceBusy:
    """A device worked from `begin` to `end` (loop time) on one kind of `Work`.

    `work` is text, so that a log stays readable when a kind is added.
    """

    device: str
    hardware: str
    work: str
    begin: float
    end: float


@record
class DeviceReserved:
    """A device was kept for one use from `begin` on (loop time), whether it worked or not.

    Told when it comes, with no `end`, and again with its end when it goes. One that is there for
    the whole run need not say so, if it says when it is busy.
    """

    device: str
    hardware: str
    begin: float
    end: float | None


VERDICT, CANCELLED = "verdict", "cancelled"
"""How a call of a reward may end, beside the kinds of failures."""


@record
class RewardCalled:
    """A serverless function was asked for one verdict.

    Attributes:
        url: that the job names; served_by: where the answer came from, which a fallback changes.
        begin, end: loop time at which the verdict was wanted, and had or given up.
        tries: requests sent, hedges included; waited_s: before the last of them, on limits, pauses
            between tries and a platform that was down.
        function_s: that the function itself took; None where no answer says so.
        instance: that answered; cold: it was that one's first call.
        sent_bytes: of the request; by_reference: the document went by way of the store.
        outcome: `VERDICT`, `CANCELLED` where nobody waited any more, or the `FailureKind` of none.
    """

    trajectory: str
    url: str
    served_by: str
    begin: float
    end: float
    tries: int = 1
    waited_s: float = 0.0
    function_s: float | None = None
    instance: str = ""
    cold: bool = False
    sent_bytes: int = 0
    by_reference: bool = False
    hedged: bool = False
    outcome: str = "verdict"
    reason: str = ""


@record
class FunctionInstance:
    """A process of this machine was kept for a serverless function, from start to end."""

    url: str
    instance: str
    begin: float
    end: float


@record
class PlatformDown:
    """A platform failed too often in a row: calls wait, or go to the fallback, until it answers."""

    url: str
    reason: str
    fallback: str = ""


@record
class PlatformUp:
    """A platform that was down answers again."""

    url: str
    down_s: float


@record
class BatchTaken:
    step: int
    groups: int
    trajectories: int
    tokens: int
    start_lag_max: int
    score_mean: float | None
    success_mean: float | None


@record
class StepTrained:
    """A train step ended; lags are in versions, over the tokens that were trained."""

    step: int
    stats: TrainStats
    token_lag_max: int
    token_lag_mean: float
    tokens: int


@record
class LedgerClosed:
    """The ledger's balance at a step or at exit; `balanced` is promise 1."""

    step: int
    started: int
    dispositions: tuple[tuple[str, int], ...]
    buffered: int
    in_flight: int
    balanced: bool


@record
class Evaluated:
    """Success on held-out tasks, all under one version. `when` is before, after or a step."""

    domain: str
    when: str
    mode: str
    version: int
    tasks: int
    scored: int
    success: float | None
    score: float | None
    seconds: float


@record
class GapMeasured:
    """Engine against trainer log-probs on the same tokens and weights."""

    version: int
    tokens: int
    maximum: float
    mean: float


@record
class Baseline:
    """A baseline's success on the held-out tasks, printed beside the result."""

    domain: str
    name: str
    success: float
    tasks: int


@record
class Warned:
    message: str


@record
class RunEnded:
    reason: str
    ok: bool
    steps: int
    seconds: float


Event = (
    RunStarted
    | WorkerBound
    | DomainClosed
    | TaskDrawn
    | SourceEnded
    | EngineUp
    | EngineDown
    | EngineAcknowledged
    | Committed
    | Admitted
    | CreditsReturned
    | TrajectoryStarted
    | EnvironmentReset
    | TurnEnded
    | RequestDropped
    | TrajectoryEnded
    | Disposed
    | GroupReady
    | LateResult
    | Answered
    | PhaseBegan
    | PhaseEnded
    | DeviceBusy
    | DeviceReserved
    | RewardCalled
    | FunctionInstance
    | PlatformDown
    | PlatformUp
    | BatchTaken
    | StepTrained
    | LedgerClosed
    | Evaluated
    | GapMeasured
    | Baseline
    | Warned
    | RunEnded
)


@record
class Stamped:
    """An event with its loop time (s), its place in the run's order, and the incarnation."""

    time: float
    seq: int
    incarnation: int
    event: Event
