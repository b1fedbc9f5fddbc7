"""Faults that real runtimes provoke, through the gateway: each costs what it must, nothing is lost.

AWS Lambda is its real runtime, and HTTP the real functions-framework, on this machine's loopback.
"""

import asyncio
import contextlib
from collections import Counter
from collections.abc import AsyncIterator, Callable, Iterator
from contextlib import AbstractAsyncContextManager, contextmanager
from pathlib import Path
from typing import Any

import pytest

from rollart.backends.rewards.calling.records import Outcome
from rollart.core.errors import ConfigError, FailureKind
from rollart.core.events import Event, PlatformDown, PlatformUp, RewardCalled
from rollart.core.scoring.document import TrajectoryDocument
from rollart.core.scoring.places import reward_place
from rollart.process.owner import live_processes
from rollart.runtimes.local.child_env import child_environment
from rollart.runtimes.local.gateway import Gateway
from rollart.runtimes.local.gateway_records import FunctionWish, Place
from rollart.testing.loopback import lambda_platform
from rollart.testing.loopback.apart import Apart
from rollart.testing.loopback.handlers import write_handler
from rollart.testing.loopback.instances import Scaling
from rollart.testing.platform import told_document

pytestmark = [pytest.mark.real, pytest.mark.timeout(180)]

RUN = "reward-faults-test"
LOCAL = "local://judge:score?concurrency=4"
JUDGE = """
from rollart.testing.platform import score_as_told

def score(trajectory):
    if "nan" in trajectory.task.payload:
        return float("nan")
    return score_as_told(trajectory)
"""


class Calls:
    """The gateway in use, and what it told."""

    def __init__(self) -> None:
        self.told: list[Event] = []
        self.gateway: Gateway | None = None
        self.url = ""

    def emit(self, event: Event) -> None:
        self.told.append(event)

    async def score(self, name: str, *, seconds: float = 40.0, **told: Any) -> Outcome:
        assert self.gateway is not None
        document = TrajectoryDocument.from_json(told_document(f"lake/t/{name}", **told))
        return await self.gateway.score(self.url, document, seconds=seconds)

    def outcomes(self) -> Counter[str]:
        """How the calls ended, by trajectory; each is told once."""
        calls = [event for event in self.told if isinstance(event, RewardCalled)]
        assert len({call.trajectory for call in calls}) == len(calls)
        return Counter(call.outcome for call in calls)


Opened = Callable[..., AbstractAsyncContextManager[Calls]]


@pytest.fixture
def folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    monkeypatch.setenv("AWS_ACCESS_KEY_ID", lambda_platform.ACCESS_KEY_ID)
    monkeypatch.setenv("AWS_SECRET_ACCESS_KEY", "s3cret-of-no-account")
    monkeypatch.setenv("AWS_EC2_METADATA_DISABLED", "true")
    return write_handler(tmp_path / "judge", "judge:score", JUDGE)


@pytest.fixture
def opened(folder: Path) -> Opened:
    @contextlib.asynccontextmanager
    async def make(*urls: str) -> AsyncIterator[Calls]:
        calls = Calls()
        calls.gateway = Gateway(
            children=child_environment({"PATH": "/usr/bin"}, RUN),
            python_path=(str(folder),),
            logs=folder,
            events=calls,
        )
        places = tuple(Place(at=reward_place(url), version="v1") for url in urls)
        calls.url = places[0].at.platform
        try:
            await calls.gateway.open(FunctionWish(places=places))
            yield calls
        finally:
            await calls.gateway.close()
        assert live_processes(RUN) == ()

    return make


@contextmanager
def deployed(kind: str, folder: Path, **more: Any) -> Iterator[tuple[str, Apart | None]]:
    """The function's URL on a platform, and that."""
    if kind == "local":
        yield LOCAL, None
    elif kind == "http":
        with Apart("framework", folder, **more) as platform:
            yield f"{platform.url}?concurrency=8", platform
    else:
        scaling = more.pop("scaling", Scaling(limit=8, timeout_s=3.0))
        with Apart("lambda", folder, scaling, **more) as platform:
            yield lambda_url(platform.url), platform


