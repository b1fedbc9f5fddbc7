"""The package as a script imports it."""

import subprocess
import sys
from pathlib import Path

import pytest

import rollart as ra
from rollart.core.errors import ConfigError


def test_every_public_name_is_there_and_importing_loads_nothing_heavy() -> None:
    code = """
import sys
import rollart
heavy = {"torch", "transformers", "gymnasium", "matplotlib", "rich", "pydantic", "asyncio"}
print(sorted(heavy & set(sys.modules)))
[getattr(rollart, name) for name in rollart.__all__]
print(sorted({"torch", "transformers", "gymnasium", "matplotlib", "rich"} & set(sys.modules)))
"""
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    assert done.stdout.splitlines() == ["[]", "[]"]
    with pytest.raises(AttributeError, match="no attribute 'no_such'"):
        _ = ra.no_such  # pyright: ignore[reportAttributeAccessIssue]


def test_a_runtime_that_is_not_there_is_refused_in_a_line(tmp_path: Path) -> None:
    with pytest.raises(ConfigError) as caught:
        ra.run(tmp_path / "job.toml", runtime="moon", seed=0)
    assert str(caught.value) == "runtime 'moon': unknown; use 'local' or 'sim'"
