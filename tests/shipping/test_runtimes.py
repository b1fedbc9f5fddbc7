"""Each package under the runtime that its platform has, with the package alone on the path."""

import asyncio
import json
import os
import re
import subprocess
import sys
import urllib.error
import urllib.request
from collections.abc import AsyncIterator, Awaitable, Callable, Mapping
from contextlib import asynccontextmanager
from importlib.util import find_spec
from pathlib import Path

import pytest

from rollart.cli.main import main
from rollart.core.scoring.document import TrajectoryDocument
from rollart.core.scoring.handle import Handler
from rollart.core.scoring.sources import sources_of
from rollart.core.scoring.wire import Request, decode_answer, encode_request
from rollart.shipping.package import TARGETS, package
from rollart.shipping.samples import sample_documents
from rollart.testing.loopback import fc_platform, lambda_platform
from rollart.testing.loopback.fc_platform import CustomRuntime, fc_cloud
from rollart.testing.loopback.functions_framework import FunctionsFramework
from rollart.testing.loopback.lambda_platform import LambdaFunction, lambda_cloud
from rollart.testing.loopback.runtime_process import RuntimeProcess, free_port

pytestmark = pytest.mark.real

DOCUMENTS = sample_documents(9)
ALONE = (sys.executable, "-S")  # without `site`, an editable install of this project is not found

Send = Callable[[bytes], Awaitable[bytes]]


def installed() -> str:
    """The folder of installed packages, which holds no file of this project."""
    spec = find_spec("functions_framework")
    assert spec is not None
    assert spec.origin is not None
    return str(Path(spec.origin).parents[1])


def path_of(folder: Path) -> str:
    return os.pathsep.join((str(folder), installed()))


@pytest.fixture
def deployed(project: Path, tmp_path: Path) -> Callable[[str], Path]:
    def deploy(target: str) -> Path:
        return package("judge:score", TARGETS[target], tmp_path / target, root=project).directory

    return deploy


@pytest.fixture
def here(project: Path, monkeypatch: pytest.MonkeyPatch) -> Handler:
    """The function in this process."""
    monkeypatch.syspath_prepend(project)
    from importlib import import_module

    version = sources_of("judge:score", [str(project)]).version
    return Handler(import_module("judge").score, path="judge:score", version=version)


def request(document: TrajectoryDocument) -> bytes:
    return encode_request(
        Request(key=f"{document.id}#v", seconds=30.0, trajectory=document.to_json())
    )


async def agrees(send: Send, here: Handler) -> None:
    """Every sample has the verdict that it has here."""
    health = decode_answer(await send(encode_request(Request(key="h"))))
    local = decode_answer(here.handle(encode_request(Request(key="h"))))
    assert (health.function, health.version) == (local.function, local.version)
    for document in DOCUMENTS:
        there = decode_answer(await send(request(document)))
        ours = decode_answer(here.handle(request(document)))
        assert there.error == ours.error == ""
        assert there.verdict == ours.verdict
        assert there.key == f"{document.id}#v"
    garbled = decode_answer(await send(b'{"rollart": 1}'))
    assert garbled.verdict is None
    assert garbled.error


def posting(url: str, headers: Mapping[str, str]) -> Send:
    opener = urllib.request.build_opener(urllib.request.ProxyHandler({}))

    def post(body: bytes) -> bytes:
        with opener.open(urllib.request.Request(url, body, dict(headers)), timeout=30) as reply:
            return reply.read()

    return lambda body: asyncio.to_thread(post, body)


def status_of(url: str, headers: Mapping[str, str], body: bytes | None = b"{}") -> int:
    opener = urllib.request.build_opener(urllib.request.ProxyHandler({}))
    try:
        with opener.open(urllib.request.Request(url, body, dict(headers)), timeout=30) as reply:
            return reply.status
    except urllib.error.HTTPError as error:
        error.close()
        return error.code


def test_with_a_package_alone_on_the_path_this_project_is_the_packages(
    deployed: Callable[[str], Path],
) -> None:
    folder = deployed("lambda")
    asked = "import rollart; print(rollart.__file__); import rollart.control"

    def run(path: str) -> subprocess.CompletedProcess[str]:
        return subprocess.run(
            [*ALONE, "-c", asked],
            env={"PYTHONPATH": path},
            cwd=folder.parent,
            capture_output=True,
            text=True,
            check=False,
        )

    alone, with_package = run(installed()), run(path_of(folder))
    assert "No module named 'rollart'" in alone.stderr
    assert with_package.stdout.strip() == str(folder / "rollart/__init__.py")
    assert "No module named 'rollart.control'" in with_package.stderr


