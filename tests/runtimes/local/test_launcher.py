"""The launcher: everything it starts works together, and ends with it, however that ends."""

import asyncio
import contextlib
import json
import os
import signal
import subprocess
import sys
import textwrap
import time
from pathlib import Path
from typing import Any

import pytest

from rollart.core.errors import ConfigError
from rollart.core.identity import TrajectoryId
from rollart.core.jobfile import parse_job
from rollart.core.types import Message
from rollart.process.owner import live_processes
from rollart.runtimes.local.launcher import LocalLauncher, allow_descriptors, weights_root


class Nobody:
    def emit(self, event: object) -> None: ...


MAKER = """
import json, shutil

def make(directory, seed):
    print("warming up")
    (directory / "config.json").write_text(json.dumps({"seed": seed}))
    (directory / "tokenizer.json").write_text("{}")
    (directory / "model.safetensors").write_bytes(b"")

def make_half(directory, seed):
    (directory / "config.json").write_text("{}")

def make_nothing(directory, seed):
    raise MemoryError("too small a machine")
"""


@pytest.fixture
def launched(user_folder: Path, tmp_path: Path):
    (user_folder / "my_model.py").write_text(MAKER)

    @contextlib.asynccontextmanager
    async def make(make_model: str = "my_model:make", **domain: Any):
        job = parse_job(
            {
                "schema": 1,
                "run": {"seed": 5},
                "model": {"make": make_model, "context": 256},
                "rollout": {"batch_groups": 2, "group_size": 2},
                "train": {"correction": "behaviour"},
                "domains": [
                    {
                        "tag": "lake",
                        "environment": "my_environments:Counter",
                        "envs_per_process": 4,
                        **domain,
                    }
                ],
            }
        )
        launcher = LocalLauncher(
            job,
            run_id=f"launched-{tmp_path.name}",
            run_directory=tmp_path / "run",
            python_path=(str(user_folder),),
            events=Nobody(),
        )
        try:
            yield launcher
        finally:
            await launcher.close()

    return make


def test_a_domain_has_tasks_environments_and_rewards_and_all_end_at_close(launched):
    async def main():
        before = len(os.listdir("/proc/self/fd"))
        async with launched() as launcher:
            environments = await launcher.environments("lake")
            source = await launcher.tasks("lake")
            await launcher.reward("lake")
            task = await source.next()
            assert task is not None
            identity = TrajectoryId(
                run=launcher.run_id, domain="lake", task=task.key, group=0, member=0
            )
            environment = await environments.open(identity)
            await environment.reset(task, 3)
            result = await environment.step(Message(role="assistant", content="a"))
            assert result.observation.messages[0].content == "3:a"
            held = await launcher.heldout("lake", 2)
            assert len(held) == 2
            assert await launcher.baselines("lake", held) == ()
            assert live_processes(launcher.run_id)
            began = time.monotonic()
        assert time.monotonic() - began < 5.0
        assert live_processes(launcher.run_id) == ()
        assert len(os.listdir("/proc/self/fd")) == before

    asyncio.run(main())


def test_sharing_a_process_without_the_promise_of_replay_is_refused(launched):
    async def main():
        async with launched(environment="my_environments:Stubborn") as launcher:
            with pytest.raises(ConfigError, match="envs_per_process = 4: the environment does not"):
                await launcher.environments("lake")

    asyncio.run(main())


def test_a_model_is_made_once_in_a_child_and_what_it_prints_is_in_the_log(launched, tmp_path: Path):
    async def main():
        async with launched() as launcher:
            first, second = await asyncio.gather(
                launcher.model_directory(), launcher.model_directory()
            )
            assert first == second == tmp_path / "run" / "model"
            assert json.loads((first / "config.json").read_text()) == {"seed": 5}
            log = (tmp_path / "run" / "logs" / "make-model.log").read_text()
            assert log.count("warming up") == 1
            assert (weights_root(tmp_path / "run") / launcher.run_id).is_dir()
        assert not (weights_root(tmp_path / "run") / launcher.run_id).exists()

    asyncio.run(main())


