import asyncio
import hashlib
import json
import os
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from rollart.core.scoring.document import TaskDocument, TrajectoryDocument, TurnDocument
from rollart.core.scoring.handle import Handler
from rollart.core.scoring.verdict import Verdict
from rollart.core.scoring.wire import Answer, Reference, Request, decode_answer, encode_request

DOCUMENT = TrajectoryDocument(
    id="run/Shop/7",
    run="run",
    policy="default",
    task=TaskDocument(domain="Shop", key="7", payload={"answer": "42"}),
    turns=(TurnDocument(observation="6 * 7?", action="42"),),
    metrics={"success": 1.0},
)


def handler(function: Callable[..., Any], store: str = "") -> Handler:
    return Handler(function, path="judge:score", version="v1", store=store)


def asked(function: Callable[..., Any], document: object = None) -> Answer:
    plain: Any = DOCUMENT.to_json() if document is None else document
    body = encode_request(Request(key="k#v1", seconds=9.0, trajectory=plain))
    return decode_answer(handler(function).handle(body))


def test_a_function_gets_the_document_and_its_number_is_the_score() -> None:
    def score(trajectory: TrajectoryDocument) -> float:
        assert trajectory == DOCUMENT
        return 0.5

    answer = asked(score)
    assert answer.error == ""
    assert answer.verdict == Verdict(score=0.5)
    assert (answer.key, answer.function, answer.version) == ("k#v1", "judge:score", "v1")


def test_an_async_function_is_run_to_its_end() -> None:
    async def score(trajectory: TrajectoryDocument) -> float:
        await asyncio.sleep(0)
        return 0.5

    assert asked(score).verdict == Verdict(score=0.5)


def test_a_request_may_be_text_as_well_as_bytes() -> None:
    body = encode_request(Request(key="k", trajectory=DOCUMENT.to_json())).decode()
    assert decode_answer(handler(lambda t: 1.0).handle(body)).verdict == Verdict(score=1.0)


def test_the_first_call_is_cold_and_a_health_call_is_none() -> None:
    one = handler(lambda t: 1.0)
    health = decode_answer(one.handle(encode_request(Request(key="h"))))
    assert (health.function, health.version, health.verdict, health.error) == (
        "judge:score",
        "v1",
        None,
        "",
    )
    call = encode_request(Request(key="k", trajectory=DOCUMENT.to_json()))
    first, second = (decode_answer(one.handle(call)) for _ in range(2))
    assert (first.cold, second.cold) == (True, False)
    assert first.instance == second.instance == health.instance


def test_a_process_forked_from_one_that_loaded_the_function_is_an_instance_of_its_own() -> None:
    one = handler(lambda t: 1.0)
    call = encode_request(Request(key="k", trajectory=DOCUMENT.to_json()))
    first = decode_answer(one.handle(call))
    reading, writing = os.pipe()
    child = os.fork()
    if child == 0:  # pragma: no cover
        os.write(writing, one.handle(call))
        os._exit(0)
    os.waitpid(child, 0)
    forked = decode_answer(os.read(reading, 1 << 16))
    os.close(reading)
    os.close(writing)
    assert forked.instance != first.instance
    assert forked.cold


def raising(trajectory: TrajectoryDocument) -> float:
    raise RuntimeError("the judge is silent")


def exiting(trajectory: TrajectoryDocument) -> float:
    sys.exit(3)


def recursing(trajectory: TrajectoryDocument) -> float:
    return recursing(trajectory)


@pytest.mark.parametrize(
    ("function", "said"),
    [
        (raising, "RuntimeError: the judge is silent"),
        (exiting, "SystemExit: 3"),
        (recursing, "RecursionError"),
        (lambda t: float("nan"), "a reward returned nan; return a finite number"),
        (lambda t: "0.5", "a reward returned str; return a float"),
        (lambda t: None, "a reward returned NoneType"),
        (lambda t: 10**400, "return a finite number"),
        (lambda t: Verdict(score=float("inf")), "return a finite number"),
        (lambda t: Verdict(score=1.0, turns=(1.0, 2.0)), "2 turns' rewards for 1 turns"),
        (lambda t: Verdict(score=None, reason=b"x"), "a reason is text"),  # type: ignore[arg-type]
    ],
)
def test_whatever_a_function_does_wrong_is_an_error_and_no_score(
    function: Callable[..., Any], said: str
) -> None:
    answer = asked(function)
    assert answer.verdict is None
    assert said in answer.error
    assert answer.key == "k#v1"


