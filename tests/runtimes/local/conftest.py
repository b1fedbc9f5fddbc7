"""User modules that misbehave in every way, and fork servers to run them in."""

import asyncio
import contextlib
import textwrap
from collections.abc import AsyncIterator, Callable, Mapping, Sequence
from contextlib import AbstractAsyncContextManager
from pathlib import Path
from typing import Any

import pytest

from rollart.core.events import DeviceBusy, Event
from rollart.core.jobfile import parse_job
from rollart.runtimes.local import env_host
from rollart.runtimes.local.child_env import child_environment
from rollart.runtimes.local.env_host import EnvHostConfig
from rollart.runtimes.local.environments import EnvironmentLimits, LocalEnvironments
from rollart.runtimes.local.launcher import LocalLauncher
from rollart.runtimes.local.warm_forks import WarmForks

ENVIRONMENTS = '''
import asyncio, os, time
from rollart.core.types import Message, Observation, StepResult

def result(text, **rest):
    words = (Message(role="user", content=text),)
    return StepResult(observation=Observation(messages=words), **rest)

class Counter:
    """Counts its actions; some words make it misbehave."""
    replayable = True

    def __init__(self, *, length=100):
        self.length = length

    def reset(self, task, seed):
        self.seed, self.count, self.log = seed, 0, []
        if task.payload.get("reset") == "raise":
            raise ValueError("no such lake")
        if task.payload.get("reset") == "hang":
            time.sleep(1000)
        return f"seed {seed}"

    def step(self, action):
        if action == "hang":
            time.sleep(1000)
        if action == "spin":
            while True:
                pass
        if action == "hold":  # holds the interpreter: one call in C
            sum(range(10**12))
        if action == "crash":
            os._exit(7)
        if action == "raise":
            raise RuntimeError("the ice broke")
        if action == "exit":
            raise SystemExit("bye")
        if action.startswith("sleep "):
            time.sleep(float(action.split()[1]))
        if action == "print":
            print("user words", flush=False)
        if action == "secret":
            return result(os.environ.get("MY_API_KEY", "none"))
        self.count += 1
        self.log.append(action)
        if action == "nothing":
            return None
        if action == "nan":
            return result("x", reward=float("nan"))
        if action == "pid":
            return result(f"{os.getpid()} {id(self)}")
        text = f"{self.seed}:{','.join(self.log)}"
        return result(text, reward=1.0, done=self.count >= self.length,
                      metrics=(("success", 1.0),))

class Stubborn(Counter):
    """Makes no promise of replay."""
    replayable = False

class Fickle(Counter):
    """Promises replay and lies: it is over at once in another process."""
    def step(self, action):
        if action == "crash":
            os._exit(7)
        marker = os.environ["ROLLART_MARKER"]
        first = not os.path.exists(marker)
        if first:
            open(marker, "w").write(str(os.getpid()))
        same = open(marker).read() == str(os.getpid())
        return result("fickle", done=not same)

class Async:
    replayable = True

    async def reset(self, task, seed):
        await asyncio.sleep(0.001)
        self.loop = asyncio.get_running_loop()
        return "async"

    async def step(self, action):
        await asyncio.sleep(1000 if action == "hang" else 0.001)
        return result(f"same loop: {self.loop is asyncio.get_running_loop()}")

class Unbuildable:
    def __init__(self):
        raise OSError("no display")

    def reset(self, task, seed): ...

    def step(self, action): ...
'''

REWARDS = """
import asyncio, os, time
from rollart.core.types import Verdict

def by_word(trajectory):
    word = trajectory.turns[0].action
    if word == "hang":
        time.sleep(1000)
    if word == "hold":
        sum(range(10**12))
    if word == "crash":
        os._exit(9)
    if word == "raise":
        raise KeyError("judge")
    if word == "nan":
        return float("nan")
    if word == "text":
        return "good"
    if word.startswith("sleep "):
        time.sleep(float(word.split()[1]))
    if word == "pid":
        return float(os.getpid())
    if word == "tokens":
        return float(trajectory.tokens)
    return 0.5

async def slowly(trajectory):
    await asyncio.sleep(0.001)
    return Verdict(score=1.5, components=(("style", 0.5),))
"""


@pytest.fixture
def user_folder(tmp_path: Path) -> Path:
    """A folder as a user's job file stands in: with environments and rewards beside it."""
    folder = tmp_path / "user"
    folder.mkdir()
    (folder / "my_environments.py").write_text(textwrap.dedent(ENVIRONMENTS))
    (folder / "my_rewards.py").write_text(textwrap.dedent(REWARDS))
    return folder


Forks = Callable[..., AbstractAsyncContextManager[WarmForks]]


@pytest.fixture
def warm_forks(user_folder: Path, tmp_path: Path) -> Forks:
    """Makes a fork server with the user's modules; closed at the end of the context."""

    @contextlib.asynccontextmanager
    async def make(
        modules: Sequence[str] = ("my_environments", "my_rewards"), **variables: str
    ) -> AsyncIterator[WarmForks]:
        present = {"PATH": "/usr/bin:/bin", "MY_API_KEY": "s3cret", **variables}
        forks = WarmForks(
            name="lake",
            modules=modules,
            hosts=("rollart.runtimes.local.env_host", "rollart.runtimes.local.reward_host"),
            env=child_environment(present, "test-run"),
            python_path=(str(user_folder),),
            log_file=tmp_path / "lake.log",
        )
        try:
            yield forks
        finally:
            await forks.close()

    return make