@pytest.mark.parametrize(
    ("maker", "told"),
    [
        ("make_half", r"has no tokenizer"),
        ("make_nothing", r"model\.make = 'my_model:make_nothing': MemoryError: too small"),
        ("make_missing", r"has no 'make_missing'"),
    ],
)
def test_a_model_that_cannot_be_made_is_a_configuration_error(launched, maker: str, told: str):
    async def main():
        async with launched(f"my_model:{maker}") as launcher:
            with pytest.raises(ConfigError, match=told):
                await launcher.model_directory()

    asyncio.run(main())


def test_the_pool_is_this_machine(launched):
    async def main():
        async with launched() as launcher:
            (pool,) = await launcher.pools()
            assert (pool.name, pool.slots, pool.free) == ("local", os.cpu_count(), pool.slots)

    asyncio.run(main())


def test_more_open_files_than_the_system_allows_are_refused_with_the_remedy():
    with pytest.raises(ConfigError, match=r"raise domains\.envs_per_process"):
        allow_descriptors(2**40)


OWNER = """
import asyncio, sys
from pathlib import Path
from rollart.core.identity import TrajectoryId
from rollart.core.jobfile import parse_job
from rollart.core.ports import Binding
from rollart.core.types import Message, Task, Trajectory, Status
from rollart.runtimes.local.launcher import LocalLauncher
import json

class Nobody:
    def emit(self, event): ...

async def main(table, folder, real):
    launcher = LocalLauncher(parse_job(table), run_id="orphans-" + Path(folder).name,
        run_directory=Path(folder) / "run", python_path=(folder,), events=Nobody())
    if real:
        await launcher.engine(Binding(worker="engine-0", hardware="local"))
        await launcher.trainer(Binding(worker="trainer", hardware="local"))
    environments = await launcher.environments("lake")
    reward = await launcher.reward("lake")
    await (await launcher.tasks("lake")).next()
    async with asyncio.TaskGroup() as group:
        for number in range(4):
            identity = TrajectoryId(run="r", domain="lake", task="0", group=0, member=number)
            environment = await environments.open(identity)
            await environment.reset(Task(domain="lake", key="0"), number)
            word = Message(role="assistant", content=("hold", "hang", "spin", "a")[number])
            group.create_task(environment.step(word))
        await asyncio.sleep(0.3)
        print("ready", flush=True)
        await asyncio.sleep(1000)

asyncio.run(main(json.loads(sys.argv[1]), sys.argv[2], sys.argv[3] == "real"))
"""


def kill_the_owner(table: dict[str, Any], folder: Path, how: str) -> None:
    run_id = f"orphans-{folder.name}"
    environment = {**os.environ, "PYTHONPATH": os.pathsep.join(p for p in sys.path if p)}
    with subprocess.Popen(
        [sys.executable, "-c", textwrap.dedent(OWNER), json.dumps(table), str(folder), how],
        stdout=subprocess.PIPE,
        env=environment,
        text=True,
    ) as owner:
        assert owner.stdout is not None
        assert owner.stdout.readline() == "ready\n"
        found = live_processes(run_id)
        assert len(found) >= (8 if how == "real" else 6)
        owner.send_signal(signal.SIGKILL)
    deadline = time.monotonic() + 15.0
    while (left := live_processes(run_id)) and time.monotonic() < deadline:
        time.sleep(0.1)
    assert left == ()


def one_a_process(table: dict[str, Any]) -> dict[str, Any]:
    (domain,) = table["domains"]
    return {**table, "domains": [{**domain, "envs_per_process": 1}]}


def test_children_end_when_the_control_process_is_killed_even_those_that_hang(
    user_folder: Path, job_table: dict[str, Any]
):
    kill_the_owner(one_a_process(job_table), user_folder, "light")


@pytest.mark.real
def test_engine_and_trainer_end_as_well_when_the_control_process_is_killed(
    user_folder: Path, job_table: dict[str, Any]
):
    kill_the_owner(one_a_process(job_table), user_folder, "real")
