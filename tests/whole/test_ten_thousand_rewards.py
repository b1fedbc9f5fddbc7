"""Ten thousand rewards through each platform: memory stays flat, and nothing is left behind."""

import asyncio
import gc
import logging
import os
import re
import subprocess
import sys
import time
import uuid
from collections.abc import Awaitable, Callable, Iterable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path

import pytest

from rollart.core.events import Event, RewardCalled
from rollart.core.scoring.document import TrajectoryDocument
from rollart.core.scoring.places import reward_place
from rollart.process.owner import live_processes
from rollart.runtimes.local.child_env import child_environment
from rollart.runtimes.local.gateway import Gateway
from rollart.runtimes.local.gateway_records import FunctionWish, Place
from rollart.testing.loopback import fc_platform, lambda_platform
from rollart.testing.loopback.apart import Apart
from rollart.testing.loopback.handlers import write_handler
from rollart.testing.loopback.instances import Scaling
from rollart.testing.platform import told_document

RUN = "ten-thousand-test"
REWARDS = 10_000
SERVE_REWARDS = 2_000
"""On Ray Serve, where ten thousand take minutes on two cores."""

AT_ONCE = 32
MEBIBYTE = 1 << 20
GROWTH = 4 * MEBIBYTE
"""Bytes that a process may grow by in the second half: 800 a reward, less than any document.

It may grow more before: the gateway keeps the verdicts of the latest 4096 trajectories.
"""

JUDGE = """
def score(trajectory):
    return trajectory.task.payload["value"] * 2
"""
RAY_CHILD = Path(__file__).with_name("reward_ray_child.py")


class Counts:
    """Takes events and keeps how many verdicts there were, and nothing else."""

    def __init__(self) -> None:
        self.verdicts = 0
        self.others: list[Event] = []

    def emit(self, event: Event) -> None:
        if isinstance(event, RewardCalled) and event.outcome == "verdict":
            self.verdicts += 1
        else:
            self.others.append(event)


@dataclass(frozen=True, slots=True, kw_only=True)
class Usage:
    """Of one process."""

    bytes: int
    descriptors: int
    sockets: int


def usage(pid: int | str) -> Usage:
    pages = int(Path(f"/proc/{pid}/statm").read_text().split()[1])
    targets: list[str] = []
    for link in Path(f"/proc/{pid}/fd").iterdir():
        try:
            targets.append(str(link.readlink()))
        except FileNotFoundError:
            continue  # the one that lists them
    return Usage(
        bytes=pages * os.sysconf("SC_PAGE_SIZE"),
        descriptors=len(targets),
        sockets=sum(target.startswith("socket:") for target in targets),
    )


def connections(port: int) -> int:
    """To `port` of this machine, held by whoever began them."""
    lines = Path("/proc/net/tcp").read_text().splitlines()[1:]
    remote = [(line.split()[2], line.split()[3]) for line in lines]
    return sum(address.endswith(f":{port:04X}") and state == "01" for address, state in remote)


def children() -> set[int]:
    """Processes that this one started and that still are."""
    found: set[int] = set()
    for task in Path("/proc/self/task").iterdir():
        found |= {int(pid) for pid in (task / "children").read_text().split()}
    return found


@contextmanager
def deployed(kind: str, folder: Path) -> Iterator[str]:
    """The URL of the function on a platform that runs in processes of its own."""
    scaling = Scaling(limit=AT_ONCE, idle_s=60.0)
    if kind == "local":
        yield "local://judge:score?concurrency=2&idle=30"
    elif kind == "lambda":
        with Apart("lambda", folder, scaling) as platform:
            yield f"lambda://judge?region=loopback-1&endpoint={platform.url}&concurrency=4"
    elif kind == "fc":
        with Apart("fc", folder, scaling) as platform:
            yield f"fc://judge?region=loopback-1&endpoint={platform.url}&concurrency=4"
    elif kind == "http":
        with Apart("framework", folder, threads=AT_ONCE) as platform:
            yield f"{platform.url}?concurrency=8"
    else:
        with ray_cluster(folder) as address:
            yield f"serve://judge?address={address}&concurrency=8"


@contextmanager
def ray_cluster(folder: Path) -> Iterator[str]:
    pytest.importorskip("ray")
    environment = {
        **os.environ,
        "RAY_USAGE_STATS_ENABLED": "0",
        "RAY_SERVE_LOG_TO_STDERR": "0",
        "PYTHONPATH": str(folder),
    }
    with subprocess.Popen(
        [sys.executable, str(RAY_CHILD)],
        cwd=folder,
        env=environment,
        stdin=subprocess.PIPE,
        stdout=subprocess.PIPE,
        stderr=subprocess.DEVNULL,
        text=True,
    ) as child:
        assert child.stdout is not None
        lines = (line.split() for line in child.stdout)
        try:
            yield next(words[1] for words in lines if words[:1] == ["address"])
        finally:
            child.communicate(timeout=60)  # closes its input, at which it ends


