"""A language model as judge: the client of any OpenAI-compatible endpoint, for reward functions.

Blocking, for it is called from a plain function in a process of its own. Invariant: an answer that
cannot be read is no verdict; the key is read from the environment when it is needed and is in no
message. Waits for places and turns that all processes of this machine share, and for the endpoint;
the deadline bounds all of it.
"""

import math
import os
import random
from collections.abc import Callable
from contextlib import suppress
from pathlib import Path
from typing import Any

from rollart.core.errors import ConfigError, FailureKind
from rollart.core.scoring.judge_calls import (
    HOSTS,
    MOST_ASKED_S,
    SCORE,
    JudgeFailed,
    Messages,
    Reply,
    asked_wait,
    endpoint_at,
    is_retried,
    key_in,
    no_verdict,
    pause_s,
    refusal,
    request_body,
    score_in,
    text_in,
)
from rollart.core.scoring.judge_http import Post, Unreached, send
from rollart.core.scoring.shared_rate import Clock, Late, MachineClock, SharedRate
from rollart.core.scoring.verdict import Verdict, as_verdict

__all__ = ["Judge", "JudgeFailed"]

Send = Callable[[Post, float], Reply]
"""Sends once and waits so many seconds. Raises `Unreached`."""


class Judge:
    """One model at one endpoint.

    All processes of a machine that ask the same `base_url` with the same key share rate, places and
    what the endpoint asks them to wait.

    Args:
        base_url: such as ``https://api.example.com/v1``; redirects are not followed.
        model: its name there.
        api_key_env: environment variable of the key, or of the same with ``ROLLART_`` before it,
            which is how a run's own processes are given one; None sends none.
        rate_per_s: requests begun a second; None leaves it to the endpoint's 429.
        concurrency: requests under way at once.
        timeout: seconds that one question may take in all, waits and tries included; keep it below
            the reward's own limit, so that it ends with a reason.
        try_timeout: seconds of one try; None is all that is left, so that silence is not retried.
        temperature, max_tokens: None leaves them to the endpoint.
        clock, transport, folder, draw: for tests.

    Raises:
        ConfigError: an argument is wrong; nothing is asked yet.
    """

    def __init__(
        self,
        base_url: str,
        model: str,
        *,
        api_key_env: str | None = "OPENAI_API_KEY",
        rate_per_s: float | None = None,
        concurrency: int = 8,
        timeout: float = 30.0,
        try_timeout: float | None = None,
        temperature: float | None = 0.0,
        max_tokens: int | None = None,
        clock: Clock | None = None,
        transport: Send = send,
        folder: Path | None = None,
        draw: Callable[[], float] = random.random,
    ) -> None:
        self._endpoint = endpoint_at(base_url, hosts=os.environ.get(HOSTS))
        for name, value in (
            ("rate_per_s", rate_per_s),
            ("concurrency", concurrency),
            ("timeout", timeout),
            ("try_timeout", try_timeout),
            ("max_tokens", max_tokens),
        ):
            if value is not None and not (math.isfinite(value) and value > 0):
                raise ConfigError(f"Judge({name}={value!r}): must be above 0; use {name}=8")
        self._model = model
        self._key_name = api_key_env
        self._rate_per_s = rate_per_s
        self._concurrency = concurrency
        self._timeout = timeout
        self._try_timeout = timeout if try_timeout is None else try_timeout
        self._temperature = temperature
        self._max_tokens = max_tokens
        self._clock = MachineClock() if clock is None else clock
        self._send = transport
        self._folder = folder
        self._draw = draw

    def ask(self, messages: Messages) -> str:
        """What the model says to these messages (a text is one message of the user).

        429, 5xx and broken connections are tried again until the deadline, other refusals are not.

        Raises:
            JudgeFailed: it said nothing, or the time was over.
            ConfigError: there is no key.
        """
        endpoint = self._endpoint
        key = key_in(os.environ, self._key_name, endpoint)
        body = request_body(
            self._model, messages, temperature=self._temperature, max_tokens=self._max_tokens
        )
        post = Post(endpoint=endpoint, body=body, key=key)
        until = self._clock.monotonic() + self._timeout
        shared = SharedRate(
            f"{endpoint.url}\0{key}",
            rate_per_s=self._rate_per_s,
            places=self._concurrency,
            clock=self._clock,
            folder=self._folder,
        )
        tries, why = 0, ""
        while True:
            try:
                reply = self._try(shared, post, until)
            except Late as late:
                raise self._too_late(why or f"it was not asked: {late}") from late
            except Unreached as error:
                if error.lasting:
                    raise JudgeFailed(str(error)) from error
                asked, why = None, str(error)
            else:
                if reply.status == 200:
                    return text_in(reply)
                why = refusal(reply, endpoint, key)
                if not is_retried(reply.status):
                    raise JudgeFailed(why)
                asked = self._hold_off(shared, reply, until)
            tries += 1
            pause = pause_s(tries, asked, self._draw())
            if self._clock.monotonic() + pause >= until:
                raise self._too_late(why)
            self._clock.sleep(pause)

    def score(
        self,
        messages: Messages,
        *,
        pattern: str = SCORE,
        between: tuple[float, float] | None = None,
        parse: Callable[[str], Any] | None = None,
    ) -> Verdict:
        """The model's judgement; whatever keeps it from being one is no verdict with the reason.

        Args:
            pattern: a regular expression whose first group is the score; its last match counts.
            between: least and most of the scale; a score outside is none.
            parse: instead of both, makes a number or a `Verdict` of the answer; None or
                `ValueError` is no verdict.

        Raises:
            ConfigError: there is no key.
        """
        try:
            text = self.ask(messages)
        except JudgeFailed as failed:
            overran = FailureKind.REWARD_TIMEOUT if failed.overran else FailureKind.REWARD_ERROR
            return no_verdict(str(failed), overran)
        if parse is None:
            return score_in(text, pattern, between)
        try:
            found = parse(text)
            return (
                no_verdict("the judge's answer holds no score")
                if found is None
                else (as_verdict(found))
            )
        except ValueError as error:
            return no_verdict(f"the judge's answer cannot be read: {error}")

    def _try(self, shared: SharedRate, post: Post, until: float) -> Reply:
        """One try, at its turn. Raises `Late` or `Unreached`."""
        with shared.place(until):
            shared.take_turn(until)
            left = until - self._clock.monotonic()
            if left <= 0:
                raise Late("its turn came at the deadline")
            return self._send(post, min(left, self._try_timeout))

    def _hold_off(self, shared: SharedRate, reply: Reply, until: float) -> float | None:
        """Let all processes wait as the endpoint asks; returns the seconds, None if it does not."""
        asked = asked_wait(reply.retry_after, self._clock.wall())
        if asked is not None:
            with suppress(Late):  # then this question is over too
                shared.hold_off(min(asked, MOST_ASKED_S), until)
        return asked

    def _too_late(self, why: str) -> JudgeFailed:
        return JudgeFailed(f"no answer within {self._timeout:g} s: {why}", overran=True)
