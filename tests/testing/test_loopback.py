"""Loopback platforms leave nothing behind, however whoever started them ends."""

import os
import subprocess
import sys
import time
from contextlib import suppress
from pathlib import Path

import pytest

from rollart.testing.loopback.apart import Apart
from rollart.testing.loopback.handlers import write_handler
from rollart.testing.loopback.instances import Scaling

SOURCE = "def score(trajectory):\n    return 1.0\n"

ABANDONING = """
import os, sys, time, urllib.request
from pathlib import Path
from rollart.testing.loopback.apart import Apart

service = Apart("fc", Path(sys.argv[1])).__enter__()
headers = {"Authorization": "Credential=LTAILOOPBACK,"}
url = service.url + "/2023-03-30/functions/judge/invocations"
request = urllib.request.Request(url, b'{"rollart":1,"health":true}', headers)
opener = urllib.request.build_opener(urllib.request.ProxyHandler({}))
opener.open(request, timeout=30).read()
os.kill(os.getpid(), 9)
"""


def running_in(folder: Path) -> list[int]:
    """Processes whose current folder it is."""
    found: list[int] = []
    for process in Path("/proc").glob("[0-9]*"):
        with suppress(OSError):
            if os.readlink(process / "cwd") == str(folder):
                found.append(int(process.name))
    return found


@pytest.mark.real
def test_a_platform_ends_with_whoever_started_it(tmp_path: Path) -> None:
    folder = write_handler(tmp_path / "judge", "judge:score", SOURCE)
    ran = subprocess.run(
        [sys.executable, "-c", ABANDONING, str(folder)],
        check=False,
        timeout=60,
        capture_output=True,
    )
    assert ran.returncode == -9, ran.stderr.decode()
    until = time.monotonic() + 10
    while running_in(folder) and time.monotonic() < until:
        time.sleep(0.05)
    assert not running_in(folder)


@pytest.mark.real
@pytest.mark.parametrize("kind", ["lambda", "fc", "framework"])
def test_a_platform_that_is_left_leaves_no_process(kind: str, tmp_path: Path) -> None:
    folder = write_handler(tmp_path / "judge", "judge:score", SOURCE)
    with Apart(kind, folder, Scaling(limit=2)) as platform:
        assert platform.url.startswith("http://127.0.0.1:")
        assert platform.figures().calls == 0
        platform.down()
        platform.up()
    assert not running_in(folder)


def test_an_unknown_platform_is_refused(tmp_path: Path) -> None:
    with pytest.raises(ValueError, match="use one of lambda, fc, framework"):
        Apart("azure", tmp_path)
