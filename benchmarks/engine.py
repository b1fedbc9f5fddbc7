"""Engine throughput: against transformers' static-batch `generate`, and on many-turn traffic.

    OMP_NUM_THREADS=1 OMP_WAIT_POLICY=PASSIVE python benchmarks/engine.py [--clock cpu]

The model is the demo's shape (0.6M parameters, random weights, fp32, one thread). A and B take
turns within a round, so that a slow spell of the machine hits both; medians are over rounds.
`--clock cpu` counts the thread's own seconds: what an idle core would give, on a shared machine.
"""

import argparse
import copy
import statistics
import time
from collections.abc import Callable

import numpy as np
import torch
from transformers import GenerationConfig, PreTrainedModel, Qwen3Config, Qwen3ForCausalLM

from rollart.backends.engines.hf_batcher import HFBatcher
from rollart.core.types import GenerateRequest

Clock = Callable[[], float]
CLOCKS: dict[str, Clock] = {"wall": time.perf_counter, "cpu": time.process_time}
VOCABULARY, CONTEXT, PROMPT, NEW = 144, 512, 32, 96


def demo_model() -> PreTrainedModel:
    """The demo's architecture with random weights."""
    torch.manual_seed(0)
    config = Qwen3Config(
        vocab_size=VOCABULARY,
        hidden_size=128,
        num_hidden_layers=3,
        num_attention_heads=4,
        num_key_value_heads=2,
        head_dim=32,
        intermediate_size=384,
        max_position_embeddings=CONTEXT,
        tie_word_embeddings=True,
    )
    model = Qwen3ForCausalLM(config)
    model.eval()
    return model


def static_generate(model: PreTrainedModel, prompts: np.ndarray, clock: Clock) -> float:
    """Tokens/s of `generate` on equal prompts [batch, length], sampling `NEW` tokens each."""
    config = GenerationConfig(
        max_new_tokens=NEW, min_new_tokens=NEW, do_sample=True, top_k=0, pad_token_id=0
    )
    ids = torch.from_numpy(prompts).long()
    begin = clock()
    with torch.inference_mode():
        out = model.generate(  # pyright: ignore[reportCallIssue]
            ids, attention_mask=torch.ones_like(ids), generation_config=config
        )
    seconds = clock() - begin
    if out.shape[1] != prompts.shape[1] + NEW:
        raise RuntimeError(f"generate gave {out.shape[1] - prompts.shape[1]} tokens, not {NEW}")
    return len(prompts) * NEW / seconds


def engine_generate(engine: HFBatcher, prompts: np.ndarray, clock: Clock) -> float:
    """Tokens/s of the engine on the same work."""
    begin, tokens = clock(), 0
    for row, prompt in enumerate(prompts):
        engine.add(
            GenerateRequest(
                id=str(row),
                session=str(row),
                prompt=(prompt,),
                max_tokens=NEW,
                temperature=1.0,
                seed=row,
            )
        )
    while engine.has_work:
        tokens += sum(len(delta.ids) for delta in engine.step())
    seconds = clock() - begin
    for row in range(len(prompts)):
        engine.release(str(row))
    if tokens != len(prompts) * NEW:
        raise RuntimeError(f"the engine gave {tokens} tokens, not {len(prompts) * NEW}")
    return tokens / seconds


