"""`rollart rewards serve` and `test` put together: a local platform behind HTTP, or any one tried.

Owns the event loop and what runs in it, until the command ends. Invariant: no process and no folder
outlives the command, also when a signal ends it that can be caught; a call that crashes or hangs
costs that call, its process is killed at its timeout.
"""

import asyncio
import json
import os
import signal
import tempfile
import threading
from collections.abc import AsyncIterator, Awaitable, Callable, Iterator, Sequence
from contextlib import AsyncExitStack, asynccontextmanager, contextmanager
from dataclasses import dataclass, replace
from functools import partial
from pathlib import Path
from types import FrameType

from rollart.backends.rewards.callers import Callers, is_local, most_calls
from rollart.backends.rewards.calling.caller import Caller
from rollart.backends.rewards.calling.records import PlatformState
from rollart.backends.rewards.platform import Fault, Platform, PlatformFault
from rollart.core.errors import ConfigError, first_error
from rollart.core.scoring.declared import ServerlessSettings
from rollart.core.scoring.document import TrajectoryDocument
from rollart.core.scoring.handle import STORE
from rollart.core.scoring.judge_calls import is_loopback
from rollart.core.scoring.places import LOCAL, RewardPlace, reward_place
from rollart.core.scoring.sources import Sources, sources_of
from rollart.runtimes.local.child_env import child_environment
from rollart.runtimes.local.function_strays import no_strays
from rollart.runtimes.local.local_platform import LocalPlatform
from rollart.serving.admission import Admission, token_of
from rollart.serving.http import BadRequest, HttpServer, Request, Response
from rollart.shipping.inspecting import inspect_function
from rollart.shipping.package import split
from rollart.shipping.samples import recorded_documents, sample_documents
from rollart.shipping.shipment import TIMEOUT_S
from rollart.shipping.trial import Trial, Tried

TOKEN = "ROLLART_REWARD_TOKEN"
BODY_BYTES = 32 << 20  # what the platforms of HTTP functions take as well
IDLE_S = 60.0
HEALTH_S = 30.0

_STATUS = {
    Fault.TIMEOUT: 504,
    Fault.THROTTLED: 429,
    Fault.UNAVAILABLE: 503,
    Fault.TOO_LARGE: 413,
    Fault.REFUSED: 400,
}
_BROKE = 502  # for every other fault

Say = Callable[[str], None]


@dataclass(frozen=True, slots=True, kw_only=True)
class Known:
    """A function of the working directory, and what it declares."""

    sources: Sources
    settings: ServerlessSettings


def serve(path: str, *, host: str, port: int, processes: int, say: Say) -> None:
    """Serve the function at ``module:function`` until SIGINT, SIGTERM or SIGHUP.

    Args:
        processes: calls at once; each has a process of its own while it lasts.
        say: takes each line for whoever started it.

    Raises:
        ConfigError: the function cannot be served, nobody may listen there, or a host that others
            reach has no token.
    """
    token = token_of(os.environ, TOKEN, host)
    with _nothing_left():
        known = _known(path)
        try:
            asyncio.run(_serve(known, token, host=host, port=port, processes=processes, say=say))
        except ExceptionGroup as errors:  # of the group that connections live in
            raise first_error(errors) from errors


async def _serve(
    known: Known,
    token: str,
    *,
    host: str,
    port: int,
    processes: int,
    say: Say,
) -> None:
    stop = asyncio.Event()
    loop = asyncio.get_running_loop()
    for sign in (signal.SIGINT, *_other_signs()):
        loop.add_signal_handler(sign, stop.set)
    async with _local(known, processes) as platform, asyncio.TaskGroup() as group:
        front = RewardFront(platform, seconds=known.settings.timeout_s or TIMEOUT_S)
        server = HttpServer(
            group, front.answer, front.refuse, admit=Admission(token), body_bytes=BODY_BYTES
        )
        try:
            taken = await server.open(host, port)
        except OSError as error:
            raise ConfigError(
                f"--host {host} --port {port}: cannot listen there ({error}); use --port 0"
            ) from error
        try:
            for line in _served(known.sources, host, taken, processes, bool(token)):
                say(line)
            await stop.wait()
        finally:
            server.close()


