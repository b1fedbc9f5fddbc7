"""Five ways to have trajectories scored, behind one record: a call, and what is reserved for it.

Invariant: a way is open while its context is; its processes are gone with it. What was reserved is
asked afterwards, because a process that was kept tells it when it ends.
"""

import asyncio
import multiprocessing
import os
import shutil
import time
from collections.abc import AsyncIterator, Callable, Coroutine, Iterator, Mapping
from concurrent.futures import ProcessPoolExecutor
from contextlib import asynccontextmanager, contextmanager
from dataclasses import dataclass, replace
from pathlib import Path

from benchmarks.parts import rewards_work
from rollart.core.events import Event, FunctionInstance
from rollart.core.scoring.document import TrajectoryDocument
from rollart.core.scoring.places import reward_place
from rollart.core.types import Verdict
from rollart.observe.intervals import Interval
from rollart.runtimes.local.child_env import child_environment
from rollart.runtimes.local.gateway import Gateway
from rollart.runtimes.local.gateway_records import FunctionWish, Place
from rollart.testing.loopback.apart import Apart
from rollart.testing.loopback.handlers import write_handler
from rollart.testing.loopback.instances import Figures, Scaling
from rollart.testing.loopback.lambda_platform import ACCESS_KEY_ID

FUNCTION = "rewards_work:score"
VERSION = "v1"
WORKERS = 2
"""Of functions-framework."""

LOOPBACK_KEYS = {"AWS_ACCESS_KEY_ID": ACCESS_KEY_ID, "AWS_SECRET_ACCESS_KEY": "loopback"}
"""What the platform on loopback is called with; it is nobody's secret."""

_LIMIT_S = 600.0
_NAP_S = 0.3  # that each process of the fixed pool sleeps at first, so that every one is started


@dataclass(frozen=True, slots=True, kw_only=True)
class Called:
    """One call: begin and end by the clock, the seconds in the function, its CPU seconds."""

    begin: float
    end: float
    function_s: float
    cpu_s: float
    instance: str = ""
    cold: bool = False

    @property
    def overhead_s(self) -> float:
        """What the call took beside the function; nothing queued if calls came one by one."""
        return max(0.0, self.end - self.begin - self.function_s)


@dataclass(frozen=True, slots=True, kw_only=True)
class Limits:
    """Processes at most, or calls at once, and seconds after which an idle Lambda instance ends."""

    processes: int
    idle_s: float


Call = Callable[[TrajectoryDocument], Coroutine[None, None, Called]]


@dataclass(frozen=True, slots=True, kw_only=True)
class Way:
    """A way that is open.

    Attributes:
        look: called where the window that is measured begins, and where it ends.
        reserved_s: asked with that window once the way is closed: process-seconds that existed;
            None where nothing is reserved.
        told_by: where those are from.
    """

    call: Call
    look: Callable[[], None]
    reserved_s: Callable[[Interval], float | None]
    told_by: str


@asynccontextmanager
async def inline(limits: Limits, folder: Path) -> AsyncIterator[Way]:
    """Called one after another, where the run is, which does nothing else meanwhile."""

    async def call(document: TrajectoryDocument) -> Called:
        began = time.monotonic()
        verdict, function_s, instance = rewards_work.timed(document)
        return _called(began, verdict, function_s, instance)

    yield Way(call=call, look=_nothing, reserved_s=lambda window: None, told_by="nothing is")


@asynccontextmanager
async def fixed_pool(limits: Limits, folder: Path) -> AsyncIterator[Way]:
    """So many processes, started before and kept the whole time."""
    loop, processes = asyncio.get_running_loop(), limits.processes
    spawning = multiprocessing.get_context("spawn")
    with ProcessPoolExecutor(processes, mp_context=spawning) as pool:
        naps = [loop.run_in_executor(pool, time.sleep, _NAP_S) for _ in range(processes)]
        await asyncio.gather(*naps)

        async def call(document: TrajectoryDocument) -> Called:
            began = time.monotonic()
            done = await loop.run_in_executor(pool, rewards_work.timed, document)
            return _called(began, *done)

        yield Way(
            call=call,
            look=_nothing,
            reserved_s=lambda window: processes * (window[1] - window[0]),
            told_by="the whole time",
        )


