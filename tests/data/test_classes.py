"""Classes of scripts and modules, found again by another process."""

import os
import subprocess
import sys
import textwrap
from collections import OrderedDict
from pathlib import Path

import pytest

from rollart.core.errors import ConfigError
from rollart.data.classes import find_class
from rollart.runtimes.local.env_host import EnvHostConfig

SCRIPT = """
import rollart as ra
from rollart.core.errors import ConfigError
from rollart.data.classes import find_class

class Mine(ra.Reward):
    def compute_rewards(self, trajectory):
        return 1.0

try:
    print(find_class(Mine))
except ConfigError as error:
    print(error)
ra.run("nothing.toml")
"""

READER = """
from rollart.runtimes.local.user_code import load
print("read:", load("{path}").__name__)
"""


def python(*words: str, folder: Path, **variables: str) -> str:
    path = os.pathsep.join(part for part in sys.path if part)
    done = subprocess.run(
        [sys.executable, *words],
        cwd=folder,
        env={"PATH": os.environ["PATH"], "PYTHONPATH": path, **variables},
        capture_output=True,
        text=True,
        check=False,
    )
    return done.stdout + done.stderr


def write(folder: Path, name: str, text: str = SCRIPT) -> Path:
    path = folder / name
    path.parent.mkdir(exist_ok=True)
    path.write_text(textwrap.dedent(text))
    return path


def test_a_class_of_a_module_is_found_by_its_import_path_and_folder() -> None:
    found = find_class(EnvHostConfig)
    assert found.path == "rollart.runtimes.local.env_host:EnvHostConfig"
    assert (Path(found.folder) / "rollart" / "runtimes").is_dir()
    package = find_class(OrderedDict)
    assert package.path == "collections:OrderedDict"
    assert (Path(package.folder) / "collections" / "__init__.py").is_file()


def test_a_class_of_a_script_is_found_as_the_module_that_its_name_makes(tmp_path: Path) -> None:
    write(tmp_path, "my_run.py")
    told = python("my_run.py", folder=tmp_path)
    assert f"ClassPath(path='my_run:Mine', folder='{tmp_path}')" in told


def test_a_script_is_read_down_to_where_it_starts_a_run_and_no_further(tmp_path: Path) -> None:
    write(tmp_path, "my_run.py", SCRIPT + "\nraise SystemExit('beyond')\n")
    reader = READER.format(path="my_run:Mine")
    told = python("-c", reader, folder=tmp_path, ROLLART_RUN_ID="run")
    assert told.endswith("read: Mine\n")
    assert "beyond" not in told
    guarded = SCRIPT.replace('ra.run("nothing', 'if __name__ == "__main__":\n    ra.run("nothing')
    write(tmp_path, "guarded.py", guarded)
    told = python("-c", READER.format(path="guarded:Mine"), folder=tmp_path, ROLLART_RUN_ID="run")
    assert told.endswith("read: Mine\n")


@pytest.mark.parametrize("name", ["my-run.py", "json.py", "my_run.txt"])
def test_a_script_that_cannot_be_imported_by_name_is_refused_with_a_remedy(
    tmp_path: Path, name: str
) -> None:
    write(tmp_path, f"scripts/{name}")
    told = python(f"scripts/{name}", folder=tmp_path)
    assert "rename the script, such as my_run.py" in told


def test_a_class_of_a_module_run_with_dash_m_is_found_under_its_full_name(tmp_path: Path) -> None:
    write(tmp_path, "parcel/__init__.py", "")
    write(tmp_path, "parcel/my_run.py")
    told = python("-m", "parcel.my_run", folder=tmp_path)
    assert f"ClassPath(path='parcel.my_run:Mine', folder='{tmp_path}')" in told


def test_a_class_without_a_file_is_refused_with_a_remedy(tmp_path: Path) -> None:
    told = python("-c", SCRIPT, folder=tmp_path)
    assert "module '__main__' has no file (an interactive session?)" in told
    assert "write it to a file such as my_roles.py" in told


def test_a_class_inside_a_function_is_refused_with_a_remedy() -> None:
    class Inner: ...

    with pytest.raises(ConfigError, match=r"Inner: stands inside .*; move it to the top level"):
        find_class(Inner)
