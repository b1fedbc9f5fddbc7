"""What a judge's client decides: requests, what an answer says, whether and when to try again.

Pure. Invariant: nothing here shows a key; an answer that does not say a score gives no verdict.
"""

import ipaddress
import json
import math
import re
import urllib.parse
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from email.utils import parsedate_to_datetime
from typing import Any, cast

from rollart.core.errors import ConfigError, FailureKind, RollartError
from rollart.core.scoring.verdict import Verdict

SCORE = r"(?i)\bscore\b\W*?(-?\d+(?:\.\d+)?)"
"""Finds ``Score: 7``; the group is the number."""

FIRST_PAUSE_S, LONGEST_PAUSE_S = 0.5, 30.0
MOST_ASKED_S = 300.0  # beyond, an endpoint's wish to be left alone would stop a whole run
_WORDS = 200  # characters of an endpoint's own words in a reason

Messages = str | Sequence[Mapping[str, Any]]


class JudgeFailed(RollartError):
    """The judge gave no text; the message says why. `overran`: its time was over."""

    def __init__(self, reason: str, *, overran: bool = False) -> None:
        super().__init__(reason)
        self.overran = overran


@dataclass(frozen=True, slots=True, kw_only=True)
class Reply:
    """What came back over HTTP. `retry_after` is that header's text."""

    status: int
    body: bytes
    retry_after: str = ""


@dataclass(frozen=True, slots=True, kw_only=True)
class Endpoint:
    """Where a judge is asked: `url` of its chat completions, `host` as messages name it."""

    url: str
    host: str
    loopback: bool


HOSTS = "ROLLART_REWARD_HOSTS"
"""Environment variable with the hosts that rewards, and so judges, may be sent to."""


def endpoint_at(base_url: str, *, hosts: str | None = None) -> Endpoint:
    """The endpoint of a base URL such as ``https://api.example.com/v1``.

    Args:
        hosts: what `HOSTS` says, if it is set: names with commas, `*.example.com` for all below.

    Raises `ConfigError` for what is no such URL, holds a password, or is none of the hosts.
    """
    try:
        parts = urllib.parse.urlsplit(base_url)
        host, port = parts.hostname or "", parts.port
    except ValueError:
        raise _bad_url("it cannot be read") from None
    if parts.scheme not in {"http", "https"} or not host or re.search(r"\s", base_url):
        raise _bad_url("it is no http(s):// URL with a host")
    if parts.username is not None or parts.password is not None:
        raise _bad_url("it holds a name or a password, which belong into the environment")
    if parts.query or parts.fragment:
        raise _bad_url("it has a query or a fragment")
    if hosts is not None and not _listed(host, hosts):
        raise _bad_url(f"{host} is not in {HOSTS}={hosts}, where it may be added")
    shown = f"[{host}]" if ":" in host else host
    place = shown if port is None else f"{shown}:{port}"
    url = f"{parts.scheme}://{place}{parts.path.rstrip('/')}/chat/completions"
    return Endpoint(url=url, host=place, loopback=is_loopback(host))


def _listed(host: str, hosts: str) -> bool:
    patterns = [one.strip().lower() for one in hosts.split(",")]
    below = (one[1:] for one in patterns if one.startswith("*.") and len(one) > 2)
    return host.lower() in patterns or any(host.lower().endswith(one) for one in below)


def is_loopback(host: str) -> bool:
    """Whether a host is this machine, by its name or number alone."""
    if host == "localhost":
        return True
    try:
        return ipaddress.ip_address(host).is_loopback
    except ValueError:
        return False


def key_in(environment: Mapping[str, str], name: str | None, endpoint: Endpoint) -> str:
    """The endpoint's key; empty where none is sent. Raises `ConfigError`, which never shows it."""
    if name is None:
        return ""
    own = f"ROLLART_{name}"
    key = (environment.get(name) or environment.get(own) or "").strip()
    if not key and not endpoint.loopback:
        raise ConfigError(
            f"the judge at {endpoint.host} has no key: set {name}, or {own} for rewards that a "
            "run's own processes compute, or pass api_key_env=None where it needs none"
        )
    if not all("!" <= letter <= "~" for letter in key):
        raise ConfigError(
            f"{name} holds characters that no key has (spaces, line ends, accents); set it anew"
        )
    return key


