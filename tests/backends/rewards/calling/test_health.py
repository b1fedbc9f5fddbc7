"""A function that is not there, or not the right one, is refused with what to do."""

import asyncio
from typing import Any

import pytest

from rollart.backends.rewards.platform import Platform
from rollart.core.errors import ConfigError
from rollart.core.scoring.places import reward_place
from rollart.core.scoring.wire import Request
from rollart.runtimes.sim.loop import run_virtual
from rollart.testing.platform import ANSWERS, FUNCTION, VERSION, Act


def refusal(rig: Any, act: Act, **options: Any) -> str:
    """What a health call is refused with; it takes no longer than it may."""

    async def main() -> str:
        made = rig(health=lambda time: act, **options)
        with pytest.raises(ConfigError) as caught:
            await made.caller.health(10.0)
        assert asyncio.get_running_loop().time() <= 10.0
        assert made.limiter.free == 64
        return str(caught.value)

    return run_virtual(main)


def test_a_function_that_is_there_says_who_it_is(rig: Any) -> None:
    async def main() -> None:
        answer = await rig().caller.health(10.0)
        assert (answer.function, answer.version) == (FUNCTION, VERSION)

    run_virtual(main)


def test_a_platform_that_wakes_up_slowly_is_asked_again(rig: Any) -> None:
    async def main() -> None:
        made = rig(health=lambda time: Act(fault="unavailable") if time < 0.05 else ANSWERS)
        assert (await made.caller.health(10.0)).function == FUNCTION

    run_virtual(main)


def test_another_version_is_refused_with_both_and_the_command(rig: Any) -> None:
    said = refusal(rig, ANSWERS, deployed="feedfeedfeedfeed", url="lambda://judge")
    assert "feedfeedfeedfeed" in said
    assert VERSION in said
    assert f"rollart rewards package {FUNCTION} --target lambda" in said

    async def main() -> None:
        made = rig(deployed="feedfeedfeedfeed", function_version=None)
        assert (await made.caller.health(10.0)).version == "feedfeedfeedfeed"

    run_virtual(main)


@pytest.mark.parametrize(
    ("act", "said"),
    [
        (Act(fault="unavailable"), "does not answer (5 tries"),
        (Act(seconds=1e6), "`rollart rewards test` with the job's own URL"),
        (Act(fault="throttled", retry_after_s=60.0), "does not answer (1 tries"),
        (Act(fault="refused"), "correct the URL"),
        (Act(fault="crashed"), "rollart rewards serve"),
        (Act(data=b"<html>hello</html>"), "is no reward function of this project"),
        (Act(data=b'{"rollart": 1, "key": "health"}'), "no function"),
        (Act(error="Garbled: another wire"), "another wire"),
        (Act(key="mine"), "is no reward function of this project"),
    ],
)
def test_what_is_wrong_is_said_with_the_remedy(rig: Any, act: Act, said: str) -> None:
    assert said in refusal(rig, act)


def test_a_version_is_pinned_where_a_url_has_its_query_and_not_behind_the_function(
    rig: Any,
) -> None:
    """The URL is told without its query and fragment, so where they are is not known here."""
    said = refusal(rig, ANSWERS, deployed="feedfeedfeedfeed", url="https://f.example/score")
    assert "before any #: ?version=feedfeedfeedfeed, or &version=feedfeedfeedfeed where" in said
    assert "at the end" not in said
    for url in (
        "https://f.example/score?version=v#a:b",
        "https://f.example/score?auth=X&version=v",
    ):
        assert reward_place(url).version == "v"
    unknown = refusal(rig, ANSWERS, deployed="", url="https://f.example/score")
    assert "version unknown" in unknown
    assert "?version=" not in unknown


@pytest.mark.parametrize("act", [Act(fault="unavailable"), Act(seconds=1e6)])
def test_no_command_is_printed_with_a_url_that_lacks_what_is_not_told(rig: Any, act: Act) -> None:
    assert "rewards test http" not in refusal(rig, act)


def test_a_function_on_ray_is_deployed_by_rays_own_command(rig: Any) -> None:
    said = refusal(rig, ANSWERS, deployed="feedfeedfeedfeed", url="serve://judge")
    assert (
        f"serve run rollart.backends.rewards.ray_serve_app:application function={FUNCTION}" in said
    )
    assert "--name judge" in said


@pytest.mark.parametrize(
    ("act", "said"),
    [
        (Act(seconds=1e6), "declare a longer one"),
        (Act(fault="timeout"), "own @serverless(timeout=…)"),
        (Act(fault="unavailable"), "mend what it raised"),
        (Act(fault="crashed"), "on standard error"),
    ],
)
def test_of_a_function_here_its_timeout_or_its_own_words_are_the_remedy(
    rig: Any, act: Act, said: str
) -> None:
    told = refusal(rig, act, url="local://judge:score")
    assert said in told
    for wrong in ("rewards test", "deploy", "reached"):
        assert wrong not in told


class Refuses:
    """A platform whose credentials are wrong from some call on."""

    def __init__(self, inner: Platform, good: int) -> None:
        self._inner = inner
        self._good = good

    @property
    def limits(self) -> Any:
        return self._inner.limits

    async def call(self, body: bytes, *, key: str, seconds: float) -> bytes:
        self._good -= 1
        if self._good < 0:
            raise ConfigError("AWS_SECRET_ACCESS_KEY is missing; set it")
        return await self._inner.call(body, key=key, seconds=seconds)

    async def close(self) -> None:
        await self._inner.close()


def test_missing_credentials_are_refused_as_the_platform_says(rig: Any) -> None:
    async def main() -> None:
        made = rig(around=lambda platform: Refuses(platform, good=0))
        with pytest.raises(ConfigError, match="AWS_SECRET_ACCESS_KEY is missing"):
            await made.caller.health(10.0)

    run_virtual(main)


def test_credentials_that_expire_in_a_run_cost_verdicts_and_say_why(rig: Any) -> None:
    async def main() -> None:
        made = rig(around=lambda platform: Refuses(platform, good=1))
        assert (await made.score("a")).verdict.score == 1.0
        outcome = await made.score("b")
        assert outcome.verdict.score is None
        assert "AWS_SECRET_ACCESS_KEY is missing" in outcome.verdict.reason
        assert outcome.tries == 1

    run_virtual(main)


def test_a_health_call_is_no_request_for_a_score(rig: Any) -> None:
    def play(n: int, time: float, request: Request) -> Act:
        raise AssertionError("a score was asked for")

    async def main() -> None:
        await rig(play).caller.health(1.0)

    run_virtual(main)


def test_a_health_call_ends_in_time_though_others_hold_every_place(rig: Any) -> None:
    async def main() -> None:
        made = rig(lambda n, time, request: Act(seconds=1e6), concurrency=1)
        holds = asyncio.ensure_future(made.score(seconds=100.0))
        await asyncio.sleep(0)
        with pytest.raises(ConfigError, match="does not answer"):
            await made.caller.health(5.0)
        assert asyncio.get_running_loop().time() == 5.0
        await made.caller.close()
        await holds

    run_virtual(main)
