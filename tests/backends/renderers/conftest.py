"""A tokenizer small enough to read: single characters, and the merges he, ll, llo, hello."""

import string
from collections.abc import Callable
from typing import TYPE_CHECKING

import pytest

if TYPE_CHECKING:
    from transformers import PreTrainedTokenizerBase

CHATML = (
    "{% for message in messages %}"
    "{{ '<|im_start|>' + message.role + '\n' + message.content + '<|im_end|>\n' }}"
    "{% endfor %}"
    "{% if add_generation_prompt %}{{ '<|im_start|>assistant\n' }}{% endif %}"
)

LLAMA_TOKENS = ("<|bos|>", "<|start_header|>", "<|end_header|>", "<|eot|>")

MakeTokenizer = Callable[[str | None], "PreTrainedTokenizerBase"]


@pytest.fixture(scope="session")
def make_tokenizer() -> MakeTokenizer:
    """Makes the toy tokenizer with a given chat template."""
    from tokenizers import Tokenizer
    from tokenizers.decoders import Fuse
    from tokenizers.models import BPE
    from transformers import PreTrainedTokenizerFast

    special = ["<|im_start|>", "<|im_end|>", "<|stop|>", *LLAMA_TOKENS]
    characters = sorted({*string.printable} - {*"\t\r\x0b\x0c"})
    words = [*special, *characters, "he", "ll", "llo", "hello"]
    vocab = {word: number for number, word in enumerate(words)}

    def make(template: str | None = CHATML) -> "PreTrainedTokenizerBase":
        merges = [("h", "e"), ("l", "l"), ("ll", "o"), ("he", "llo")]
        backend = Tokenizer(BPE(vocab=vocab, merges=merges))
        backend.decoder = Fuse()
        return PreTrainedTokenizerFast(
            tokenizer_object=backend,
            eos_token="<|im_end|>",
            additional_special_tokens=[word for word in special if word != "<|im_end|>"],
            chat_template=template,
        )

    return make


@pytest.fixture(scope="session")
def chatml(make_tokenizer: MakeTokenizer) -> "PreTrainedTokenizerBase":
    """The toy tokenizer with ChatML."""
    return make_tokenizer(CHATML)
