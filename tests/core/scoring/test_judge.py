"""The judge's client under a clock of its own: what is asked when, and what becomes of answers."""

import json
from collections.abc import Callable, Iterable
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from rollart.core.errors import ConfigError, FailureKind
from rollart.core.scoring.judge import Judge, JudgeFailed
from rollart.core.scoring.judge_calls import (
    LONGEST_PAUSE_S,
    Reply,
    asked_wait,
    endpoint_at,
    pause_s,
)
from rollart.core.scoring.judge_http import Post, Unreached
from rollart.core.scoring.verdict import Verdict
from rollart.testing.judge_endpoint import completion

KEY = "sk-very-secret-0123456789"
SAID = Reply(status=200, body=completion("Thought through. Score: 7"))
BUSY = Reply(status=429, body=b"", retry_after="7")


@dataclass(slots=True)
class FakeClock:
    """Time that passes only where somebody sleeps."""

    now: float = 1000.0
    sleeps: list[float] = field(default_factory=list[float])

    def monotonic(self) -> float:
        return self.now

    def wall(self) -> float:
        return 1_700_000_000.0 + self.now

    def sleep(self, seconds: float) -> None:
        assert seconds >= 0
        self.sleeps.append(seconds)
        self.now += seconds


@dataclass(slots=True)
class Script:
    """An endpoint that answers by list, each answer after `takes_s`, the last again and again."""

    clock: FakeClock
    answers: list[Reply | Unreached | Callable[[float], Reply]]
    takes_s: float = 0.25
    posts: list[Post] = field(default_factory=list[Post])
    times: list[float] = field(default_factory=list[float])

    def __call__(self, post: Post, seconds: float) -> Reply:
        self.posts.append(post)
        self.times.append(self.clock.now)
        answer = self.answers[0] if len(self.answers) == 1 else self.answers.pop(0)
        self.clock.now += min(self.takes_s, seconds)
        if isinstance(answer, Unreached):
            raise answer
        return answer if isinstance(answer, Reply) else answer(self.clock.now)


class Rig:
    """A judge, its clock and its endpoint."""

    def __init__(self, folder: Path, answers: Iterable[Any], **options: Any) -> None:
        self.clock = options.pop("clock", None) or FakeClock()
        self.script = Script(self.clock, list(answers))
        url = options.pop("base_url", "https://judge.example/v1")
        self.judge = Judge(
            url,
            "judge-1",
            clock=self.clock,
            transport=self.script,
            folder=folder,
            **{"draw": lambda: 0.5, "timeout": 60.0, **options},
        )


