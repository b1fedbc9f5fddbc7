"""A function on Ray Serve: an application that scales from zero, and a client of it."""

import json
import os
import subprocess
import sys
from pathlib import Path

import pytest

pytest.importorskip("ray")

CHILD = Path(__file__).with_name("ray_serve_child.py")
ENVIRONMENT = {"RAY_USAGE_STATS_ENABLED": "0", "RAY_SERVE_LOG_TO_STDERR": "0"}


@pytest.mark.real
@pytest.mark.timeout(300)
def test_ray_serve_conforms_and_scales_from_zero(tmp_path: Path) -> None:
    result = tmp_path / "result.json"
    ran = subprocess.run(
        [sys.executable, str(CHILD), str(result)],
        check=False,
        timeout=280,
        capture_output=True,
        text=True,
        env={**os.environ, **ENVIRONMENT},
    )
    assert ran.returncode == 0, ran.stdout[-2000:] + ran.stderr[-4000:]
    told = json.loads(result.read_text())
    assert told["nowhere"] == "unavailable"
    assert told["nowhere_s"] < 10
    assert told["first"] == 0.5
    assert "serve run rollart.backends.rewards.ray_serve_app:application" in told["missing"]
    assert told["conforms"]
