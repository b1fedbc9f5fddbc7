"""The demo's agent: a small Qwen3-architecture model with a tokenizer of its own, made at run time.

What it writes is an ordinary Hugging Face directory. The model knows the form of an answer in each
of the three domains from random play; what is worth answering, it has to learn.

Run ``python model.py DIRECTORY [--seed N]`` to make one by hand.
"""

import argparse
import random
from collections.abc import Iterator
from itertools import count, islice
from pathlib import Path
from typing import TYPE_CHECKING, Any

from rollart.backends.envs import frozen_lake, letter_shift, tic_tac_toe
from rollart.core.types import Observation, Task

if TYPE_CHECKING:
    import torch
    from transformers import PreTrainedTokenizerBase, Qwen3ForCausalLM

PAD, END, UNKNOWN = "<|pad|>", "<|end|>", "<|unk|>"
ROLES = ("system", "user", "assistant", "tool")
CHAT_TEMPLATE = (
    "{% for message in messages %}<|{{ message.role }}|>{{ message.content }}{% endfor %}"
    "{% if add_generation_prompt %}<|assistant|>{% endif %}"
)
CONTEXT = 512
IGNORED = -100
ENVIRONMENTS: tuple[type[Any], ...] = (
    frozen_lake.FrozenLake,
    tic_tac_toe.TicTacToe,
    letter_shift.LetterShift,
)


def make_tokenizer() -> "PreTrainedTokenizerBase":
    """One token a word of the three vocabularies, one a role; a turn has no closing token.

    Where an answer is a single action, what ends it is that it is one: the model's generation
    config lists these as its end tokens. An answer in letters ends at its length.
    """
    from tokenizers import Tokenizer
    from tokenizers.models import WordLevel
    from tokenizers.pre_tokenizers import WhitespaceSplit
    from transformers import PreTrainedTokenizerFast

    special = [PAD, END, UNKNOWN, *(f"<|{role}|>" for role in ROLES)]
    words = [
        *special,
        *frozen_lake.vocabulary(),
        *tic_tac_toe.vocabulary(),
        *letter_shift.vocabulary(),
    ]
    backend = Tokenizer(
        WordLevel({word: number for number, word in enumerate(words)}, unk_token=UNKNOWN)
    )
    backend.pre_tokenizer = WhitespaceSplit()
    return PreTrainedTokenizerFast(
        tokenizer_object=backend,
        pad_token=PAD,
        eos_token=END,
        unk_token=UNKNOWN,
        additional_special_tokens=[f"<|{role}|>" for role in ROLES],
        chat_template=CHAT_TEMPLATE,
        model_max_length=CONTEXT,
    )


def make_model(tokenizer: "PreTrainedTokenizerBase") -> "Qwen3ForCausalLM":
    """An untrained model of 0.6 million parameters, float32, from torch's present random state."""
    from transformers import Qwen3Config, Qwen3ForCausalLM

    numbers = tokenizer.get_vocab()
    model = Qwen3ForCausalLM(
        Qwen3Config(
            vocab_size=len(tokenizer),
            hidden_size=128,
            num_hidden_layers=3,
            num_attention_heads=4,
            num_key_value_heads=2,
            head_dim=32,
            intermediate_size=384,
            max_position_embeddings=CONTEXT,
            tie_word_embeddings=True,
            use_cache=True,
            pad_token_id=numbers[PAD],
            eos_token_id=numbers[END],
            bos_token_id=None,
        )
    )
    model.generation_config.eos_token_id = action_ids(tokenizer)
    model.generation_config.pad_token_id = numbers[PAD]
    return model


def action_ids(tokenizer: "PreTrainedTokenizerBase") -> list[int]:
    """The ids of the actions that are a whole answer: four on the lake, nine on the board."""
    numbers = tokenizer.get_vocab()
    return [numbers[action] for action in (*frozen_lake.ACTIONS, *tic_tac_toe.ACTIONS)]


def random_answer(environment: object, observation: Observation, rng: random.Random) -> str:
    """An answer of the right form, every such answer being equally likely."""
    words = observation.messages[-1].content.split()
    if isinstance(environment, frozen_lake.FrozenLake):
        return rng.choice(frozen_lake.ACTIONS)
    if isinstance(environment, tic_tac_toe.TicTacToe):
        return rng.choice([word[0] for word in words if word[1] == "."])
    return " ".join(rng.choice(letter_shift.LETTERS) for _ in words)


