import copy
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest

from rollart.core.errors import ConfigError
from rollart.core.jobfile import all_keys, known_keys, load_job, parse_job

GOOD = """
schema = 1
[model]
path = "models/tiny"
[train]
correction = "tis"
[[domains]]
tag = "FrozenLake"
environment = "lake:FrozenLake"
"""

REMOVE = object()

# (key to set, value, what the refusal must say besides the key: the value, the rule, a valid value)
BAD: list[tuple[str, Any, list[str]]] = [
    ("schema", 2, ["= 2", "must be 1", "use schema = 1"]),
    ("schema", REMOVE, ["missing", "schema = 1"]),
    ("run.steps", 0, ["= 0", "greater than 0", "use 100"]),
    ("run.steps", "ten", ['= "ten"', "integer", "use 100"]),
    ("run.steps", True, ["= true", "integer", "use 100"]),
    ("run.steps", 2.5, ["= 2.5", "integer", "use 100"]),
    ("run.seed", -1, ["= -1", "greater than or equal to 0", "use 0"]),
    ("run.name", "../elsewhere", ['"../elsewhere"', "form", 'use "run"']),
    ("run.time_limit_s", 0, ["= 0", "greater than 0", "time_limit_s = 300"]),
    ("run", 5, ["= 5", "must be a table", "[run]"]),
    ("rolout", {"slots": 4}, ["unknown key", "did you mean 'rollout'"]),
    ("rollout.grop_size", 8, ["= 8", "unknown key", "did you mean 'group_size'"]),
    ("domains.0.max_turn", 8, ["= 8", "unknown key", "did you mean 'max_turns'"]),
    ("model", REMOVE, ["missing", 'path = "DIRECTORY"']),
    ("model.make", "models:tiny", ["models:tiny", "exactly one of", "model.path"]),
    ("model.path", 7, ["= 7", "string", 'path = "models/']),
    ("rollout.group_size", 1, ["= 1", "one member carries no signal", "2 or more"]),
    ("rollout.batch_groups", 0, ["= 0", "greater than 0", "use 8"]),
    ("rollout.slots", 4, ["= 4", "must hold one group of 8", "slots = 8 or more"]),
    ("rollout.kv", "drop", ['= "drop"', "'recompute' or 'keep'", 'use "recompute"']),
    ("protocol.alpha", -1, ["= -1", "greater than or equal to 0", "use 1"]),
    ("protocol.alpha", 100, ["= 100", "less than or equal to 64", "use 1"]),
    ("protocol.alpha", 1.5, ["= 1.5", "integer", "use 1"]),
    ("protocol.name", "arael", ['= "arael"', "'rollart'", 'use "rollart"']),
    ("rollout.engines", {}, ["= {}", "at least one engine", "rollout.engines = 1"]),
    ("rollout.engines", {"H20": 0}, ["'H20': 0", "greater than 0", "use 1"]),
    ("rollout.affinity", {"Chess": "local"}, ["Chess", "no domain has this tag", "default"]),
    ("rollout.affinity", {"default": "H20"}, ["'H20'", "no engine is of this class", "local"]),
    ("redundancy.members", -1, ["= -1", "greater than or equal to 0", "use 0"]),
    ("redundancy.mode", "fair", ['= "fair"', "'unbiased'", 'use "race"']),
    ("redundancy.mode", "adaptive", ['= "adaptive"', "members = 0", "members = 2 or more"]),
    ("redundancy.mode", "unbiased", ['= "unbiased"', "no spares", "members = 1 or more"]),
    ("domains.0.group_size", 1, ["= 1", "one member carries no signal", "2 or more"]),
    ("domains.0.group_size", 0, ["= 0", "greater than 0"]),
    ("domains.0.reward", "ftp://judge", ['= "ftp://judge"', "URL of local://", "local://module"]),
    ("domains.0.reward", "judge.score", ["judge.score", "module:function", "local://module"]),
    ("domains.0.reward", [], ["module:function, a URL, or a list"]),
    ("domains.0.reward", ["judge:score", "http://h/"], ["'judge:score' must be", "by itself"]),
    ("domains.0.reward", "fc://judge#score", ["follows #", "fc://…#module:function"]),
    ("domains.0.reward", "fc://judge?rate=0", ["?rate=", "above 0", "rate=20"]),
    ("domains.0.reward", "local://judge", ["names a function", "local://module:function"]),
    ("run.trackers", ["mlflow"], ['"mlflow"', "'tensorboard' or 'wandb'"]),
    ("run.trackers", "wandb", ['"wandb"', "must be an array;", '["tensorboard"]']),
    ("run.trackers", ["wandb", "x"], ['trackers[1] = "x"', "'wandb'"]),
    ("rollout.engines", 100_000, ["= 100000", "at most 4096", "use 1"]),
    ("rollout.affinity", 3, ["= 3", 'default = "H20"']),
    ("domains.0.tag", "default", ['"default"', "rollout.affinity", "another tag"]),
    ("eval.every", -1, ["= -1", "greater than or equal to 0", "use 0"]),
    ("train.correction", "none", ['= "none"', "importance correction", '"behaviour" or "tis"']),
    ("train.optimizer_steps", 3, ["= 3", "must divide rollout.batch_groups = 8", "use 2"]),
    ("train.microbatch_tokens", 512, ["= 512", "model.context = 1024", "use 1024 or more"]),
    ("train.clip", [0.0, 0.3], ["= 0.0", "greater than 0"]),
    ("train.learning_rate", 0, ["= 0", "greater than 0", "use 1e-05"]),
    ("train.learning_rate", float("nan"), ["= nan", "finite", "use 1e-05"]),
    ("domains", [], ["= []", "must not be empty", "[[domains]]"]),
    ("domains", {"tag": "x"}, ["array of tables", "[[domains]]"]),
    ("domains", [3], ["[0] = 3", "must be a table", "[[domains]]"]),
    ("domains.0.tag", "Frozen Lake", ['= "Frozen Lake"', "form", 'tag = "FrozenLake"']),
    ("domains.0.environment", "lake.FrozenLake", ["lake.FrozenLake", "form", '"module:Class"']),
    ("domains.0.environment", REMOVE, ["missing", '"module:Class"']),
    ("domains.0.temperature", 0, ["= 0", "greater than 0", "use 1.0"]),
    ("domains.0.max_tokens", 1024, ["= 1024", "room for the prompt", "use 512 or less"]),
    ("domains.0.options", 3, ["= 3", "dictionary", "options = {"]),
    ("timeouts.env_step_s", 0, ["= 0", "greater than 0", "use 30.0"]),
    ("timeouts.env_step_s", 900.0, ["= 900.0", "episode_s = 600.0", "use 600.0 or less"]),
    ("timeouts.train_s", "1 min", ['= "1 min"', "number", "use 600.0"]),
    ("faults.attempts", 0, ["= 0", "greater than 0", "use 3"]),
    ("eval.tasks", -5, ["= -5", "greater than or equal to 0", "use 0"]),
]


