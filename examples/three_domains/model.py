"""The demo's agent: a small Qwen3-architecture model with a tokenizer of its own, made at run time.

What it writes is an ordinary Hugging Face directory. The model knows the form of an answer in each
of the three domains from random play; what is worth answering, it has to learn.

Run ``python model.py DIRECTORY [--seed N]`` to make one by hand.
"""

import argparse
import random
from collections.abc import Iterator
from itertools import islice
from pathlib import Path
from typing import TYPE_CHECKING, Any

from rollart.backends.envs import frozen_lake, letter_shift, tic_tac_toe
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
WARM_UP_EPISODES: dict[type[Any], int] = {
    frozen_lake.FrozenLake: 4,
    tic_tac_toe.TicTacToe: 24,  # short, and which cells are still free takes longest to see
    letter_shift.LetterShift: 4,
}
"""Episodes of each domain in one step of the warm-up."""

Episode = tuple[list[int], list[bool]]
"""Token ids, and which of them are the agent's."""


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


def random_answer(environment: object, conversation: list[str], rng: random.Random) -> str:
    """An answer of the right form to what was said so far, every such one being equally likely."""
    if isinstance(environment, frozen_lake.FrozenLake):
        return rng.choice(frozen_lake.ACTIONS)
    if isinstance(environment, tic_tac_toe.TicTacToe):
        taken = {said[-1] for said in conversation}
        return rng.choice([cell for cell in tic_tac_toe.ACTIONS if cell not in taken])
    return " ".join(rng.choice(letter_shift.LETTERS) for _ in conversation[-1].split())


def random_play(
    tokenizer: "PreTrainedTokenizerBase", kind: type[Any], *, seed: int
) -> Iterator[Episode]:
    """Endless episodes of random answers in one domain."""
    rng = random.Random(f"random-play:{kind.__name__}:{seed}")
    environment = kind()
    for index, payload in enumerate(kind.train_tasks(seed)):
        task = Task(domain=kind.__name__, key=str(index), payload=payload)
        observation = environment.reset(task, seed=0)
        conversation: list[str] = []
        ids: list[int] = []
        answered: list[bool] = []
        done = False
        while not done:
            chat = [{"role": m.role, "content": m.content} for m in observation.messages]
            text = tokenizer.apply_chat_template(chat, tokenize=False, add_generation_prompt=True)
            seen = tokenizer.encode(str(text), add_special_tokens=False)
            conversation.append(observation.messages[-1].content)
            answer = random_answer(environment, conversation, rng)
            conversation.append(answer)
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
    learning_rate: float = 2e-3,
) -> dict[str, float]:
    """Teach the form of an answer by imitating random play; returns the last losses by domain.

    Only answers are learned, and valid ones are all equally frequent whatever the agent sees: the
    best that imitation can reach is a uniform choice among them.
    """
    import torch

    play = {kind: random_play(tokenizer, kind, seed=seed) for kind in WARM_UP_EPISODES}
    optimizer = torch.optim.AdamW(model.parameters(), lr=learning_rate, weight_decay=0.0)
    schedule = torch.optim.lr_scheduler.OneCycleLR(
        optimizer, max_lr=learning_rate, total_steps=steps, pct_start=0.2
    )
    losses: dict[str, float] = {}
    model.train()
    for _ in range(steps):
        optimizer.zero_grad()
        for kind, episodes in WARM_UP_EPISODES.items():
            loss = imitation_loss(model, tokenizer, list(islice(play[kind], episodes)))
            loss.backward()
            losses[kind.__name__] = float(loss.detach())
        torch.nn.utils.clip_grad_norm_(model.parameters(), 1.0)
        optimizer.step()
        schedule.step()
    model.eval()
    return losses


def imitation_loss(
    model: "Qwen3ForCausalLM", tokenizer: "PreTrainedTokenizerBase", episodes: list[Episode]
) -> "torch.Tensor":
    """Mean cross-entropy of the answers in ``episodes``, nats a token."""
    import torch

    width = max(len(ids) for ids, _ in episodes)
    pad = tokenizer.get_vocab()[PAD]
    ids = torch.tensor([[*ids, *[pad] * (width - len(ids))] for ids, _ in episodes])
    answered = torch.tensor([[*mask, *[False] * (width - len(mask))] for _, mask in episodes])
    return model(input_ids=ids, labels=ids.masked_fill(~answered, IGNORED)).loss


def make(directory: Path, *, seed: int, warmup_steps: int = 120) -> None:
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
