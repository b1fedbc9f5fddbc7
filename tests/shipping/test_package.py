import json
import os
import zipfile
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import pytest
import yaml

import rollart
from rollart.core.errors import ConfigError
from rollart.core.scoring.places import reward_place
from rollart.core.scoring.sources import sources_of
from rollart.shipping.package import MANIFEST, TARGETS, Packaged, package

OWN = {"judge.py", "helpers.py", "words/count.py"}
COMMON = {"requirements.txt", "rollart-reward.json", "rollart_reward.py"}
GENERATED = {
    "fc": {"server.py", "index.py", "s.yaml"},
    "lambda": {"lambda_function.py", "template.yaml"},
    "cloudrun": {"main.py", "Procfile", "Dockerfile", "service.yaml"},
}


@pytest.fixture(scope="module")
def packages(project: Path, tmp_path_factory: pytest.TempPathFactory) -> Mapping[str, Packaged]:
    out = tmp_path_factory.mktemp("out")
    return {
        name: package("judge:score", target, out / name, root=project)
        for name, target in TARGETS.items()
    }


def files(folder: Path) -> set[str]:
    return {file.relative_to(folder).as_posix() for file in folder.rglob("*") if file.is_file()}


def written(folder: Path, text: str, name: str = "judge.py") -> Path:
    folder.mkdir(parents=True, exist_ok=True)
    (folder / name).write_text(text)
    return folder


def refusal(
    root: Path, out: Path, path: str = "judge:score", target: str = "lambda", **more: Any
) -> str:
    with pytest.raises(ConfigError) as error:
        package(path, TARGETS[target], out, root=root, **more)
    assert not out.exists()
    assert [
        file.name for file in out.parent.iterdir() if file.name.startswith(f".{out.name}")
    ] == []
    return str(error.value)


@pytest.mark.parametrize("target", TARGETS)
def test_a_package_holds_the_functions_own_files_and_nothing_else_of_the_folder(
    packages: Mapping[str, Packaged], target: str
) -> None:
    found = files(packages[target].directory)
    ours = {file for file in found if file.startswith("rollart/")}
    assert found - ours == OWN | COMMON | GENERATED[target]
    for place in found:
        assert "SECRET" not in (packages[target].directory / place).read_text()


def test_what_meets_the_function_travels_as_it_is_here(packages: Mapping[str, Packaged]) -> None:
    folder = packages["lambda"].directory
    here = Path(rollart.__file__).parent
    scoring = {f"core/scoring/{file.name}" for file in (here / "core/scoring").glob("*.py")}
    assert len(scoring) > 6
    for place in scoring | {"core/__init__.py", "core/errors.py"}:
        assert (folder / "rollart" / place).read_bytes() == (here / place).read_bytes()


@pytest.mark.parametrize("target", TARGETS)
def test_the_version_is_the_one_that_the_job_reckons_with(
    packages: Mapping[str, Packaged], project: Path, target: str
) -> None:
    folder = packages[target].directory
    expected = sources_of("judge:score", [str(project)]).version
    manifest = json.loads((folder / MANIFEST).read_text())
    assert manifest["version"] == packages[target].shipment.sources.version == expected
    assert f'version="{expected}"' in (folder / "rollart_reward.py").read_text()
    assert sources_of("judge:score", [str(folder)]).version == expected


def test_the_version_changes_when_a_helper_that_is_imported_does(tmp_path: Path) -> None:
    root = written(tmp_path / "in", "from helper import f\ndef score(t):\n    return f()\n")
    written(root, "def f():\n    return 1.0\n", "helper.py")
    first = package("judge:score", TARGETS["lambda"], tmp_path / "out", root=root)
    written(root, "def f():\n    return 2.0\n", "helper.py")
    second = package("judge:score", TARGETS["lambda"], tmp_path / "out", root=root)
    assert first.shipment.sources.version != second.shipment.sources.version
    assert "return 2.0" in (tmp_path / "out/helper.py").read_text()


