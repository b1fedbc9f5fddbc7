"""Where a reward runs: what its URL says, and what of the URL is told to others."""

import pytest

from rollart.core.scoring.places import reward_place, shown_url


@pytest.mark.parametrize(
    ("url", "shown"),
    [
        ("https://f.example/api/x?code=SECRET#judge:score", "https://f.example/api/x"),
        ("http://f.example:8080?code=SECRET", "http://f.example:8080"),
        (
            "lambda://judge:prod?region=eu-west-1&version=SECRET#a:b",
            "lambda://judge:prod?region=eu-west-1",
        ),
        ("fc://judge?account=SECRET&region=cn-hangzhou", "fc://judge?region=cn-hangzhou"),
        ("fc://judge?endpoint=http://127.0.0.1/SECRET", "fc://judge"),
        ("serve://judge?address=SECRET:6379", "serve://judge"),
        ("local://judge:score?concurrency=2", "local://judge:score"),
    ],
)
def test_what_is_told_of_a_url_is_scheme_host_and_path(url: str, shown: str) -> None:
    assert reward_place(url).shown == shown


def test_functions_that_are_told_alike_are_still_two() -> None:
    one, other = (reward_place(f"https://f.example/x?code={code}") for code in "ab")
    assert one.shown == other.shown
    assert one.platform != other.platform


def test_a_user_or_password_is_neither_taken_nor_told() -> None:
    url = "https://me:SECRET@f.example/x"
    assert shown_url(url) == "https://f.example/x"
    with pytest.raises(ValueError, match="take it out") as refused:
        reward_place(url)
    assert "SECRET" not in str(refused.value)


@pytest.mark.parametrize(
    "store",
    [
        "s3://id:SECRET@bucket/folder",
        "s3://SECRET@bucket",
        "simplecache::s3://id:SECRET@bucket",
        "https://store.example/folder?sig=SECRET",
    ],
)
def test_a_store_with_a_secret_in_its_url_is_refused(store: str) -> None:
    with pytest.raises(ValueError, match="give credentials by the environment") as refused:
        reward_place(f"https://f.example/x?store={store}")
    assert "SECRET" not in str(refused.value)


def test_a_store_may_have_any_path() -> None:
    place = reward_place("lambda://judge?store=s3://bucket/a@b/c&region=eu-west-1")
    assert place.store == "s3://bucket/a@b/c"


@pytest.mark.parametrize(
    "store",
    ["file://host/x", "FILE://host/x", "file://localhost/x", "file://x", "file:x", "file:/x"],
)
def test_a_store_of_files_has_a_path_and_no_host(store: str) -> None:
    with pytest.raises(ValueError, match="no host in it; use store=file:///folder"):
        reward_place(f"https://f.example/x?store={store}")
    assert reward_place("https://f.example/x?store=file:///x").store == "file:///x"


@pytest.mark.parametrize(
    ("query", "says"),
    [
        ("hedge=2", "0 or 1"),
        ("hedge=true", "0 or 1"),
        ("hedge=", "empty"),
        ("hedge=1&hedge=0", "twice"),
        ("store=file:///a&store=file:///b", "twice"),
        ("concurrency=0", "concurrency=64"),
        ("rate=nan", "rate=20"),
    ],
)
def test_a_value_that_is_none_is_refused(query: str, says: str) -> None:
    with pytest.raises(ValueError, match=says):
        reward_place(f"https://f.example/x?{query}")


def test_a_hedge_is_asked_for_with_1_and_left_out_with_0() -> None:
    assert reward_place("https://f.example/x?hedge=1").hedge
    assert not reward_place("https://f.example/x?hedge=0").hedge
    assert not reward_place("https://f.example/x").hedge


def test_what_is_the_callers_is_not_sent_and_all_else_is() -> None:
    place = reward_place(
        "https://f.example/x?code=a%20b&store=file:///s&concurrency=2&rate=5&hedge=1&version=v1"
    )
    assert place.platform == "https://f.example/x?code=a%20b&version=v1"
    assert (place.version, place.store, place.concurrency) == ("v1", "file:///s", 2)
    assert place.rate_per_s == 5.0


def test_a_local_url_has_its_own_keys_and_no_other() -> None:
    place = reward_place("local://judge:score?concurrency=2&idle=3")
    assert (place.concurrency, place.idle_s) == (2, 3.0)
    for query in ("hedge=1", "store=file:///s", "idle=3&idle=4", "idle="):
        with pytest.raises(ValueError, match=r"local://|once"):
            reward_place(f"local://judge:score?{query}")
