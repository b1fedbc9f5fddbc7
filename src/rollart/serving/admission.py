"""Who may ask a server of this project's, decided on a request's headers.

Invariant: without a token only this machine's own programs are admitted: a web page's script, which
a browser runs there too, is not (it can neither send JSON unasked nor, by a name that it makes
point here, say a loopback host). Nothing of a body is read for who is not admitted.
"""

import hmac
from collections.abc import Mapping

from rollart.core.errors import ConfigError
from rollart.core.scoring.judge_calls import is_loopback
from rollart.serving.http import BadRequest, Request


class Admission:
    """Admits who bears the token or, where it is empty, this machine's own programs."""

    def __init__(self, token: str) -> None:
        self._bearer = f"Bearer {token}".encode() if token else b""

    def __call__(self, request: Request) -> None:
        """Raises `BadRequest` with the status and the remedy. Reads no body."""
        if self._bearer:
            given = request.headers.get("authorization", "").encode("latin-1", errors="replace")
            if not hmac.compare_digest(given, self._bearer):
                raise BadRequest(401, "send Authorization: Bearer and the token")
        elif not is_loopback(_host_in(request.headers.get("host", ""))):
            raise BadRequest(403, "ask 127.0.0.1 or localhost; this is served to no other name")
        kind = request.headers.get("content-type", "").partition(";")[0].strip().lower()
        if request.method == "POST" and kind != "application/json":
            raise BadRequest(415, "send Content-Type: application/json")


def token_of(environment: Mapping[str, str], variable: str, host: str) -> str:
    """The token that a server at `host` wants; empty for none.

    Raises `ConfigError`, which never shows it, also where others reach the host and there is none.
    """
    token = environment.get(variable, "").strip()
    if not token and not is_loopback(host):
        raise ConfigError(
            f"--host {host}: other machines could ask, so a token is needed; set {variable}, or "
            "use --host 127.0.0.1"
        )
    if not all("!" <= letter <= "~" for letter in token):
        raise ConfigError(
            f"{variable} holds characters that a header cannot; use letters and digits"
        )
    return token


def _host_in(header: str) -> str:
    """The name in a Host header, without its port."""
    if header.startswith("["):
        return header[1:].partition("]")[0]
    return header.partition(":")[0].lower()
