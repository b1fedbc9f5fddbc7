"""From a platform's bytes to a verdict, and from a fault to the lack of one: pure.

Invariant: an answer is taken only when it bears the key of the very call, and comes from the
version of the function that was asked for; nothing here makes a number of what has none.
"""

import json
from collections.abc import Mapping
from dataclasses import replace
from typing import Any

from rollart.backends.rewards.platform import Fault, PlatformFault
from rollart.core.errors import FailureKind
from rollart.core.scoring.verdict import Verdict
from rollart.core.scoring.wire import Answer, Foreign, Garbled, bounded, decode_answer


def own_answer(data: bytes, *, key: str) -> Answer:
    """The answer to the call of `key`. Raises `PlatformFault`."""
    try:
        answer = decode_answer(data)
    except Foreign as error:
        raise PlatformFault(Fault.FOREIGN, str(error)) from error
    except Garbled as error:
        raise PlatformFault(Fault.GARBLED, str(error)) from error
    if answer.key != key:
        said = f": {answer.error}" if answer.error else ""
        raise PlatformFault(
            Fault.GARBLED, f"asked for {key!r}, it answers for {bounded(answer.key)!r}{said}"
        )
    return answer


def score_answer(data: bytes, *, key: str, version: str | None) -> Answer:
    """As `own_answer`, with a verdict or an error. `version` None takes any.

    An error may come without a version: what stands before a function does not know it.
    """
    answer = own_answer(data, key=key)
    unversioned_error = bool(answer.error) and not answer.version
    if version is not None and answer.version != version and not unversioned_error:
        answered = f"version {answer.version}" if answer.version else "an answer without version"
        raise PlatformFault(
            Fault.GARBLED,
            f"{answered} of {answer.function or 'a function'} came, version {version} was asked; "
            "what is deployed was changed during the run",
        )
    if answer.verdict is None and not answer.error:
        raise PlatformFault(Fault.GARBLED, f"an answer for {key!r} with no verdict and no error")
    return answer


def verdict_of(answer: Answer) -> Verdict:
    """The verdict of an answer that has one, or an error instead."""
    if answer.error or answer.verdict is None:
        return no_verdict(FailureKind.REWARD_ERROR, f"{answer.function}: {answer.error}")
    if answer.verdict.score is None:
        return replace(answer.verdict, failure=FailureKind.REWARD_NO_VERDICT)
    return answer.verdict


def no_verdict(failure: FailureKind, reason: str) -> Verdict:
    """None, and why."""
    return Verdict(score=None, failure=failure, reason=reason)


def document_bytes(document: Mapping[str, Any]) -> bytes:
    """A document as it lies in a store. Raises `TypeError` or `ValueError` for what is no JSON."""
    text = json.dumps(document, allow_nan=False, ensure_ascii=False, separators=(",", ":"))
    return text.encode("utf-8", errors="surrogatepass")
