import asyncio
import importlib.util
import math
from collections import Counter
from collections.abc import Callable
from itertools import chain, groupby, islice
from pathlib import Path
from types import ModuleType
from typing import Any

import numpy as np
import pytest

from rollart.backends.envs.frozen_lake import ACTIONS, FrozenLake
from rollart.backends.envs.letter_shift import LetterShift
from rollart.backends.envs.tic_tac_toe import TicTacToe
from rollart.backends.renderers.hf_chat import HfChatRenderer
from rollart.core.jobfile import load_job
from rollart.core.tokens import ids_array
from rollart.core.types import JsonValue, Message, Task

EXAMPLE = Path(__file__).parents[2] / "examples" / "three_domains" / "model.py"


@pytest.fixture(scope="module")
def example() -> ModuleType:
    """The example's module, which lies outside every package."""
    spec = importlib.util.spec_from_file_location("three_domains_model", EXAMPLE)
    assert spec is not None
    assert spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    return module


DOMAINS = (FrozenLake, TicTacToe, LetterShift)


def episodes(example: ModuleType, kind: type, count: int) -> list[tuple[str, list[str]]]:
    """Episodes of the warm-up: all text, and the words that were answers."""
    tokenizer = example.make_tokenizer()
    return [
        (
            tokenizer.decode(ids),
            tokenizer.convert_ids_to_tokens(
                [number for number, is_answer in zip(ids, answered, strict=True) if is_answer]
            ),
        )
        for ids, answered in islice(example.random_play(tokenizer, kind, seed=1), count)
    ]


def test_every_word_of_the_three_domains_is_one_known_token(example: ModuleType) -> None:
    tokenizer = example.make_tokenizer()
    play = (islice(example.random_play(tokenizer, kind, seed=0), 20) for kind in DOMAINS)
    for ids, answered in chain(*play):
        assert tokenizer.unk_token_id not in ids
        assert len(ids) == len(answered)
    assert len(tokenizer) < 160
    single = [tokenizer.decode([number]) for number in example.action_ids(tokenizer)]
    assert single == [*ACTIONS, *"123456789"]


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
            sampled = np.array([tokenizer.get_vocab()[action]], np.int32)
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


def test_the_renderer_agrees_with_the_warm_up_on_whole_episodes(example: ModuleType) -> None:
    async def main() -> None:
        tokenizer = example.make_tokenizer()
        renderer = HfChatRenderer(tokenizer)
        play = (islice(example.random_play(tokenizer, kind, seed=0), 4) for kind in DOMAINS)
        for ids, answered in chain(*play):
            runs = [
                (kind, tokenizer.decode([number for number, _ in run]))
                for kind, run in groupby(zip(ids, answered, strict=True), key=lambda pair: pair[1])
            ]
            seen = [text.split(">", 1)[1].rsplit("<", 1)[0] for kind, text in runs if not kind]
            said = [text for kind, text in runs if kind]
            history = [Message(role="user", content=seen[0].strip())]
            rendered = ids_array((await renderer.open(history)).tokens).tolist()
            for at, answer in enumerate(said):
                sampled = np.array(tokenizer.encode(answer, add_special_tokens=False), np.int32)
                assert (await renderer.parse(sampled)).content == answer
                history.append(Message(role="assistant", content=answer))
                rendered += sampled.tolist()
                if at + 1 < len(said):
                    new = [Message(role="user", content=seen[at + 1].strip())]
                    suffix = await renderer.extend(history, sampled, new)
                    history += new
                    rendered += ids_array(suffix.tokens).tolist()
            assert rendered == ids

    asyncio.run(main())


def test_random_play_on_the_lake_shows_all_actions_alike_and_never_a_heldout_map(
    example: ModuleType,
) -> None:
    counts = Counter[str]()
    held_out = {str(task["map"]) for task in FrozenLake.heldout_tasks(256, 0)}
    for text, answers in episodes(example, FrozenLake, 150):
        counts.update(answers)
        kinds = "".join(word[-1] for word in text.split()[1:17])
        assert "/".join(kinds[at : at + 4] for at in range(0, 16, 4)) not in held_out
    assert set(counts) == set(ACTIONS)
    assert max(counts.values()) < 1.25 * min(counts.values())


def test_random_play_on_the_board_takes_free_cells_only(example: ModuleType) -> None:
    for text, answers in episodes(example, TicTacToe, 100):
        cells = [word for word in text.split() if word.isdigit()]
        assert len(set(cells)) == len(cells)
        assert set(answers) <= set(cells)


