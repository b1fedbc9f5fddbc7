import tomllib
from pathlib import Path

import pytest

from rollart.cli.init import STARTER, starter
from rollart.cli.main import main
from rollart.core.config import DomainConfig, JobConfig
from rollart.core.jobfile import all_keys, load_job

NOT_DEFAULT = {
    "train.correction": "behaviour",
    "domains.envs_per_process": 16,
}
"""What the starter sets otherwise than the default, with a comment that says why."""

EXAMPLES = {"run.time_limit_s", "model.make", "rollout.affinity", "domains.group_size"}
"""Keys that stand there commented out, for their default is to be absent or empty."""


def written_keys(text: str) -> dict[str, object]:
    table = tomllib.loads(text)
    table["domains"] = table["domains"][0]
    return {"schema": table.pop("schema")} | {
        f"{section}.{key}": value for section, keys in table.items() for key, value in keys.items()
    }


def default_of(key: str) -> object:
    section, _, name = key.partition(".")
    model = DomainConfig if section == "domains" else JobConfig.model_fields[section].annotation
    assert isinstance(model, type)
    default = model.model_fields[name].get_default(call_default_factory=True)  # pyright: ignore[reportAttributeAccessIssue]
    return list(default) if isinstance(default, tuple) else default


def test_the_starter_is_a_job_and_says_every_key(tmp_path: Path) -> None:
    file = tmp_path / "job.toml"
    assert main(["init", str(file)]) == 0
    job = load_job(file)
    assert job.domains[0].tag == "FrozenLake"
    assert set(written_keys(file.read_text())) | EXAMPLES == set(all_keys())
    for key in EXAMPLES:
        assert f"\n# {key.partition('.')[2]} = " in STARTER


def test_what_the_starter_sets_are_the_defaults_unless_a_comment_says_why() -> None:
    free = {"schema", "model.path", "domains.tag", "domains.environment"}
    for key, value in written_keys(starter()).items():
        if key in NOT_DEFAULT:
            line = next(s for s in STARTER.splitlines() if s.startswith(key.partition(".")[2]))
            assert value == NOT_DEFAULT[key]
            assert "not the default" in line
        elif key not in free:
            assert value == default_of(key), key


def test_examples_in_comments_are_accepted_too(tmp_path: Path) -> None:
    file = tmp_path / "job.toml"
    text = starter().replace("# time_limit_s", "time_limit_s").replace("# affinity", "affinity")
    text = text.replace("# group_size", "group_size").replace(
        "engines = 1 ", "engines = { H800 = 1, H20 = 2 } "
    )
    file.write_text(text)
    assert load_job(file).rollout.affinity == {"FrozenLake": "H800", "default": "H20"}


def test_nothing_is_written_over(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    file = tmp_path / "job.toml"
    file.write_text("mine")
    assert main(["init", str(file)]) == 2
    assert "exists already" in capsys.readouterr().err
    assert file.read_text() == "mine"
    assert main(["init", str(tmp_path / "none" / "job.toml")]) == 2
    assert "cannot be written" in capsys.readouterr().err


def test_a_model_given_is_a_model_written_whatever_its_name(tmp_path: Path) -> None:
    model = tmp_path / 'a "quoted" one'
    file = tmp_path / "job.toml"
    assert main(["init", str(file), "--model", str(model)]) == 0
    assert load_job(file).model.path == str(model)


@pytest.mark.real
def test_check_accepts_the_starter_once_its_model_is_there(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    file = tmp_path / "job.toml"
    assert main(["init", str(file)]) == 0
    capsys.readouterr()
    place = f"--set=run.directory={tmp_path}"
    assert main(["check", str(file), place]) == 2
    said = capsys.readouterr().err
    assert said.count("\n") == 1
    assert "model.path" in said
    model = tmp_path / "model"
    model.mkdir()
    (model / "config.json").write_text('{"max_position_embeddings": 2048}')
    (model / "tokenizer.json").write_text("{}")
    (model / "model.safetensors").write_bytes(b"")
    assert main(["check", str(file), place, f"--set=model.path={model}"]) == 0
    assert "FrozenLake" in capsys.readouterr().out
