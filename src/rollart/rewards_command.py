"""`rollart rewards serve` and `test` put together: a local platform behind HTTP, or any one tried.

Owns the event loop and what runs in it, until the command ends. Invariant: no process outlives the
command; a call that crashes or hangs costs that call, its process is killed at its timeout.
"""

import asyncio
import hmac
import ipaddress
import json
import os
import signal
import tempfile
from collections.abc import AsyncIterator, Callable, Sequence
from contextlib import asynccontextmanager
from pathlib import Path

from rollart.backends.rewards.calling.caller import Caller
from rollart.backends.rewards.calling.limiter import Limiter
from rollart.backends.rewards.calling.records import CallSettings, PlatformState
from rollart.backends.rewards.opening import open_platform
from rollart.backends.rewards.platform import Fault, Platform, PlatformFault
from rollart.core.errors import ConfigError, first_error
from rollart.core.scoring.document import TrajectoryDocument
from rollart.core.scoring.handle import STORE
from rollart.core.scoring.places import LOCAL, reward_place
from rollart.core.scoring.sources import Sources, sources_of
from rollart.core.scoring.verdict import Verdict
from rollart.runtimes.local.child_env import child_environment
from rollart.runtimes.local.function_host import FunctionHostConfig
from rollart.runtimes.local.local_platform import LocalPlatform
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
    Fault.CRASHED: 502,
    Fault.TOO_LARGE: 413,
    Fault.REFUSED: 400,
    Fault.GARBLED: 502,
}

Say = Callable[[str], None]


def serve(path: str, *, host: str, port: int, processes: int, say: Say) -> None:
    """Serve the function at ``module:function`` until SIGINT or SIGTERM.

    Args:
        processes: calls at once; each has a process of its own while it lasts.
        say: takes each line for whoever started it.

    Raises:
        ConfigError: the function cannot be served, nobody may listen there, or a host that others
            reach has no token.
    """
    token = os.environ.get(TOKEN, "")
    if not token and not _is_loopback(host):
        raise ConfigError(
            f"--host {host}: others reach it, and whoever does would run this function; set "
            f"{TOKEN} here and for the job, or use --host 127.0.0.1"
        )
    sources, seconds = _known(path)

    def front(platform: Platform) -> RewardFront:
        return RewardFront(platform, token=token, seconds=seconds)

    try:
        asyncio.run(_serve(sources, front, host=host, port=port, processes=processes, say=say))
    except ExceptionGroup as errors:  # of the group that connections live in
        raise first_error(errors) from errors


async def _serve(
    sources: Sources,
    front_of: "Callable[[Platform], RewardFront]",
    *,
    host: str,
    port: int,
    processes: int,
    say: Say,
) -> None:
    stop = asyncio.Event()
    loop = asyncio.get_running_loop()
    for sign in (signal.SIGINT, signal.SIGTERM):
        loop.add_signal_handler(sign, stop.set)
    async with _local(sources, processes) as platform, asyncio.TaskGroup() as group:
        front = front_of(platform)
        server = HttpServer(group, front.answer, front.refuse, body_bytes=BODY_BYTES)
        try:
            taken = await server.open(host, port)
        except OSError as error:
            raise ConfigError(
                f"--host {host} --port {port}: cannot listen there ({error}); use --port 0"
            ) from error
        try:
            shown = f"[{host}]" if ":" in host else host
            say(f"{sources.path}, version {sources.version}, {processes} processes at most")
            say(f'reward = "http://{shown}:{taken}/#{sources.path}"')
            await stop.wait()
        finally:
            server.close()


