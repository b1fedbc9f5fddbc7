"""Functions in pools of processes of this machine that come and go."""

import asyncio
import contextlib
import json
import os
import subprocess
import tempfile
import time
from collections.abc import AsyncIterator, Callable
from contextlib import AbstractAsyncContextManager
from pathlib import Path
from typing import Any

import pytest

from rollart.backends.rewards.platform import Fault, PlatformFault
from rollart.core.documents import document_of
from rollart.core.scoring.wire import Answer, Request, decode_answer, encode_request
from rollart.process.owner import live_processes
from rollart.runtimes.local.child_env import child_environment
from rollart.runtimes.local.local_platform import LocalPlatform
from rollart.testing.samples import sample_trajectory

RUN = "local-platform-test"

JUDGE = """
import asyncio, os, socket, time
import rollart as ra

def score(trajectory):
    return trajectory.tokens / 10

async def soon(trajectory):
    await asyncio.sleep(0.001)
    return ra.Verdict(score=1.0, components=(("style", 0.5),))

def hang(trajectory):
    time.sleep(1000)

def hold(trajectory):
    sum(range(10**12))

def crash(trajectory):
    os._exit(7)

def stumble(trajectory):
    raise ValueError("no")

def leave(trajectory):
    raise SystemExit("bye")

def nothing(trajectory):
    return object()

def nan(trajectory):
    return float("nan")

def text(trajectory):
    return "good"

@ra.serverless(network=True, reuse=True)
def meet(trajectory):
    folder = trajectory.task.payload["folder"]
    open(f"{folder}/met-{os.getpid()}", "w").close()
    while sum(name.startswith("met-") for name in os.listdir(folder)) < 2:
        time.sleep(0.02)
    return float(os.getpid())

@ra.serverless(memory="64MB")
def hungry(trajectory):
    return float(len(bytearray(512 << 20)))

def burn(trajectory):
    import hashlib, threading
    def work():
        while True:
            hashlib.sha256(bytes(1 << 20)).digest()  # lets go of the interpreter
    for _ in range(8):
        threading.Thread(target=work, daemon=True).start()
    time.sleep(1000)

def calls_out(trajectory):
    with socket.create_connection(("127.0.0.1", trajectory.task.payload["port"]), timeout=5):
        return 1.0

@ra.serverless(network=True)
def may_call_out(trajectory):
    return calls_out(trajectory)

def secret(trajectory):
    known = [name for name in os.environ if "KEY" in name or "TOKEN" in name]
    return ra.Verdict(score=float(len(known)), components=tuple((name, 1.0) for name in known))

KEPT = []

def remembers(trajectory):
    KEPT.append(trajectory.id)
    return float(len(KEPT))

@ra.serverless(reuse=True)
def may_remember(trajectory):
    return remembers(trajectory)

def writes(trajectory):
    open("here", "w").close()
    os.makedirs("below/this")
    refused = 0
    for path in (*trajectory.task.payload["outside"], "../outside"):
        try:
            open(path, "w").close()
        except PermissionError:
            refused += 1
    try:
        os.remove(trajectory.task.payload["mine"])
    except PermissionError:
        refused += 1
    return float(refused)

def runs_what_it_is_given(trajectory):
    import subprocess, sys
    command = [sys.executable, "-c", trajectory.task.payload["code"]]
    done = subprocess.run(command, capture_output=True)
    assert done.returncode == 0, done.stderr
    return float(done.stdout)

def looks_around(trajectory):
    import glob
    seen = 0
    for path in glob.glob("/proc/[0-9]*/environ"):
        try:
            seen += b"in-its-environment" in open(path, "rb").read()
        except OSError:
            pass
    return float(seen)

@ra.serverless(network=True)
def may_look_around(trajectory):
    return looks_around(trajectory)

def sockets(trajectory):
    held = 0
    for fd in os.listdir("/proc/self/fd"):
        try:
            held += os.readlink(f"/proc/self/fd/{fd}").startswith("socket:")
        except OSError:
            pass
    return float(held)

def digs(trajectory):
    os.mkdir("closed")
    os.chmod("closed", 0)
    for _ in range(1500):
        os.mkdir("d")
        os.chdir("d")
    return 1.0

def where(trajectory):
    import tempfile
    open("left", "w").close()
    os.makedirs("below/this")
    assert os.listdir(os.getcwd()) and tempfile.gettempdir() == os.getcwd()
    return ra.Verdict(score=1.0, reason=os.getcwd())

def leaves_one(trajectory):
    import subprocess
    subprocess.Popen(["sleep", trajectory.task.payload["nap"]], start_new_session=True)
    return 1.0

def forks(trajectory):
    if os.fork() == 0:
        time.sleep(1000)
    time.sleep(1000)
"""