@pytest.fixture
def folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """With the function for every runtime; the environment has keys that loopbacks take."""
    monkeypatch.setenv("AWS_ACCESS_KEY_ID", lambda_platform.ACCESS_KEY_ID)
    monkeypatch.setenv("AWS_SECRET_ACCESS_KEY", "of-no-account")
    monkeypatch.setenv("AWS_EC2_METADATA_DISABLED", "true")
    monkeypatch.setenv("ALIBABA_CLOUD_ACCESS_KEY_ID", fc_platform.ACCESS_KEY_ID)
    monkeypatch.setenv("ALIBABA_CLOUD_ACCESS_KEY_SECRET", "of-no-account")
    monkeypatch.setenv("RAY_AUTH_MODE", "token")  # Ray's own clusters take no one else's calls
    monkeypatch.setenv("RAY_AUTH_TOKEN", uuid.uuid4().hex)
    (tmp_path / "temporary").mkdir()
    monkeypatch.setenv("TMPDIR", str(tmp_path / "temporary"))  # what a gateway leaves is seen
    return write_handler(tmp_path / "judge", "judge:score", JUDGE)


def numbered(number: int, **payload: object) -> TrajectoryDocument:
    plain = told_document(f"lake/task-{number}/g{number}.0.0", value=float(number), **payload)
    return TrajectoryDocument.from_json(plain)


class Gauge:
    """A gateway in use: rewards are sent, and what it and this process use is read."""

    def __init__(self, gateway: Gateway, pid: int, url: str) -> None:
        self._gateway = gateway
        self._pid = pid
        self._url = url

    async def score(self, numbers: Iterable[int], **payload: object) -> None:
        """Trajectories by number, `AT_ONCE` at a time; each has to get its own verdict."""
        left = iter(numbers)

        async def work() -> None:
            for number in left:
                document = numbered(number, **payload)
                outcome = await self._gateway.score(self._url, document, seconds=60.0)
                assert outcome.verdict.score == 2.0 * number, outcome

        async with asyncio.TaskGroup() as group:
            for _ in range(AT_ONCE):
                group.create_task(work())

    def read(self) -> dict[str, Usage]:
        gc.collect()
        return {"gateway": usage(self._pid), "here": usage("self")}


def play(url: str, folder: Path, scene: Callable[[Gauge], Awaitable[None]]) -> int:
    """Verdicts given in `scene`; whatever its gateway began has ended after it."""

    async def main() -> int:
        events, before = Counts(), (children(), usage("self").descriptors)
        gateway = Gateway(
            children=child_environment({"PATH": "/usr/bin"}, RUN),
            python_path=(str(folder),),
            logs=folder,
            events=events,
        )
        try:
            at = reward_place(url)
            await gateway.open(FunctionWish(places=(Place(at=at, version="v1"),)))
            (pid,) = children() - before[0]
            await scene(Gauge(gateway, pid, at.platform))
            assert bool(left_files()) == url.startswith("local")
            if port := port_of(url):
                assert 0 < connections(port) <= AT_ONCE
        finally:
            await gateway.close()
        assert (children(), usage("self").descriptors) == before
        return events.verdicts

    verdicts = asyncio.run(main())
    assert live_processes(RUN) == ()
    assert left_files() == []
    if port := port_of(url):
        assert connections(port) == 0
    return verdicts


def left_files() -> list[Path]:
    """Of local functions, which have the test's own temporary folder."""
    return list(Path(os.environ.get("TMPDIR", "/nowhere")).glob("rollart-function-*"))


def port_of(url: str) -> int | None:
    """Of the platform that it leads to, where that is a server of HTTP."""
    found = re.search(r"127\.0\.0\.1:(\d+)", url)
    return None if found is None or url.startswith("serve") else int(found[1])


@pytest.mark.real
@pytest.mark.timeout(600)
@pytest.mark.parametrize("kind", ["local", "http", "lambda", "fc", "serve"])
def test_ten_thousand_rewards_leave_memory_flat_and_no_process_connection_or_file(
    kind: str, folder: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    if kind == "serve":
        monkeypatch.delenv("TMPDIR")  # too long for the paths of Ray's sockets
    rewards = SERVE_REWARDS if kind == "serve" else REWARDS

    async def scene(gauge: Gauge) -> None:
        began = time.monotonic()
        await gauge.score(range(rewards // 10))
        first = gauge.read()
        await gauge.score(range(rewards // 10, rewards // 2))
        warm = gauge.read()
        await gauge.score(range(rewards // 2, rewards))
        last = gauge.read()
        rate = rewards / (time.monotonic() - began)
        told = {
            who: [round(at[who].bytes / MEBIBYTE, 1) for at in (first, warm, last)] for who in first
        }
        logging.getLogger(__name__).info("%s: %.0f a second, MiB: %s", kind, rate, told)
        for who in last:
            assert last[who].bytes - warm[who].bytes < GROWTH, told
            assert last[who].bytes - first[who].bytes < 4 * GROWTH, told
            assert last[who].descriptors <= warm[who].descriptors + 2
            assert last[who].descriptors <= first[who].descriptors + 8

    with deployed(kind, folder) as url:
        assert play(url, folder, scene) == rewards


@pytest.mark.real
@pytest.mark.parametrize("kind", ["local", "http"])
def test_rewards_of_a_megabyte_keep_nothing_of_it(kind: str, folder: Path) -> None:
    text = "x" * 1_000_000

    async def scene(gauge: Gauge) -> None:
        await gauge.score(range(50), text=text)
        warm = gauge.read()
        await gauge.score(range(50, 250), text=text)
        last = gauge.read()
        for who in last:
            assert last[who].bytes - warm[who].bytes < 20 * MEBIBYTE  # of 200 that were sent

    with deployed(kind, folder) as url:
        assert play(url, folder, scene) == 250
