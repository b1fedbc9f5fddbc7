"""Which environment variables reach children that run user code.

Invariant: an allow-list, so that a secret (a token, a key, a password) reaches user code only
where somebody named its variable on purpose, with the prefix ROLLART_.
"""

from collections.abc import Mapping

from rollart.process.owner import RUN_ID_VARIABLE

_NAMES = frozenset(
    (
        *("PATH", "PYTHONPATH", "PYTHONHASHSEED", "PYTHONWARNINGS", "VIRTUAL_ENV"),
        *(
            "LD_LIBRARY_PATH",
            "HOME",
            "USER",
            "LOGNAME",
            "SHELL",
            "LANG",
            "LANGUAGE",
            "TZ",
            "TMPDIR",
        ),
        *("XDG_CACHE_HOME", "HF_HOME", "HF_HUB_OFFLINE", "TRANSFORMERS_OFFLINE"),
        *("TOKENIZERS_PARALLELISM", "SDL_VIDEODRIVER", "SDL_AUDIODRIVER"),
    )
)
_PREFIXES = ("ROLLART_", "OMP_", "KMP_", "MKL_", "OPENBLAS_", "NUMEXPR_", "LC_", "CUDA_", "NVIDIA_")
PROJECT_TOKENS = frozenset({"ROLLART_REWARD_TOKEN", "ROLLART_SERVE_TOKEN"})
"""What the project itself signs with: no user code gets it, whatever its prefix."""

_ONE_THREAD = {"OMP_NUM_THREADS": "1", "OMP_WAIT_POLICY": "PASSIVE", "OPENBLAS_NUM_THREADS": "1"}


def child_environment(present: Mapping[str, str], run_id: str) -> dict[str, str]:
    """The whole environment of a child of this run: one compute thread, no variable unasked for."""
    kept = {
        name: value
        for name, value in present.items()
        if name not in PROJECT_TOKENS and (name in _NAMES or name.startswith(_PREFIXES))
    }
    return {**kept, **_ONE_THREAD, RUN_ID_VARIABLE: run_id}
