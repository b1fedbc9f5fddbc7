"""Tiny models with lively logits, and full forwards of copies of them to compare with."""

import copy
from collections.abc import Callable, Iterable
from typing import Any

import numpy as np
import pytest
import torch
from transformers import (
    LlamaConfig,
    LlamaForCausalLM,
    Qwen3Config,
    Qwen3ForCausalLM,
    Qwen3MoeConfig,
    Qwen3MoeForCausalLM,
)

from rollart.backends.engines.hf_batcher import HFBatcher
from rollart.core.types import GenerateRequest, StopReason, TokenDelta

VOCABULARY = 50
SHAPE: dict[str, Any] = {
    "vocab_size": VOCABULARY,
    "hidden_size": 32,
    "num_hidden_layers": 2,
    "num_attention_heads": 4,
    "num_key_value_heads": 2,
    "intermediate_size": 48,
    "max_position_embeddings": 128,
    "initializer_range": 0.3,
}


class Answer:
    """What came back for one request: ids, log-probs, versions, and how it ended."""

    def __init__(self) -> None:
        self.ids: list[int] = []
        self.logprobs: list[float] = []
        self.versions: list[int] = []
        self.last: TokenDelta | None = None

    @property
    def finish(self) -> StopReason | None:
        return None if self.last is None else self.last.finish

    def take(self, delta: TokenDelta) -> None:
        assert self.finish is None, "a delta after the last one"
        self.ids += np.asarray(delta.ids).tolist()
        self.logprobs += np.asarray(delta.logprobs).tolist()
        self.versions += [delta.version] * len(delta.ids)
        self.last = delta


class Lab:
    """Builds models, requests and reference numbers."""

    def model(self, kind: str = "qwen3", seed: int = 0, **changes: Any) -> Any:
        torch.manual_seed(seed)
        shape: dict[str, Any] = SHAPE | changes
        if kind == "llama":
            shape |= {"tie_word_embeddings": False, "attention_bias": True}
            return LlamaForCausalLM(LlamaConfig(**shape)).eval()
        if kind == "moe":
            shape |= {"num_experts": 4, "num_experts_per_tok": 2, "moe_intermediate_size": 24}
            return Qwen3MoeForCausalLM(Qwen3MoeConfig(**shape)).eval()
        shape |= {"tie_word_embeddings": True, "head_dim": 8}
        return Qwen3ForCausalLM(Qwen3Config(**shape)).eval()

    def tensors(self, model: Any) -> list[tuple[str, torch.Tensor]]:
        """What a trainer sends: every tensor once, tied ones under their first name."""
        tied = set(model.all_tied_weights_keys)
        return [(name, new) for name, new in model.state_dict().items() if name not in tied]

    def engine(self, model: Any, **options: Any) -> HFBatcher:
        return HFBatcher(copy.deepcopy(model), version=0, **options)

    def prompt(self, length: int, seed: int = 0) -> np.ndarray:
        return np.random.default_rng(seed).integers(0, VOCABULARY, length).astype(np.int32)

    def request(self, name: str, prompt: np.ndarray, **fields: Any) -> GenerateRequest:
        defaults: dict[str, Any] = {
            "session": name,
            "max_tokens": 6,
            "temperature": 0.7,
            "seed": 1,
        }
        return GenerateRequest(id=name, prompt=(prompt,), **(defaults | fields))

    def drain(
        self, engine: HFBatcher, answers: dict[str, Answer], steps: int = 10_000
    ) -> dict[str, Answer]:
        """Run until nothing is left, or for `steps` steps."""
        for _ in range(steps):
            if not engine.has_work:
                break
            for delta in engine.step():
                answers.setdefault(delta.request_id, Answer()).take(delta)
        return answers

    def run(self, engine: HFBatcher, requests: Iterable[GenerateRequest]) -> dict[str, Answer]:
        for request in requests:
            engine.add(request)
        return self.drain(engine, {})

    def logprobs(self, model: Any, ids: Iterable[int], temperature: float) -> torch.Tensor:
        """A plain full forward: log-softmax of logits / temperature after each token."""
        with torch.no_grad():
            logits = model(torch.tensor([list(ids)])).logits[0]
        return torch.log_softmax(logits.double() / temperature, -1)

    def gap(
        self, models: dict[int, Any], prompt: np.ndarray, answer: Answer, temperature: float = 0.7
    ) -> float:
        """Largest difference to full forwards, each token under the version that sampled it."""
        whole = [*prompt.tolist(), *answer.ids]
        after = {v: self.logprobs(models[v], whole, temperature) for v in set(answer.versions)}
        return max(
            abs(after[version][len(prompt) - 1 + at, token].item() - logprob)
            for at, (token, logprob, version) in enumerate(
                zip(answer.ids, answer.logprobs, answer.versions, strict=True)
            )
        )


@pytest.fixture(scope="session")
def lab() -> Lab:
    torch.set_num_threads(1)
    return Lab()


@pytest.fixture(scope="session")
def new_answer() -> Callable[[], Answer]:
    return Answer
