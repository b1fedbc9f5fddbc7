"""How long one iteration of a generation engine takes, and how many tokens of KV it can hold.

The model is a sum of what an iteration does one after another: a fixed cost, weights read, KV read,
a cost a sequence, operations, and the exchange between the GPUs of a tensor-parallel group:

    t = c0 + W / (tp BW ew) + KV ctx / (tp BW ek) + c1 B
        + 2 N B / (tp C ed) + (2 N P + 4 L H d P ctx_p) / (tp C ep) + c2 log2(tp)

with B decoding sequences that attend to `ctx` tokens together, and P prefill tokens that attend to
`ctx_p` tokens each. Of a mixture of experts, W is what the iteration's tokens touch and N what is
active. KV are the bytes of a token on all GPUs: where these are more than the heads of keys and
values, each holds one head, some the same. Pure: no clock, no loop.
"""

import math
from dataclasses import dataclass, field

from rollart.core.errors import ConfigError
from rollart.runtimes.sim.hardware.catalogue import GpuClass
from rollart.runtimes.sim.hardware.model_shape import ModelShape


@dataclass(frozen=True, slots=True, kw_only=True)
class EngineConstants:
    """What of an iteration's time is not in a datasheet.

    All are inferred. They were fitted to public medians of vLLM on H100, with a mean error of 5 %;
    where the fit leaves a range, the value here keeps each of five published medians within 5 %:
    8B at 64 and 256 sequences (14.0 and 31.4 ms), 8B at 64 with 5.4k tokens of context (26.6 ms),
    14B at 64 (18.9 ms), 32B on two GPUs at 64 (22.5 ms).

    Attributes:
        fixed_s: of every iteration: scheduling, launches, sampling (c0; fitted, 1.9 ms).
        sequence_s: of every decoding sequence (c1; fitted, 20-30 us).
        tp_s: of an exchange, by log2 of the GPUs (c2; fitted, 0.8 ms; NVLink).
        weights_efficiency: share of the bandwidth that reading weights reaches (ew; fitted, .87).
        kv_efficiency: share that reading KV reaches (ek; fitted, .9-1.0).
        decode_efficiency: least share of the peak in decoding (ed; from the five medians). It is
            over a prefill's on large GPUs since part of the work hides behind the weights' reading;
            where a prefill reaches more, so does decoding.
        memory_share: of a GPU's memory that an engine takes (vLLM's default, 0.9).
        activation_gb: of a GPU's memory for activations and graphs, 1e9 B (4).
    """

    fixed_s: float = 1.9e-3
    sequence_s: float = 25e-6
    tp_s: float = 0.8e-3
    weights_efficiency: float = 0.87
    kv_efficiency: float = 0.93
    decode_efficiency: float = 0.55
    memory_share: float = 0.9
    activation_gb: float = 4.0


DEFAULT_CONSTANTS = EngineConstants()


@dataclass(frozen=True, slots=True, kw_only=True)
class Roofline:
    """One model on `tp` GPUs of one class."""

    model: ModelShape
    gpu: GpuClass
    tp: int = 1
    constants: EngineConstants = DEFAULT_CONSTANTS
    _weight_read_s: float = field(init=False, repr=False, compare=False)
    _dense_s: float | None = field(init=False, repr=False, compare=False)
    _kv_token_s: float = field(init=False, repr=False, compare=False)
    _decode_s: float = field(init=False, repr=False, compare=False)
    _prefill_s: float = field(init=False, repr=False, compare=False)
    _attend_s: float = field(init=False, repr=False, compare=False)
    _fixed_s: float = field(init=False, repr=False, compare=False)

    def __post_init__(self) -> None:
        """Raises `ConfigError` for a tensor-parallel degree below 1."""
        if self.tp < 1:
            raise ConfigError(f"tp = {self.tp}: an engine has at least one GPU; use 1 or more")
        model, gpu, own = self.model, self.gpu, self.constants
        bandwidth = self.tp * gpu.hbm_tb_s * 1e12
        peak = self.tp * gpu.tflops * 1e12
        prefill = peak * gpu.prefill_efficiency
        decode = peak * max(own.decode_efficiency, gpu.prefill_efficiency)
        put = object.__setattr__  # frozen; and `step_s` runs for every change of a batch
        put(self, "_weight_read_s", 1.0 / (bandwidth * own.weights_efficiency))
        dense = None if model.expert_bytes else model.weight_bytes * self._weight_read_s
        put(self, "_dense_s", dense)
        put(self, "_kv_token_s", self._kv_bytes(self.tp) / (bandwidth * own.kv_efficiency))
        put(self, "_decode_s", own.sequence_s + 2.0 * model.active_parameters / decode)
        put(self, "_prefill_s", 2.0 * model.active_parameters / prefill)
        put(self, "_attend_s", model.attention_flops / prefill)
        put(self, "_fixed_s", own.fixed_s + own.tp_s * math.log2(self.tp))

    def step_s(
        self,
        *,
        decoding: float,
        prefill_tokens: float,
        context_tokens: float,
        prefill_context: float,
    ) -> float:
        """Seconds of one iteration.

        Args:
            decoding: sequences of which each gets one token.
            prefill_tokens: prompt tokens computed beside them.
            context_tokens: tokens that the decoding sequences attend to, all together.
            prefill_context: tokens that a prefill token attends to, in the mean.
        """
        weights_s = self._dense_s
        if weights_s is None:
            tokens = decoding + prefill_tokens
            weights_s = self.model.read_bytes(tokens) * self._weight_read_s
        return (
            self._fixed_s
            + weights_s
            + context_tokens * self._kv_token_s
            + decoding * self._decode_s
            + prefill_tokens * (self._prefill_s + prefill_context * self._attend_s)
        )

    @property
    def kv_capacity_tokens(self) -> int:
        """Whole tokens of KV that fit beside the weights.

        Raises `ConfigError` when the model does not fit.
        """
        tokens = int(self.kv_room_tokens)
        if tokens < 1:
            raise ConfigError(
                f"{self.model.name} does not fit on {self.tp} {self.gpu.name}: its weights take "
                f"{self.model.weight_bytes / 1e9:.1f} GB and activations "
                f"{self.constants.activation_gb * self.tp:g} GB, of "
                f"{self.constants.memory_share * self.gpu.memory_gb * self.tp:.1f} GB that an "
                f"engine may take; {self._remedy()}"
            )
        return tokens

    @property
    def kv_room_tokens(self) -> float:
        """Tokens of KV that fit beside the weights; below 0 where these do not fit themselves."""
        return self._room(self.tp) / self._kv_bytes(self.tp)

    def _kv_bytes(self, tp: int) -> float:
        """Of one token, on all GPUs together."""
        return self.model.kv_bytes_per_token * max(1.0, tp / self.model.kv_heads)

    def _room(self, tp: int) -> float:
        own = self.constants
        each = own.memory_share * self.gpu.memory_gb - own.activation_gb
        return each * tp * 1e9 - self.model.weight_bytes

    def _remedy(self) -> str:
        if self._room(1) + self.model.weight_bytes <= 0:
            return "use a GPU with more memory"
        tp = 1
        while self._room(tp) < self._kv_bytes(tp):
            tp *= 2
        return f"use {tp} GPUs an engine"
