"""URLs of functions are taken apart, and refused where they stand."""

import pytest

from rollart.backends.rewards.urls import parse_url
from rollart.core.errors import ConfigError


def test_an_http_url_keeps_the_functions_query_and_loses_the_projects() -> None:
    where = parse_url("https://Judge.example.com:8443/score?code=a%20b&version=v1&auth=google")
    assert where.target == "https://Judge.example.com:8443/score?code=a%20b"
    assert where.host == "judge.example.com"
    assert where.version == "v1"
    assert where.auth == "google"
    assert "code" not in where.shown


def test_a_lambda_url_names_function_qualifier_and_region() -> None:
    where = parse_url("lambda://judge:prod?region=cn-north-1&version=v2")
    assert (where.target, where.qualifier, where.version) == ("judge", "prod", "v2")
    assert where.host == "lambda.cn-north-1.amazonaws.com.cn"
    assert parse_url("lambda://judge?region=eu-west-1").host == "lambda.eu-west-1.amazonaws.com"
    assert parse_url("lambda://judge").in_region("eu-west-1").options == {"region": "eu-west-1"}
    local = parse_url("lambda://judge?endpoint=http://127.0.0.1:9001").in_region("eu-west-1")
    assert (local.host, local.qualifier) == ("127.0.0.1", None)


def test_a_function_compute_url_names_its_account_unless_it_has_an_endpoint() -> None:
    where = parse_url("fc://judge?region=cn-hangzhou&account=123&qualifier=LATEST")
    assert where.host == "123.cn-hangzhou.fc.aliyuncs.com"
    assert (where.target, where.qualifier) == ("judge", "LATEST")
    assert parse_url("fc://judge?endpoint=127.0.0.1:9002").host == "127.0.0.1"


def test_a_serve_url_names_an_application_of_a_cluster() -> None:
    assert parse_url("serve://judge").target == "judge"
    assert parse_url("serve://judge?address=auto").host == ""
    assert parse_url("serve://judge?address=ray://head:10001").host == "head"


@pytest.mark.parametrize(
    ("url", "says"),
    [
        ("ftp://host/f", "http://"),
        ("judge", "lambda://"),
        ("https:///path", "names no host"),
        ("https://host/f?auth=basic", "auth=ROLLART_REWARD_TOKEN"),
        ("https://host/f?auth=MY-TOKEN", "A-Z, 0-9 and _"),
        ("https://host/f?auth=1TOKEN", "must be google, or name the environment variable"),
        ("https://host/f?auth=", "empty"),
        ("https://host/f?limit=10MB", "limit=33554432"),
        ("https://host/f?version=a&version=b", "twice"),
        ("https://host/f?version=", "empty"),
        ("https://host:port/f", "is no URL"),
        ("lambda://judge?regoin=eu-west-1", "did you mean ?region="),
        ("lambda://judge?region=EU WEST", "is no region"),
        ("lambda://a/b", "no function's name"),
        ("lambda://judge?endpoint=http://", "endpoint"),
        ("fc://judge?region=cn-hangzhou", "account"),
        ("fc://?region=cn-hangzhou&account=1", "no function's name"),
        ("serve://", "no application"),
    ],
)
def test_what_is_wrong_is_named_with_its_remedy(url: str, says: str) -> None:
    with pytest.raises(ConfigError) as refused:
        parse_url(url)
    assert says in str(refused.value)


def test_a_password_in_a_url_is_refused_and_not_shown() -> None:
    for url in ("https://me:hunter2@host/f", "lambda://j?endpoint=http://me:hunter2@host"):
        with pytest.raises(ConfigError) as refused:
            parse_url(url)
        assert "hunter2" not in str(refused.value)


def test_a_token_in_place_of_its_variables_name_is_refused_and_not_shown() -> None:
    with pytest.raises(ConfigError) as refused:
        parse_url("https://host/f?auth=hunter2")
    assert "hunter2" not in str(refused.value)


def test_a_url_says_which_variable_holds_its_token_or_wants_none() -> None:
    assert parse_url("https://host/f").auth == ""
    assert parse_url("https://host/f?auth=JUDGE_TOKEN_2").auth == "JUDGE_TOKEN_2"


def test_what_may_be_a_key_in_the_query_is_known_however_it_is_written() -> None:
    where = parse_url("https://host/f?code=a%20key&page=1&version=v1")
    assert set(where.secrets) == {"a key", "a%20key"}
    assert "key" not in where.shown