def _served(sources: Sources, host: str, port: int, processes: int, wants: bool) -> list[str]:
    """What is served, and the line for the job."""
    shown = f"[{host}]" if ":" in host else host
    auth = f"?auth={TOKEN}" if wants else ""
    lines = [f"{sources.path}, version {sources.version}, {processes} processes at most"]
    if not is_loopback(host):
        lines.append(
            "a job on another machine sends its token by https:// only: put what ends TLS before "
            f'this, as reward = "https://…/{auth}#{sources.path}"'
        )
    return [*lines, f'reward = "http://{shown}:{port}/{auth}#{sources.path}"']


class RewardFront:
    """HTTP in front of a platform: a request's body is the call, an answer's body the answer.

    `seconds` is what one call may take.
    """

    def __init__(self, platform: Platform, *, seconds: float) -> None:
        self._platform = platform
        self._seconds = seconds

    async def answer(self, request: Request) -> Response:
        """Never raises."""
        if request.method != "POST":
            return _refusal(405, "POST a request; docs/rewards.md says how")
        key = request.headers.get("x-rollart-key", "")
        try:
            body = await self._platform.call(request.body, key=key, seconds=self._seconds)
        except PlatformFault as fault:
            return _refusal(_STATUS.get(fault.fault, _BROKE), f"{fault.fault}: {fault}")
        return Response(status=200, body=body)

    def refuse(self, bad: BadRequest) -> Response:
        """The answer to what cannot be read or is not admitted."""
        return _refusal(bad.status, bad.reason)


def try_url(
    url: str,
    *,
    function: str | None,
    samples: int,
    run: Path | None,
    concurrency: int,
    seconds: float,
) -> Trial:
    """Send samples to a URL, and compare with a function here where one is given.

    What the URL says of calls (``?store=``, ``?concurrency=``, …) and what the function that it
    names declares hold as in a job, and so does the operator's list of hosts.

    Args:
        url: as in a job. Where it names the function, ``…#module:function``, that is compared.
        function: ``module:function``, with the module in the working directory.
        samples: how many built-in ones; `run`: a run's directory, to send what it recorded.
        concurrency: calls at once, where the URL does not allow fewer.
        seconds: that a call may take.

    Raises:
        ConfigError: nothing can be tried: a wrong URL, credentials, nothing that listens.
    """
    try:
        place = reward_place(url)
    except ValueError as error:
        raise ConfigError(f"the URL {error}") from error
    with _nothing_left():
        documents = sample_documents(samples) if run is None else recorded_documents(run)
        named = _known(place.function) if place.function else None
        known = _known(function) if function else named
        trying = _try(
            place, documents, named=named, known=known, concurrency=concurrency, seconds=seconds
        )
        return asyncio.run(trying)


async def _try(
    place: RewardPlace,
    documents: Sequence[TrajectoryDocument],
    *,
    named: Known | None,
    known: Known | None,
    concurrency: int,
    seconds: float,
) -> Trial:
    """Args: named: the function here that the URL names; known: the one to compare with."""
    loop = asyncio.get_running_loop()
    async with AsyncExitStack() as stack:
        there = await _opened(place, named, stack)
        about = await there.health(min(HEALTH_S, seconds))
        began = loop.time()
        tried = await _each(documents, partial(_score, there, seconds), concurrency)
        took_s = loop.time() - began
        if known is not None:  # by itself, since it would slow down what is measured
            path, most = known.sources.path, min(concurrency, os.cpu_count() or 1)
            at = RewardPlace(platform=f"{LOCAL}{path}", function=path, concurrency=most)
            here = await _opened(at, known, stack)
            ours = await _each(documents, partial(_score, here, seconds), concurrency)
            pairs = zip(tried, ours, strict=True)
            tried = [replace(one, here=own.verdict) for one, own in pairs]
    return Trial(
        url=place.shown,
        function=about.function,
        version=about.version,
        here="" if known is None else known.sources.path,
        here_version="" if known is None else known.sources.version,
        seconds=took_s,
        tried=tried,
    )


async def _opened(place: RewardPlace, known: Known | None, stack: AsyncExitStack) -> Caller:
    """The caller of a place, as a job has it; what it needs here ends with the stack."""
    timeout_s: float | None = None
    if known is not None:
        timeout_s = known.settings.timeout_s
        place = replace(place, concurrency=place.concurrency or known.settings.concurrency)
    local: Platform | None = None
    if is_local(place):
        assert known is not None, "a local place names its function"
        most = most_calls(place)
        local = await stack.enter_async_context(
            _local(known, most, timeout_s=timeout_s, idle_s=place.idle_s)
        )
    callers = Callers(environment=os.environ, on_state=_ignore)  # two share no limit
    stack.push_async_callback(callers.close)
    caller = callers.open(place, version=place.version, timeout_s=timeout_s, local=local)
    await callers.check_store(place, HEALTH_S)
    return caller


