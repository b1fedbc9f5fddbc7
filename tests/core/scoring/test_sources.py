import importlib
import sys
from collections.abc import Mapping
from pathlib import Path

import pytest

from rollart.core.errors import ConfigError
from rollart.core.scoring.sources import Sources, sources_of

JUDGE = {
    "judge.py": "from helpers import penalty\nimport words.count\ndef score(t): return 0.0\n",
    "helpers.py": "def penalty(t): return -1.0\n",
    "words/__init__.py": "",
    "words/count.py": "from . import letters\n",
    "words/letters.py": "import json\n",
}


def written(folder: Path, files: Mapping[str, str]) -> Path:
    for place, text in files.items():
        file = folder / place
        file.parent.mkdir(parents=True, exist_ok=True)
        file.write_text(text)
    return folder


def places(sources: Sources) -> list[str]:
    return [place for place, _ in sources.files]


def test_a_function_is_its_module_and_what_that_imports_from_the_same_folder(
    tmp_path: Path,
) -> None:
    found = sources_of("judge:score", [str(written(tmp_path, JUDGE))])
    assert places(found) == sorted(JUDGE)
    assert dict(found.files)["words/letters.py"] == tmp_path / "words/letters.py"


def test_a_name_imported_out_of_an_own_module_is_no_package_of_somebody_else(
    tmp_path: Path,
) -> None:
    # `pip install helpers` would run a stranger's code.
    assert sources_of("judge:score", [str(written(tmp_path, JUDGE))]).requirements == ()


def test_what_is_not_imported_stays_behind(tmp_path: Path) -> None:
    more = {".env": "KEY=secret", "key.pem": "secret", "unused.py": "", "words/other.py": ""}
    found = sources_of("judge:score", [str(written(tmp_path, {**JUDGE, **more}))])
    assert places(found) == sorted(JUDGE)


def test_the_version_is_the_same_wherever_the_files_lie(tmp_path: Path) -> None:
    one = sources_of("judge:score", [str(written(tmp_path / "one", JUDGE))])
    two = sources_of("judge:score", [str(written(tmp_path / "two", JUDGE))])
    assert one.version == two.version
    assert len(one.version) == 16


@pytest.mark.parametrize("changed", sorted(JUDGE))
def test_the_version_changes_with_any_of_the_files(tmp_path: Path, changed: str) -> None:
    folder = written(tmp_path, JUDGE)
    before = sources_of("judge:score", [str(folder)]).version
    file = folder / changed
    file.write_text(file.read_text() + "# changed\n")
    assert sources_of("judge:score", [str(folder)]).version != before


def test_the_version_changes_with_a_files_place_and_with_the_function(tmp_path: Path) -> None:
    one = written(tmp_path / "one", {"judge.py": "import a\n", "a.py": "", "b.py": ""})
    two = written(tmp_path / "two", {"judge.py": "import a\n", "a.py": "import b\n", "b.py": ""})
    versions = {
        sources_of("judge:score", [str(one)]).version,
        sources_of("judge:other", [str(one)]).version,
        sources_of("judge:score", [str(two)]).version,
    }
    assert len(versions) == 3


def test_nothing_is_imported_to_find_out(tmp_path: Path) -> None:
    folder = written(tmp_path, {"loud.py": "raise SystemExit('imported')\n"})
    assert places(sources_of("loud:score", [str(folder)])) == ["loud.py"]
    assert "loud" not in sys.modules


def test_folders_without_an_init_are_packages_however_deep_and_in_several_roots(
    tmp_path: Path,
) -> None:
    first = written(tmp_path / "a", {"judge.py": "from lib.deep import one, two\n"})
    written(tmp_path / "a", {"lib/deep/one.py": ""})
    second = written(tmp_path / "b", {"lib/deep/two.py": "from ..shared import x\n"})
    written(tmp_path / "b", {"lib/shared.py": "x = 1\n"})
    found = sources_of("judge:score", [str(first), str(second)])
    assert places(found) == ["judge.py", "lib/deep/one.py", "lib/deep/two.py", "lib/shared.py"]
    assert found.requirements == ()