def test_lambda_is_told_memory_timeout_and_concurrency(packages: Mapping[str, Packaged]) -> None:
    text = (packages["lambda"].directory / "template.yaml").read_text()
    told = yaml.safe_load(text)["Resources"]["Reward"]["Properties"]
    assert (told["FunctionName"], told["Handler"]) == ("judge-score", "lambda_function.handler")
    assert (told["MemorySize"], told["Timeout"]) == (768, 20)
    assert told["ReservedConcurrentExecutions"] == 7


def test_function_compute_is_told_memory_and_timeout(packages: Mapping[str, Packaged]) -> None:
    text = (packages["fc"].directory / "s.yaml").read_text()
    told = yaml.safe_load(text)["resources"]["reward"]["props"]
    assert (told["memorySize"], told["timeout"], told["instanceConcurrency"]) == (768, 20, 1)
    assert told["customRuntimeConfig"] == {"command": ["python3", "server.py"], "port": 9000}
    assert 1 <= told["memorySize"] / 1024 / told["cpu"] <= 4
    assert round(told["cpu"] / 0.05, 6).is_integer()
    shipment = packages["fc"].shipment
    assert "--reserved-concurrency 7" in packages["fc"].target.deploy(shipment)


def test_cloud_run_and_knative_are_told_all_three(packages: Mapping[str, Packaged]) -> None:
    one = packages["cloudrun"]
    template = yaml.safe_load((one.directory / "service.yaml").read_text())["spec"]["template"]
    spec = template["spec"]
    assert spec["containers"][0]["resources"]["limits"]["memory"] == "768Mi"
    assert (spec["timeoutSeconds"], spec["containerConcurrency"]) == (20, 1)
    scale = {"autoscaling.knative.dev/min-scale": "0", "autoscaling.knative.dev/max-scale": "7"}
    assert template["metadata"]["annotations"] == scale
    deploy = one.target.deploy(one.shipment)
    assert "--memory 768Mi --timeout 20 --concurrency 1 --max-instances 7" in deploy
    alone = "env WORKERS=1 THREADS=1 CLOUD_RUN_TIMEOUT_SECONDS=20 python3 -m functions_framework "
    for builds, before in (("Dockerfile", "\nCMD exec "), ("Procfile", "web: ")):
        assert f"{before}{alone}" in (one.directory / builds).read_text()
    assert "functions-framework" in (one.directory / "requirements.txt").read_text()


def test_a_function_that_declares_nothing_gets_the_defaults(tmp_path: Path) -> None:
    root = written(tmp_path / "in", "def score(t):\n    return 1.0\n")
    one = package("judge:score", TARGETS["lambda"], tmp_path / "out", root=root, name="other")
    text = (tmp_path / "out/template.yaml").read_text()
    told = yaml.safe_load(text)["Resources"]["Reward"]["Properties"]
    assert (told["MemorySize"], told["Timeout"], told["FunctionName"]) == (512, 60, "other")
    assert "ReservedConcurrentExecutions" not in told
    assert one.target.url(one.shipment).startswith("lambda://other?region=")


def test_a_store_is_written_into_the_function_with_what_reads_it(tmp_path: Path) -> None:
    root = written(tmp_path / "in", "def score(t):\n    return 1.0\n")
    store = "s3://bucket/rewards"
    one = package("judge:score", TARGETS["lambda"], tmp_path / "out", root=root, store=store)
    place = reward_place(one.url)
    assert (place.store, place.function) == (store, "judge:score")
    assert f"STORE, '{store}'" in (tmp_path / "out/rollart_reward.py").read_text()
    assert (tmp_path / "out/requirements.txt").read_text() == "fsspec\ns3fs\n"
    text = (tmp_path / "out/template.yaml").read_text()
    told = yaml.safe_load(text)["Resources"]["Reward"]["Properties"]
    assert told["Policies"] == [{"S3ReadPolicy": {"BucketName": "bucket"}}]


def test_an_earlier_package_is_replaced_whole_and_keeps_nothing(tmp_path: Path) -> None:
    root = written(tmp_path / "in", "def score(t):\n    return 1.0\n")
    out = tmp_path / "out"
    package("judge:score", TARGETS["fc"], out, root=root)
    (out / "left-behind.py").write_text("")
    package("judge:score", TARGETS["lambda"], out, root=root)
    assert files(out) & {"s.yaml", "left-behind.py"} == set()
    assert sorted(file.name for file in tmp_path.iterdir()) == ["in", "out"]


