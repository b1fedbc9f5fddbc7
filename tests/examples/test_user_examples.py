"""A user's own environment and own reward: short, whole, accepted, playable and trainable."""

import importlib.util
import json
import subprocess
import sys
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from rollart.core.documents import document_of
from rollart.core.types import StepResult, StopReason, Task, Turn
from rollart.plan import check
from rollart.testing.samples import sample_trajectory

EXAMPLES = Path(__file__).parents[2] / "examples"
TAGS = {"my_environment": "Guess", "my_reward": "Shop"}
NAMES = {"my_environment": "guess", "my_reward": "frugal-shop"}


@pytest.fixture(scope="module")
def model(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A model of one layer that writes single characters, as a Hugging Face directory."""
    import string

    import torch
    from tokenizers import Tokenizer
    from tokenizers.decoders import Fuse
    from tokenizers.models import BPE
    from transformers import PreTrainedTokenizerFast, Qwen3Config, Qwen3ForCausalLM

    words = ["<end>", "<start>", *sorted(string.printable)]
    vocab = {word: number for number, word in enumerate(words)}
    backend = Tokenizer(BPE(vocab=vocab, merges=[]))
    backend.decoder = Fuse()
    tokenizer = PreTrainedTokenizerFast(
        tokenizer_object=backend,
        eos_token="<end>",
        additional_special_tokens=["<start>"],
        chat_template=(
            "{% for m in messages %}<start>{{ m.role }}\n{{ m.content }}<end>\n{% endfor %}"
            "{% if add_generation_prompt %}<start>assistant\n{% endif %}"
        ),
    )
    torch.manual_seed(0)
    config = Qwen3Config(
        vocab_size=len(words),
        hidden_size=32,
        num_hidden_layers=1,
        num_attention_heads=2,
        num_key_value_heads=1,
        head_dim=16,
        intermediate_size=64,
        max_position_embeddings=4096,
        eos_token_id=0,
        pad_token_id=0,
        bos_token_id=None,
        tie_word_embeddings=True,
    )
    folder = tmp_path_factory.mktemp("models") / "tiny"
    Qwen3ForCausalLM(config).save_pretrained(folder)
    tokenizer.save_pretrained(folder)
    return folder


def small(folder: str, model: Path, runs: Path) -> list[str]:
    """Settings that make an example a run of seconds."""
    tag = TAGS[folder]
    return [
        f'model.path="{model}"',
        "model.context=2048",
        f'run.directory="{runs}"',
        "run.steps=2",
        "rollout.batch_groups=1",
        "rollout.group_size=2",
        "rollout.slots=8",
        f"domains.{tag}.max_tokens=8",
        f"domains.{tag}.max_turns=3",
        "train.drop_zero_variance=false",
    ]


@pytest.mark.parametrize("folder", list(TAGS))
def test_an_example_is_whole_in_less_than_40_lines(folder: str) -> None:
    files = [file for file in (EXAMPLES / folder).iterdir() if file.is_file()]
    assert sorted(file.suffix for file in files) == [".py", ".toml"]
    assert sum(len(file.read_text().splitlines()) for file in files) < 40


@pytest.mark.real
@pytest.mark.parametrize("folder", list(TAGS))
def test_an_example_is_accepted_by_the_check_before_a_run(
    folder: str, model: Path, tmp_path: Path
) -> None:
    plan = check(EXAMPLES / folder / "job.toml", small(folder, model, tmp_path))
    assert plan.job.run.steps == 2


def load(folder: str, module: str) -> Any:
    """A module of an example, without leaving it importable."""
    spec = importlib.util.spec_from_file_location(module, EXAMPLES / folder / f"{module}.py")
    assert spec is not None
    assert spec.loader is not None
    loaded = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(loaded)
    return loaded


def hint(result: StepResult) -> str:
    return result.observation.messages[0].content


def test_the_environment_is_won_by_halving_and_lost_by_words() -> None:
    guess = load("my_environment", "guess").Guess()
    for seed in range(64):
        assert "from 0 to 63" in guess.reset(Task(domain="Guess", key="t"), seed)
        low, high = 0, 63
        while True:
            middle = (low + high) // 2
            result = guess.step(str(middle))
            if result.done:
                break
            low, high = (middle + 1, high) if hint(result) == "Higher." else (low, middle - 1)
        won = dict(result.metrics)["success"]
        assert won == result.reward == (1.0 if hint(result) == "Right!" else 0.0)
        assert won or dict(result.metrics)["guesses"] == 6.0
    guess.reset(Task(domain="Guess", key="t"), 7)
    assert [guess.step("seven").done for _ in range(6)] == [False] * 5 + [True]


def test_the_reward_scores_an_answer_less_its_cost_and_knows_when_it_cannot() -> None:
    score = load("my_reward", "frugal").score
    turns = (
        Turn(segment=0, start=0, end=1, observation="", action="", stop=StopReason.LENGTH),
        Turn(segment=0, start=1, end=2, observation="", action="9"),
    )

    def scored(**metrics: float) -> Any:
        return score(
            document_of(replace(sample_trajectory(), turns=turns, metrics=tuple(metrics.items())))
        )

    good = scored(success=1.0, tool_calls=5.0, tool_parse_error=1.0)
    assert good.score == pytest.approx(1.0 - 0.05 - 0.05 - 0.1)
    assert dict(good.components)["answer"] == 1.0
    assert scored(success=0.0, tool_calls=0.0, tool_parse_error=0.0).score == pytest.approx(-0.1)
    assert scored().score is None


@pytest.mark.real
@pytest.mark.timeout(600)
@pytest.mark.parametrize("folder", list(TAGS))
def test_an_example_trains(folder: str, model: Path, tmp_path: Path) -> None:
    settings = [word for one in small(folder, model, tmp_path) for word in ("--set", one)]
    command = [sys.executable, "-m", "rollart"]
    job = EXAMPLES / folder / "job.toml"
    done = subprocess.run(
        [*command, "train", str(job), *settings], capture_output=True, text=True, check=False
    )
    assert done.returncode == 0, done.stdout + done.stderr
    shown = subprocess.run(
        [*command, "report", str(tmp_path / NAMES[folder]), "--json"],
        capture_output=True,
        check=True,
    )
    found = json.loads(shown.stdout)
    assert found["steps"] == 2
    assert found["trained_tokens"] > 0
    assert found["ledger"]["balanced"]