def test_the_lambda_package_scores_as_here_under_the_runtime_client(
    deployed: Callable[[str], Path], here: Handler
) -> None:
    folder = deployed("lambda")
    function = LambdaFunction(
        folder=folder,
        handler="lambda_function.handler",
        environment={"PYTHONPATH": path_of(folder)},
        python=ALONE,
    )
    headers = {"Authorization": f"AWS4-HMAC-SHA256 Credential={lambda_platform.ACCESS_KEY_ID}/x"}

    async def run() -> None:
        async with lambda_cloud(function) as platform:
            url = f"{platform.url}/2015-03-31/functions/judge/invocations"
            send = posting(url, headers)
            await agrees(send, here)
            body = await send(request(DOCUMENTS[0]))
            assert isinstance(json.loads(body), dict)  # an object, and not text of an object
            assert platform.figures().cold_starts == 1

    asyncio.run(run())


def test_the_function_compute_package_scores_as_here_as_a_custom_runtime(
    deployed: Callable[[str], Path], here: Handler
) -> None:
    folder = deployed("fc")
    function = CustomRuntime(
        folder=folder,
        command=(*ALONE, "server.py", "127.0.0.1"),
        environment={"PYTHONPATH": path_of(folder)},
    )
    headers = {"Authorization": f"ACS3-HMAC-SHA256 Credential={fc_platform.ACCESS_KEY_ID},x"}

    async def run() -> None:
        async with fc_cloud(function) as platform:
            url = f"{platform.url}/2023-03-30/functions/judge/invocations"
            await agrees(posting(url, headers), here)
        log = (folder / "runtime.log").read_text()
        assert log.count("FC Invoke Start RequestId:") == log.count("FC Invoke End RequestId:") > 9

    asyncio.run(run())


def test_the_function_compute_event_function_scores_as_here(
    deployed: Callable[[str], Path], here: Handler
) -> None:
    folder = deployed("fc")
    script = (
        "import sys; from index import handler; "
        "sys.stdout.write(handler(sys.stdin.buffer.read(), None))"
    )
    done = subprocess.run(
        [*ALONE, "-c", script],
        input=request(DOCUMENTS[2]),
        env={"PYTHONPATH": path_of(folder)},
        cwd=folder,
        capture_output=True,
        check=True,
    )
    assert (
        decode_answer(done.stdout).verdict
        == decode_answer(here.handle(request(DOCUMENTS[2]))).verdict
    )


def test_the_custom_runtime_refuses_what_is_no_invocation(deployed: Callable[[str], Path]) -> None:
    folder = deployed("fc")

    async def run() -> tuple[int, ...]:
        port = free_port()
        process = await RuntimeProcess.start(
            (*ALONE, "server.py", "127.0.0.1"),
            folder=folder,
            environment={"PYTHONPATH": path_of(folder), "FC_SERVER_PORT": str(port)},
            log=folder / "runtime.log",
        )
        try:
            assert await process.listens(port)
            url = f"http://127.0.0.1:{port}"
            asked = [
                (f"{url}/initialize", {}),
                (f"{url}/else", {}),
                (f"{url}/invoke", {"Content-Length": str(1 << 40)}),
            ]
            return tuple([await asyncio.to_thread(status_of, *one) for one in asked])
        finally:
            await process.stop()

    assert asyncio.run(run()) == (200, 404, 413)


def test_the_cloud_run_package_scores_as_here_under_functions_framework(
    deployed: Callable[[str], Path], here: Handler
) -> None:
    folder = deployed("cloudrun")
    environment = {"PYTHONPATH": path_of(folder)}

    async def run() -> None:
        framework = FunctionsFramework(
            folder, target="handle", threads=1, environment=environment, python=ALONE
        )
        async with framework as served:
            await agrees(posting(served.url, {"Content-Type": "application/json"}), here)
            assert await asyncio.to_thread(status_of, served.url, {}, None) == 405

    asyncio.run(run())


