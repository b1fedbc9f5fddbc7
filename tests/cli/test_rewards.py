import asyncio
import json
import os
import re
import signal
import socket
import subprocess
import sys
import time
import urllib.error
import urllib.request
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import pytest

from rollart.cli.main import main
from rollart.core.scoring.places import reward_place
from rollart.core.scoring.wire import Request, decode_answer, encode_request
from rollart.shipping.samples import sample_documents

JUDGE = """
import os, time
from rollart import serverless

@serverless(timeout=3, memory="512MB")
def score(trajectory):
    if trajectory.task.key == "crash":
        os._exit(3)
    if trajectory.task.key == "hang":
        while True:
            pass
    return len(trajectory.turns) / 7

def shifted(trajectory):
    return len(trajectory.turns) / 7 + 1e-6

def raising(trajectory):
    raise RuntimeError("the judge is silent")
"""

STRAYS = """
import pathlib, subprocess, time
from rollart import serverless

@serverless(reuse=True, network=True)
def score(trajectory):
    began = subprocess.Popen(["sleep", "600"], start_new_session=True)
    beside = pathlib.Path(__file__).with_name("stray")
    beside.with_suffix(".part").write_text(str(began.pid))
    beside.with_suffix(".part").rename(beside)
    return 1.0

@serverless(reuse=True, network=True)
def slow(trajectory):
    score(trajectory)
    time.sleep(60)
"""

OPENER = urllib.request.build_opener(urllib.request.ProxyHandler({}))


@pytest.fixture(autouse=True)
def hangs_up() -> Iterator[None]:
    """Commands hear SIGHUP, also where the tests themselves run under nohup."""
    before = signal.signal(signal.SIGHUP, signal.SIG_DFL)
    yield
    signal.signal(signal.SIGHUP, before)


@pytest.fixture
def folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    (tmp_path / "judge.py").write_text(JUDGE)
    monkeypatch.chdir(tmp_path)
    monkeypatch.delenv("ROLLART_REWARD_TOKEN", raising=False)
    return tmp_path


@pytest.fixture
def scratch(tmp_path_factory: pytest.TempPathFactory, monkeypatch: pytest.MonkeyPatch) -> Path:
    """Where the commands' temporary folders are made."""
    folder = tmp_path_factory.mktemp("scratch")
    monkeypatch.setenv("TMPDIR", str(folder))
    return folder


def said(capsys: pytest.CaptureFixture[str], *arguments: str) -> tuple[int, str, str]:
    code = main(["rewards", *arguments])
    out, err = capsys.readouterr()
    return code, out, err


