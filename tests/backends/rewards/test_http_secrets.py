"""Tokens and keys of functions behind HTTP: who is sent them, and that nobody is told."""

import asyncio

import pytest

from rollart.backends.rewards.exchange import Reply
from rollart.backends.rewards.http import HttpPlatform, TokenSource, answer_of
from rollart.backends.rewards.platform import Fault, PlatformFault
from rollart.backends.rewards.urls import parse_url
from rollart.core.errors import ConfigError
from rollart.testing.loopback.server import HttpReply, HttpRequest, LoopbackServer


def bearer_at(query: str, token: TokenSource | None = None) -> str:
    """What a function at a URL with this query is sent as authorization."""
    given: list[str] = []

    async def answer(request: HttpRequest) -> HttpReply:
        given.append(request.headers.get("authorization", ""))
        return HttpReply()

    async def main() -> None:
        async with LoopbackServer(answer) as server:
            platform = HttpPlatform(parse_url(f"{server.url}/score{query}"), token=token)
            await platform.call(b"{}", key="k", seconds=5)
            await platform.close()

    asyncio.run(main())
    return given[0]


def refusal(reply: Reply, url: str, token: str = "") -> str:
    with pytest.raises((PlatformFault, ConfigError)) as raised:
        answer_of(reply, parse_url(url), token=token, now=0.0)
    return str(raised.value)


def test_a_token_goes_to_the_url_that_names_it_and_to_no_other(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setenv("ROLLART_REWARD_TOKEN", "hunter2")
    monkeypatch.setenv("JUDGE_TOKEN", " hunter3\n")
    assert bearer_at("") == ""
    assert bearer_at("?auth=ROLLART_REWARD_TOKEN") == "Bearer hunter2"
    assert bearer_at("?auth=JUDGE_TOKEN") == "Bearer hunter3"


def test_google_tokens_travel_as_bearers() -> None:
    async def token() -> str:
        return "from-google"

    assert bearer_at("?auth=google", token) == "Bearer from-google"


@pytest.mark.parametrize("auth", ["google", "JUDGE_TOKEN"])
def test_a_token_is_not_sent_unencrypted_to_another_machine(
    auth: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("JUDGE_TOKEN", "hunter2")
    with pytest.raises(ConfigError, match="unencrypted") as refused:
        HttpPlatform(parse_url(f"http://judge.example.com/score?auth={auth}"))
    assert "hunter2" not in str(refused.value)


def test_a_variable_without_a_token_is_named() -> None:
    with pytest.raises(ConfigError, match=r"\?auth=JUDGE_TOKEN: .* not set"):
        HttpPlatform(parse_url("https://judge.example.com/?auth=JUDGE_TOKEN"))


@pytest.mark.parametrize("token", ["hunter2\r\nx-more: 1", "hunter2 and 3", "hünter2"])
def test_what_no_header_can_hold_is_refused_and_not_shown(
    token: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("JUDGE_TOKEN", token)
    with pytest.raises(ConfigError, match="JUDGE_TOKEN holds characters") as refused:
        HttpPlatform(parse_url("https://judge.example.com/?auth=JUDGE_TOKEN"))
    assert "nter2" not in str(refused.value)


@pytest.mark.parametrize("status", [401, 403])
@pytest.mark.parametrize(
    ("query", "says"),
    [
        ("", "?auth=ROLLART_REWARD_TOKEN"),
        ("?auth=JUDGE_TOKEN", "refused the token in JUDGE_TOKEN"),
        ("?auth=google", "Google's identity token"),
    ],
)
def test_wrong_credentials_are_a_configuration_error_that_says_what_to_do(
    status: int, query: str, says: str
) -> None:
    reply = Reply(status=status, headers={}, body=b"who is hunter2?")
    with pytest.raises(ConfigError) as refused:
        answer_of(reply, parse_url(f"https://h/f{query}"), token="hunter2", now=0.0)
    assert says in str(refused.value)
    assert "hunter2" not in str(refused.value)


@pytest.mark.parametrize("status", [400, 401, 429, 500])
def test_what_a_server_echoes_of_a_token_or_of_the_query_is_not_told(status: int) -> None:
    said = b"no: Bearer hunter2 at /f?code=a%20key, that is 'a key'"
    for padding in (b"", b" " * 790):  # the second would be cut in the middle of the token
        reply = Reply(status=status, headers={}, body=padding + said)
        told = refusal(reply, "https://h/f?code=a%20key&auth=JUDGE_TOKEN", "hunter2")
        assert "Bearer *** at /f?code=***, that is '***'" in told
        assert "hun" not in told


@pytest.mark.parametrize(
    ("location", "told"),
    [
        ("https://other.example/in/SECRET?code=SECRET#SECRET", "other.example"),
        ("https://me:SECRET@other.example/", "other.example"),
        ("//other.example/SECRET", "other.example"),
        ("/login/SECRET?code=SECRET", "another path"),
        ("https://[SECRET", "another path"),
        ("https://SECRET SECRET/", "another path"),
        ("", "nowhere"),
    ],
)
def test_of_where_a_redirect_leads_the_host_alone_is_told(location: str, told: str) -> None:
    said = refusal(Reply(status=302, headers={"location": location}, body=b""), "https://h/f")
    assert f"a redirect to {told}," in said
    assert "SECRET" not in said


def test_a_redirect_is_refused_and_not_followed() -> None:
    async def main() -> None:
        reached: list[str] = []

        async def private(request: HttpRequest) -> HttpReply:
            reached.append(request.path)
            return HttpReply()

        async with LoopbackServer(private) as inner:
            for status in (301, 302, 303, 307, 308):
                reply = HttpReply(status=status, headers={"Location": f"{inner.url}/in"})

                async def moved(_: HttpRequest, reply: HttpReply = reply) -> HttpReply:
                    return reply

                async with LoopbackServer(moved) as outer:
                    platform = HttpPlatform(parse_url(outer.url))
                    with pytest.raises(PlatformFault) as raised:
                        await platform.call(b"{}", key="k", seconds=5)
                    await platform.close()
                assert raised.value.fault is Fault.REFUSED
        assert not reached

    asyncio.run(main())