def test_a_service_with_a_token_answers_only_who_bears_it(
    deployed: Callable[[str], Path], here: Handler
) -> None:
    folder = deployed("cloudrun")
    environment = {"PYTHONPATH": path_of(folder), "ROLLART_REWARD_TOKEN": "sesame"}

    async def run() -> None:
        framework = FunctionsFramework(
            folder, target="handle", threads=1, environment=environment, python=ALONE
        )
        async with framework as served:
            for wrong in ({}, {"Authorization": "Bearer sesam"}, {"Authorization": "sesame"}):
                assert await asyncio.to_thread(status_of, served.url, wrong) == 401
            await agrees(posting(served.url, {"Authorization": "Bearer sesame"}), here)

    asyncio.run(run())


@pytest.mark.parametrize("scheme", ["lambda", "fc", "http"])
def test_a_packaged_function_is_tried_at_its_url_and_agrees(
    deployed: Callable[[str], Path],
    project: Path,
    monkeypatch: pytest.MonkeyPatch,
    capsys: pytest.CaptureFixture[str],
    scheme: str,
) -> None:
    monkeypatch.chdir(project)
    monkeypatch.setenv("AWS_ACCESS_KEY_ID", lambda_platform.ACCESS_KEY_ID)
    monkeypatch.setenv("AWS_SECRET_ACCESS_KEY", "any")
    monkeypatch.setenv("ALIBABA_CLOUD_ACCESS_KEY_ID", fc_platform.ACCESS_KEY_ID)
    monkeypatch.setenv("ALIBABA_CLOUD_ACCESS_KEY_SECRET", "any")

    @asynccontextmanager
    async def platform() -> AsyncIterator[str]:
        if scheme == "lambda":
            folder = deployed("lambda")
            function = LambdaFunction(
                folder=folder,
                handler="lambda_function.handler",
                environment={"PYTHONPATH": path_of(folder)},
                python=ALONE,
            )
            async with lambda_cloud(function) as running:
                yield f"lambda://judge?region=loopback-1&endpoint={running.url}"
        elif scheme == "fc":
            folder = deployed("fc")
            runtime = CustomRuntime(
                folder=folder,
                command=(*ALONE, "server.py", "127.0.0.1"),
                environment={"PYTHONPATH": path_of(folder)},
            )
            async with fc_cloud(runtime) as running:
                yield f"fc://judge?endpoint={running.url}"
        else:
            folder = deployed("cloudrun")
            framework = FunctionsFramework(
                folder,
                target="handle",
                environment={"PYTHONPATH": path_of(folder)},
                python=ALONE,
            )
            async with framework as served:
                yield served.url

    async def tried() -> int:
        async with platform() as url:
            words = ["rewards", "test", f"{url}#judge:score", "--samples", "9"]
            return await asyncio.to_thread(main, words)

    assert asyncio.run(tried()) == 0
    out = capsys.readouterr().out
    assert "9 of 9 with judge:score here" in out
    assert re.search(r"errors\W+none", out)


def test_the_procfiles_own_command_starts_the_service_and_a_hanging_call_costs_itself(
    tmp_path: Path,
) -> None:
    root = tmp_path / "in"
    root.mkdir()
    (root / "judge.py").write_text(
        "import rollart\n"
        "@rollart.serverless(timeout=2)\n"
        "def score(t):\n    while t.task.key == 'hang': pass\n    return 0.5\n"
    )
    folder = package("judge:score", TARGETS["cloudrun"], tmp_path / "out", root=root).directory
    command = (folder / "Procfile").read_text().removeprefix("web: ").strip()

    async def run() -> None:
        port = free_port()
        binaries = f"{Path(sys.executable).parent}{os.pathsep}{os.environ['PATH']}"
        environment = {"PORT": str(port), "PATH": binaries}  # nothing that bounds its calls
        process = await RuntimeProcess.start(
            ("sh", "-c", f"exec {command} --host 127.0.0.1"),
            folder=folder,
            environment=environment,
            log=folder / "runtime.log",
        )
        try:
            assert await process.listens(port)
            send = posting(f"http://127.0.0.1:{port}/", {})
            hung = decode_answer(await send(asked("hang")))
            assert hung.verdict is None
            assert "SystemExit" in hung.error  # by which gunicorn ends its worker
            answer = decode_answer(await send(asked("go")))
            assert answer.verdict is not None
            assert answer.instance != hung.instance
            assert answer.verdict.score == 0.5
        finally:
            await process.stop()

    asyncio.run(run())


def asked(key: str) -> bytes:
    plain = DOCUMENTS[0].to_json()
    plain["task"]["key"] = key
    return encode_request(Request(key=key, seconds=30.0, trajectory=plain))
