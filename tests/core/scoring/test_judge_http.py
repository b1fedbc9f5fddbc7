"""The judge's client over real sockets on loopback, against an endpoint that misbehaves by list."""

import socket
import time
from pathlib import Path

import pytest

from rollart.core.errors import FailureKind
from rollart.core.scoring.judge import Judge
from rollart.core.scoring.judge_calls import Reply, endpoint_at
from rollart.core.scoring.judge_http import Post, Unreached, send
from rollart.testing.judge_endpoint import JudgeEndpoint, Scripted, completion

GOOD = Scripted(text="Score: 3")


def sent(url: str, seconds: float = 10.0, key: str = "") -> Reply:
    return send(Post(endpoint=endpoint_at(url), body=b"{}", key=key), seconds)


def test_an_answer_comes_back_with_its_status_whatever_it_is() -> None:
    answers = [GOOD, Scripted(status=429, headers={"Retry-After": "2"}), Scripted(status=500)]
    with JudgeEndpoint(answers) as endpoint:
        replies = [sent(endpoint.url, key="sk-1") for _ in answers]
    assert [reply.status for reply in replies] == [200, 429, 500]
    assert [reply.retry_after for reply in replies] == ["", "2", ""]
    assert replies[0].body == completion("Score: 3")
    first = endpoint.asked[0]
    assert first.path == "/v1/chat/completions"
    assert first.headers["Authorization"] == "Bearer sk-1"


def test_a_429_with_retry_after_is_waited_for_on_the_real_clock(tmp_path: Path) -> None:
    with JudgeEndpoint([Scripted(status=429, headers={"Retry-After": "1"}), GOOD]) as endpoint:
        judge = Judge(endpoint.url, "m", folder=tmp_path)
        assert judge.score("x").score == 3.0
    first, second = (asked.time for asked in endpoint.asked)
    assert 1.0 <= second - first < 6.0


@pytest.mark.parametrize("status", [301, 302, 303, 307, 308])
def test_a_redirect_is_not_followed_and_nobody_else_sees_the_key(
    tmp_path: Path, status: int
) -> None:
    with JudgeEndpoint([GOOD]) as other:
        there = Scripted(status=status, headers={"Location": f"{other.url}/chat/completions"})
        with JudgeEndpoint([there]) as endpoint:
            verdict = Judge(endpoint.url, "m", folder=tmp_path).score("x")
    assert verdict.score is None
    assert "redirects" in verdict.reason
    assert (len(endpoint.asked), other.asked) == (1, [])


def test_this_machine_is_asked_by_no_proxy(monkeypatch: pytest.MonkeyPatch) -> None:
    for name in ("HTTP_PROXY", "http_proxy", "HTTPS_PROXY", "https_proxy", "ALL_PROXY"):
        monkeypatch.setenv(name, "http://127.0.0.1:9")
    for name in ("NO_PROXY", "no_proxy"):
        monkeypatch.delenv(name, raising=False)
    with JudgeEndpoint([GOOD]) as endpoint:
        assert sent(endpoint.url).status == 200


def test_other_machines_are_asked_by_the_environments_proxy(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    with JudgeEndpoint([GOOD]) as proxy:
        monkeypatch.setenv("http_proxy", proxy.url.removesuffix("/v1"))
        for name in ("NO_PROXY", "no_proxy"):
            monkeypatch.delenv(name, raising=False)
        assert sent("http://judge.invalid/v1").status == 200
    assert proxy.asked[0].path == "http://judge.invalid/v1/chat/completions"


def test_an_answer_that_trickles_is_over_at_the_deadline() -> None:
    """A byte each 50 ms: no single read ever takes long."""
    with JudgeEndpoint([Scripted(text="Score: 3", trickle_s=0.05)]) as endpoint:
        began = time.monotonic()
        with pytest.raises(Unreached, match="did not answer in time"):
            sent(endpoint.url, 0.6)
        assert 0.5 < time.monotonic() - began < 2.5


def test_an_endpoint_that_says_nothing_is_over_at_the_deadline(tmp_path: Path) -> None:
    with socket.create_server(("127.0.0.1", 0)) as silent:
        url = f"http://127.0.0.1:{silent.getsockname()[1]}"
        began = time.monotonic()
        verdict = Judge(url, "m", folder=tmp_path, timeout=0.5).score("x")
        assert time.monotonic() - began < 2.5
    assert (verdict.score, verdict.failure) == (None, FailureKind.REWARD_TIMEOUT)


def test_nothing_that_listens_is_said_so() -> None:
    with socket.create_server(("127.0.0.1", 0)) as taken:
        port = taken.getsockname()[1]
    with pytest.raises(Unreached, match=f"nothing listens at 127.0.0.1:{port}"):
        sent(f"http://127.0.0.1:{port}")


def test_a_connection_that_breaks_within_an_answer_is_no_answer() -> None:
    cut = Scripted(headers={"Content-Length": "9"}, body=b"{}")
    with JudgeEndpoint([cut]) as endpoint, pytest.raises(Unreached, match="broke"):
        sent(endpoint.url)


def test_an_answer_without_end_is_not_read_to_it() -> None:
    huge = Scripted(body=bytes((16 << 20) + 1))
    with JudgeEndpoint([huge]) as endpoint, pytest.raises(Unreached, match="over 16777") as failed:
        sent(endpoint.url)
    assert failed.value.lasting