def test_packaging_prints_the_one_command_and_the_url_for_the_job(
    folder: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    code, out, err = said(capsys, "package", "judge:score", "--target", "lambda", "--out", "out")
    assert (code, err) == (0, "")
    manifest = json.loads((folder / "out/rollart-reward.json").read_text())
    assert f"judge:score, version {manifest['version']}" in out
    assert "512 MB, 3 s a call" in out
    assert f"cd {folder / 'out'} && sam deploy --stack-name judge-score" in out
    url = re.search(r'reward = "(lambda://judge-score\?region=\S+#judge:score)"', out)
    assert url is not None
    assert reward_place(url[1]).function == "judge:score"
    assert f'reward = ["{url[1]}", "local://judge:score"]' in out


@pytest.mark.parametrize(
    ("arguments", "words"),
    [
        (("judge:score", "--target", "azure", "--out", "out"), "invalid choice: 'azure'"),
        (("judge:score", "--target", "fc"), "the following arguments are required: --out"),
        (("judge:nothing", "--target", "fc", "--out", "out"), "has no function 'nothing'"),
        (("nowhere:score", "--target", "fc", "--out", "out"), "there is no module nowhere"),
        (("judge:score", "--target", "fc", "--out", "."), "--out"),
        (("judge:score", "--target", "fc", "--out", "/proc/x"), "--out /proc/x: cannot be written"),
        (("judge:score", "--target", "fc", "--out", "out", "--name", "A B"), "--name 'A B'"),
    ],
)
def test_what_cannot_be_packaged_is_one_line_and_code_2(
    folder: Path, capsys: pytest.CaptureFixture[str], arguments: tuple[str, ...], words: str
) -> None:
    code, out, err = said(capsys, "package", *arguments)
    assert (code, out) == (2, "")
    assert words in err
    assert err.count("\n") == 1
    assert sorted(file.name for file in folder.iterdir()) == ["judge.py"]


@pytest.mark.parametrize("host", ["0.0.0.0", "::", "192.0.2.1", "example.org"])
def test_a_host_that_others_reach_is_refused_without_a_token(
    folder: Path, capsys: pytest.CaptureFixture[str], host: str
) -> None:
    code, _, err = said(capsys, "serve", "judge:score", "--host", host, "--port", "0")
    assert code == 2
    assert "set ROLLART_REWARD_TOKEN" in err


def test_a_port_that_is_taken_is_said(folder: Path, capsys: pytest.CaptureFixture[str]) -> None:
    with socket.socket() as taken:
        taken.bind(("127.0.0.1", 0))
        taken.listen()
        port = str(taken.getsockname()[1])
        code, _, err = said(capsys, "serve", "judge:score", "--port", port)
    assert code == 2
    assert "cannot listen there" in err
    assert "use --port 0" in err


@pytest.mark.parametrize(
    ("url", "words"),
    [
        ("ftp://host/x", "must be a URL of local://, http://"),
        ("judge:score", "must be a URL of local://, http://"),
        ("http://127.0.0.1/#nothing", "what follows # must be the function's import path"),
        ("http://user:secret@127.0.0.1/", "take it out"),
        ("http://169.254.169.254/latest", "169.254.169.254"),
        ("http://127.0.0.1/?auth=secret", "must be google, or name the environment variable"),
        ("http://127.0.0.1/?store=s3://id:secret@bucket", "?store= must be the URL of a folder"),
        ("http://127.0.0.1/?store=file://host/x", "no host in it; use store=file:///folder"),
        ("http://127.0.0.1/?store=file:///no/such/x", "there is no folder /no/such to make it in"),
        ("http://127.0.0.1/?hedge=yes", "?hedge= must be 0 or 1"),
        ("fc://judge", "use fc://name?region=cn-hangzhou&account="),
    ],
)
def test_a_url_that_is_none_is_one_line_and_code_2(
    folder: Path, capsys: pytest.CaptureFixture[str], url: str, words: str
) -> None:
    code, out, err = said(capsys, "test", url)
    assert (code, out) == (2, "")
    assert words in err
    assert "secret" not in err
    assert err.count("\n") == 1


def test_nothing_that_listens_is_one_line_and_code_2(
    folder: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        port = probe.getsockname()[1]
    code, _, err = said(capsys, "test", f"http://127.0.0.1:{port}/", "--timeout", "2")
    assert code == 2
    assert "does not answer" in err
    assert err.count("\n") == 1


def test_missing_credentials_are_named_and_code_2(
    folder: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    for name in [name for name in os.environ if name.startswith(("AWS_", "ALIBABA_"))]:
        monkeypatch.delenv(name)
    monkeypatch.setenv("HOME", str(folder))
    monkeypatch.setenv("AWS_EC2_METADATA_DISABLED", "true")
    code, _, err = said(
        capsys, "test", "lambda://judge?region=eu-west-1&endpoint=http://127.0.0.1:9"
    )
    assert code == 2
    assert "AWS_ACCESS_KEY_ID" in err
    code, _, err = said(capsys, "test", "fc://judge?endpoint=127.0.0.1:9")
    assert code == 2
    assert "ALIBABA_CLOUD_ACCESS_KEY_ID" in err


@contextmanager
def served(
    *arguments: str, token: str = "", before: tuple[str, ...] = ()
) -> Iterator[tuple[str, subprocess.Popen[str]]]:
    """The command as a process, and the URL that it tells."""
    environment = {**os.environ, **({"ROLLART_REWARD_TOKEN": token} if token else {})}
    process = subprocess.Popen(
        [*before, sys.executable, "-m", "rollart", "rewards", "serve", *arguments, "--port", "0"],
        stdout=subprocess.PIPE,
        stderr=subprocess.DEVNULL,
        text=True,
        env=environment,
    )
    try:
        assert process.stdout is not None
        while "reward = " not in (line := process.stdout.readline()):
            assert line, "it ended"
        yield line.split('"')[1], process
    finally:
        process.kill()
        process.communicate()


def asked(url: str, key: str, token: str = "", **headers: str) -> int | float | None:
    """The score, or the status of a refusal."""
    plain = sample_documents(1)[0].to_json()
    plain["task"]["key"] = key
    body = encode_request(Request(key=key, seconds=30.0, trajectory=plain))
    bearer = {"Authorization": f"Bearer {token}"} if token else {}
    all_headers = {"Content-Type": "application/json", **bearer, **headers}
    try:
        with OPENER.open(urllib.request.Request(url, body, all_headers), timeout=30) as reply:
            verdict = decode_answer(reply.read()).verdict
            return None if verdict is None else verdict.score
    except urllib.error.HTTPError as error:
        error.close()
        return error.code


def children_of(pid: int) -> list[int]:
    """All descendants that live."""
    parents: dict[int, list[int]] = {}
    for entry in Path("/proc").glob("[0-9]*/stat"):
        try:
            fields = entry.read_text().rpartition(")")[2].split()
        except (FileNotFoundError, ProcessLookupError):
            continue
        if fields[0] != "Z":
            parents.setdefault(int(fields[1]), []).append(int(entry.parent.name))
    found, todo = [], [pid]
    while todo:
        own = parents.get(todo.pop(), [])
        found += own
        todo += own
    return found


@pytest.mark.real
def test_a_crash_or_an_endless_loop_costs_one_call_of_a_served_function(folder: Path) -> None:
    with served("judge:score", "--processes", "2") as (url, _):
        assert asked(url, "go") == 1 / 7
        assert asked(url, "crash") == 502
        began = time.monotonic()
        assert asked(url, "hang") == 504
        assert 2.5 < time.monotonic() - began < 6.0
        assert asked(url, "go") == 1 / 7


@pytest.mark.real
def test_a_served_function_takes_documents_of_10_mb(folder: Path) -> None:
    with served("judge:score") as (url, _):
        assert asked(url, "x" * 10_000_000) == 1 / 7


@pytest.mark.real
def test_calls_of_a_served_function_run_side_by_side(folder: Path) -> None:
    async def main() -> list[int | float | None]:
        async with asyncio.TaskGroup() as group:
            tasks = [
                group.create_task(asyncio.to_thread(asked, url, key)) for key in ("hang", "go")
            ]
        return [task.result() for task in tasks]

    with served("judge:score", "--processes", "2") as (url, _):
        assert asyncio.run(main()) == [504, 1 / 7]


@pytest.mark.real
@pytest.mark.parametrize("sign", [signal.SIGINT, signal.SIGTERM, signal.SIGHUP])
def test_a_served_function_ends_at_once_with_all_its_processes_and_folders(
    folder: Path, scratch: Path, sign: signal.Signals
) -> None:
    (folder / "strays.py").write_text(STRAYS)
    with served("strays:score") as (url, process):
        assert asked(url, "go") == 1.0
        left = children_of(process.pid)
        assert stray(folder) in left
        began = time.monotonic()
        process.send_signal(sign)
        assert process.wait(10) == 130
        assert time.monotonic() - began < 5.0
    assert gone(left)
    assert [*scratch.iterdir()] == []


def stray(folder: Path) -> int:
    return int((folder / "stray").read_text())


def gone(processes: list[int]) -> bool:
    """Whether they are within ten seconds: what was killed may still have to be reaped."""
    until = time.monotonic() + 10.0
    while [pid for pid in processes if Path(f"/proc/{pid}").exists()]:
        if time.monotonic() > until:
            return False
        time.sleep(0.02)
    return True


@pytest.mark.real
def test_under_nohup_a_served_function_outlives_its_terminal(folder: Path) -> None:
    with served("judge:score", before=("nohup",)) as (url, process):
        process.send_signal(signal.SIGHUP)
        assert asked(url, "go") == 1 / 7
        process.send_signal(signal.SIGTERM)
        assert process.wait(10) == 130


@contextmanager
def trying(*arguments: str, ignored: str = "") -> Iterator[subprocess.Popen[bytes]]:
    """`rollart rewards test` as a process; `ignored` names signals that it starts with ignored."""
    command = [sys.executable, "-m", "rollart", "rewards", "test", *arguments]
    quiet = subprocess.DEVNULL
    before = ["sh", "-c", f"trap '' {ignored}; exec \"$@\"", "sh"] if ignored else []
    process = subprocess.Popen([*before, *command], stdout=quiet, stderr=quiet)
    try:
        yield process
    finally:
        process.kill()
        process.communicate()


def comes(root: Path, pattern: str) -> bool:
    """Whether there is such a file within half a minute."""
    until = time.monotonic() + 30.0
    while not any(root.rglob(pattern)):
        if time.monotonic() > until:
            return False
        time.sleep(0.02)
    return True


@pytest.mark.real
@pytest.mark.parametrize(
    ("signs", "ignored"),
    [
        ((signal.SIGINT,), ""),
        ((signal.SIGTERM,), ""),
        ((signal.SIGHUP,), ""),
        ((signal.SIGHUP, signal.SIGTERM), ""),
        ((signal.SIGTERM,), "INT"),  # as in the background of a script
    ],
)
def test_a_trial_that_a_signal_ends_leaves_no_process_and_no_folder(
    folder: Path, scratch: Path, signs: tuple[signal.Signals, ...], ignored: str
) -> None:
    (folder / "strays.py").write_text(STRAYS)
    with trying("local://strays:slow", ignored=ignored) as process:
        assert comes(folder, "stray")
        left = children_of(process.pid)
        assert stray(folder) in left
        began = time.monotonic()
        for sign in signs:
            process.send_signal(sign)
        assert process.wait(10) == 130
        assert time.monotonic() - began < 5.0
    assert gone(left)
    assert [*scratch.iterdir()] == []


@pytest.mark.real
@pytest.mark.parametrize("sign", [signal.SIGTERM, signal.SIGHUP])
def test_a_trial_that_ends_while_the_function_is_looked_at_leaves_no_folder(
    folder: Path, scratch: Path, sign: signal.Signals
) -> None:
    (folder / "slow.py").write_text("import time\ntime.sleep(60)\ndef score(t): ...\n")
    with trying("local://slow:score") as process:
        assert comes(scratch, "rollart-look-*")
        process.send_signal(sign)
        assert process.wait(10) == 130
    assert [*scratch.iterdir()] == []


@pytest.mark.real
def test_the_seconds_of_a_trial_are_those_of_the_calls_and_not_of_what_is_compared(
    folder: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    (folder / "late.py").write_text(
        "import time\ndef score(t):\n    time.sleep(0.75)\n    return len(t.turns) / 7\n"
    )
    with served("judge:score") as (url, _):
        plain = url.partition("#")[0]
        began = time.monotonic()
        words = ("--function", "late:score", "--samples", "4", "--concurrency", "1")
        _, out, _ = said(capsys, "test", plain, *words)
        whole_s = time.monotonic() - began
    assert "4 of 4 with late:score here" in out
    took = re.search(r"4 in ([0-9.]+) s", out)
    assert took is not None
    assert float(took[1]) < whole_s - 4 * 0.75  # however slow the machine is


@pytest.mark.real
def test_a_served_function_with_a_token_answers_only_who_bears_it(folder: Path) -> None:
    with served("judge:score", token="sesame") as (url, _):
        assert url.endswith("/?auth=ROLLART_REWARD_TOKEN#judge:score")
        assert asked(url, "go") == 401
        assert asked(url, "go", "sesam") == 401
        assert asked(url, "go", "sesame") == 1 / 7


@pytest.mark.real
def test_the_url_that_a_server_with_a_token_tells_is_one_that_can_be_tried(
    folder: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("ROLLART_REWARD_TOKEN", "sesame")
    with served("judge:score", token="sesame") as (url, _):
        code, out, _ = said(capsys, "test", url, "--samples", "3")
        assert (code, "3 of 3 with judge:score here" in out) == (0, True)
        assert "?auth" not in out
        code, _, err = said(capsys, "test", url.replace("?auth=ROLLART_REWARD_TOKEN", ""))
        assert code == 2
        assert "?auth=ROLLART_REWARD_TOKEN" in err


@pytest.mark.real
def test_a_web_page_cannot_make_a_served_function_run(folder: Path) -> None:
    with served("judge:score") as (url, _):
        assert asked(url, "go", Host="rebound.example:8080") == 403
        assert asked(url, "go", **{"Content-Type": "text/plain"}) == 415
        assert asked(url, "go") == 1 / 7


@pytest.mark.real
def test_what_a_url_says_of_calls_holds_when_it_is_tried(
    folder: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    with served("judge:score") as (url, _):
        before, _, function = url.partition("#")
        small = f"{before}?limit=100000"  # of the samples one has a megabyte
        code, out, _ = said(capsys, "test", f"{small}#{function}", "--samples", "20")
        assert code == 1
        assert "?store=" in out
        code, out, _ = said(capsys, "test", f"{before}?rate=4", "--samples", "4")
        took = re.search(r"4 in ([0-9.]+) s", out)
        assert took is not None
        assert float(took[1]) > 0.7
        code, _, err = said(capsys, "test", f"{before}?version=another")
        assert code == 2
        assert "this run has version another" in err


def test_the_operators_hosts_hold_when_a_url_is_tried(
    folder: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("ROLLART_REWARD_HOSTS", "judge.example")
    code, _, err = said(capsys, "test", "http://127.0.0.1:9/?code=SECRET")
    assert code == 2
    assert "127.0.0.1 is not in ROLLART_REWARD_HOSTS=judge.example" in err
    assert "SECRET" not in err


@pytest.mark.real
def test_trying_a_served_function_says_that_it_agrees_or_in_what_it_differs(
    folder: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    with served("judge:score") as (url, _):
        code, out, _ = said(capsys, "test", url, "--samples", "9")  # the URL names the function
        assert "9 of 9 with judge:score here" in out
        assert "none" in out
        assert code == 0
        code, out, _ = said(capsys, "test", url, "--function", "judge:shifted", "--samples", "9")
        assert code == 1
        assert "0 of 9 with judge:shifted here" in out
        assert "package and deploy it again" in re.sub(r"[│\s]+", " ", out)
        assert "score is" in out


@pytest.mark.real
def test_a_function_can_be_tried_here_without_a_server(
    folder: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    code, out, _ = said(capsys, "test", "local://judge:score?concurrency=33", "--samples", "9")
    assert code == 0
    assert "judge:score at local://judge:score" in out


@pytest.mark.real
def test_a_function_here_with_too_short_a_timeout_is_said_by_that_and_not_by_this_command(
    folder: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    source = (
        "from rollart import serverless\n@serverless(timeout=1e-9)\ndef score(t):\n    return 1.0\n"
    )
    (folder / "brief.py").write_text(source)
    code, out, err = said(capsys, "test", "local://brief:score", "--samples", "1")
    assert (code, out) == (2, "")
    assert "no answer within 1e-09 s" in err
    assert "its own @serverless(timeout=…)" in err
    assert "rewards test" not in err


@pytest.mark.real
def test_trying_a_function_that_raises_counts_its_errors_and_says_the_first(
    folder: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    with served("judge:raising") as (url, _):
        code, out, _ = said(capsys, "test", url, "--samples", "7")
    assert code == 1
    assert "7 reward_error" in out
    assert "RuntimeError: the judge is silent" in out