def good_table() -> dict[str, Any]:
    return {
        "schema": 1,
        "model": {"path": "models/tiny"},
        "train": {"correction": "tis"},
        "domains": [{"tag": "FrozenLake", "environment": "lake:FrozenLake"}],
    }


def put(table: dict[str, Any], key: str, value: Any) -> dict[str, Any]:
    at: Any = table
    *path, last = key.split(".")
    for part in path:
        at = at[int(part)] if part.isdigit() else at.setdefault(part, {})
    if value is REMOVE:
        del at[last]
    else:
        at[last] = value
    return table


def refusal(table: dict[str, Any]) -> str:
    with pytest.raises(ConfigError) as caught:
        parse_job(table)
    return str(caught.value)


@pytest.mark.parametrize(("key", "value", "says"), BAD, ids=[f"{k}={v}" for k, v, _ in BAD])
def test_a_bad_value_is_refused_in_one_line_with_key_value_rule_and_a_valid_value(
    key: str, value: Any, says: list[str]
) -> None:
    message = refusal(put(good_table(), key, value))
    assert "\n" not in message
    assert key.rpartition(".")[2] in message
    for words in says:
        assert words in message


def test_the_table_of_bad_configurations_is_good_but_for_its_one_change() -> None:
    job = parse_job(good_table())
    assert job.domains[0].tag == "FrozenLake"
    assert len(BAD) >= 25


def test_a_tag_given_twice_is_refused() -> None:
    table = good_table()
    table["domains"].append(copy.deepcopy(table["domains"][0]))
    message = refusal(table)
    assert "'FrozenLake'" in message
    assert "its own tag" in message


def test_a_domain_is_named_by_its_tag_and_not_by_its_place() -> None:
    assert "domains[FrozenLake].weight" in refusal(put(good_table(), "domains.0.weight", 0))


def test_a_very_long_value_is_shown_short_and_on_one_line() -> None:
    message = refusal(put(good_table(), "run.steps", "many\nmore " * 100))
    assert len(message) < 250
    assert "\n" not in message


