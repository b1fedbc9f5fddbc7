"""The demo's agent: a small Qwen3-architecture model with a tokenizer of its own, made at run time.

What it writes is an ordinary Hugging Face directory. The model knows the form of an answer (one
action word, one token) from random play; where the goal is and what a hole does, it has to learn.

Run ``python model.py DIRECTORY [--seed N]`` to make one by hand.
"""

import argparse
import random
from collections.abc import Iterator
from itertools import islice
from pathlib import Path
from typing import TYPE_CHECKING

from rollart.backends.envs.frozen_lake import ACTIONS, FrozenLake, vocabulary
from rollart.core.types import Task

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


def make_tokenizer() -> "PreTrainedTokenizerBase":
    """One token a word of the lake's vocabulary, one a role; a turn has no closing token.

    The agent's whole answer is the one sampled action token, and what ends it is that it is an
    action: the model's generation config lists the four actions as its end tokens.
    """
    from tokenizers import Tokenizer
    from tokenizers.models import WordLevel
    from tokenizers.pre_tokenizers import WhitespaceSplit
    from transformers import PreTrainedTokenizerFast

    special = [PAD, END, UNKNOWN, *(f"<|{role}|>" for role in ROLES)]
    words = [*special, *vocabulary()]
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
    """The ids of the four actions."""
    numbers = tokenizer.get_vocab()
    return [numbers[action] for action in ACTIONS]


def random_play(tokenizer: "PreTrainedTokenizerBase", *, seed: int) -> Iterator[list[int]]:
    """Token ids of endless episodes in which every action is drawn from all four alike."""
    rng = random.Random(f"random-play:{seed}")
    lake = FrozenLake()
    for index, payload in enumerate(FrozenLake.train_tasks(seed)):
        task = Task(domain="FrozenLake", key=str(index), payload=payload)
        observation = lake.reset(task, seed=0)
        chat = [{"role": m.role, "content": m.content} for m in observation.messages]
        done = False
        while not done:
            action = rng.choice(ACTIONS)
            result = lake.step(action)
            done = result.done
            chat.append({"role": "assistant", "content": action})
            if not done:
                chat += [
                    {"role": m.role, "content": m.content} for m in result.observation.messages
                ]
        text = tokenizer.apply_chat_template(chat, tokenize=False)
        yield tokenizer.encode(str(text), add_special_tokens=False)


def warm_up(
    model: "Qwen3ForCausalLM",
    tokenizer: "PreTrainedTokenizerBase",
    *,
    seed: int,
    steps: int,
    episodes_per_step: int = 8,
    learning_rate: float = 4e-3,
) -> float:
    """Teach the form of an answer by imitating random play; returns the last step's loss.

    Only action tokens are learned, and all four are equally frequent whatever the agent sees: the
    best that imitation can reach is a loss of ln 4 = 1.386, a uniform choice.
    """
    import torch

    episodes = list(islice(random_play(tokenizer, seed=seed), steps * episodes_per_step))
    # Batches of about equally long episodes need little padding; their order is random.
    episodes.sort(key=len)
    batches = [
        episodes[start : start + episodes_per_step]
        for start in range(0, len(episodes), episodes_per_step)
    ]
    random.Random(seed).shuffle(batches)
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
    batch: list[list[int]],
    optimizer: "torch.optim.Optimizer",
) -> float:
    """One optimiser step on the action tokens of ``batch``; returns the loss."""
    import torch

    width = max(map(len, batch))
    pad = tokenizer.get_vocab()[PAD]
    ids = torch.tensor([[*row, *[pad] * (width - len(row))] for row in batch])
    answered = torch.isin(ids, torch.tensor(action_ids(tokenizer)))
    loss = model(input_ids=ids, labels=ids.masked_fill(~answered, IGNORED)).loss
    optimizer.zero_grad()
    loss.backward()
    torch.nn.utils.clip_grad_norm_(model.parameters(), 1.0)
    optimizer.step()
    return float(loss.detach())


def make(directory: Path, *, seed: int, warmup_steps: int = 60) -> None:
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
