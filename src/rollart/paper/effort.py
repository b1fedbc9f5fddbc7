"""How much is simulated: everything, or so little that it takes minutes.

Invariant: a quick evaluation changes sizes and seeds only, never a parameter; what it leaves out is
said in its output.
"""

from dataclasses import dataclass, replace

from rollart.paper.parameters import BATCH_GROUPS, MODELS


@dataclass(frozen=True, slots=True, kw_only=True)
class Effort:
    """Sizes.

    Attributes:
        seeds, cheap_seeds: of rows that take long, and of the others.
        scale: batch and GPUs of end-to-end rows are the paper's divided by this.
        counted: steps that count.
        warm: steps before them that do not.
        rollouts: of an arm of which only rollouts count.
    """

    name: str
    seeds: int
    cheap_seeds: int
    scale: int
    counted: int
    warm: int
    rollouts: int
    models: tuple[str, ...]
    alphas: tuple[int, ...]

    @property
    def is_quick(self) -> bool:
        return self.scale > 1

    @property
    def steps(self) -> int:
        return self.warm + self.counted

    @property
    def groups(self) -> int:
        """Of a batch of the paper's 512."""
        return BATCH_GROUPS // self.scale

    def no_smaller(self, scale: int) -> "Effort":
        """This effort where GPUs and batch can be cut no smaller than by `scale`."""
        return replace(self, scale=min(self.scale, scale))


FULL = Effort(
    name="full",
    seeds=3,
    cheap_seeds=5,
    scale=1,
    counted=5,
    warm=2,
    rollouts=2,
    models=MODELS,
    alphas=(1, 2, 3, 4, 5, 6),
)

QUICK = Effort(
    name="quick",
    seeds=1,
    cheap_seeds=1,
    scale=4,
    counted=3,
    warm=1,
    rollouts=1,
    models=(MODELS[0], MODELS[2]),
    alphas=(1, 2, 4),
)


def halved(effort: Effort) -> Effort:
    """For what only has to be seen: half of the paper's size and the steps of a quick one."""
    return replace(effort, seeds=1, cheap_seeds=1, scale=2, counted=QUICK.counted, warm=QUICK.warm)
