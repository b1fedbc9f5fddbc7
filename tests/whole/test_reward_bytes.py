"""Bytes of strangers make no objects and run nothing, wherever rewards are asked or answered."""

import ast
import asyncio
import pickle
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

import rollart
from rollart.backends.rewards.http import HttpPlatform
from rollart.backends.rewards.urls import parse_url
from rollart.core.scoring.handle import Handler
from rollart.core.scoring.wire import decode_answer
from rollart.serving.admission import Admission
from rollart.serving.endpoint import Endpoint
from rollart.serving.http import HttpServer
from rollart.serving.openai import ChatAnswer, ChatRequest
from rollart.testing.loopback.server import HttpReply, HttpRequest, LoopbackServer

SOURCES = sorted(Path(rollart.__file__).parent.rglob("*.py"))


class Bomb:
    def __init__(self, path: Path) -> None:
        self.path = path

    def __reduce__(self) -> tuple[Any, tuple[Path]]:
        return Path.touch, (self.path,)


def test_a_pickle_sent_to_whatever_takes_rewards_bytes_runs_nothing(tmp_path: Path) -> None:
    crater = tmp_path / "crater"
    bomb = pickle.dumps(Bomb(crater))
    handler = Handler(lambda trajectory: 0.5, path="judge:plain", version="v1")
    answer = decode_answer(handler.handle(bomb))
    assert answer.verdict is None
    assert "no JSON" in answer.error

    async def chat(request: ChatRequest) -> ChatAnswer:
        raise AssertionError(request)

    async def answers_with_it(_: HttpRequest) -> HttpReply:
        return HttpReply(body=bomb)

    async def sent(port: int, data: bytes) -> bytes:
        reader, writer = await asyncio.open_connection("127.0.0.1", port)
        writer.write(data)
        writer.write_eof()
        told = await asyncio.wait_for(reader.read(), 10)
        writer.close()
        return told

    async def main() -> None:
        async with asyncio.TaskGroup() as group:
            endpoint = Endpoint(chat, name="m")
            server = HttpServer(
                group,
                endpoint.handle,
                endpoint.refuse,
                admit=Admission(""),
                body_bytes=1 << 20,
            )
            port = await server.open("127.0.0.1", 0)
            told = await sent(port, bomb)
            assert told == b"" or told.startswith(b"HTTP/1.1 4")
            head = "POST /v1/chat/completions HTTP/1.1\r\nhost: 127.0.0.1\r\n"
            head += f"content-type: application/json\r\ncontent-length: {len(bomb)}\r\n\r\n"
            assert (await sent(port, head.encode() + bomb)).startswith(b"HTTP/1.1 400")
            server.close()
        async with LoopbackServer(answers_with_it) as evil:
            platform = HttpPlatform(parse_url(evil.url))
            data = await platform.call(b"{}", key="k", seconds=5)
            await platform.close()
            assert data == bomb
            with pytest.raises(ValueError, match="no JSON"):
                decode_answer(data)

    asyncio.run(main())
    assert not crater.exists()
    pickle.loads(bomb)
    assert crater.exists()  # the bomb is live


FORBIDDEN = frozenset({"pickle", "cPickle", "cloudpickle", "dill", "marshal", "shelve", "joblib"})
RUN_CODE = frozenset({"recv_pyobj", "send_pyobj", "unsafe_load", "full_load"})


def unsafe(tree: ast.AST) -> Iterator[str]:
    """What in a module makes objects, or code, of bytes that came from somewhere."""
    for node in ast.walk(tree):
        if isinstance(node, ast.Import):
            yield from (a.name for a in node.names if a.name.partition(".")[0] in FORBIDDEN)
        elif isinstance(node, ast.ImportFrom) and (node.module or "").split(".")[0] in FORBIDDEN:
            yield str(node.module)
        elif isinstance(node, ast.Call):
            called = node.func
            given = {keyword.arg: ast.unparse(keyword.value) for keyword in node.keywords}
            if isinstance(called, ast.Attribute):
                if called.attr in RUN_CODE:
                    yield called.attr
                if ast.unparse(called) == "torch.load" and given.get("weights_only") != "True":
                    yield "torch.load"
            if given.get("allow_pickle") == "True":
                yield "allow_pickle"
            if isinstance(called, ast.Name) and called.id == "eval":
                yield "eval"


def test_nothing_in_the_project_makes_objects_of_bytes_by_running_them() -> None:
    found = {str(path): list(unsafe(ast.parse(path.read_text()))) for path in SOURCES}
    assert len(found) > 200
    assert {path: what for path, what in found.items() if what} == {}


@pytest.mark.parametrize(
    "planted",
    [
        "import pickle",
        "from cloudpickle import loads",
        "import torch\ntorch.load(file)",
        "import torch\ntorch.load(file, weights_only=False)",
        "import numpy as np\nnp.load(file, allow_pickle=True)",
        "socket.recv_pyobj()",
        "eval(text)",
    ],
)
def test_each_way_of_running_bytes_would_be_found(planted: str) -> None:
    assert list(unsafe(ast.parse(planted)))
