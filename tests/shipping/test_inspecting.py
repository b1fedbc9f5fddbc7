import os
import tempfile
import time
from pathlib import Path

import pytest

from rollart.core.errors import ConfigError
from rollart.shipping.inspecting import inspect_function


def written(folder: Path, text: str) -> list[Path]:
    (folder / "judge.py").write_text(text)
    return [folder]


def test_what_a_function_declares_is_found(tmp_path: Path) -> None:
    source = (
        "import rollart\n@rollart.serverless(timeout=3, memory=256, network=True)\n"
        "async def score(t):\n    return 1.0\n"
    )
    found = inspect_function("judge:score", written(tmp_path, source))
    settings = found.settings
    assert (settings.timeout_s, settings.memory_mib, settings.network) == (3.0, 256, True)
    assert 0 <= found.took_s < 60


def test_an_import_that_hangs_is_killed_with_what_it_started(tmp_path: Path) -> None:
    source = (
        "import os, subprocess, time, pathlib\n"
        "child = subprocess.Popen(['sleep', '600'])\n"
        f"pathlib.Path({str(tmp_path / 'pid')!r}).write_text(str(child.pid))\n"
        "time.sleep(600)\n"
    )
    with pytest.raises(ConfigError, match=r"took more than 2 s; move work out of the module's"):
        inspect_function("judge:score", written(tmp_path, source), seconds=2.0)
    pid = int((tmp_path / "pid").read_text())
    assert gone(pid)


def gone(pid: int) -> bool:
    """Within a second: init has to reap what was killed."""
    for _ in range(100):
        try:
            state = Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()[0]
        except FileNotFoundError:
            return True
        if state == "Z":
            return True
        time.sleep(0.01)
    return False


def test_user_code_sees_no_secret_of_the_environment(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("AWS_SECRET_ACCESS_KEY", "sesame")
    source = "import os\nraise RuntimeError(os.environ.get('AWS_SECRET_ACCESS_KEY'))\n"
    with pytest.raises(ConfigError, match="RuntimeError: None"):
        inspect_function("judge:score", written(tmp_path, source))


def test_what_user_code_prints_or_writes_is_no_answer(tmp_path: Path) -> None:
    source = 'print(\'{"problem": ""}\')\ndef other(t):\n    return 1.0\n'
    with pytest.raises(ConfigError, match="has no function 'score'"):
        inspect_function("judge:score", written(tmp_path, source))


def test_nothing_is_left_in_the_folder_that_was_looked_at(tmp_path: Path) -> None:
    inspect_function("judge:score", written(tmp_path, "def score(t):\n    return 1.0\n"))
    assert os.listdir(tmp_path) == ["judge.py"]


def test_a_temporary_folder_that_is_gone_is_said_with_the_remedy(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(tempfile, "tempdir", str(tmp_path / "gone"))
    with pytest.raises(ConfigError, match=r"gone.*\$TMPDIR must be a folder where"):
        inspect_function("judge:score", written(tmp_path, "def score(t):\n    return 1.0\n"))
