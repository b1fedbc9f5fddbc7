"""From a URL to its platform, or a refusal with its remedy."""

import asyncio
import sys

import pytest

from rollart.backends.rewards.addresses import HOSTS
from rollart.backends.rewards.http import HttpPlatform
from rollart.backends.rewards.opening import open_platform
from rollart.core.errors import ConfigError


@pytest.mark.parametrize(
    ("url", "module", "needs", "extra"),
    [
        ("https://judge.example.com", "http", "httpx2", "serverless"),
        ("lambda://judge?region=eu-west-1", "aws_lambda", "boto3", "serverless"),
        ("fc://judge?region=cn-a&account=1", "alibaba_fc", "alibabacloud_fc20230330", "serverless"),
        ("serve://judge", "ray_serve", "ray", "ray"),
    ],
)
def test_an_extra_that_is_not_installed_is_named(
    url: str, module: str, needs: str, extra: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    for loaded in (module, "exchange"):
        monkeypatch.delitem(sys.modules, f"rollart.backends.rewards.{loaded}", raising=False)
    for loaded in [name for name in sys.modules if name.partition(".")[0] == needs]:
        monkeypatch.delitem(sys.modules, loaded)
    monkeypatch.setitem(sys.modules, needs, None)  # as the interpreter marks what cannot be had
    with pytest.raises(ConfigError) as refused:
        open_platform(url, allow_hosts=None)
    assert needs in str(refused.value)
    assert f"pip install 'rollart[{extra}]'" in str(refused.value)


def test_each_platform_is_under_the_allow_list() -> None:
    for url in (
        "https://judge.example.com/score",
        "lambda://judge?region=eu-west-1",
        "lambda://judge?region=eu-west-1&endpoint=http://10.0.0.1",
        "fc://judge?region=cn-hangzhou&account=1",
        "serve://judge?address=ray://head:10001",
    ):
        with pytest.raises(ConfigError, match=HOSTS):
            open_platform(url, allow_hosts=("other.example.com",))


def test_metadata_services_are_refused_on_each_platform() -> None:
    for url in (
        "http://169.254.169.254/latest/meta-data",
        "http://2852039166/",
        "http://[::ffff:a9fe:a9fe]/",
        "lambda://judge?region=eu-west-1&endpoint=http://169.254.169.254",
        "fc://judge?endpoint=100.100.100.200:80",
        "serve://judge?address=ray://169.254.169.254:10001",
    ):
        with pytest.raises(ConfigError, match="never sent to"):
            open_platform(url, allow_hosts=None)


def test_a_local_function_is_not_opened_here() -> None:
    with pytest.raises(ConfigError, match="own processes"):
        open_platform("local://judge:score", allow_hosts=None)


def test_a_lambda_needs_a_region(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delenv("AWS_REGION", raising=False)
    monkeypatch.delenv("AWS_DEFAULT_REGION", raising=False)
    with pytest.raises(ConfigError, match="AWS_REGION"):
        open_platform("lambda://judge", allow_hosts=None)


def test_an_allowed_host_is_opened_and_its_quota_is_named() -> None:
    async def main() -> None:
        platform = open_platform(
            "https://judge.example.com/score?version=v1", allow_hosts=("*.example.com",)
        )
        assert type(platform).__name__ == HttpPlatform.__name__
        assert platform.limits.name == "http judge.example.com"
        assert platform.limits.body_bytes == 32 * 1024 * 1024
        await platform.close()

    asyncio.run(main())
