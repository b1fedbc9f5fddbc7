"""What hostile words, addresses and neighbours can do to rewards, and what they cannot."""

import asyncio
import contextlib
import os
import socket
import time
from collections.abc import AsyncIterator, Callable, Iterator
from contextlib import AbstractAsyncContextManager
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pytest

from rollart.backends.rewards.addresses import HOSTS
from rollart.core.errors import ConfigError, FailureKind
from rollart.core.events import Event
from rollart.core.scoring.document import TrajectoryDocument
from rollart.core.scoring.handle import Handler
from rollart.core.scoring.places import reward_place
from rollart.core.types import Verdict
from rollart.process.owner import live_processes
from rollart.runtimes.local.child_env import child_environment
from rollart.runtimes.local.gateway import Gateway
from rollart.runtimes.local.gateway_records import FunctionWish, Place
from rollart.testing.loopback import fc_platform, lambda_platform
from rollart.testing.loopback.apart import Apart
from rollart.testing.loopback.handlers import write_handler
from rollart.testing.loopback.server import HttpReply, HttpRequest, LoopbackServer
from rollart.testing.platform import told_document

RUN = "reward-security-test"

JUDGE = '''
import rollart as ra

def answer_of(trajectory):
    return trajectory.turns[-1].action

@ra.serverless(memory="128MB")
def careless(trajectory):
    """Evaluates what a model said, as nobody should."""
    said = answer_of(trajectory)
    try:
        return float(eval(said))
    except SyntaxError:
        return 0.0

def plain(trajectory):
    return 0.5
'''


class Silent:
    def __init__(self) -> None:
        self.told: list[Event] = []

    def emit(self, event: Event) -> None:
        self.told.append(event)


@dataclass(frozen=True, slots=True)
class Judge:
    """A function that is open at a gateway."""

    gateway: Gateway
    url: str

    async def ask(self, name: str, answer: str = "1", *, seconds: float = 30.0) -> Verdict:
        plain: dict[str, Any] = dict(told_document(f"lake/t/{name}"))
        plain["turns"][-1]["action"] = answer
        document = TrajectoryDocument.from_json(plain)
        return (await self.gateway.score(self.url, document, seconds=seconds)).verdict


Opened = Callable[..., AbstractAsyncContextManager[Judge]]


@pytest.fixture
def folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    monkeypatch.setenv("AWS_ACCESS_KEY_ID", lambda_platform.ACCESS_KEY_ID)
    monkeypatch.setenv("AWS_SECRET_ACCESS_KEY", "of-no-account")
    monkeypatch.setenv("AWS_EC2_METADATA_DISABLED", "true")
    monkeypatch.setenv("ALIBABA_CLOUD_ACCESS_KEY_ID", fc_platform.ACCESS_KEY_ID)
    monkeypatch.setenv("ALIBABA_CLOUD_ACCESS_KEY_SECRET", "of-no-account")
    monkeypatch.setenv("ROLLART_REWARD_TOKEN", "of-no-account")
    monkeypatch.delenv(HOSTS, raising=False)
    return write_handler(tmp_path / "judge", "judge:plain", JUDGE)


@pytest.fixture
def opened(folder: Path) -> Opened:
    @contextlib.asynccontextmanager
    async def make(*urls: str) -> AsyncIterator[Judge]:
        gateway = Gateway(
            children=child_environment(os.environ, RUN),
            python_path=(str(folder),),
            logs=folder,
            events=Silent(),
        )
        try:
            for url in urls:
                await gateway.open(FunctionWish(places=(Place(at=reward_place(url)),)))
            yield Judge(gateway, reward_place(urls[-1]).platform if urls else "")
        finally:
            await gateway.close()
        assert live_processes(RUN) == ()

    return make


CARELESS = "local://judge:careless?concurrency=1"


def children(pid: int) -> Iterator[int]:
    """All processes below `pid`."""
    for task in Path(f"/proc/{pid}/task").iterdir():
        for child in (task / "children").read_text().split():
            yield int(child)
            yield from children(int(child))


