import json

import pytest
from hypothesis import given
from hypothesis import strategies as st

from rollart.core.scoring.verdict import Verdict
from rollart.core.scoring.wire import (
    MOST_COMPONENTS,
    MOST_NAME,
    MOST_TEXT,
    Answer,
    Foreign,
    Garbled,
    Reference,
    Request,
    bounded,
    decode_answer,
    decode_request,
    encode_answer,
    encode_request,
)

finite = st.floats(allow_nan=False, allow_infinity=False)
any_text = st.text(alphabet=st.characters())  # halves of characters among them


def answer(**more: object) -> Answer:
    return Answer(key="k", function="m:f", version="v", instance="i", **more)  # type: ignore[arg-type]


def plain(**more: object) -> bytes:
    return json.dumps({"rollart": 1, "key": "k", **more}).encode()


@given(any_text, finite, st.dictionaries(any_text, any_text | finite))
def test_a_request_comes_back_as_it_was(key: str, seconds: float, document: dict[str, str]) -> None:
    request = Request(key=key, seconds=seconds, trajectory=document)
    assert decode_request(encode_request(request)) == request


@given(any_text, finite, st.booleans())
def test_an_answer_comes_back_as_it_was(text: str, number: float, cold: bool) -> None:
    text = bounded(text)
    verdict = Verdict(score=number, components=(("part", number),), turns=(number,), reason=text)
    good = answer(verdict=verdict, seconds=number, cold=cold)
    assert decode_answer(encode_answer(good)) == good
    if text:
        bad = answer(error=text)
        assert decode_answer(encode_answer(bad)) == bad


def test_every_byte_is_utf_8_and_text_is_not_blown_up_by_escapes() -> None:
    body = encode_request(Request(key="数", trajectory={"text": "Größe"}))
    assert "Größe" in body.decode()
    half = encode_request(Request(key="k", trajectory={"text": "\ud83d"}))
    assert b"\\ud83d" in half
    assert decode_request(half).trajectory == {"text": "\ud83d"}


def test_a_reference_goes_instead_of_a_document() -> None:
    where = Reference(url="s3://bucket/x", size=7, sha256="ab")
    assert decode_request(encode_request(Request(key="k", reference=where))).reference == where


def test_a_request_for_health_says_so() -> None:
    asked = decode_request(encode_request(Request(key="h")))
    assert asked.is_health
    with pytest.raises(Garbled, match="without trajectory, reference or health"):
        decode_request(plain())


@pytest.mark.parametrize(
    "body",
    [
        b"",
        b"not json",
        b"\xff\xfe",
        b"[]",
        b"null",
        b'"rollart"',
        b'{"rollart": 2}',
        b'{"rollart": 1, "seconds": NaN}',
        b"[" * 100_000,
        plain(seconds="soon", health=True),
        plain(seconds=10**400, health=True),
        plain(reference={"url": "x"}),
        plain(reference={"url": "x", "size": "large", "sha256": "y"}),
        plain(reference="x"),
    ],
)
def test_bytes_that_are_no_request_are_garbled_and_nothing_else(body: bytes) -> None:
    with pytest.raises(Garbled):
        decode_request(body)


@pytest.mark.parametrize(
    "body",
    [b"<html>", b"[" * 100_000, b'{"rollart": 7}', plain(seconds="x"), plain(seconds=10**400)],
)
def test_bytes_that_are_no_answer_are_garbled_and_nothing_else(body: bytes) -> None:
    with pytest.raises(Garbled):
        decode_answer(body)


@pytest.mark.parametrize(
    "verdict",
    ["high", {"score": "high"}, {"score": 1, "extra": 1}, {"score": 10**400}, None, [1]],
)
def test_a_verdict_that_is_none_becomes_an_error_and_no_score(verdict: object) -> None:
    found = decode_answer(plain(verdict=verdict))
    assert found.verdict is None
    assert found.error


@pytest.mark.parametrize("number", [b"NaN", b"Infinity", b"-Infinity"])
def test_numbers_that_json_has_not_are_garbled(number: bytes) -> None:
    with pytest.raises(Garbled):
        decode_answer(b'{"rollart": 1, "key": "k", "verdict": {"score": ' + number + b"}}")


@given(any_text, st.integers(0, 5_000))
def test_a_text_is_bounded_and_has_no_half_characters(text: str, more: int) -> None:
    cut = bounded(text + "x" * more)
    assert len(cut) <= MOST_TEXT
    assert cut.encode().decode() == cut
    if len(text) + more <= MOST_TEXT and not any("\ud800" <= c <= "\udfff" for c in text):
        assert cut == text + "x" * more
    assert bounded(cut) == cut


def test_what_a_stranger_answers_is_bounded() -> None:
    long = "y" * 1_000_000 + "\ud83d"
    found = decode_answer(plain(error=long, instance=long, function=long, version=long))
    for text in (found.error, found.instance, found.function, found.version):
        assert len(text) == MOST_TEXT
    verdict = decode_answer(plain(verdict={"score": None, "reason": "\ud83d" + long})).verdict
    assert verdict is not None
    assert len(verdict.reason) == MOST_TEXT
    assert verdict.reason.encode().startswith(b"?yy")


@pytest.mark.parametrize("side", [0, 1])
def test_components_beyond_their_bounds_are_an_error_that_names_them(side: int) -> None:
    many = {f"part-{i}": 1.0 for i in range(MOST_COMPONENTS + side)}
    long = {"n" * (MOST_NAME + side): 1.0}
    for components, bound in ((many, MOST_COMPONENTS), (long, MOST_NAME)):
        found = decode_answer(plain(verdict={"score": 1.0, "components": components}))
        assert (found.verdict is None) == bool(side)
        assert (f"at most {bound}" in found.error) == bool(side)


def test_bytes_of_another_wire_are_told_from_a_wrong_answer_of_this_one() -> None:
    for foreign in (b"<html>", b"", b"{}", b"[1]", b'{"rollart": 2}'):
        with pytest.raises(Foreign):
            decode_answer(foreign)
    for ours in (plain(seconds="x"), b'{"rollart": 1, "verdict": NaN}'):
        with pytest.raises(Garbled) as caught:
            decode_answer(ours)
        assert not isinstance(caught.value, Foreign)


def test_a_number_too_large_for_a_float_is_no_score() -> None:
    found = decode_answer(b'{"rollart": 1, "key": "k", "verdict": {"score": 1e999}}')
    assert found.verdict is None
    assert "finite" in found.error


def test_an_error_stays_an_error_though_a_score_stands_beside_it() -> None:
    found = decode_answer(plain(error="ValueError: no", verdict={"score": 1.0}))
    assert (found.verdict, found.error) == (None, "ValueError: no")


def test_numbers_that_are_none_are_never_sent() -> None:
    with pytest.raises(ValueError, match="not JSON compliant"):
        encode_request(Request(key="k", trajectory={"metric": float("nan")}))
