"""Whole runs on this machine: a tiny model, real children, a job file in a folder of its own."""

import textwrap
from collections.abc import Callable
from pathlib import Path

import pytest

LAKE = "rollart.backends.envs.frozen_lake:FrozenLake"
MODEL = (Path(__file__).parents[2] / "examples" / "three_domains" / "model.py").read_text()

JobWriter = Callable[..., Path]


@pytest.fixture
def write_job(tmp_path: Path) -> JobWriter:
    """Writes `job.toml` beside the demo's model maker and whatever modules are given."""

    def write(domain: str = f'environment = "{LAKE}"', more: str = "", **modules: str) -> Path:
        (tmp_path / "model.py").write_text(MODEL)
        for name, text in modules.items():
            (tmp_path / f"{name}.py").write_text(textwrap.dedent(text))
        head = textwrap.dedent(
            f"""
            schema = 1
            [run]
            name = "whole"
            directory = "{tmp_path / "runs"}"
            steps = 4
            [model]
            make = "model:make"
            context = 256
            [rollout]
            batch_groups = 3
            group_size = 4
            slots = 64
            [train]
            correction = "behaviour"
            drop_zero_variance = false
            advantage_eps = 0.05
            learning_rate = 1e-3
            """
        )
        tail = f'[[domains]]\ntag = "Lake"\nmax_turns = 8\nmax_tokens = 1\n{domain}\n'
        path = tmp_path / "job.toml"
        path.write_text(f"{head}\n{textwrap.dedent(more)}\n{tail}")
        return path

    return write