SLOW = """
import os, time

with open(__file__ + ".log", "a") as log:
    log.write("begun ")
time.sleep(1.5)

def pid(trajectory):
    return float(os.getpid())

def naps(trajectory):
    time.sleep(0.5)
    return 1.0
"""

Functions = Callable[..., AbstractAsyncContextManager[LocalPlatform]]
Ended = list[tuple[str, float, float]]


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    (tmp_path / "judge.py").write_text(JUDGE)
    (tmp_path / "slow.py").write_text(SLOW)
    return tmp_path


@pytest.fixture
def ended() -> Ended:
    return []


@pytest.fixture
def function(folder: Path, ended: Ended) -> Functions:
    @contextlib.asynccontextmanager
    async def make(
        name: str, module: str = "judge", most: int = 8, idle_s: float | None = 30.0
    ) -> AsyncIterator[LocalPlatform]:
        variables = {
            "PATH": "/usr/bin",
            "AWS_SECRET_ACCESS_KEY": "s3cret",
            "ROLLART_REWARD_TOKEN": "s3cret",
        }
        made = LocalPlatform(
            f"{module}:{name}",
            version="v1",
            env=child_environment(variables, RUN),
            python_path=(str(folder),),
            log_file=folder / "functions.log",
            most=most,
            idle_s=idle_s,
            on_instance=lambda name, begin, end: ended.append((name, begin, end)),
        )
        try:
            yield made
        finally:
            await made.close()

    return make


def body(key: str = "k", **payload: Any) -> bytes:
    document = document_of(sample_trajectory()).to_json()
    document["task"]["payload"] = payload
    return encode_request(Request(key=key, seconds=20, trajectory=document))


async def called(platform: LocalPlatform, *, seconds: float = 20.0, **payload: Any) -> Answer:
    return decode_answer(await platform.call(body(**payload), key="k", seconds=seconds))


async def score_of(platform: LocalPlatform, **payload: Any) -> float:
    answer = await called(platform, **payload)
    assert answer.verdict is not None, answer.error
    assert answer.verdict.score is not None
    return answer.verdict.score


async def until(so: Callable[[], bool]) -> None:
    async with asyncio.timeout(30):
        while not so():  # noqa: ASYNC110  what is waited for here tells nobody
            await asyncio.sleep(0.02)


async def wait_for_processes(platform: LocalPlatform, number: int) -> None:
    await until(lambda: platform.processes == number)


def test_a_function_is_called_with_the_document_and_answers_who_it_is(function: Functions) -> None:
    async def main() -> None:
        async with function("score") as score:
            first, second = await called(score), await called(score)
            assert first.verdict is not None
            assert first.verdict.score == 0.9
            assert (first.key, first.function, first.version) == ("k", "judge:score", "v1")
            assert (first.cold, second.cold) == (True, False)
            assert first.instance == second.instance
        async with function("soon") as soon:
            verdict = (await called(soon)).verdict
            assert verdict is not None
            assert verdict.components == (("style", 0.5),)

    asyncio.run(main())


def test_a_pool_starts_at_zero_grows_with_the_load_and_goes_back_to_zero(
    function: Functions, tmp_path: Path, ended: Ended
) -> None:
    async def main() -> None:
        async with function("meet", most=3, idle_s=0.3) as meet:
            assert meet.processes == 0
            where = {"folder": str(tmp_path)}  # the first ends only when a second process is there
            pids = await asyncio.gather(*(score_of(meet, **where) for _ in range(4)))
            assert 1 < len(set(pids)) <= 3
            await wait_for_processes(meet, 0)
            await until(lambda: len(ended) >= len(set(pids)))  # killed, and then reaped
            assert len(ended) <= 3
            assert all(end - begin >= 0.3 for _, begin, end in ended)
            assert await score_of(meet, **where) not in pids

    asyncio.run(main())
    assert live_processes(RUN) == ()