def test_a_refused_package_leaves_the_earlier_one_as_it_was(tmp_path: Path) -> None:
    root = written(tmp_path / "in", "def score(t):\n    return 1.0\n")
    out = tmp_path / "out"
    package("judge:score", TARGETS["lambda"], out, root=root)
    before = {place: (out / place).read_bytes() for place in files(out)}
    written(root, "import rollart.control.scheduler\ndef score(t):\n    return 1.0\n")
    with pytest.raises(ConfigError, match="does not travel with a reward function"):
        package("judge:score", TARGETS["lambda"], out, root=root)
    assert {place: (out / place).read_bytes() for place in files(out)} == before
    assert len([*tmp_path.iterdir()]) == 2


@pytest.mark.parametrize("kind", ["folder with files", "file", "link", "holds the function"])
def test_whatever_is_no_earlier_package_is_not_touched(tmp_path: Path, kind: str) -> None:
    root = written(tmp_path / "in", "def score(t):\n    return 1.0\n")
    out = tmp_path / "out"
    if kind == "folder with files":
        written(out, "precious", "thesis.txt")
    elif kind == "file":
        out.write_text("precious")
    elif kind == "link":
        out.symlink_to(root)
    else:
        out = root
        (root / MANIFEST).write_text("{}")
    before = files(tmp_path)
    with pytest.raises(ConfigError, match="--out"):
        package("judge:score", TARGETS["lambda"], out, root=root)
    assert files(tmp_path) == before


@pytest.mark.parametrize(
    "out",
    [
        Path("/proc/judge"),
        Path("/proc/deeper/judge"),
        Path("judge.py/inside"),
        Path("x" * 256),
        Path("x" * 300) / "inside",
    ],
)
def test_a_folder_that_cannot_be_written_is_one_line_with_the_remedy(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, out: Path
) -> None:
    root = written(tmp_path, "def score(t):\n    return 1.0\n")
    monkeypatch.chdir(root)
    with pytest.raises(ConfigError, match="give a folder where you may write") as refused:
        package("judge:score", TARGETS["lambda"], out, root=root)
    assert str(refused.value).startswith(f"--out {root / out}: cannot be written (")
    assert files(root) == {"judge.py"}


@pytest.mark.parametrize(
    ("source", "said"),
    [
        (
            "import helper, os\nos.remove(helper.__file__)\ndef score(t):\n    return 1.0\n",
            "its sources cannot be read",
        ),
        (  # the answer cannot be read when it is looked at in its package
            "import os, sys\nif '.rollart-' in __file__:\n    os.mkdir(sys.argv[2])\n"
            "def score(t):\n    return 1.0\n",
            "no process can look at it",
        ),
    ],
)
def test_what_fails_elsewhere_is_not_laid_on_the_folder_to_write(
    tmp_path: Path, source: str, said: str
) -> None:
    root = written(tmp_path / "in", source)
    written(root, "", "helper.py")
    told = refusal(root, tmp_path / "out")
    assert said in told
    assert "--out" not in told


def test_a_folder_may_have_the_longest_name_that_there_is(tmp_path: Path) -> None:
    root = written(tmp_path / "in", "def score(t):\n    return 1.0\n")
    for _ in range(2):  # the second replaces the first
        package("judge:score", TARGETS["lambda"], tmp_path / ("x" * 255), root=root)
    assert sorted(one.name for one in tmp_path.iterdir()) == ["in", "x" * 255]