def request_body(
    model: str, messages: Messages, *, temperature: float | None, max_tokens: int | None
) -> bytes:
    """A chat request as JSON; a text is one message of the user. None leaves a setting out."""
    said = [{"role": "user", "content": messages}] if isinstance(messages, str) else messages
    plain: dict[str, Any] = {"model": model, "messages": [dict(message) for message in said]}
    if temperature is not None:
        plain["temperature"] = temperature
    if max_tokens is not None:
        plain["max_tokens"] = max_tokens
    # What a policy sampled may hold halves of surrogate pairs, which no server reads.
    text = json.dumps(plain, allow_nan=False, ensure_ascii=False)
    return text.encode("utf-8", errors="replace")


def text_in(reply: Reply) -> str:
    """What the judge said, in an answer of status 200. Raises `JudgeFailed`."""
    try:
        table: Any = json.loads(reply.body)
    except ValueError:
        raise JudgeFailed("the judge's answer is no JSON") from None
    if isinstance(table, dict) and cast("dict[str, Any]", table).get("error"):
        raise JudgeFailed("the judge answered 200 with an error in it")
    try:
        choice = cast("Mapping[str, Any]", table["choices"][0])
        said: Any = choice["message"]["content"]
    except (KeyError, IndexError, TypeError):
        raise JudgeFailed("the judge's answer has no choices[0].message.content") from None
    if not isinstance(said, str) or not said:
        raise JudgeFailed(f"the judge said nothing (finish_reason {choice.get('finish_reason')!r})")
    return said


def is_retried(status: int) -> bool:
    """Whether another try may mend it: 429 and 5xx, never another 4xx, never a redirect."""
    return status == 429 or 500 <= status < 600


def refusal(reply: Reply, endpoint: Endpoint, key: str) -> str:
    """Why an answer of another status than 200 is none, in words that can be counted."""
    where, status = endpoint.host, reply.status
    if 300 <= status < 400:
        return (
            f"the judge at {where} redirects ({status}), which is not followed; "
            "use its final address as base_url"
        )
    if status in {401, 403}:  # its words may hold a part of the key
        return f"the judge at {where} refuses the key ({status}); set the right one"
    words = _error_words(reply.body, key)
    return f"the judge at {where} answers {status}" + (f": {words}" if words else "")


def asked_wait(header: str, now: float) -> float | None:
    """Seconds that a Retry-After asks for, from `now` (seconds since 1970); None if for none."""
    text = header.strip()
    try:
        asked = float(text)
    except ValueError:
        try:
            asked = parsedate_to_datetime(text).timestamp() - now
        except (ValueError, TypeError, OverflowError):
            return None
    return max(asked, 0.0) if math.isfinite(asked) else None


def pause_s(tries: int, asked_s: float | None, draw: float) -> float:
    """Seconds before the next try: doubling, and never less than what was asked for.

    Args:
        tries: how many failed so far, from 1 on.
        draw: uniform in 0..1, so that many callers do not come back together.
    """
    backoff = min(LONGEST_PAUSE_S, FIRST_PAUSE_S * 2.0 ** min(tries - 1, 16))
    if asked_s is None:
        return backoff * (0.5 + 0.5 * draw)
    return asked_s + min(backoff, 1.0 + 0.1 * asked_s) * draw


def score_in(text: str, pattern: str, between: tuple[float, float] | None) -> Verdict:
    """The last number that `pattern` finds: judges think first and decide at the end.

    No verdict where there is none, or it lies outside `between`: a judge that does not keep to its
    scale was not understood.
    """
    found = list(re.finditer(pattern, text))
    if not found:
        return no_verdict("the judge's answer holds no score")
    last = found[-1]
    try:
        score = float(last[1] if last.re.groups else last[0])
    except (TypeError, ValueError):
        return no_verdict("what the judge gives as its score is no number")
    if not math.isfinite(score) or (between is not None and not between[0] <= score <= between[1]):
        return no_verdict("the judge's score lies outside its scale")
    return Verdict(score=score)


def no_verdict(reason: str, failure: FailureKind = FailureKind.REWARD_NO_VERDICT) -> Verdict:
    """No verdict, and why; never a score of 0."""
    return Verdict(score=None, reason=reason, failure=failure)


def _bad_url(why: str) -> ConfigError:
    # The URL is not shown: where it holds a password, that would show it.
    return ConfigError(f"Judge(base_url): {why}; use a URL such as http://127.0.0.1:8000/v1")


def _error_words(body: bytes, key: str) -> str:
    try:
        said: Any = json.loads(body)["error"]
        said = cast("Mapping[str, Any]", said)["message"] if isinstance(said, Mapping) else said
    except (ValueError, KeyError, TypeError):
        return ""
    if not isinstance(said, str):
        return ""
    shown = said.replace(key, "***") if key else said
    return " ".join(shown.split())[:_WORDS]
