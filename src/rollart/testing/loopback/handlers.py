"""Deployed folders of a function, one for each runtime, for tests of platforms.

Invariant: a folder holds the user's module and a thin handler around `core.scoring.handle`; the
project itself is found where the interpreter finds it.
"""

from pathlib import Path

_LOADED = """
from importlib import import_module

from rollart.core.scoring.handle import Handler

module, _, name = {path!r}.partition(":")
HANDLER = Handler(getattr(import_module(module), name), path={path!r}, version={version!r})
"""

_LAMBDA = """import json
{loaded}

def handler(event, context):
    return json.loads(HANDLER.handle(json.dumps(event)))
"""

_CLOUD_RUN = """import functions_framework
from flask import Response
{loaded}

@functions_framework.http
def score(request):
    return Response(HANDLER.handle(request.get_data()), mimetype="application/json")
"""

_FC = """import os
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
{loaded}

class Answering(BaseHTTPRequestHandler):
    protocol_version = "HTTP/1.1"

    def do_POST(self):
        body = self.rfile.read(int(self.headers.get("content-length", 0)))
        answer = HANDLER.handle(body) if self.path == "/invoke" else b"ok"
        self.send_response(200)
        self.send_header("content-length", str(len(answer)))
        self.send_header("x-fc-status", "200")
        self.end_headers()
        self.wfile.write(answer)

    def log_message(self, *_):
        pass


port = int(os.environ.get("FC_SERVER_PORT", 9000))
ThreadingHTTPServer(("127.0.0.1", port), Answering).serve_forever()
"""

FILES = {"handler.py": _LAMBDA, "main.py": _CLOUD_RUN, "server.py": _FC}
"""By name, what each runtime is started with: Lambda, functions-framework, Function Compute."""


def write_handler(folder: Path, path: str, source: str, *, version: str = "v1") -> Path:
    """Write a function's module and the three handlers of it into `folder`, and return that.

    Args:
        path: ``module:function``.
        source: of the module.
    """
    folder.mkdir(parents=True, exist_ok=True)
    (folder / f"{path.partition(':')[0]}.py").write_text(source, encoding="utf-8")
    loaded = _LOADED.format(path=path, version=version)
    for name, text in FILES.items():
        (folder / name).write_text(text.format(loaded=loaded), encoding="utf-8")
    return folder