@pytest.mark.real
def test_an_answer_that_is_evaluated_reaches_no_network_and_no_secret(
    opened: Opened, monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    monkeypatch.setenv("MY_API_KEY", "s3cret")
    monkeypatch.chdir(tmp_path)

    async def main() -> None:
        server = await asyncio.start_server(lambda _, writer: writer.close(), "127.0.0.1", 0)
        port = server.sockets[0].getsockname()[1]
        socket.create_connection(("127.0.0.1", port)).close()  # from here it is open
        async with server, opened(CARELESS) as judge:
            touched = await judge.ask("touch", f'__import__("os").system("touch {tmp_path}/x")')
            assert touched.score not in (None, 0.0)  # it ran, and could not
            beside = '__import__("os").system("touch x") or __import__("os").path.exists("x")'
            assert await judge.ask("beside", beside) == Verdict(score=1.0)
            gone = '__import__("os").path.exists("x")'
            assert await judge.ask("gone", gone) == Verdict(score=0.0)
            poison = 'setattr(__import__("judge"), "answer_of", lambda t: "0.99") or 1'
            assert await judge.ask("poison", poison) == Verdict(score=1.0)
            for number in range(10):
                assert await judge.ask(f"next-{number}", "0.25") == Verdict(score=0.25)
            called = await judge.ask(
                "network", f'__import__("socket").create_connection(("127.0.0.1", {port}), 5)'
            )
            assert called.failure is FailureKind.REWARD_ERROR
            assert "OSError" in called.reason
            fetched = await judge.ask(
                "fetch",
                f'__import__("urllib.request").request.urlopen("http://127.0.0.1:{port}/")',
            )
            assert fetched.failure is FailureKind.REWARD_ERROR
            names = 'any(n.endswith(("KEY", "TOKEN")) for n in __import__("os").environ)'
            assert await judge.ask("secrets", names) == Verdict(score=0.0)
            for number in range(3):
                assert await judge.ask(f"after-{number}", "0.25") == Verdict(score=0.25)

    asyncio.run(main())
    assert list(tmp_path.glob("x")) == []


@pytest.mark.real
@pytest.mark.parametrize(
    ("answer", "failure"),
    [
        ("len(bytearray(1 << 30))", FailureKind.REWARD_ERROR),
        ("sum(range(10**13))", FailureKind.REWARD_TIMEOUT),
        ('__import__("time").sleep(1000)', FailureKind.REWARD_TIMEOUT),
        ('__import__("os").system("sleep 1000")', FailureKind.REWARD_TIMEOUT),
        ('[__import__("os").fork(), __import__("time").sleep(1000)]', FailureKind.REWARD_TIMEOUT),
        ('__import__("os")._exit(0)', FailureKind.REWARD_ERROR),
        ('__import__("os").kill(__import__("os").getpid(), 9)', FailureKind.REWARD_ERROR),
    ],
)
def test_an_answer_that_takes_memory_time_or_processes_costs_its_own_reward(
    opened: Opened, answer: str, failure: FailureKind
) -> None:
    async def main() -> None:
        async with opened(CARELESS) as judge:
            began = time.monotonic()
            assert (await judge.ask("hostile", answer, seconds=4.0)).failure is failure
            assert time.monotonic() - began < 8.0
            for number in range(3):
                assert await judge.ask(f"after-{number}", "0.25") == Verdict(score=0.25)

    asyncio.run(main())


@pytest.mark.real
def test_processes_that_an_answer_leaves_behind_end_with_the_run(opened: Opened) -> None:
    leaves = '__import__("subprocess").Popen(["sleep", "1000"], start_new_session=True) and 1'

    async def main() -> None:
        async with opened(CARELESS) as judge:
            assert await judge.ask("leaves", leaves) == Verdict(score=1.0)

    asyncio.run(main())  # which looks for processes of the run at its end


@pytest.mark.real
def test_no_reward_goes_to_an_address_that_the_operator_did_not_name(
    opened: Opened, monkeypatch: pytest.MonkeyPatch
) -> None:
    reached: list[str] = []

    async def answer(request: HttpRequest) -> HttpReply:
        reached.append(request.path)
        return HttpReply(body=b"{}")

    async def main() -> None:
        async with LoopbackServer(answer) as private, opened() as judge:
            port = private.port
            for url in (
                f"http://127.0.0.1:{port}/score",
                f"http://localhost:{port}/score",
                f"http://[::1]:{port}/score",
                f"http://[::ffff:127.0.0.1]:{port}/score",
                f"http://2130706433:{port}/score",
                f"http://0x7f000001:{port}/score",
                f"http://0177.0.0.1:{port}/score",
                f"http://0.0.0.0:{port}/score",
                "http://169.254.169.254/latest/meta-data",
                "http://2852039166/latest/meta-data",
                "http://100.100.100.200/latest/meta-data",
                "http://metadata.google.internal/computeMetadata/v1/",
                f"lambda://judge?region=eu-west-1&endpoint=http://127.0.0.1:{port}",
                f"fc://judge?endpoint=http://127.0.0.1:{port}",
                "serve://judge?address=127.0.0.1:6379",
            ):
                with pytest.raises(ConfigError):
                    await judge.gateway.open(FunctionWish(places=(Place(at=reward_place(url)),)))
        for url in ("file:///etc/passwd", "gopher://127.0.0.1/", "ftp://127.0.0.1/x"):
            with pytest.raises(ValueError, match="must be a URL of"):
                reward_place(url)

    monkeypatch.setenv(HOSTS, "judge.example,*.fc.aliyuncs.com")
    asyncio.run(main())
    assert reached == []


@pytest.mark.real
def test_a_host_that_the_job_names_is_asked_and_where_it_redirects_to_is_not(
    opened: Opened,
) -> None:
    inner: list[str] = []
    handler = Handler(lambda trajectory: 0.5, path="judge:plain", version="v1")
    moved = False

    async def private(request: HttpRequest) -> HttpReply:
        inner.append(request.path)
        return HttpReply(body=handler.handle(request.body))

    async def main() -> None:
        async with LoopbackServer(private) as behind:

            async def allowed(request: HttpRequest) -> HttpReply:
                if moved:
                    return HttpReply(status=307, headers={"Location": f"{behind.url}/in"})
                return HttpReply(body=handler.handle(request.body))

            nonlocal moved
            async with LoopbackServer(allowed) as outer, opened(f"{outer.url}/score") as judge:
                assert await judge.ask("before") == Verdict(score=0.5)
                moved = True
                verdict = await judge.ask("after")
                assert verdict.failure is FailureKind.REWARD_ERROR
                assert "redirect" in verdict.reason

    asyncio.run(main())
    assert inner == []


@pytest.mark.real
@pytest.mark.parametrize("kind", ["local", "framework", "lambda", "fc"])
def test_a_proxy_that_answers_nobody_keeps_no_reward_of_this_machine_from_its_function(
    kind: str, folder: Path, opened: Opened, monkeypatch: pytest.MonkeyPatch
) -> None:
    for name in ("HTTP_PROXY", "HTTPS_PROXY", "ALL_PROXY"):
        monkeypatch.setenv(name, "http://127.0.0.1:9")
        monkeypatch.setenv(name.lower(), "http://127.0.0.1:9")
    for name in ("NO_PROXY", "no_proxy"):
        monkeypatch.delenv(name, raising=False)

    async def main(url: str) -> None:
        async with opened(url) as judge:
            assert await judge.ask("one") == Verdict(score=0.5)

    if kind == "local":
        asyncio.run(main("local://judge:plain"))
        return
    with Apart(kind, folder) as platform:
        asyncio.run(
            main(
                {
                    "framework": platform.url,
                    "lambda": f"lambda://judge?region=loopback-1&endpoint={platform.url}",
                    "fc": f"fc://judge?endpoint={platform.url}",
                }[kind]
            )
        )


@pytest.mark.real
def test_a_thousand_rewards_at_once_are_a_thousand_calls_under_way(opened: Opened) -> None:
    many = 1024
    handler = Handler(lambda trajectory: 0.5, path="judge:plain", version="v1")
    there = 0
    all_there = asyncio.Event()

    async def meets(request: HttpRequest) -> HttpReply:
        """No call is answered before all of them are there."""
        nonlocal there
        if b'"health"' not in request.body[:80]:
            there += 1
            if there == many:
                all_there.set()
            await all_there.wait()
        return HttpReply(body=handler.handle(request.body))

    async def main() -> None:
        async with LoopbackServer(meets) as server:
            async with opened(f"{server.url}/score?concurrency={many}") as judge:
                asked = (judge.ask(f"{number}", seconds=60.0) for number in range(many))
                verdicts = await asyncio.gather(*asked)
                assert verdicts == [Verdict(score=0.5)] * many
                assert there == many
            await server.unconnected()

    asyncio.run(main())


@pytest.mark.real
def test_no_process_of_a_run_with_serverless_rewards_listens_anywhere(opened: Opened) -> None:
    async def main() -> None:
        async with opened("local://judge:plain") as judge:
            assert await judge.ask("one") == Verdict(score=0.5)
            below = set(children(os.getpid()))
            assert len(below) >= 3  # the gateway, its fork server, a function's process
            assert [name for pid in below for name in listening(pid)] == []
            with socket.create_server(("127.0.0.1", 0)) as server:  # it would be seen
                port = server.getsockname()[1]
                assert f"0100007F:{port:04X}" in set(listening(os.getpid()))

    asyncio.run(main())


def listening(pid: int) -> Iterator[str]:
    """Addresses at which a process waits for connections; one that has ended has none."""
    with contextlib.suppress(FileNotFoundError, ProcessLookupError):
        yield from waits_at(pid)


def waits_at(pid: int) -> Iterator[str]:
    held: set[str] = set()
    for link in Path(f"/proc/{pid}/fd").iterdir():
        with contextlib.suppress(FileNotFoundError):
            held.add(str(link.readlink()))
    for table in ("tcp", "tcp6"):
        for line in Path(f"/proc/{pid}/net/{table}").read_text().splitlines()[1:]:
            fields = line.split()
            if fields[3] == "0A" and f"socket:[{fields[9]}]" in held:
                yield fields[1]