def random_play(
    tokenizer: "PreTrainedTokenizerBase", *, seed: int
) -> Iterator[tuple[list[int], list[bool]]]:
    """Endless episodes of random answers, the domains in turn: token ids, and which are answers."""
    rng = random.Random(f"random-play:{seed}")
    environments = [environment() for environment in ENVIRONMENTS]
    tasks = [environment.train_tasks(seed) for environment in ENVIRONMENTS]
    for index in count():
        environment = environments[index % len(environments)]
        payload = next(tasks[index % len(environments)])
        task = Task(domain=type(environment).__name__, key=str(index), payload=payload)
        observation = environment.reset(task, seed=0)
        ids: list[int] = []
        answered: list[bool] = []
        done = False
        while not done:
            chat = [{"role": m.role, "content": m.content} for m in observation.messages]
            text = tokenizer.apply_chat_template(chat, tokenize=False, add_generation_prompt=True)
            seen = tokenizer.encode(str(text), add_special_tokens=False)
            answer = random_answer(environment, observation, rng)
            said = tokenizer.encode(answer, add_special_tokens=False)
            ids += [*seen, *said]
            answered += [False] * len(seen) + [True] * len(said)
            result = environment.step(answer)
            observation, done = result.observation, result.done
        yield ids, answered


def warm_up(
    model: "Qwen3ForCausalLM",
    tokenizer: "PreTrainedTokenizerBase",
    *,
    seed: int,
    steps: int,
    episodes_per_step: int = 12,
    learning_rate: float = 4e-3,
) -> float:
    """Teach the form of an answer by imitating random play; returns the last step's loss.

    Only answers are learned, and valid ones are all equally frequent whatever the agent sees: the
    best that imitation can reach is a uniform choice among them.
    """
    import torch

    episodes = list(islice(random_play(tokenizer, seed=seed), steps * episodes_per_step))
    batches = [
        episodes[start : start + episodes_per_step]
        for start in range(0, len(episodes), episodes_per_step)
    ]
    optimizer = torch.optim.AdamW(model.parameters(), lr=learning_rate, weight_decay=0.0)
    schedule = torch.optim.lr_scheduler.OneCycleLR(
        optimizer, max_lr=learning_rate, total_steps=len(batches), pct_start=0.2
    )
    loss = 0.0
    model.train()
    for batch in batches:
        loss = _imitate(model, tokenizer, batch, optimizer)
        schedule.step()
    model.eval()
    return loss


def _imitate(
    model: "Qwen3ForCausalLM",
    tokenizer: "PreTrainedTokenizerBase",
    batch: list[tuple[list[int], list[bool]]],
    optimizer: "torch.optim.Optimizer",
) -> float:
    """One optimiser step on the answers of ``batch``; returns the loss."""
    import torch

    width = max(len(ids) for ids, _ in batch)
    pad = tokenizer.get_vocab()[PAD]
    ids = torch.tensor([[*ids, *[pad] * (width - len(ids))] for ids, _ in batch])
    answered = torch.tensor([[*mask, *[False] * (width - len(mask))] for _, mask in batch])
    loss = model(input_ids=ids, labels=ids.masked_fill(~answered, IGNORED)).loss
    optimizer.zero_grad()
    loss.backward()
    torch.nn.utils.clip_grad_norm_(model.parameters(), 1.0)
    optimizer.step()
    return float(loss.detach())


def make(directory: Path, *, seed: int, warmup_steps: int = 80) -> None:
    """Write model and tokenizer to ``directory``; the same seed writes the same weights."""
    import torch
    from transformers.utils import logging

    tokenizer = make_tokenizer()
    with torch.random.fork_rng(devices=[]):
        torch.manual_seed(seed)
        model = make_model(tokenizer)
        warm_up(model, tokenizer, seed=seed, steps=warmup_steps)
    directory.mkdir(parents=True, exist_ok=True)
    # A progress bar for two megabytes would only break up the caller's own display.
    bar = logging.is_progress_bar_enabled()
    logging.disable_progress_bar()
    model.save_pretrained(directory)
    if bar:
        logging.enable_progress_bar()
    tokenizer.save_pretrained(directory)


def main() -> None:
    """Make the model in the directory given on the command line."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("directory", type=Path)
    parser.add_argument("--seed", type=int, default=0)
    arguments = parser.parse_args()
    make(arguments.directory, seed=arguments.seed)
    print(f"wrote the demo model to {arguments.directory}")


if __name__ == "__main__":
    main()