@pytest.mark.parametrize(
    ("source", "said"),
    [
        ("def other(t):\n    return 1.0\n", "has no function 'score'; it has: other"),
        ("class score:\n    pass\n", "is a class; a function is shipped"),
        ("score = 3\n", "is int, not a function"),
        ("def score():\n    return 1.0\n", "does not take exactly one argument"),
        ("def score(a, b):\n    return 1.0\n", "does not take exactly one argument"),
        ("raise RuntimeError('at import')\n", "RuntimeError: at import"),
        ("import sys\nsys.exit(0)\n", "SystemExit: 0"),
        ("import os\nos._exit(0)\n", "importing it ended the process"),
        ("def score(\n", "cannot be read as Python"),
        ("import not_there_at_all\ndef score(t): ...\n", "needs the module not_there_at_all"),
        ("from rollart.core.types import Verdict\ndef score(t): ...\n", "does not travel"),
        ("from rollart import Task\ndef score(t): ...\n", "cannot import name 'Task'"),
    ],
)
def test_a_function_that_cannot_be_shipped_is_refused_with_the_reason(
    tmp_path: Path, source: str, said: str
) -> None:
    root = written(tmp_path / "in", source)
    assert said in refusal(root, tmp_path / "out")


def test_what_a_function_finds_here_and_not_in_its_package_is_refused(tmp_path: Path) -> None:
    source = (
        "from importlib import import_module\n"
        "helper = import_module('hel' + 'per')\n"
        "def score(t):\n    return 1.0\n"
    )
    root = written(tmp_path / "in", source)
    written(root, "", "helper.py")
    told = refusal(root, tmp_path / "out")
    assert "within its package" in told
    assert "nothing by import_module" in told


@pytest.mark.parametrize("path", ["judge", "judge:", ":score", "judge:score:x", "../judge:score"])
def test_what_names_no_function_is_refused(tmp_path: Path, path: str) -> None:
    assert "must be module:function" in refusal(tmp_path, tmp_path / "out", path)


def test_a_module_that_is_not_in_the_folder_is_refused(tmp_path: Path) -> None:
    assert "there is no module nowhere" in refusal(tmp_path, tmp_path / "out", "nowhere:score")


@pytest.mark.parametrize(
    ("more", "said"),
    [
        ({"name": "Bad Name"}, "--name 'Bad Name': must be"),
        ({"name": "a" * 49}, "must be 1 to 48"),
        ({"store": "bucket/x"}, "--store 'bucket/x': must be"),
        ({"store": "ftp://host/x"}, "must be the URL of a folder"),
        ({"store": "file://host/x"}, "--store 'file://host/x': file:// must be the path"),
        ({"store": "s3://key:secret@bucket/x"}, "a user or password"),
    ],
)
def test_a_name_or_store_that_no_platform_takes_is_refused(
    tmp_path: Path, more: Mapping[str, Any], said: str
) -> None:
    root = written(tmp_path / "in", "def score(t):\n    return 1.0\n")
    told = refusal(root, tmp_path / "out", **more)
    assert said in told
    assert "secret" not in told.replace("password", "")


@pytest.mark.parametrize(
    ("declared", "target", "said"),
    [
        ("timeout=float('inf')", "lambda", "timeout=inf): must be seconds above 0"),
        ("memory=10**15", "fc", "1048576 MiB at most"),
        ("timeout=1000", "lambda", "timeout of 1000 s; lambda takes 1 to 900"),
        ("memory=20000", "lambda", "memory of 20000 MB; lambda takes 128 to 10240"),
        ("timeout=4000", "cloudrun", "cloudrun takes 1 to 3600"),
    ],
)
def test_what_a_platform_does_not_bear_is_refused(
    tmp_path: Path, declared: str, target: str, said: str
) -> None:
    source = f"import rollart\n@rollart.serverless({declared})\ndef score(t):\n    return 1.0\n"
    root = written(tmp_path / "in", source)
    assert said in refusal(root, tmp_path / "out", target=target)


def test_torch_is_too_large_for_lambda_which_is_said_with_sizes_and_the_remedy(
    tmp_path: Path,
) -> None:
    root = written(tmp_path / "in", "def score(t):\n    import torch\n    return 1.0\n")
    told = refusal(root, tmp_path / "out")
    assert "torch " in told
    assert "MB unpacked; lambda takes 250 MB" in told
    assert "--target cloudrun" in told