class RewardFront:
    """HTTP in front of a platform: a request's body is the call, an answer's body the answer.

    Args:
        token: what callers must bear; empty: nothing.
        seconds: that one call may take.
    """

    def __init__(self, platform: Platform, *, token: str, seconds: float) -> None:
        self._platform = platform
        self._bearer = f"Bearer {token}".encode() if token else b""
        self._seconds = seconds

    async def answer(self, request: Request) -> Response:
        """Never raises."""
        given = request.headers.get("authorization", "").encode("latin-1", "replace")
        if self._bearer and not hmac.compare_digest(given, self._bearer):
            return _refusal(401, f"wants the bearer token that {TOKEN} holds where it runs")
        if request.method != "POST":
            return _refusal(405, "POST a request; docs/rewards.md says how")
        key = request.headers.get("x-rollart-key", "")
        try:
            body = await self._platform.call(request.body, key=key, seconds=self._seconds)
        except PlatformFault as fault:
            return _refusal(_STATUS[fault.fault], f"{fault.fault}: {fault}")
        return Response(status=200, body=body)

    def refuse(self, bad: BadRequest) -> Response:
        """The answer to what cannot be read."""
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

    Args:
        url: as in a job. Where it names the function, ``…#module:function``, that is compared.
        function: ``module:function``, with the module in the working directory.
        samples: how many built-in ones; `run`: a run's directory, to send what it recorded.
        concurrency: calls at once.
        seconds: that a call may take.

    Raises:
        ConfigError: nothing can be tried: a wrong URL, credentials, nothing that listens.
    """
    try:
        place = reward_place(url)
    except ValueError as error:
        raise ConfigError(f"the URL {error}") from error
    documents = sample_documents(samples) if run is None else recorded_documents(run)
    path = function or place.function
    known = _known(path)[0] if path else None
    where = _known(place.function)[0] if place.platform.startswith(LOCAL) else place.platform
    return asyncio.run(_try(where, known, documents, concurrency, seconds))


async def _try(
    where: str | Sources,
    known: Sources | None,
    documents: Sequence[TrajectoryDocument],
    concurrency: int,
    seconds: float,
) -> Trial:
    loop = asyncio.get_running_loop()
    todo = iter(documents)
    tried: list[Tried] = []
    url = where if isinstance(where, str) else f"{LOCAL}{where.path}"
    async with (
        _opened(where, concurrency) as platform,
        _called(platform, url, concurrency) as there,
    ):
        about = await there.health(min(HEALTH_S, seconds))
        async with _maybe(known, concurrency) as here:

            async def work() -> None:
                for document in todo:
                    tried.append(await _try_one(document, there, here, seconds))

            began = loop.time()
            async with asyncio.TaskGroup() as group:
                for _ in range(concurrency):
                    group.create_task(work())
            took_s = loop.time() - began
    return Trial(
        url=url,
        function=about.function,
        version=about.version,
        here="" if known is None else known.path,
        here_version="" if known is None else known.version,
        seconds=took_s,
        tried=tried,
    )


async def _try_one(
    document: TrajectoryDocument, there: Caller, here: Caller | None, seconds: float
) -> Tried:
    loop = asyncio.get_running_loop()
    plain = document.to_json()
    began = loop.time()
    outcome = await there.score(plain, identity=document.id, seconds=seconds)
    took_s = loop.time() - began
    ours: Verdict | None = None
    if here is not None:
        ours = (await here.score(plain, identity=document.id, seconds=seconds)).verdict
    return Tried(
        sample=document.id,
        verdict=outcome.verdict,
        seconds=took_s,
        function_s=outcome.function_s,
        tries=outcome.tries,
        cold=outcome.cold,
        here=ours,
    )


@asynccontextmanager
async def _opened(where: str | Sources, concurrency: int) -> AsyncIterator[Platform]:
    """The platform of a URL, which its caller closes, or a function here."""
    if isinstance(where, str):
        yield open_platform(where, allow_hosts=None)
        return
    async with _local(where, min(concurrency, os.cpu_count() or 1)) as platform:
        yield platform


@asynccontextmanager
async def _called(platform: Platform, url: str, concurrency: int) -> AsyncIterator[Caller]:
    caller = Caller(
        platform,
        url=url,
        function_version=None,
        settings=CallSettings(),
        limiter=Limiter(concurrency),
        store=None,
        fallback=None,
        on_state=_ignore,
    )
    try:
        yield caller
    finally:
        await caller.close()


@asynccontextmanager
async def _maybe(known: Sources | None, concurrency: int) -> AsyncIterator[Caller | None]:
    """The function here, if there is one."""
    if known is None:
        yield None
        return
    async with (
        _opened(known, concurrency) as platform,
        _called(platform, f"{LOCAL}{known.path}", concurrency) as caller,
    ):
        yield caller


@asynccontextmanager
async def _local(sources: Sources, processes: int) -> AsyncIterator[Platform]:
    """The function in processes of this machine; what it prints goes to standard error."""
    with tempfile.TemporaryDirectory(prefix="rollart-rewards-") as scratch:
        platform = LocalPlatform(
            FunctionHostConfig(
                function=sources.path,
                version=sources.version,
                store=os.environ.get(STORE, ""),
            ),
            env=child_environment(os.environ, "rewards"),
            python_path=[str(Path.cwd())],
            log_file=_log_file(Path(scratch)),
            most=processes,
            idle_s=IDLE_S,
            on_instance=lambda name, begin, end: None,
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


def _known(path: str) -> tuple[Sources, float]:
    """A function of the working directory, and the seconds that a call of it may take."""
    split(path)
    folder = Path.cwd()
    sources = sources_of(path, [str(folder)])
    settings = inspect_function(path, [folder]).settings
    return sources, settings.timeout_s or TIMEOUT_S


def _is_loopback(host: str) -> bool:
    try:
        return ipaddress.ip_address(host).is_loopback
    except ValueError:
        return host == "localhost"


def _refusal(status: int, reason: str) -> Response:
    return Response(status=status, body=json.dumps({"error": reason}).encode())


def _ignore(state: PlatformState) -> None:
    """The outcomes of the calls say it."""