def lambda_url(endpoint: str) -> str:
    return f"lambda://judge?region=loopback-1&endpoint={endpoint}&concurrency=8"


FAULTS: dict[str, dict[str, Any]] = {
    "raises": {"raise": "no answer in it"},
    "nan": {"nan": True},
    "text": {"give": "good"},
    "refuses": {"refuse": "no way to tell"},
}


@pytest.mark.parametrize("kind", ["local", "http", "lambda"])
def test_rewards_that_fail_in_every_way_cost_themselves_and_no_other(
    kind: str, folder: Path, opened: Opened
) -> None:
    async def main(url: str) -> None:
        async with opened(url) as calls:
            wanted = {f"good-{number}": float(number) for number in range(36)}
            tasks: dict[str, asyncio.Task[Outcome]] = {}
            async with asyncio.TaskGroup() as group:
                for name, value in wanted.items():
                    tasks[name] = group.create_task(calls.score(name, value=value, sleep=0.02))
                for name, told in FAULTS.items():
                    tasks[name] = group.create_task(calls.score(name, **told))
                for number in range(2):  # one in twenty hangs
                    name = f"hangs-{number}"
                    hung = calls.score(name, seconds=5.0, sleep=1000.0)
                    tasks[name] = group.create_task(hung)
            verdicts = {name: task.result().verdict for name, task in tasks.items()}
            assert {name: verdicts[name].score for name in wanted} == wanted
            lost = {name: verdicts[name] for name in verdicts if name not in wanted}
            assert all(verdict.score is None for verdict in lost.values())
            assert {name: verdict.failure for name, verdict in lost.items()} == {
                "raises": FailureKind.REWARD_ERROR,
                "nan": FailureKind.REWARD_ERROR,
                "text": FailureKind.REWARD_ERROR,
                "refuses": FailureKind.REWARD_NO_VERDICT,
                "hangs-0": FailureKind.REWARD_TIMEOUT,
                "hangs-1": FailureKind.REWARD_TIMEOUT,
            }
            said = " ".join(verdict.reason for verdict in lost.values())
            for words in ("ValueError: no answer in it", "returned nan", "returned str"):
                assert words in said
            crashed = await calls.score("crashes", exit=7)
            assert crashed.verdict.failure is FailureKind.REWARD_ERROR
            # More where the server takes itself along unsaid: its health has to be asked then.
            assert 3 <= crashed.tries <= 6
            after = [await calls.score(f"after-{number}", value=0.5) for number in range(3)]
            assert [outcome.verdict.score for outcome in after] == [0.5] * 3
            assert calls.outcomes() == {
                "verdict": 39,
                "reward_error": 4,
                "reward_timeout": 2,
                "reward_no_verdict": 1,
            }

    with deployed(kind, folder) as (url, _):
        asyncio.run(main(url))


@pytest.mark.parametrize("kind", ["local", "http", "lambda"])
def test_ten_megabytes_are_scored_everywhere_and_leave_nothing(
    kind: str, folder: Path, tmp_path: Path, opened: Opened
) -> None:
    store = f"file://{tmp_path}/store"

    async def main(url: str) -> None:
        text = "x" * 10_000_000
        if kind == "lambda":
            async with opened(url) as calls:
                lost = (await calls.score("large", text=text)).verdict
                assert lost.failure is FailureKind.REWARD_ERROR
                assert "?store=" in lost.reason
            url = f"{url}&store={store}"
        async with opened(url) as calls:
            outcome = await calls.score("large", value=0.75, text=text)
            assert outcome.verdict.score == 0.75, outcome
            assert outcome.by_reference == (kind == "lambda")
        if kind == "lambda":
            assert list((tmp_path / "store").iterdir()) == []

    with deployed(kind, folder, environment={"ROLLART_REWARD_STORE": store}) as (url, _):
        asyncio.run(main(url))