async def _each(
    documents: Sequence[TrajectoryDocument],
    score: Callable[[TrajectoryDocument], Awaitable[Tried]],
    concurrency: int,
) -> list[Tried]:
    """What came of each, in their order."""
    tried: dict[int, Tried] = {}
    todo = iter(enumerate(documents))

    async def work() -> None:
        for place, document in todo:
            tried[place] = await score(document)

    async with asyncio.TaskGroup() as group:
        for _ in range(min(concurrency, len(documents))):
            group.create_task(work())
    return [tried[place] for place in range(len(documents))]


async def _score(caller: Caller, seconds: float, document: TrajectoryDocument) -> Tried:
    loop = asyncio.get_running_loop()
    plain = document.to_json()
    began = loop.time()
    outcome = await caller.score(plain, identity=document.id, seconds=seconds)
    return Tried(
        sample=document.id,
        verdict=outcome.verdict,
        seconds=loop.time() - began,
        function_s=outcome.function_s,
        tries=outcome.tries,
        cold=outcome.cold,
    )


@asynccontextmanager
async def _local(
    known: Known, processes: int, *, timeout_s: float | None = None, idle_s: float | None = None
) -> AsyncIterator[Platform]:
    """The function in processes of this machine; what it prints goes to standard error."""
    sources = known.sources
    with tempfile.TemporaryDirectory(prefix="rollart-rewards-") as scratch:
        platform = LocalPlatform(
            sources.path,
            version=sources.version,
            store=os.environ.get(STORE, ""),
            env=child_environment(os.environ, "rewards"),
            python_path=[str(Path.cwd())],
            log_file=_log_file(Path(scratch)),
            most=processes,
            idle_s=idle_s or IDLE_S,
            on_instance=lambda name, begin, end: None,
            timeout_s=timeout_s,
        )
        try:
            yield platform
        finally:
            await platform.close()


def _log_file(scratch: Path) -> Path:
    error = Path("/dev/stderr")
    try:
        error.open("ab").close()
    except OSError:  # there is none, or it is a socket
        return scratch / "function.log"
    return error


def _known(path: str) -> Known:
    split(path)
    folder = Path.cwd()
    sources = sources_of(path, [str(folder)])
    return Known(sources=sources, settings=inspect_function(path, [folder]).settings)


def _other_signs() -> list[signal.Signals]:
    """What ends a command beside SIGINT. Under nohup SIGHUP is ignored, and stays so."""
    hangs_up = signal.getsignal(signal.SIGHUP) is not signal.SIG_IGN
    return [signal.SIGTERM, signal.SIGHUP] if hangs_up else [signal.SIGTERM]


@contextmanager
def _nothing_left() -> Iterator[None]:
    """What runs within takes its folders and processes away, whichever signal ends it.

    In a thread beside the main one nothing is changed: no signal arrives there, and processes that
    begin meanwhile may be another thread's.
    """
    if threading.current_thread() is not threading.main_thread():
        yield
        return
    with _ended_as_by_sigint(), no_strays():
        yield


@contextmanager
def _ended_as_by_sigint() -> Iterator[None]:
    """Other signals end what runs within as SIGINT does."""
    came = False

    def end(sign: int, frame: FrameType | None) -> None:
        nonlocal came
        if came:  # a terminal or a manager of services may send both, and cleaning up goes on
            return
        came = True
        on_sigint = signal.getsignal(signal.SIGINT)
        if not callable(on_sigint):  # it is ignored in the background of a script
            on_sigint = signal.default_int_handler
        on_sigint(sign, frame)

    before = {sign: signal.signal(sign, end) for sign in _other_signs()}
    try:
        yield
    finally:
        for sign, handler in before.items():
            signal.signal(sign, handler)


def _refusal(status: int, reason: str) -> Response:
    return Response(status=status, body=json.dumps({"error": reason}).encode())


def _ignore(state: PlatformState) -> None:
    """The outcomes of the calls say it."""