def test_numbers_of_numpy_are_answered_like_any_other() -> None:
    half: Any = np.float32(0.5)
    assert asked(lambda t: half).verdict == Verdict(score=0.5)
    assert asked(lambda t: Verdict(score=half, components=(("part", half),))).verdict == Verdict(
        score=0.5, components=(("part", 0.5),)
    )


def test_words_that_are_half_a_character_are_answered_all_the_same() -> None:
    verdict = Verdict(score=None, reason="cut \ud83d")
    assert asked(lambda t: verdict).verdict == Verdict(score=None, reason="cut ?")


class Speechless(Exception):
    def __str__(self) -> str:
        raise self


class Leaves(Exception):
    def __str__(self) -> str:
        raise SystemExit(3)


@pytest.mark.parametrize("kind", [Speechless, Leaves])
def test_an_exception_whose_words_raise_is_answered_by_its_kind(kind: type[Exception]) -> None:
    def score(trajectory: TrajectoryDocument) -> float:
        raise kind

    answer = asked(score)
    assert answer.verdict is None
    assert answer.error.startswith(f"{kind.__name__}: its words cannot be had")


def test_an_error_of_many_words_is_cut_where_it_is_sent() -> None:
    def score(trajectory: TrajectoryDocument) -> float:
        raise ValueError("x" * 10_000_000)

    body = encode_request(Request(key="k", trajectory=DOCUMENT.to_json()))
    assert len(handler(score).handle(body)) < 3_000


@pytest.mark.parametrize("body", [b"", b"{", b"\xff", b'{"rollart": 1}', b"[" * 100_000, "text"])
def test_bytes_that_are_no_request_are_answered_with_an_error(body: bytes | str) -> None:
    answer = decode_answer(handler(lambda t: 1.0).handle(body))
    assert answer.verdict is None
    assert answer.error


def test_a_document_of_another_version_is_an_error_with_the_remedy() -> None:
    answer = asked(lambda t: 1.0, {**DOCUMENT.to_json(), "version": 2})
    assert answer.verdict is None
    assert "package and deploy it again" in answer.error


def stored(folder: Path) -> Reference:
    data = json.dumps(DOCUMENT.to_json()).encode()
    (folder / "doc").write_bytes(data)
    return Reference(
        url=(folder / "doc").as_uri(), size=len(data), sha256=hashlib.sha256(data).hexdigest()
    )


def fetched(store: Path, where: Reference) -> Answer:
    body = encode_request(Request(key="k", reference=where))
    return decode_answer(handler(lambda t: len(t.turns), store.as_uri()).handle(body))


def test_a_document_in_the_store_is_fetched(tmp_path: Path) -> None:
    assert fetched(tmp_path, stored(tmp_path)).verdict == Verdict(score=1.0)


@pytest.mark.parametrize(
    "url",
    ["file:///etc/hostname", "http://169.254.169.254/latest", "{store}-beside/doc", "{store}/../x"],
)
def test_a_document_outside_the_store_is_never_read(tmp_path: Path, url: str) -> None:
    store = tmp_path / "store"
    for folder in (store, tmp_path / "store-beside"):
        folder.mkdir()
        stored(folder)
    where = Reference(url=url.format(store=store.as_uri()), size=1, sha256="")
    answer = fetched(store, where)
    assert answer.verdict is None
    assert "outside the store" in answer.error


def test_without_a_store_nothing_is_read(tmp_path: Path) -> None:
    body = encode_request(Request(key="k", reference=stored(tmp_path)))
    answer = decode_answer(handler(lambda t: 1.0).handle(body))
    assert "outside the store" in answer.error


def test_a_document_that_was_changed_in_the_store_is_refused(tmp_path: Path) -> None:
    where = stored(tmp_path)
    (tmp_path / "doc").write_bytes(b"x" * where.size)
    answer = fetched(tmp_path, where)
    assert answer.verdict is None
    assert "that are not the" in answer.error