def test_how_long_an_idle_process_is_kept_goes_by_what_another_costs_now(
    function: Functions, ended: Ended
) -> None:
    async def main() -> None:
        async with function("naps", "slow", idle_s=None) as naps:
            assert await asyncio.gather(score_of(naps), score_of(naps)) == [1.0, 1.0]
            answered = asyncio.get_running_loop().time()
            await wait_for_processes(naps, 0)
        assert len(ended) == 2
        # The module took 1.5 s to load, once; the second process was a fork of what it left.
        assert max(end for _, _, end in ended) < answered + 1.5

    asyncio.run(main())


def test_a_start_longer_than_a_call_may_take_serves_a_later_call(
    function: Functions, folder: Path
) -> None:
    async def main() -> None:
        async with function("pid", "slow", idle_s=0.3) as slow:
            faults: list[PlatformFault] = []
            answered = None
            while answered is None and len(faults) < 30:
                try:
                    answered = await called(slow, seconds=1.0)
                except PlatformFault as fault:
                    faults.append(fault)
            assert answered is not None, "it never started"
            assert {fault.fault for fault in faults} == {Fault.TIMEOUT}
            assert str(faults[0]) == "slow:pid: no process was free within 1 s"
            await wait_for_processes(slow, 0)

    asyncio.run(main())


@pytest.mark.parametrize("name", ["hang", "hold", "burn", "forks"])
def test_a_function_that_hangs_is_killed_with_its_children_and_costs_one_call(
    function: Functions, name: str
) -> None:
    async def main() -> None:
        async with function(name) as hung:
            began = time.monotonic()
            with pytest.raises(PlatformFault) as caught:
                await called(hung, seconds=3.0)
            assert caught.value.fault in (Fault.TIMEOUT, Fault.CRASHED)
            assert time.monotonic() - began < 4.5
            assert hung.processes == 0

    asyncio.run(main())
    assert live_processes(RUN) == ()


@pytest.mark.parametrize(
    ("name", "told"),
    [
        ("stumble", "ValueError: no"),
        ("leave", "SystemExit: bye"),
        ("nothing", "TypeError: a reward returned object; return a float or a rollart Verdict"),
        ("nan", "ValueError: a reward returned nan; return a finite number"),
        ("text", "TypeError: a reward returned str; return a float or a rollart Verdict"),
        ("hungry", "MemoryError: "),
    ],
)
def test_a_function_that_fails_costs_one_call_and_no_process(
    function: Functions, name: str, told: str
) -> None:
    async def main() -> None:
        async with function(name) as failing:
            first, second = await called(failing), await called(failing)
            assert (first.error, first.verdict) == (told, None)
            assert second.instance == first.instance

    asyncio.run(main())


def test_a_crash_costs_one_call_and_the_next_has_another_process(function: Functions) -> None:
    async def main() -> None:
        async with function("crash") as crash:
            for _ in range(2):
                with pytest.raises(PlatformFault, match=r"judge:crash: .*exit code 7") as caught:
                    await called(crash)
                assert caught.value.fault is Fault.CRASHED

    asyncio.run(main())


def test_a_function_that_is_not_there_is_no_crash(function: Functions) -> None:
    async def main() -> None:
        async with function("missing") as missing:
            with pytest.raises(
                PlatformFault, match=r"cannot be started: .*has no 'missing'"
            ) as told:
                await called(missing)
            assert told.value.fault is Fault.UNAVAILABLE

    asyncio.run(main())


def test_a_function_has_no_network_unless_it_declares_it(function: Functions) -> None:
    async def main() -> None:
        server = await asyncio.start_server(lambda _, writer: writer.close(), "127.0.0.1", 0)
        port = server.sockets[0].getsockname()[1]
        async with server, function("calls_out") as alone, function("may_call_out") as open_one:
            assert "OSError" in (await called(alone, port=port)).error
            assert await score_of(open_one, port=port) == 1.0

    asyncio.run(main())


def test_nothing_that_an_answer_does_to_its_scorer_is_there_for_the_next(
    function: Functions,
) -> None:
    async def main() -> None:
        async with function("remembers", most=1) as forgetful, function("may_remember") as keeps:
            assert [await score_of(forgetful) for _ in range(3)] == [1.0, 1.0, 1.0]
            assert [await score_of(keeps) for _ in range(3)] == [1.0, 2.0, 3.0]

    asyncio.run(main())


def test_a_function_that_runs_an_answer_scores_the_next_as_if_it_had_not(
    function: Functions,
) -> None:
    poison = "open('json.py', 'w').write('dumps = lambda it: 1'); open('x', 'w'); print(0)"
    right = "import json, os; print(float(json.dumps([]) == '[]' and not os.listdir()))"

    async def main() -> None:
        async with function("runs_what_it_is_given", most=1) as runs:
            assert await score_of(runs, code=right) == 1.0
            assert await score_of(runs, code=poison) == 0.0
            assert [await score_of(runs, code=right) for _ in range(10)] == [1.0] * 10

    asyncio.run(main())


