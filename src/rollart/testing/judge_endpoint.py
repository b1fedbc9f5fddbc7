"""A judge's endpoint on loopback that answers by script: for tests of rewards that ask a judge."""

import json
import threading
import time
from collections import deque
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from types import TracebackType
from typing import Any


@dataclass(frozen=True, slots=True, kw_only=True)
class Scripted:
    """One answer; `text` is what the model says, `body` is sent instead of that where given.

    `trickle_s` waits so long before each byte of the body.
    """

    text: str = ""
    status: int = 200
    headers: Mapping[str, str] = field(default_factory=dict[str, str])
    body: bytes | None = None
    trickle_s: float = 0.0


@dataclass(frozen=True, slots=True, kw_only=True)
class Asked:
    """One request; `time` is monotonic, in seconds."""

    time: float
    path: str
    headers: Mapping[str, str]
    body: Mapping[str, Any]


class JudgeEndpoint:
    """Gives its answers in order, the last one again and again; a context manager.

    Attributes:
        url: the base URL to ask.
        asked: requests so far, in the order they came.
    """

    def __init__(self, answers: Iterable[Scripted]) -> None:
        self._answers = deque(answers)
        self.asked: list[Asked] = []
        endpoint = self

        class Handler(BaseHTTPRequestHandler):
            def do_POST(self) -> None:
                endpoint.answer(self)

            def do_GET(self) -> None:
                endpoint.answer(self)

            def log_request(self, code: int | str = "-", size: int | str = "-") -> None:
                """Says nothing."""

        self._lock = threading.Lock()
        self._server = ThreadingHTTPServer(("127.0.0.1", 0), Handler)
        self._server.daemon_threads = False  # closing waits for answers under way
        self._thread = threading.Thread(target=self._server.serve_forever, args=(0.01,))
        self.url = f"http://127.0.0.1:{self._server.server_address[1]}/v1"

    def __enter__(self) -> "JudgeEndpoint":
        self._thread.start()
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        self._server.shutdown()
        self._thread.join()
        self._server.server_close()

    def answer(self, request: BaseHTTPRequestHandler) -> None:
        """Answer one request by the script."""
        came = time.monotonic()
        body = request.rfile.read(int(request.headers.get("Content-Length") or 0))
        asked = Asked(
            time=came,
            path=request.path,
            headers=dict(request.headers),
            body=json.loads(body) if body else {},
        )
        with self._lock:
            self.asked.append(asked)
            chosen = self._answers[0] if len(self._answers) == 1 else self._answers.popleft()
        content = completion(chosen.text) if chosen.body is None else chosen.body
        request.send_response(chosen.status)
        for name, value in {"Content-Length": str(len(content)), **chosen.headers}.items():
            request.send_header(name, value)
        request.end_headers()
        try:
            if not chosen.trickle_s:
                request.wfile.write(content)
                return
            for byte in content:
                request.wfile.write(bytes((byte,)))
                request.wfile.flush()
                time.sleep(chosen.trickle_s)
        except OSError:
            return  # the client has gone


def completion(text: str | None, finish: str = "stop") -> bytes:
    """A chat completion that says `text`, as JSON."""
    choice = {
        "index": 0,
        "message": {"role": "assistant", "content": text},
        "finish_reason": finish,
    }
    return json.dumps({"object": "chat.completion", "choices": [choice]}).encode()
