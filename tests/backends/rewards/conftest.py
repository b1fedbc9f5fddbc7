"""Deployed functions and keys, for the tests of platforms."""

from pathlib import Path

import pytest

from rollart.testing.loopback import fc_platform, lambda_platform
from rollart.testing.loopback.handlers import write_handler

FUNCTION = "judge:score"
SOURCE = "from rollart.testing.platform import score_as_told as score\n"


@pytest.fixture
def deployed(tmp_path: Path) -> Path:
    """A folder with handlers of `score_as_told` for every runtime."""
    return write_handler(tmp_path / "judge", FUNCTION, SOURCE)


@pytest.fixture(autouse=True)
def credentials(monkeypatch: pytest.MonkeyPatch) -> None:
    """Keys that the loopback platforms take, and none of this machine's own."""
    for name in ("AWS_PROFILE", "AWS_SESSION_TOKEN", "ROLLART_REWARD_TOKEN"):
        monkeypatch.delenv(name, raising=False)
    monkeypatch.setenv("AWS_ACCESS_KEY_ID", lambda_platform.ACCESS_KEY_ID)
    monkeypatch.setenv("AWS_SECRET_ACCESS_KEY", "of-no-account")
    monkeypatch.setenv("AWS_EC2_METADATA_DISABLED", "true")
    monkeypatch.setenv("ALIBABA_CLOUD_ACCESS_KEY_ID", fc_platform.ACCESS_KEY_ID)
    monkeypatch.setenv("ALIBABA_CLOUD_ACCESS_KEY_SECRET", "of-no-account")
