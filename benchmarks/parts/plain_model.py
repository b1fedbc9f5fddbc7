"""A small Qwen3-architecture model with random weights that never ends an answer by itself.

Every completion then has exactly `max_tokens` tokens, so that runs differ only in what a benchmark
varies. What it writes is an ordinary Hugging Face directory.
"""

WORDS = 128
CONTEXT = 512
ROLES = ("system", "user", "assistant", "tool")
CHAT_TEMPLATE = (
    "{% for message in messages %}<|{{ message.role }}|>{{ message.content }}{% endfor %}"
    "{% if add_generation_prompt %}<|assistant|>{% endif %}"
)


def make(directory: str, *, seed: int) -> None:
    """Write model (0.6 million parameters) and tokenizer (one token a word) to `directory`."""
    import torch
    from tokenizers import Tokenizer
    from tokenizers.models import WordLevel
    from tokenizers.pre_tokenizers import WhitespaceSplit
    from transformers import PreTrainedTokenizerFast, Qwen3Config, Qwen3ForCausalLM
    from transformers.utils import logging

    special = ["<|pad|>", *(f"<|{role}|>" for role in ROLES)]
    words = [*special, *(f"w{number}" for number in range(WORDS))]
    backend = Tokenizer(WordLevel({word: at for at, word in enumerate(words)}, unk_token="w0"))
    backend.pre_tokenizer = WhitespaceSplit()
    tokenizer = PreTrainedTokenizerFast(
        tokenizer_object=backend,
        pad_token="<|pad|>",
        unk_token="w0",
        additional_special_tokens=special[1:],
        chat_template=CHAT_TEMPLATE,
        model_max_length=CONTEXT,
    )
    with torch.random.fork_rng(devices=[]):
        torch.manual_seed(seed)
        model = Qwen3ForCausalLM(
            Qwen3Config(
                vocab_size=len(words),
                hidden_size=128,
                num_hidden_layers=3,
                num_attention_heads=4,
                num_key_value_heads=2,
                head_dim=32,
                intermediate_size=384,
                max_position_embeddings=CONTEXT,
                tie_word_embeddings=True,
                pad_token_id=0,
                eos_token_id=None,
                bos_token_id=None,
            )
        )
    logging.disable_progress_bar()
    model.save_pretrained(directory)
    tokenizer.save_pretrained(directory)