def test_random_answers_in_letters_are_eight_alike_and_never_to_a_heldout_message(
    example: ModuleType,
) -> None:
    counts = Counter[str]()
    held_out = {str(task["message"]) for task in LetterShift.heldout_tasks(256, 0)}
    for text, answers in episodes(example, LetterShift, 150):
        assert len(answers) == 8
        assert "".join(text.split()[1:9]) not in held_out
        counts.update(answers)
    assert len(counts) == 4
    assert max(counts.values()) < 1.25 * min(counts.values())


@pytest.mark.parametrize("name", ["job.toml", "frozen_lake.toml"])
def test_the_job_files_are_accepted_and_their_domains_are_those_of_the_model(
    example: ModuleType, name: str
) -> None:
    job = load_job(EXAMPLE.with_name(name))
    kinds = {f"{kind.__module__}:{kind.__name__}": kind for kind in example.WARM_UP_EPISODES}
    for domain in job.domains:
        kinds[domain.environment](**domain.options)
        assert domain.max_tokens == (8 if domain.tag == "LetterShift" else 1)


@pytest.mark.real
def test_the_made_model_loads_answers_in_form_and_does_not_solve(
    example: ModuleType, tmp_path: Path
) -> None:
    import torch
    from transformers import AutoModelForCausalLM, AutoTokenizer

    example.make(tmp_path, seed=0)
    model = AutoModelForCausalLM.from_pretrained(tmp_path).eval()
    assert model.dtype == torch.float32
    tokenizer = AutoTokenizer.from_pretrained(tmp_path)
    assert model.generation_config.eos_token_id == example.action_ids(tokenizer)
    renderer = HfChatRenderer.load(tmp_path)
    generator = torch.Generator().manual_seed(0)

    def choose(ids: list[int]) -> int:
        with torch.no_grad():
            chances = model(torch.tensor([ids])).logits[0, -1].softmax(-1)
        return int(torch.multinomial(chances, 1, generator=generator))

    def played(environment: Any, count: int, tokens: int) -> tuple[float, float]:
        """Mean success, and the share of episodes that an invalid answer ended."""
        ends = [
            asyncio.run(episode(environment(), payload, renderer, choose, tokens))
            for payload in environment.heldout_tasks(count, 0)
        ]
        success, invalid = (sum(end[name] for end in ends) for name in ("success", "invalid"))
        return success / count, invalid / count

    success, invalid = played(FrozenLake, 40, 1)
    assert (success < 0.2, invalid < 0.1) == (True, True)
    # A taken cell is an invalid answer too, and which are taken has still to be learned.
    success, _ = played(TicTacToe, 40, 1)
    assert success < 0.45
    success, invalid = played(LetterShift, 16, 8)
    assert (0.12 < success < 0.38, invalid < 0.2) == (True, True)


async def episode(
    environment: Any,
    payload: dict[str, JsonValue],
    renderer: HfChatRenderer,
    choose: Callable[[list[int]], int],
    tokens: int,
) -> dict[str, float]:
    """Play one episode, token in and token out; its last metrics."""
    history = [*environment.reset(Task(domain="d", key="0", payload=payload), seed=0).messages]
    ids = ids_array((await renderer.open(history)).tokens).tolist()
    while True:
        sampled = np.zeros(0, np.int32)
        for _ in range(tokens):
            sampled = np.append(sampled, np.int32(choose([*ids, *sampled.tolist()])))
        history.append(await renderer.parse(sampled))
        result = environment.step(history[-1].content)
        if result.done:
            return dict(result.metrics)
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


def test_imitating_random_play_brings_the_losses_near_a_uniform_choice(
    example: ModuleType,
) -> None:
    """Of four words on the lake and in letters, of at most nine on the board."""
    import torch

    tokenizer = example.make_tokenizer()
    with torch.random.fork_rng(devices=[]):
        torch.manual_seed(0)
        model = example.make_model(tokenizer)
        losses = example.warm_up(model, tokenizer, seed=0, steps=20, learning_rate=5e-3)
    assert math.log(4) - 0.1 < losses["FrozenLake"] < math.log(4) + 0.4
    assert math.log(4) - 0.1 < losses["LetterShift"] < math.log(4) + 0.4
    assert losses["TicTacToe"] < math.log(9) + 0.4