Environments = Callable[..., AbstractAsyncContextManager[LocalEnvironments]]


@pytest.fixture
def environments(warm_forks: Forks) -> Environments:
    """Opens a class of `my_environments` as the port; closed at the end of the context."""

    @contextlib.asynccontextmanager
    async def make(
        environment: str = "Counter",
        *,
        places: int = 4,
        per_process: int = 4,
        replayable: bool = True,
        reset_s: float = 5.0,
        step_s: float = 5.0,
        variables: Mapping[str, str] | None = None,
        **options: object,
    ) -> AsyncIterator[LocalEnvironments]:
        config = EnvHostConfig(environment=f"my_environments:{environment}", options=dict(options))
        limits = EnvironmentLimits(
            places=places,
            per_process=per_process,
            replayable=replayable,
            reset_s=reset_s,
            step_s=step_s,
        )
        async with warm_forks(**(variables or {})) as forks:
            opened = LocalEnvironments(
                "lake", lambda name: forks.fork(env_host.ENTRY, config, name=name), limits
            )
            try:
                yield opened
            finally:
                await opened.close()

    return make


class Events:
    """Takes events and keeps them."""

    def __init__(self) -> None:
        self.seen: list[Event] = []

    def emit(self, event: Event) -> None:
        self.seen.append(event)

    def busy(self, device: str) -> list[DeviceBusy]:
        return [e for e in self.seen if isinstance(e, DeviceBusy) and e.device == device]


@pytest.fixture(scope="session")
def tiny_model(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A Qwen3 of two layers with lively logits, and a tokenizer of one token a word."""
    import torch
    from tokenizers import Tokenizer
    from tokenizers.models import WordLevel
    from tokenizers.pre_tokenizers import WhitespaceSplit
    from transformers import PreTrainedTokenizerFast, Qwen3Config, Qwen3ForCausalLM

    folder = tmp_path_factory.mktemp("models") / "tiny"
    words = ["<end>", "<unk>", "<user>", "<agent>", *(f"w{number}" for number in range(44))]
    backend = Tokenizer(WordLevel({word: at for at, word in enumerate(words)}, unk_token="<unk>"))
    backend.pre_tokenizer = WhitespaceSplit()
    tokenizer = PreTrainedTokenizerFast(
        tokenizer_object=backend,
        eos_token="<end>",
        unk_token="<unk>",
        chat_template="{% for m in messages %}<user> {{ m.content }} {% endfor %}<agent>",
    )
    torch.manual_seed(0)
    config = Qwen3Config(
        vocab_size=len(words),
        hidden_size=32,
        num_hidden_layers=2,
        num_attention_heads=4,
        num_key_value_heads=2,
        head_dim=8,
        intermediate_size=48,
        max_position_embeddings=256,
        initializer_range=0.3,
        tie_word_embeddings=True,
        eos_token_id=0,
        pad_token_id=0,
        bos_token_id=None,
    )
    Qwen3ForCausalLM(config).save_pretrained(folder)
    tokenizer.save_pretrained(folder)
    return folder


@pytest.fixture(scope="session")
def job_table(tiny_model: Path) -> dict[str, Any]:
    """A small job on the tiny model."""
    return {
        "schema": 1,
        "run": {"name": "tiny", "steps": 10, "seed": 5},
        "model": {"path": str(tiny_model), "context": 256},
        "rollout": {"batch_groups": 2, "group_size": 2, "slots": 16, "step_tokens": 256},
        "train": {
            "correction": "behaviour",
            "learning_rate": 1e-2,
            "drop_zero_variance": False,
            "microbatch_tokens": 512,
        },
        "domains": [
            {
                "tag": "lake",
                "environment": "my_environments:Counter",
                "reward": "my_rewards:by_word",
                "max_tokens": 8,
                "envs_per_process": 2,
            }
        ],
        "timeouts": {"engine_s": 20.0, "weights_s": 20.0, "train_s": 60.0},
    }


class Stage:
    """A launcher in an event loop that lives from test to test, so that a model loads once."""

    def __init__(self, launcher: LocalLauncher, events: Events, runner: asyncio.Runner) -> None:
        self.launcher = launcher
        self.events = events
        self.run = runner.run


@pytest.fixture(scope="module")
def stage(job_table: dict[str, Any], tmp_path_factory: pytest.TempPathFactory):
    folder = tmp_path_factory.mktemp("stage")
    (folder / "my_environments.py").write_text(ENVIRONMENTS)
    (folder / "my_rewards.py").write_text(REWARDS)
    events = Events()
    with asyncio.Runner() as runner:

        async def begin() -> LocalLauncher:
            return LocalLauncher(
                parse_job(job_table),
                run_id=f"stage-{folder.parent.name}-{folder.name}",
                run_directory=folder / "run",
                python_path=(str(folder),),
                events=events,
            )

        launcher = runner.run(begin())
        yield Stage(launcher, events, runner)
        runner.run(launcher.close())