def test_large_packages_for_function_compute_are_warned_of(tmp_path: Path) -> None:
    root = written(tmp_path / "in", "def score(t):\n    import torch\n    return 1.0\n")
    one = package("judge:score", TARGETS["fc"], tmp_path / "out", root=root)
    assert any("packed it may have 500 MB" in warning for warning in one.warnings)


def test_a_module_in_the_place_of_a_generated_file_is_refused(tmp_path: Path) -> None:
    root = written(tmp_path / "in", "def score(t):\n    return 1.0\n", "main.py")
    told = refusal(root, tmp_path / "out", "main:score", "cloudrun")
    assert "the package has a main.py of its own for cloudrun" in told


def test_a_package_that_is_not_installed_here_is_left_out_and_said(tmp_path: Path) -> None:
    source = (
        "try:\n    import orjsonx\nexcept ImportError:\n    pass\ndef score(t):\n    return 1.0\n"
    )
    root = written(tmp_path / "in", source)
    one = package("judge:score", TARGETS["lambda"], tmp_path / "out", root=root)
    assert one.warnings == (
        "judge:score imports orjsonx, which is not installed here: it is left out",
    )
    assert (tmp_path / "out/requirements.txt").read_text() == ""


def installed(folder: Path, name: str, *, from_folder: bool = False) -> Path:
    """A distribution as an installer leaves it."""
    written(folder, "VALUE = 1.0\n", f"{name}.py")
    info = folder / f"{name}-1.0.dist-info"
    written(info, f"Metadata-Version: 2.1\nName: {name}\nVersion: 1.0\n", "METADATA")
    written(info, f"{name}.py,,\n", "RECORD")
    if from_folder:
        written(info, '{"url": "file:///x", "dir_info": {"editable": true}}', "direct_url.json")
    return folder


LAZILY = "def score(t):\n    import tinydep\n    return tinydep.VALUE\n"


def test_a_package_installed_from_a_folder_is_refused_since_no_platform_has_it(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.syspath_prepend(installed(tmp_path / "site", "tinydep", from_folder=True))
    root = written(tmp_path / "in", LAZILY)
    assert "installed from a folder of this machine" in refusal(root, tmp_path / "out")


def wheel(folder: Path, name: str) -> None:
    folder.mkdir()
    with zipfile.ZipFile(folder / f"{name}-1.0-py3-none-any.whl", "w") as archive:
        info = f"{name}-1.0.dist-info"
        archive.writestr(f"{name}.py", "VALUE = 1.0\n")
        archive.writestr(f"{info}/METADATA", f"Metadata-Version: 2.1\nName: {name}\nVersion: 1.0\n")
        archive.writestr(
            f"{info}/WHEEL", "Wheel-Version: 1.0\nRoot-Is-Purelib: true\nTag: py3-none-any\n"
        )
        archive.writestr(f"{info}/RECORD", f"{name}.py,,\n{info}/METADATA,,\n{info}/WHEEL,,\n")


def test_packages_are_put_into_the_folder_where_that_is_asked(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.syspath_prepend(installed(tmp_path / "site", "tinydep"))
    monkeypatch.setenv("PIP_NO_INDEX", "1")
    monkeypatch.setenv("PIP_FIND_LINKS", str(tmp_path / "wheels"))
    wheel(tmp_path / "wheels", "tinydep")
    root = written(tmp_path / "in", LAZILY)
    one = package("judge:score", TARGETS["fc"], tmp_path / "out", root=root, vendor=True)
    assert (tmp_path / "out/tinydep.py").read_text() == "VALUE = 1.0\n"
    assert "pip" not in one.target.deploy(one.shipment)


def test_packages_that_cannot_be_had_are_said_in_pips_words(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.syspath_prepend(installed(tmp_path / "site", "tinydep"))
    monkeypatch.setenv("PIP_NO_INDEX", "1")
    root = written(tmp_path / "in", LAZILY)
    told = refusal(root, tmp_path / "out", vendor=True)
    assert "pip cannot get the packages for lambda" in told
    assert "tinydep" in told


def test_everybody_may_read_a_package(packages: Mapping[str, Packaged]) -> None:
    assert os.stat(packages["fc"].directory).st_mode & 0o777 == 0o755