@pytest.fixture(autouse=True)
def key(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delenv("ROLLART_OPENAI_API_KEY", raising=False)
    monkeypatch.setenv("OPENAI_API_KEY", KEY)


def test_a_question_is_asked_once_and_its_answer_is_the_text(tmp_path: Path) -> None:
    rig = Rig(tmp_path, [SAID], max_tokens=32)
    assert rig.judge.ask("How good?") == "Thought through. Score: 7"
    (post,) = rig.script.posts
    assert post.endpoint.url == "https://judge.example/v1/chat/completions"
    assert json.loads(post.body) == {
        "model": "judge-1",
        "messages": [{"role": "user", "content": "How good?"}],
        "temperature": 0.0,
        "max_tokens": 32,
    }
    assert rig.clock.sleeps == []


def test_half_a_surrogate_pair_in_what_a_policy_wrote_is_sent_as_text(tmp_path: Path) -> None:
    rig = Rig(tmp_path, [SAID])
    rig.judge.ask("\ud83d oh")
    assert json.loads(rig.script.posts[0].body)["messages"][0]["content"] == "? oh"


def test_a_429_is_tried_again_when_it_says_and_not_before(tmp_path: Path) -> None:
    rig = Rig(tmp_path, [BUSY, BUSY, SAID])
    assert rig.judge.score("x") == Verdict(score=7.0)
    first, second, third = rig.script.times
    assert second - first >= 7
    assert third - second >= 7


def test_what_one_judge_is_asked_to_wait_another_waits_too(tmp_path: Path) -> None:
    clock = FakeClock()
    refused = Rig(tmp_path, [BUSY], clock=clock, timeout=5.0)
    assert refused.judge.score("x").score is None
    begun = refused.script.times[0]
    other = Rig(tmp_path, [SAID], clock=clock)
    assert other.judge.score("x").score == 7.0
    assert other.script.times[0] - begun >= 7
    stranger = Rig(tmp_path, [SAID], clock=FakeClock(now=begun + 1), base_url="https://b.example/")
    assert stranger.judge.score("x").score == 7.0
    assert stranger.script.times == [begun + 1]


def test_a_storm_of_429_for_90_s_costs_no_verdict(tmp_path: Path) -> None:
    def stormy(now: float) -> Reply:
        return SAID if now >= 1090 else Reply(status=429, body=b"", retry_after="4")

    rig = Rig(tmp_path, [stormy], timeout=120.0)
    assert rig.judge.score("x").score == 7.0
    assert len(rig.script.times) <= 90 / 4 + 2
    assert all(b - a >= 4 for a, b in zip(rig.script.times, rig.script.times[1:], strict=False))


@pytest.mark.parametrize("status", [400, 401, 403, 404, 413, 422, 301, 302, 307, 308])
def test_a_refusal_other_than_429_is_never_tried_again(tmp_path: Path, status: int) -> None:
    rig = Rig(tmp_path, [Reply(status=status, body=b"", retry_after="1")])
    verdict = rig.judge.score("x")
    assert (verdict.score, verdict.failure) == (None, FailureKind.REWARD_ERROR)
    assert str(status) in verdict.reason
    assert len(rig.script.posts) == 1


def test_faults_of_the_server_and_of_the_network_are_tried_again_ever_later(tmp_path: Path) -> None:
    down = Reply(status=503, body=b"")
    rig = Rig(tmp_path, [down, Unreached("no answer"), Reply(status=500, body=b""), down, SAID])
    assert rig.judge.score("x").score == 7.0
    gaps = [b - a for a, b in zip(rig.script.times, rig.script.times[1:], strict=False)]
    assert gaps == sorted(gaps)
    assert gaps[-1] > 2 * gaps[0]


def test_a_fault_that_lasts_is_not_tried_again(tmp_path: Path) -> None:
    rig = Rig(tmp_path, [Unreached("a bad certificate", lasting=True)])
    assert rig.judge.score("x").reason == "a bad certificate"
    assert len(rig.script.posts) == 1


def test_the_deadline_bounds_tries_and_pauses_and_says_why(tmp_path: Path) -> None:
    rig = Rig(tmp_path, [Reply(status=502, body=b"")], timeout=20.0)
    verdict = rig.judge.score("x")
    assert (verdict.score, verdict.failure) == (None, FailureKind.REWARD_TIMEOUT)
    assert verdict.reason == "no answer within 20 s: the judge at judge.example answers 502"
    assert rig.clock.now <= 1020
    assert len(rig.script.posts) > 3


def test_a_wait_beyond_the_deadline_is_not_begun(tmp_path: Path) -> None:
    rig = Rig(tmp_path, [Reply(status=429, body=b"", retry_after="3600")])
    assert "429" in rig.judge.score("x").reason
    assert (len(rig.script.posts), rig.clock.sleeps) == (1, [])


def test_a_try_may_take_what_is_left_or_what_it_is_told(tmp_path: Path) -> None:
    seconds: list[float] = []

    def note(post: Post, limit: float) -> Reply:
        seconds.append(limit)
        return SAID

    for limit in (None, 3.0):
        url = "http://127.0.0.1:1"
        Judge(url, "m", transport=note, folder=tmp_path, try_timeout=limit).ask("x")
    assert seconds[0] == pytest.approx(30.0, abs=1.0)
    assert seconds[1] == 3.0


@pytest.mark.parametrize(
    ("body", "reason"),
    [
        (completion("I like it."), "the judge's answer holds no score"),
        (completion("Score: eleven"), "the judge's answer holds no score"),
        (completion("Score: 11"), "the judge's score lies outside its scale"),
        (completion("Score: -1"), "the judge's score lies outside its scale"),
        (completion("Score: 1" + "0" * 400), "the judge's score lies outside its scale"),
        (completion(""), "the judge said nothing (finish_reason 'stop')"),
        (completion(None, "length"), "the judge said nothing (finish_reason 'length')"),
        (b"<html>busy</html>", "the judge's answer is no JSON"),
        (b"[]", "the judge's answer has no choices[0].message.content"),
        (b'{"choices": []}', "the judge's answer has no choices[0].message.content"),
        (b'{"error": {"message": "no"}}', "the judge answered 200 with an error in it"),
    ],
)
def test_an_answer_without_a_score_is_no_verdict_with_the_reason(
    tmp_path: Path, body: bytes, reason: str
) -> None:
    verdict = Rig(tmp_path, [Reply(status=200, body=body)]).judge.score("x", between=(0, 10))
    assert (verdict.score, verdict.reason) == (None, reason)
    assert verdict.failure is not None


@pytest.mark.parametrize(
    ("text", "score"),
    [
        ("Score: 7", 7.0),
        ("**Score**: 7.5/10", 7.5),
        ("score = -2", -2.0),
        ("The answer claims 'Score: 10'. It is wrong.\nScore: 1", 1.0),
    ],
)
def test_the_last_score_of_an_answer_counts(tmp_path: Path, text: str, score: float) -> None:
    rig = Rig(tmp_path, [Reply(status=200, body=completion(text))])
    assert rig.judge.score("x").score == score


def test_a_parser_of_ones_own_makes_a_number_a_verdict_or_none(tmp_path: Path) -> None:
    def parsed(parse: Callable[[str], Any]) -> Verdict:
        return Rig(tmp_path, [SAID]).judge.score("x", parse=parse)

    whole = Verdict(score=0.5, components=(("style", 1.0),))
    assert parsed(len).score == len("Thought through. Score: 7")
    assert parsed(lambda text: whole) == whole
    assert parsed(lambda text: None).score is None
    assert "cannot be read" in parsed(float).reason
    assert parsed(lambda text: float("nan")).score is None
    with pytest.raises(TypeError, match="a reward returned str"):
        parsed(lambda text: text)


def test_a_pattern_without_a_group_is_the_number_itself(tmp_path: Path) -> None:
    assert Rig(tmp_path, [SAID]).judge.score("x", pattern=r"\d+").score == 7.0


def test_no_message_ever_shows_the_key(tmp_path: Path) -> None:
    echo = json.dumps({"error": {"message": f"Incorrect key {KEY} here"}}).encode()
    late = json.dumps({"error": {"message": f"{'x' * 190} {KEY}"}}).encode()  # cut within the key
    part = json.dumps({"error": {"message": f"Incorrect key {KEY[:8]}***"}}).encode()
    said: list[str] = []
    for status, body in ((400, echo), (400, late), (401, part)):
        rig = Rig(tmp_path, [Reply(status=status, body=body)])
        with pytest.raises(JudgeFailed) as failed:
            rig.judge.ask("x")
        said += [str(failed.value), repr(rig.script.posts)]
    assert all(KEY[:8] not in text for text in said)
    assert "Incorrect key *** here" in said[0]
    assert not [file for file in tmp_path.iterdir() if KEY.encode() in file.read_bytes()]


def test_the_key_comes_from_the_environment_when_it_is_needed(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    rig = Rig(tmp_path, [SAID])
    rig.judge.ask("x")
    monkeypatch.delenv("OPENAI_API_KEY")
    monkeypatch.setenv("ROLLART_OPENAI_API_KEY", "sk-for-children")
    rig.judge.ask("x")
    assert [post.key for post in rig.script.posts] == [KEY, "sk-for-children"]


def test_a_missing_or_broken_key_is_refused_with_the_variable_to_set(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.delenv("OPENAI_API_KEY")
    remote = Rig(tmp_path, [SAID])
    with pytest.raises(ConfigError, match="set OPENAI_API_KEY, or ROLLART_OPENAI_API_KEY"):
        remote.judge.score("x")
    monkeypatch.setenv("OPENAI_API_KEY", "two words")
    with pytest.raises(ConfigError) as broken:
        remote.judge.score("x")
    assert "two words" not in str(broken.value)
    monkeypatch.delenv("OPENAI_API_KEY")
    for options in ({"base_url": "http://127.0.0.1:8000/v1"}, {"api_key_env": None}):
        rig = Rig(tmp_path, [SAID], **options)
        assert rig.judge.score("x").score == 7.0
        assert rig.script.posts[0].key == ""


@pytest.mark.parametrize(
    "url",
    [
        "judge.example/v1",
        "ftp://judge.example/v1",
        "file:///etc/passwd",
        "http:///v1",
        "http://user:hunter2@judge.example/v1",
        "http://judge.example/v1?key=hunter2",
        "http://judge.example/v1#hunter2",
        "http://judge.example:port/v1",
        "http://judge.example/v1\r\nX: y",
        "http://[::1/v1",
    ],
)
def test_a_base_url_that_is_none_is_refused_without_showing_it(url: str) -> None:
    with pytest.raises(ConfigError, match=r"Judge\(base_url\)") as refused:
        Judge(url, "m")
    assert "hunter2" not in str(refused.value)


@pytest.mark.parametrize(
    "options",
    [
        {"rate_per_s": 0},
        {"concurrency": 0},
        {"timeout": -1},
        {"timeout": float("nan")},
        {"try_timeout": 0},
        {"max_tokens": 0},
    ],
)
def test_bad_arguments_are_refused_where_the_judge_is_made(options: dict[str, Any]) -> None:
    (name,) = options
    with pytest.raises(ConfigError, match=rf"Judge\({name}="):
        Judge("http://127.0.0.1:8000/v1", "m", **options)


def test_loopback_is_known_by_the_address_alone() -> None:
    own = ("http://127.0.0.1:1", "http://localhost", "http://[::1]:8000/v1", "http://127.9.9.9")
    assert all(endpoint_at(url).loopback for url in own)
    others = ("http://127.0.0.1.evil.example", "http://localhost.example", "http://10.0.0.1")
    assert not any(endpoint_at(url).loopback for url in others)
    assert endpoint_at("http://[::1]:8000/v1/").url == "http://[::1]:8000/v1/chat/completions"


def test_retry_after_is_read_as_seconds_or_as_a_date() -> None:
    assert asked_wait("2.5", 0.0) == 2.5
    assert asked_wait("-3", 0.0) == 0.0
    assert asked_wait("Thu, 01 Jan 1970 00:01:00 GMT", 15.0) == 45.0
    assert [asked_wait(text, 0.0) for text in ("", "soon", "nan", "inf")] == [None] * 4


@given(
    st.integers(1, 10_000),
    st.none() | st.floats(0, 1000),
    st.floats(0, 1, exclude_max=True),
)
def test_a_pause_is_never_shorter_than_asked_and_never_endless(
    tries: int, asked: float | None, draw: float
) -> None:
    pause = pause_s(tries, asked, draw)
    assert pause > 0 or asked == 0
    assert pause >= (asked or 0)
    assert pause <= (asked or 0) * 1.1 + LONGEST_PAUSE_S


@pytest.mark.parametrize(
    ("host", "hosts", "allowed"),
    [
        ("api.example.com", None, True),
        ("api.example.com", "api.example.com", True),
        ("API.example.com", "other.org, *.example.com", True),
        ("example.com", "*.example.com", False),
        ("api.example.com.evil.org", "*.example.com", False),
        ("api.example.com", "", False),
    ],
)
def test_the_operators_list_of_hosts_holds_for_judges(
    host: str, hosts: str | None, allowed: bool
) -> None:
    url = f"https://{host}/v1"
    if allowed:
        assert endpoint_at(url, hosts=hosts).url == f"{url.lower()}/chat/completions"
    else:
        with pytest.raises(ConfigError, match="is not in ROLLART_REWARD_HOSTS"):
            endpoint_at(url, hosts=hosts)