class Trajectories:
    """Many-turn traffic: a first prompt of 26 tokens, then 10 observed tokens a turn, up to 250.

    `sampled` tokens a turn; an environment that answers at once; a finished trajectory is followed
    by a new one, so `count` are always alive. Starts are staggered, as in steady state.
    """

    def __init__(self, engine: HFBatcher, count: int, sampled: int) -> None:
        self.engine, self.sampled = engine, sampled
        self.noise = np.random.default_rng(0)
        self.next = 0
        self.history: dict[str, np.ndarray] = {}
        self.limit: dict[str, int] = {}
        for at in range(count):
            self._start(26 + 224 * (at + 1) // count)

    def _observe(self, count: int) -> np.ndarray:
        return self.noise.integers(0, VOCABULARY, count).astype(np.int32)

    def _start(self, limit: int) -> None:
        name = f"t{self.next}"
        self.next += 1
        self.limit[name] = limit
        self._ask(name, self._observe(26))

    def _ask(self, name: str, tokens: np.ndarray) -> None:
        self.history[name] = tokens
        self.engine.add(
            GenerateRequest(
                id=name,
                session=name,
                prompt=(tokens,),
                max_tokens=self.sampled,
                temperature=1.0,
                seed=int(name[1:]),
            )
        )

    def run(self, seconds: float, clock: Clock) -> tuple[float, float]:
        """Tokens/s (new prompt tokens and sampled ones) and turns/s."""
        begin, tokens, turns = clock(), 0, 0
        while clock() < begin + seconds:
            for delta in self.engine.step():
                name = delta.request_id
                self.history[name] = np.concatenate([self.history[name], np.asarray(delta.ids)])
                if delta.cost is None:
                    continue
                turns += 1
                tokens += delta.cost.prefill_tokens + delta.cost.decode_tokens
                if len(self.history[name]) + 10 + self.sampled > self.limit[name]:
                    self.engine.release(name)
                    del self.history[name], self.limit[name]
                    self._start(250)
                else:
                    self._ask(name, np.concatenate([self.history[name], self._observe(10)]))
        spent = clock() - begin
        return tokens / spent, turns / spent


def spread(values: list[float]) -> str:
    return f"{statistics.median(values):7.0f} ({min(values):.0f} to {max(values):.0f})"


def against_generate(rounds: int, clock: Clock) -> None:
    print(f"\nsampled tokens/s, prompts of {PROMPT}, {NEW} new tokens, {rounds} rounds\n")
    print("| batch | static generate (min to max) | engine (min to max) | median ratio |")
    print("|---|---|---|---|")
    reference = demo_model()
    engine = HFBatcher(copy.deepcopy(reference), version=0, slots=32)
    for batch in (1, 8, 32):
        noise = np.random.default_rng(batch)
        prompts = noise.integers(0, VOCABULARY, (batch, PROMPT)).astype(np.int32)
        ours: list[float] = []
        theirs: list[float] = []
        for turn in range(rounds + 1):
            a, b = (
                static_generate(reference, prompts, clock),
                engine_generate(engine, prompts, clock),
            )
            if turn > 0:  # the first round warms up
                theirs.append(a)
                ours.append(b)
        ratio = statistics.median(b / a for a, b in zip(theirs, ours, strict=True))
        print(f"| {batch} | {spread(theirs)} | {spread(ours)} | {ratio:.2f}x |")


def many_turns(rounds: int, seconds: float, clock: Clock) -> None:
    print("\nmany-turn traffic: 26 tokens, then 10 a turn on a cached prefix of up to 250\n")
    print("| trajectories | sampled a turn | tokens/s (min to max) | turns/s (min to max) |")
    print("|---|---|---|---|")
    loads = [(count, sampled) for count in (100, 200) for sampled in (1, 2)]
    traffic = [
        Trajectories(HFBatcher(demo_model(), version=0, slots=count, max_len=256), count, sampled)
        for count, sampled in loads
    ]
    results: list[list[tuple[float, float]]] = [[] for _ in loads]
    for turn in range(rounds + 1):
        for at, one in enumerate(traffic):
            measured = one.run(seconds, clock)
            if turn > 0:
                results[at].append(measured)
    for (count, sampled), pairs in zip(loads, results, strict=True):
        tokens, turns = ([pair[i] for pair in pairs] for i in range(2))
        print(f"| {count} | {sampled} | {spread(tokens)} | {spread(turns)} |")


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0] if __doc__ else None)
    parser.add_argument("--rounds", type=int, default=5)
    parser.add_argument("--seconds", type=float, default=2.0, help="a round of many-turn traffic")
    parser.add_argument("--part", choices=("all", "generate", "turns"), default="all")
    parser.add_argument("--clock", choices=tuple(CLOCKS), default="wall")
    options = parser.parse_args()
    torch.set_num_threads(1)
    if options.part in ("all", "generate"):
        against_generate(options.rounds, CLOCKS[options.clock])
    if options.part in ("all", "turns"):
        many_turns(options.rounds, options.seconds, CLOCKS[options.clock])


if __name__ == "__main__":
    main()