def test_a_synchronous_run_needs_no_correction() -> None:
    table = put(put(good_table(), "protocol.alpha", 0), "train.correction", "none")
    assert parse_job(table).capacity_groups == 8


def test_the_format_has_at_most_sixty_keys() -> None:
    keys = all_keys()
    assert len(keys) == len(set(keys))
    assert 40 <= len(keys) <= 60
    assert {"schema", "run.steps", "domains.tag", "timeouts.env_step_s"} <= set(keys)


def test_known_keys_of_a_section_are_its_own() -> None:
    assert "group_size" in known_keys(("rollout",))
    assert "temperature" in known_keys(("domains", 0))
    assert "rollout" in known_keys()


# -- files and --set -------------------------------------------------------------------------


@pytest.fixture
def job_file(tmp_path: Path) -> Path:
    path = tmp_path / "job.toml"
    path.write_text(GOOD)
    return path


def test_a_file_is_read_and_overrides_apply_in_order(job_file: Path) -> None:
    job = load_job(
        job_file,
        [
            "run.steps=5",
            "run.steps=20",
            "rollout.kv=keep",
            'run.name="first"',
            "domains.FrozenLake.weight=2.5",
            "domains.FrozenLake.options.size=8",
        ],
    )
    assert job.run.steps == 20
    assert job.rollout.kv == "keep"
    assert job.run.name == "first"
    assert job.domains[0].weight == 2.5
    assert job.domains[0].options == {"size": 8}


def test_a_models_path_given_by_set_takes_the_place_of_what_would_make_it(
    job_file: Path,
) -> None:
    made = load_job(job_file, ["model.make=models:tiny"])
    assert (made.model.path, made.model.make) == (None, "models:tiny")
    back = load_job(job_file, ["model.make=models:tiny", "model.path=elsewhere"])
    assert (back.model.path, back.model.make) == ("elsewhere", None)


@pytest.mark.parametrize(
    ("override", "says"),
    [
        ("run.steps", ["key=value", "run.steps=20"]),
        ("=5", ["key=value"]),
        ("run..steps=5", ["key=value"]),
        ("train.correction.more=5", ["train.correction is a value"]),
        ("domains.weight=2", ["is a list", "domains.TAG.weight=2"]),
        ("domains.Lake.weight=2", ["'Lake'", "FrozenLake"]),
        ("run.stepz=5", ["run.stepz", "did you mean 'steps'"]),
        ("run.steps=many", ['run.steps = "many"', "integer", "use 100"]),
        ("run.steps=", ['run.steps = ""', "integer"]),
        ("run.steps=5\nrun.seed=3", ["run.steps", "integer"]),
        ("domains=3", ["domains = 3", "[[domains]]"]),
    ],
)
def test_a_bad_override_is_refused_in_one_line(
    job_file: Path, override: str, says: list[str]
) -> None:
    with pytest.raises(ConfigError) as caught:
        load_job(job_file, [override])
    assert "\n" not in str(caught.value)
    for words in says:
        assert words in str(caught.value)


def test_a_file_that_is_missing_or_no_text_or_no_toml_is_refused(tmp_path: Path) -> None:
    binary = tmp_path / "binary.toml"
    binary.write_bytes(b"\xff\xfe\x00")
    broken = tmp_path / "broken.toml"
    broken.write_text("schema = = 1")
    for path, says in (
        (tmp_path / "none.toml", "cannot be read"),
        (tmp_path, "cannot be read"),
        (binary, "cannot be read"),
        (broken, "is not TOML"),
    ):
        with pytest.raises(ConfigError, match=says) as caught:
            load_job(path)
        assert str(path) in str(caught.value)
        assert "\n" not in str(caught.value)


def test_refusals_do_not_hang_on_asserts_that_optimised_python_leaves_out() -> None:
    program = """
import sys
sys.path.insert(0, sys.argv[1])
import test_jobfile as table
from rollart.core.errors import ConfigError
from rollart.core.jobfile import parse_job
refused = 0
for key, value, says in table.BAD:
    try:
        parse_job(table.put(table.good_table(), key, value))
    except ConfigError as error:
        refused += all(words in str(error) for words in says)
print(sys.flags.optimize, refused, len(table.BAD))
"""
    done = subprocess.run(
        [sys.executable, "-O", "-c", program, str(Path(__file__).parent)],
        capture_output=True,
        text=True,
        check=True,
    )
    optimised, refused, all_of_them = map(int, done.stdout.split())
    assert optimised == 1
    assert refused == all_of_them == len(BAD)
