"""What is wrong with a job is found before it starts, in a child, a line each."""

import json
import sys
from pathlib import Path
from typing import Any

import pytest

from rollart.core.config import JobConfig
from rollart.core.errors import ConfigError
from rollart.core.jobfile import parse_job
from rollart.runtimes.local.preflight import job_problems, model_problems, preflight

CODE = """
import sys
import rollart as ra

LOADED = True

class Fine:
    replayable = True
    def __init__(self, *, size=4):
        if size < 1:
            raise ValueError(f"size = {size}: at least 1")
    def reset(self, task, seed): ...
    def step(self, action): ...

class OneOnly:
    def reset(self, task, seed): ...
    def step(self, action): ...

class NoStep:
    def reset(self, task, seed): ...

def reward(trajectory):
    return 1.0

def two(trajectory, extra):
    return 1.0

class Judge(ra.Reward):
    @ra.register_serverless("proxy", "local://my_code:reward")
    def compute_rewards(self, trajectory): ...

class NoCompute(ra.Reward): ...

class ComputesTwo(ra.Reward):
    def compute_rewards(self, trajectory, extra): ...

class Demanding(Judge):
    def __init__(self, size): ...

class Remote(ra.Reward):
    @ra.register_serverless("proxy", "ftp://account/function")
    def compute_rewards(self, trajectory): ...

class Dangling(ra.Reward):
    @ra.register_serverless("proxy", "local://my_code:no_such")
    def compute_rewards(self, trajectory): ...

class Pathless(ra.Reward):
    @ra.register_serverless("proxy", "local://my_code")
    def compute_rewards(self, trajectory): ...

def make(directory, seed): ...

def make_nothing(): ...
"""


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    (tmp_path / "my_code.py").write_text(CODE)
    (tmp_path / "my_exit.py").write_text("import os; os._exit(4)")
    (tmp_path / "my_error.py").write_text("import nothing_of_the_kind")
    (tmp_path / "my_torch.py").write_text("import sys; sys.exit('not here')")
    return tmp_path


def job(**domain: Any) -> JobConfig:
    settings = {
        "tag": "lake",
        "environment": "my_code:Fine",
        "reward": "my_code:reward",
        **domain,
    }
    return parse_job(
        {
            "schema": 1,
            "model": {"make": "my_code:make"},
            "train": {"correction": "behaviour"},
            "domains": [settings],
        }
    )


def test_a_sound_job_passes_and_its_code_stays_out_of_this_process(folder: Path):
    preflight(job(options={"size": 8}, envs_per_process=8), python_path=(str(folder),))
    assert "my_code" not in sys.modules


@pytest.mark.parametrize(
    ("domain", "told"),
    [
        (
            {"environment": "my_code:Lake"},
            "domains[lake].environment = 'my_code:Lake': cannot be imported: ImportError: module "
            "'my_code' (",
        ),
        (
            {"environment": "my_kode:Lake"},
            "domains[lake].environment = 'my_kode:Lake': cannot be imported: ModuleNotFoundError: "
            "No module named 'my_kode'",
        ),
        ({"environment": "my_error:Lake"}, "No module named 'nothing_of_the_kind' ("),
        ({"environment": "my_exit:Lake"}, "importing or making it ended the process: "),
        ({"environment": "my_torch:Lake"}, "cannot be imported: SystemExit: not here"),
        ({"environment": "my_code:NoStep"}, "'my_code:NoStep': has no method step(action)"),
        ({"environment": "my_code:reward"}, "'my_code:reward': is function, not a class"),
        (
            {"options": {"sice": 3}},
            "'my_code:Fine': does not take the options {'sice': 3}: got an unexpected keyword",
        ),
        (
            {"options": {"size": 0}},
            "'my_code:Fine': cannot be made with the options {'size': 0}: ValueError: size = 0: at "
            "least 1 (",
        ),
        (
            {"environment": "rollart.backends.envs.tools:ToolEnvironment"},
            "cannot be made with the options {}: TypeError: has no tools of its own; name a "
            "subclass that defines begin()",
        ),
        (
            {"environment": "my_code:OneOnly", "envs_per_process": 2},
            "does not declare replayable = True, so envs_per_process = 2 is impossible; use "
            "envs_per_process = 1",
        ),
        (
            {"reward": "my_code:two"},
            "domains[lake].reward = 'my_code:two': does not take exactly one argument",
        ),
        ({"reward": "my_code:LOADED"}, "is bool, not a function of one trajectory"),
    ],
)
def test_code_that_does_not_fit_is_told_in_one_line(folder: Path, domain, told: str):
    problems = job_problems(job(**domain), (str(folder),))
    assert len(problems) == 1
    assert told in problems[0]
    assert "\n" not in problems[0]


