import asyncio
import importlib.util
import math
from collections.abc import Callable
from itertools import islice
from pathlib import Path
from types import ModuleType

import numpy as np
import pytest

from rollart.backends.envs.frozen_lake import ACTIONS, FrozenLake
from rollart.backends.renderers.hf_chat import HfChatRenderer
from rollart.core.tokens import ids_array
from rollart.core.types import JsonValue, Message, Task

EXAMPLE = Path(__file__).parents[2] / "examples" / "frozen_lake" / "model.py"


@pytest.fixture(scope="module")
def example() -> ModuleType:
    """The example's module, which lies outside every package."""
    spec = importlib.util.spec_from_file_location("frozen_lake_model", EXAMPLE)
    assert spec is not None
    assert spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    return module


def test_every_word_of_the_lake_is_one_known_token(example: ModuleType) -> None:
    tokenizer = example.make_tokenizer()
    for ids in islice(example.random_play(tokenizer, seed=0), 50):
        assert tokenizer.unk_token_id not in ids
    assert len(tokenizer) < 144
    assert [tokenizer.decode([number]) for number in example.action_ids(tokenizer)] == [*ACTIONS]


def test_a_turn_costs_a_few_tokens_and_the_renderer_agrees_with_the_warm_up(
    example: ModuleType,
) -> None:
    """22 words of map and place with two of form, then 7 a turn and the sampled action."""

    async def main() -> None:
        tokenizer = example.make_tokenizer()
        renderer = HfChatRenderer(tokenizer)
        lake = FrozenLake()
        (payload,) = islice(FrozenLake.train_tasks(0), 1)
        history: list[Message] = []
        history += lake.reset(Task(domain="d", key="0", payload=payload), seed=0).messages
        ids = ids_array((await renderer.open(history)).tokens).tolist()
        assert len(ids) == 23
        for index, action in enumerate(("left", "up", "left")):
            sampled = np.array([example.action_ids(tokenizer)[ACTIONS.index(action)]], np.int32)
            history.append(await renderer.parse(sampled))
            assert history[-1].content == action
            new = lake.step(action).observation.messages
            suffix = ids_array((await renderer.extend(history, sampled, new)).tokens)
            assert len(suffix) == 7
            history += new
            ids += [*sampled.tolist(), *suffix.tolist()]
            assert len(ids) == 23 + 8 * (index + 1)
        chat = [{"role": message.role, "content": message.content} for message in history]
        text = str(tokenizer.apply_chat_template(chat, tokenize=False, add_generation_prompt=True))
        assert ids == tokenizer.encode(text, add_special_tokens=False)

    asyncio.run(main())


def test_random_play_shows_all_actions_alike_and_never_a_heldout_map(
    example: ModuleType,
) -> None:
    tokenizer = example.make_tokenizer()
    episodes = list(islice(example.random_play(tokenizer, seed=1), 150))
    counts = [
        sum(ids.count(number) for ids in episodes) for number in example.action_ids(tokenizer)
    ]
    assert max(counts) < 1.25 * min(counts)
    held_out = {str(task["map"]) for task in FrozenLake.heldout_tasks(256, 0)}
    for ids in episodes:
        kinds = "".join(word[-1] for word in tokenizer.convert_ids_to_tokens(ids[1:17]))
        assert "/".join(kinds[at : at + 4] for at in range(0, 16, 4)) not in held_out


@pytest.mark.real
def test_the_made_model_loads_answers_in_form_and_does_not_solve(
    example: ModuleType, tmp_path: Path
) -> None:
    import torch
    from transformers import AutoModelForCausalLM, AutoTokenizer

    example.make(tmp_path, seed=0)
    tokenizer = AutoTokenizer.from_pretrained(tmp_path)
    model = AutoModelForCausalLM.from_pretrained(tmp_path).eval()
    actions = example.action_ids(tokenizer)
    assert model.dtype == torch.float32
    assert model.generation_config.eos_token_id == actions
    renderer = HfChatRenderer.load(tmp_path)
    generator = torch.Generator().manual_seed(0)
    off_form: list[float] = []

    def choose(ids: list[int]) -> int:
        with torch.no_grad():
            chances = model(torch.tensor([ids])).logits[0, -1].softmax(-1)
        off_form.append(1 - float(chances[actions].sum()))
        return int(torch.multinomial(chances, 1, generator=generator))

    tasks = FrozenLake.heldout_tasks(80, 0)
    successes = sum(asyncio.run(succeeds(payload, renderer, choose)) for payload in tasks)
    assert successes / len(tasks) < 0.15
    assert sum(off_form) / len(off_form) < 0.01


async def succeeds(
    payload: dict[str, JsonValue], renderer: HfChatRenderer, choose: Callable[[list[int]], int]
) -> bool:
    """Play one episode, token in and token out."""
    lake = FrozenLake()
    history = [*lake.reset(Task(domain="d", key="0", payload=payload), seed=0).messages]
    ids = ids_array((await renderer.open(history)).tokens).tolist()
    while True:
        sampled = np.array([choose(ids)], np.int32)
        history.append(await renderer.parse(sampled))
        result = lake.step(history[-1].content)
        if result.done:
            return dict(result.metrics)["success"] == 1.0
        suffix = await renderer.extend(history, sampled, result.observation.messages)
        history += result.observation.messages
        ids += [*sampled.tolist(), *ids_array(suffix.tokens).tolist()]


@pytest.mark.real
def test_one_seed_makes_one_model_and_leaves_the_callers_randomness_alone(
    example: ModuleType, tmp_path: Path
) -> None:
    import torch

    torch.manual_seed(5)
    expected = torch.rand(3)
    torch.manual_seed(5)
    for name, seed in (("a", 1), ("b", 1), ("c", 2)):
        example.make(tmp_path / name, seed=seed, warmup_steps=2)
    assert torch.equal(torch.rand(3), expected)
    weights = [(tmp_path / name / "model.safetensors").read_bytes() for name in "abc"]
    assert weights[0] == weights[1] != weights[2]


def test_imitating_random_play_brings_the_loss_near_a_uniform_choice(
    example: ModuleType,
) -> None:
    import torch

    tokenizer = example.make_tokenizer()
    with torch.random.fork_rng(devices=[]):
        torch.manual_seed(0)
        model = example.make_model(tokenizer)
        loss = example.warm_up(model, tokenizer, seed=0, steps=20, learning_rate=1e-2)
    assert math.log(4) - 0.1 < loss < math.log(4) + 0.4
