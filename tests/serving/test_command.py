"""`rollart serve` as a whole: a tiny model in a child, asked over HTTP by the judge's client."""

import json
import os
import signal
import socket
import time
import urllib.error
import urllib.request
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from rollart.core.errors import ConfigError
from rollart.core.scoring.judge import Judge, JudgeFailed
from rollart.serving.command import ServeSettings, serve

Start = Callable[..., Any]


def ask(url: str, **fields: Any) -> tuple[int, Any]:
    """Status and object of an answer; the endpoint lies on loopback, so by no proxy."""
    body = {"model": "tiny", "messages": [{"role": "user", "content": "hi"}], **fields}
    request = urllib.request.Request(
        f"{url}/chat/completions",
        data=json.dumps(body).encode(),
        headers={"Content-Type": "application/json"},
    )
    opener = urllib.request.build_opener(urllib.request.ProxyHandler({}))
    try:
        with opener.open(request, timeout=60) as answer:
            return answer.status, json.load(answer)
    except urllib.error.HTTPError as error:
        with error:
            return error.code, json.load(error)


def children(pid: int) -> list[int]:
    text = Path(f"/proc/{pid}/task/{pid}/children").read_text()
    return [int(word) for word in text.split()]


def is_gone(pid: int) -> bool:
    try:
        os.kill(pid, 0)
    except ProcessLookupError:
        return True
    return False


def say_nothing(line: str) -> None:
    raise AssertionError(f"it serves: {line}")


def test_another_host_needs_a_token(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delenv("ROLLART_SERVE_TOKEN", raising=False)
    for host in ("0.0.0.0", "::", "10.0.0.1", "gpu7"):
        with pytest.raises(ConfigError, match="set ROLLART_SERVE_TOKEN"):
            serve(ServeSettings(model=tmp_path, host=host), say_nothing)
    monkeypatch.setenv("ROLLART_SERVE_TOKEN", "two words")
    with pytest.raises(ConfigError) as refused:
        serve(ServeSettings(model=tmp_path, host="0.0.0.0"), say_nothing)
    assert "two words" not in str(refused.value)


def test_a_directory_that_is_no_model_is_refused(tmp_path: Path) -> None:
    with pytest.raises(ConfigError, match="no such directory"):
        serve(ServeSettings(model=tmp_path / "none"), say_nothing)
    with pytest.raises(ConfigError, match=r"config\.json cannot be read"):
        serve(ServeSettings(model=tmp_path), say_nothing)


@pytest.mark.real
def test_a_context_beyond_the_model_and_a_port_that_is_taken_are_refused(
    tiny_model: Path, serving: Start
) -> None:
    with pytest.raises(ConfigError, match="--context 513"):
        serve(ServeSettings(model=tiny_model, context=513), say_nothing)
    with socket.create_server(("127.0.0.1", 0)) as taken:
        port = taken.getsockname()[1]
        process = serving(tiny_model, "--port", str(port)).process
        _, said = process.communicate(timeout=60)
    assert process.returncode == 2
    assert f"--port {port}: " in said


@pytest.mark.real
def test_a_model_is_served_until_ctrl_c_and_leaves_no_process(
    tiny_model: Path, serving: Start
) -> None:
    served = serving(tiny_model)
    url = served.url
    assert url.startswith("http://127.0.0.1:")

    settings = {"max_tokens": 12, "seed": 1}
    status, first = ask(url, **settings)
    assert status == 200
    text = first["choices"][0]["message"]["content"]
    assert first["choices"][0]["finish_reason"] == "length"
    assert first["usage"] == {"prompt_tokens": 21, "completion_tokens": 12, "total_tokens": 33}
    assert len(text) == 12

    again, other = ask(url, **settings)[1], ask(url, max_tokens=12, seed=2)[1]
    assert again["choices"][0]["message"]["content"] == text
    assert other["choices"][0]["message"]["content"] != text

    cut = ask(url, **settings, stop=[text[5:7]])[1]["choices"][0]
    assert (cut["message"]["content"], cut["finish_reason"]) == (
        text[: text.find(text[5:7])],
        "stop",
    )

    status, long = ask(url, messages=[{"role": "user", "content": "x" * 600}])
    assert (status, long["error"]["code"]) == (400, "context_length_exceeded")

    (engine,) = children(served.process.pid)
    began = time.monotonic()
    served.process.send_signal(signal.SIGINT)
    _, said = served.process.communicate(timeout=30)
    assert (served.process.returncode, said) == (130, "")
    assert time.monotonic() - began < 10
    assert is_gone(engine)


@pytest.mark.real
def test_the_judge_asks_with_the_token_and_nobody_without(
    tiny_model: Path, serving: Start, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    served = serving(tiny_model, "--name", "judge", "--host", "0.0.0.0", token="a-token")
    url = served.url.replace("0.0.0.0", "127.0.0.1")
    monkeypatch.setenv("ROLLART_MY_JUDGE", "a-token")
    judge = Judge(url, "judge", api_key_env="MY_JUDGE", max_tokens=8, folder=tmp_path)
    assert len(judge.ask("hi")) <= 8
    verdict = judge.score("hi")
    assert (verdict.score, verdict.reason) == (None, "the judge's answer holds no score")
    assert judge.score("hi", parse=len).score == len(judge.ask("hi"))
    with pytest.raises(JudgeFailed, match="refuses the key"):
        Judge(url, "judge", api_key_env=None, folder=tmp_path).ask("hi")


@pytest.mark.real
def test_a_dead_engine_ends_the_command_with_the_reason(tiny_model: Path, serving: Start) -> None:
    served = serving(tiny_model)
    (engine,) = children(served.process.pid)
    os.kill(engine, signal.SIGKILL)
    _, said = served.process.communicate(timeout=30)
    assert served.process.returncode == 1
    assert "serve-engine" in said


@pytest.mark.real
def test_the_engine_dies_with_a_command_that_is_killed(tiny_model: Path, serving: Start) -> None:
    served = serving(tiny_model)
    (engine,) = children(served.process.pid)
    served.process.kill()
    served.process.wait()
    until = time.monotonic() + 10
    while not is_gone(engine) and time.monotonic() < until:
        time.sleep(0.05)
    assert is_gone(engine)