@pytest.mark.parametrize("kind", ["http", "lambda"])
def test_an_endpoint_that_is_gone_for_seconds_loses_no_reward(
    kind: str, folder: Path, opened: Opened
) -> None:
    async def main(url: str, platform: Apart) -> None:
        async with opened(url) as calls:
            assert (await calls.score("before", value=1.0)).verdict.score == 1.0
            platform.down()
            tasks = [asyncio.create_task(calls.score(f"{n}", value=float(n))) for n in range(20)]
            await asyncio.sleep(3.0)
            platform.up()
            outcomes = await asyncio.gather(*tasks)
            assert [outcome.verdict.score for outcome in outcomes] == list(map(float, range(20)))
            assert calls.outcomes() == {"verdict": 21}
            (down,) = (event for event in calls.told if isinstance(event, PlatformDown))
            (up,) = (event for event in calls.told if isinstance(event, PlatformUp))
            assert down.fallback == ""
            assert up.down_s > 2.0

    with deployed(kind, folder) as (url, platform):
        assert platform is not None
        asyncio.run(main(url, platform))


def test_while_an_endpoint_is_gone_the_jobs_own_processes_score(
    folder: Path, opened: Opened
) -> None:
    async def main(url: str, platform: Apart) -> None:
        async with opened(url, LOCAL) as calls:
            assert (await calls.score("before", value=1.0)).served_by.startswith("http://")
            platform.down()
            scored = (calls.score(f"{n}", value=float(n), seconds=20.0) for n in range(20))
            outcomes = await asyncio.gather(*scored)
            assert [outcome.verdict.score for outcome in outcomes] == list(map(float, range(20)))
            assert {outcome.served_by for outcome in outcomes} == {"local://judge:score"}
            (down,) = (event for event in calls.told if isinstance(event, PlatformDown))
            assert down.fallback == "local://judge:score"

    with deployed("http", folder) as (url, platform):
        assert platform is not None
        asyncio.run(main(url, platform))


def test_a_storm_of_429_is_waited_out(folder: Path, opened: Opened) -> None:
    async def main(url: str, platform: Apart) -> None:
        async with opened(url) as calls:
            scored = (calls.score(f"{n}", value=float(n), sleep=0.1) for n in range(16))
            outcomes = await asyncio.gather(*scored)
            assert [outcome.verdict.score for outcome in outcomes] == list(map(float, range(16)))
            assert platform.figures().throttled > 5
            assert calls.outcomes() == {"verdict": 16}

    with deployed("lambda", folder, scaling=Scaling(limit=2)) as (url, platform):
        assert platform is not None
        asyncio.run(main(url, platform))


def test_who_asks_twice_for_one_trajectory_is_given_one_verdict_of_one_call(
    folder: Path, opened: Opened
) -> None:
    async def main(url: str, platform: Apart) -> None:
        async with opened(url) as calls:
            before = platform.figures().calls
            twice = [calls.score("one", value=0.5, sleep=0.3) for _ in range(2)]
            first, second = await asyncio.gather(*twice)
            again = await calls.score("one", value=0.5, sleep=0.3)
            assert first.verdict == second.verdict == again.verdict
            assert sorted((first.tries, second.tries, again.tries)) == [0, 0, 1]
            assert platform.figures().calls == before + 1

    with deployed("lambda", folder) as (url, platform):
        assert platform is not None
        asyncio.run(main(url, platform))


def test_wrong_credentials_are_refused_at_the_start_without_being_shown(
    folder: Path, opened: Opened, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("AWS_ACCESS_KEY_ID", "AKIAOFSOMEBODYELSE")

    async def main(url: str) -> None:
        with pytest.raises(ConfigError, match="AWS_ACCESS_KEY_ID") as refused:
            async with opened(url):
                raise AssertionError
        assert "s3cret" not in str(refused.value)
        assert "AKIAOFSOMEBODYELSE" not in str(refused.value)

    with deployed("lambda", folder) as (url, _):
        asyncio.run(main(url))
    told = [file.read_text() for file in folder.glob("*.log")]
    assert not [text for text in told if "s3cret" in text]
