"""A model of one layer that writes single characters, and the command that serves it."""

import os
import string
import subprocess
import sys
from collections.abc import Callable, Iterator
from contextlib import ExitStack
from pathlib import Path

import pytest


@pytest.fixture(scope="session")
def tiny_model(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A Hugging Face directory with a chat template; 512 positions."""
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
        max_position_embeddings=512,
        eos_token_id=0,
        pad_token_id=0,
        bos_token_id=None,
        tie_word_embeddings=True,
    )
    folder = tmp_path_factory.mktemp("models") / "tiny"
    Qwen3ForCausalLM(config).save_pretrained(folder)
    tokenizer.save_pretrained(folder)
    return folder


class Serving:
    """`rollart serve` in a process; `url` is what it says it serves at."""

    def __init__(self, process: "subprocess.Popen[str]") -> None:
        assert process.stdout is not None
        self.process = process
        self.line = process.stdout.readline()
        self.url = next((word for word in self.line.split() if word.startswith("http")), "")


@pytest.fixture
def serving() -> Iterator[Callable[..., Serving]]:
    """Starts the command with these words after the model; ended at the test's end."""
    with ExitStack() as stack:

        def start(model: Path, *words: str, token: str | None = None) -> Serving:
            variables = dict(os.environ)
            variables.pop("ROLLART_SERVE_TOKEN", None)
            if token is not None:
                variables["ROLLART_SERVE_TOKEN"] = token
            process = stack.enter_context(
                subprocess.Popen(
                    [sys.executable, "-m", "rollart", "serve", str(model), "--port", "0", *words],
                    stdout=subprocess.PIPE,
                    stderr=subprocess.PIPE,
                    text=True,
                    env=variables,
                )
            )
            stack.callback(process.terminate)
            return Serving(process)

        yield start