@asynccontextmanager
async def local(limits: Limits, folder: Path) -> AsyncIterator[Way]:
    """`local://`: forked when they are needed, gone when idle."""
    shutil.copy(str(rewards_work.__file__), folder)
    instances: list[FunctionInstance] = []
    url = f"local://{FUNCTION}?concurrency={limits.processes}"  # idle as long as two starts take

    def reserved_s(window: Interval) -> float:
        return sum(
            min(one.end, window[1]) - one.begin for one in instances if one.begin < window[1]
        )

    async with _gateway(url, folder, instances) as call:
        yield Way(call=call, look=_nothing, reserved_s=reserved_s, told_by="FunctionInstance")


@asynccontextmanager
async def http(limits: Limits, folder: Path) -> AsyncIterator[Way]:
    """functions-framework: so many workers, each with its share of the calls in threads."""
    threads = max(1, limits.processes // WORKERS)
    with Apart("framework", _deployed(folder), workers=WORKERS, threads=threads) as platform:
        url = f"{platform.url}?concurrency={limits.processes}"
        async with _gateway(url, folder, []) as call:
            yield Way(
                call=call,
                look=_nothing,
                reserved_s=lambda window: WORKERS * (window[1] - window[0]),
                told_by="the whole time",
            )


@asynccontextmanager
async def on_lambda(limits: Limits, folder: Path) -> AsyncIterator[Way]:
    """awslambdaric: an instance a concurrent call, gone when idle."""
    seen: list[Figures] = []
    scaling = Scaling(limit=limits.processes, idle_s=limits.idle_s, timeout_s=_LIMIT_S)
    with Apart("lambda", _deployed(folder), scaling) as platform, _environment(LOOPBACK_KEYS):
        url = f"lambda://judge?region=loopback-1&endpoint={platform.url}"
        url += f"&concurrency={limits.processes}"
        async with _gateway(url, folder, []) as call:
            await asyncio.sleep(limits.idle_s + 1.0)  # the instance that said it is well ends
            yield Way(
                call=call,
                look=lambda: seen.append(platform.figures()),
                reserved_s=lambda window: seen[1].instance_s - seen[0].instance_s,
                told_by="the platform's figures",
            )


WAYS = {
    "inline": inline,
    "fixed pool": fixed_pool,
    "local serverless": local,
    "http": http,
    "lambda": on_lambda,
}


class _Instances:
    """Keeps what the gateway tells of processes; what it tells of calls is in their outcomes."""

    def __init__(self, kept: list[FunctionInstance]) -> None:
        self._kept = kept

    def emit(self, event: Event) -> None:
        if isinstance(event, FunctionInstance):
            self._kept.append(event)


@asynccontextmanager
async def _gateway(
    url: str, folder: Path, instances: list[FunctionInstance]
) -> AsyncIterator[Call]:
    """A call of the function at a URL, through a gateway as a run has it."""
    place = reward_place(url)
    gateway = Gateway(
        children=child_environment(os.environ, f"benchmark-rewards-{os.getpid()}"),
        python_path=(str(folder),),
        logs=folder,
        events=_Instances(instances),
    )

    async def call(document: TrajectoryDocument) -> Called:
        began = time.monotonic()
        outcome = await gateway.score(place.platform, document, seconds=_LIMIT_S)
        if outcome.function_s is None or outcome.verdict.score is None:
            raise RuntimeError(f"{place.platform} gave no verdict: {outcome.verdict.reason}")
        done = _called(began, outcome.verdict, outcome.function_s, outcome.instance)
        return replace(done, cold=outcome.cold)

    try:
        await gateway.open(FunctionWish(places=(Place(at=place, version=VERSION),)))
        yield call
    finally:
        await gateway.close()


def _called(began: float, verdict: Verdict, function_s: float, instance: str) -> Called:
    return Called(
        begin=began,
        end=time.monotonic(),
        function_s=function_s,
        cpu_s=dict(verdict.components)["cpu_s"],
        instance=instance,
    )


def _deployed(folder: Path) -> Path:
    source = Path(str(rewards_work.__file__)).read_text(encoding="utf-8")
    return write_handler(folder / "deployed", FUNCTION, source, version=VERSION)


@contextmanager
def _environment(variables: Mapping[str, str]) -> Iterator[None]:
    """Variables for the gateway that is started meanwhile."""
    before = {name: os.environ.get(name) for name in variables}
    os.environ.update(variables)
    try:
        yield
    finally:
        for name, value in before.items():
            if value is None:
                del os.environ[name]
            else:
                os.environ[name] = value


def _nothing() -> None:
    """There is nothing to look at."""