def test_a_package_is_taken_before_a_module_of_its_name_as_an_import_does(tmp_path: Path) -> None:
    files = {"judge.py": "import both\n", "both.py": "", "both/__init__.py": ""}
    folder = written(tmp_path, files)
    assert places(sources_of("judge:score", [str(folder)])) == ["both/__init__.py", "judge.py"]


def test_parents_of_a_module_come_along(tmp_path: Path) -> None:
    files = {"pkg/__init__.py": "import top\n", "pkg/judge.py": "", "top.py": ""}
    folder = written(tmp_path, files)
    assert places(sources_of("pkg.judge:score", [str(folder)])) == sorted(files)


def test_imports_within_functions_count_and_those_for_type_checkers_do_not(tmp_path: Path) -> None:
    judge = (
        "import typing\n"
        "from typing import TYPE_CHECKING\n"
        "if TYPE_CHECKING:\n    import numpy\n    import only_types\n"
        "if typing.TYPE_CHECKING:\n    import msgspec\nelse:\n    import real\n"
        "def score(t):\n    import lazily\n"
    )
    files = {"judge.py": judge, "only_types.py": "", "lazily.py": "", "real.py": ""}
    found = sources_of("judge:score", [str(written(tmp_path, files))])
    assert places(found) == ["judge.py", "lazily.py", "real.py"]
    assert found.requirements == ()


def test_packages_are_named_as_pip_names_them_with_their_versions(tmp_path: Path) -> None:
    judge = (
        "import numpy.linalg, json, rollart\nfrom rollart import Verdict\nimport nowhere_known\n"
    )
    found = sources_of("judge:score", [str(written(tmp_path, {"judge.py": judge}))])
    numpy = importlib.import_module("numpy").__version__
    assert found.requirements == ("nowhere_known", f"numpy=={numpy}")


def test_of_packages_that_share_a_name_only_the_imported_one_is_needed(tmp_path: Path) -> None:
    folder = written(tmp_path, {"judge.py": "import google.protobuf.message\n"})
    needed = [
        one.partition("==")[0] for one in sources_of("judge:score", [str(folder)]).requirements
    ]
    assert needed == ["protobuf"]


def test_a_module_of_the_project_itself_is_a_function_like_any_other(tmp_path: Path) -> None:
    path = "rollart.backends.rewards.episode:episode_return"
    found = sources_of(path, [str(tmp_path)])
    assert places(found) == ["rollart/backends/rewards/episode.py"]
    assert found.requirements == ()


def test_a_module_that_is_not_there_is_refused_with_where_it_was_sought(tmp_path: Path) -> None:
    with pytest.raises(ConfigError, match=f"there is no module nowhere in {tmp_path}"):
        sources_of("nowhere:score", [str(tmp_path)])


def test_a_file_that_is_no_python_is_refused_with_its_name(tmp_path: Path) -> None:
    folder = written(tmp_path, {"judge.py": "import helper\n", "helper.py": "def ("})
    with pytest.raises(ConfigError, match=r"helper\.py: cannot be read as Python"):
        sources_of("judge:score", [str(folder)])


def test_compiled_code_of_ones_own_is_refused(tmp_path: Path) -> None:
    folder = written(tmp_path, {"judge.py": "import fast\n", "fast.abi3.so": ""})
    with pytest.raises(ConfigError, match="compiled code cannot travel"):
        sources_of("judge:score", [str(folder)])


def test_modules_that_import_each_other_come_to_an_end(tmp_path: Path) -> None:
    files = {"judge.py": "import other\n", "other.py": "import judge\n"}
    assert places(sources_of("judge:score", [str(written(tmp_path, files))])) == sorted(files)