def test_a_call_has_a_folder_of_its_own_that_is_gone_with_it(function: Functions) -> None:
    async def main() -> None:
        async with function("where", most=2, idle_s=0.1) as where:
            answers = await asyncio.gather(*(called(where) for _ in range(6)))
            folders = [answer.verdict.reason for answer in answers if answer.verdict is not None]
            assert len(set(folders)) == 6
            root = Path(folders[0]).parent.parent
            await wait_for_processes(where, 0)
            await until(lambda: not list(root.iterdir()))  # a process's folder goes after it
        assert not root.exists()

    asyncio.run(main())


def test_a_call_cannot_speak_for_another(function: Functions) -> None:
    async def main() -> None:
        async with function("sockets") as sockets:
            assert await score_of(sockets) == 0.0  # it holds no way to the owner

    asyncio.run(main())


def test_what_a_call_digs_and_closes_is_gone_and_costs_the_next_call_nothing(
    function: Functions, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    (tmp_path / "temporary").mkdir()
    monkeypatch.setattr(tempfile, "tempdir", str(tmp_path / "temporary"))

    async def main() -> None:
        async with function("digs", most=1) as digs:
            assert [await score_of(digs) for _ in range(3)] == [1.0] * 3

    asyncio.run(main())
    assert list((tmp_path / "temporary").iterdir()) == []


def test_a_function_without_network_sees_no_other_processs_environment(
    function: Functions,
) -> None:
    async def main() -> None:
        async with function("may_look_around") as may_look:
            assert await score_of(may_look) >= 1.0  # it would be found
        async with function("looks_around") as looks:
            assert await score_of(looks) == 0.0

    secret = {**os.environ, "SECRET": "in-its-environment"}
    with subprocess.Popen(["sleep", "60"], env=secret) as other:
        try:
            asyncio.run(main())
        finally:
            other.kill()


def test_a_function_without_network_writes_in_a_folder_of_its_own_only(
    function: Functions, folder: Path
) -> None:
    mine = folder / "mine"
    mine.write_text("kept")
    outside = [str(folder / "outside"), str(folder.parent / "outside")]

    async def main() -> None:
        async with function("writes") as writes:
            assert await score_of(writes, outside=outside, mine=str(mine)) == 4.0

    asyncio.run(main())
    assert mine.read_text() == "kept"
    assert not (folder / "outside").exists()


def test_what_a_call_leaves_running_in_a_session_of_its_own_ends_with_it(
    function: Functions,
) -> None:
    async def main() -> None:
        async with function("leaves_one") as leaves:
            assert [await score_of(leaves, nap=NAP) for _ in range(2)] == [1.0, 1.0]
            await until(lambda: not naps())  # the answer does not wait for that

    asyncio.run(main())


NAP = "98765.4"


def naps() -> list[Path]:
    """Processes that sleep for so long."""
    found: list[Path] = []
    for file in Path("/proc").glob("[0-9]*/cmdline"):
        with contextlib.suppress(OSError):
            if NAP.encode() in file.read_bytes():
                found.append(file)
    return found


def test_no_secret_reaches_a_function(function: Functions) -> None:
    async def main() -> None:
        async with function("secret") as secret:
            assert (await score_of(secret)) == 0.0

    asyncio.run(main())


def test_a_document_of_ten_megabytes_is_scored(function: Functions) -> None:
    async def main() -> None:
        async with function("score") as score:
            assert await score_of(score, text="x" * 10_000_000) == 0.9
            large = json.dumps("x" * 100_000_000).encode()
            assert len(large) > score.limits.body_bytes

    asyncio.run(main())


def test_closing_ends_a_start_that_nobody_waits_for_any_more(function: Functions) -> None:
    async def main() -> None:
        async with function("pid", "slow") as slow:
            with pytest.raises(PlatformFault):
                await called(slow, seconds=0.1)
            began = time.monotonic()
            await slow.close()
            assert time.monotonic() - began < 5.0
            with pytest.raises(PlatformFault, match="closed") as told:
                await called(slow, seconds=0.5)
            assert told.value.fault is Fault.UNAVAILABLE

    asyncio.run(main())
    assert live_processes(RUN) == ()