def test_every_problem_is_told_at_once(folder: Path):
    wrong = job(environment="my_exit:Lake", reward="my_code:two")
    with pytest.raises(ConfigError) as caught:
        preflight(wrong, python_path=(str(folder),))
    assert "my_exit:Lake" in str(caught.value)
    assert "my_code:two" in str(caught.value), "asked of a new child after the first one ended"


def model_folder(folder: Path, *, positions: int = 512) -> Path:
    (folder / "config.json").write_text(json.dumps({"max_position_embeddings": positions}))
    (folder / "tokenizer.json").write_text("{}")
    (folder / "model.safetensors").write_bytes(b"")
    return folder


def test_a_whole_model_directory_has_no_problems(tmp_path: Path):
    assert model_problems(str(model_folder(tmp_path)), 512) == []


@pytest.mark.parametrize(
    ("missing", "told"),
    [
        ("config.json", "its config.json cannot be read"),
        ("tokenizer.json", "has no tokenizer"),
        ("model.safetensors", "has no weights"),
    ],
)
def test_a_model_directory_that_lacks_something_is_refused(tmp_path: Path, missing, told):
    (model_folder(tmp_path) / missing).unlink()
    (problem,) = model_problems(str(tmp_path), 512)
    assert told in problem


def test_a_missing_directory_and_a_context_too_long_are_refused(tmp_path: Path):
    (problem,) = model_problems(str(tmp_path / "nowhere"), 512)
    assert "no such directory; give a Hugging Face model directory" in problem
    (problem,) = model_problems(str(model_folder(tmp_path)), 1024)
    assert problem == (
        "model.context = 1024: the model was made for 512 positions; use model.context = 512 or "
        "less"
    )


@pytest.mark.parametrize(
    "reward",
    [
        "my_code:Judge",
        "local://my_code:reward",
    ],
)
def test_a_reward_may_be_a_class_or_a_serverless_function(folder: Path, reward: str | list[str]):
    preflight(job(reward=reward), python_path=(str(folder),))


@pytest.mark.parametrize(
    ("reward", "told"),
    [
        ("my_code:NoCompute", r"has no method compute_rewards\(trajectory\)"),
        ("my_code:ComputesTwo", r"compute_rewards that does not take \(trajectory\)"),
        ("my_code:Demanding", "cannot be made without arguments: .*size"),
        ("my_code:Remote", "'ftp://account/function': must be a URL of local://"),
        ("my_code:Dangling", "'local://my_code:no_such': cannot be imported: .*has no 'no_such'"),
        ("my_code:Pathless", "names a function; use local://module:function"),
        ("local://my_code:no_such", "has no 'no_such'"),
        ("fc://judge#my_code:no_such", "has no 'no_such'"),
        ("local://my_code:two", "does not take exactly one argument"),
    ],
)
def test_a_reward_that_cannot_be_served_is_refused_with_a_remedy(
    folder: Path, reward: str, told: str
):
    with pytest.raises(ConfigError, match=told):
        preflight(job(reward=reward), python_path=(str(folder),))


@pytest.mark.parametrize(
    ("reward", "told"),
    [
        (
            "http://127.0.0.1:9/judge",
            r"domains\[lake\]\.reward: http://127\.0\.0\.1:9/judge: .*answer",
        ),
        ("http://me:secret@10.0.0.1/judge", r"http://10\.0\.0\.1/judge.*a user or password"),
        ("http://169.254.169.254/latest", "169.254.169.254"),
        (["http://127.0.0.1:9/judge?code=secret", "local://my_code:reward"], "127.0.0.1:9/judge: "),
    ],
)
def test_a_platform_that_refuses_or_does_not_answer_is_told_before_anything_starts(
    folder: Path, reward: str | list[str], told: str
):
    with pytest.raises(ConfigError, match=told) as caught:
        preflight(job(reward=reward), python_path=(str(folder),))
    assert "secret" not in str(caught.value)
