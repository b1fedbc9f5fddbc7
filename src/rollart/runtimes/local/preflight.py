"""What can be found wrong with a job before it starts, user code included.

Invariant: user code is imported, and each environment made once, in a child only and under a
deadline; every problem is one line that names key, value and remedy.
"""

import asyncio
import json
import os
from collections.abc import Sequence
from pathlib import Path

import msgspec

from rollart.core.config import JobConfig
from rollart.core.errors import ConfigError
from rollart.core.scoring.places import shown_url
from rollart.process.child import Child
from rollart.process.errors import CallTimeout, ChildDied, ChildStartError
from rollart.process.spawn import spawn
from rollart.runtimes.local import inspect_host
from rollart.runtimes.local.child_env import child_environment
from rollart.runtimes.local.platform_check import platform_problems
from rollart.runtimes.local.remote import in_a_line
from rollart.runtimes.local.reward_facts import RewardFacts

IMPORT_S = 60.0
"""Seconds that importing one user module, and making one environment, may take."""

_TOKENIZERS = ("tokenizer.json", "tokenizer.model", "vocab.json", "vocab.txt")


def preflight(job: JobConfig, *, python_path: Sequence[str]) -> None:
    """Refuse what cannot run. For use outside an event loop.

    Raises:
        ConfigError: one line a problem.
    """
    problems = job_problems(job, python_path)
    if problems:
        raise ConfigError("\n".join(problems))


def job_problems(job: JobConfig, python_path: Sequence[str]) -> list[str]:
    """Everything wrong with a job's model and code, a line each."""
    path = job.model.path
    problems = [] if path is None else model_problems(path, job.model.context)
    return problems + asyncio.run(_code_problems(job, python_path))


def model_problems(path: str, context: int) -> list[str]:
    """What a model directory lacks, by its files; `context` is the job's model.context."""
    folder = Path(path)
    if not folder.is_dir():
        return [f"model.path = {path!r}: no such directory; give a Hugging Face model directory"]
    problems: list[str] = []
    problems += _context_problems(folder, context)
    if not any((folder / name).is_file() for name in _TOKENIZERS):
        problems.append(
            f"model.path = {path!r}: has no tokenizer ({', '.join(_TOKENIZERS)}); save it there "
            "with tokenizer.save_pretrained"
        )
    if not [*folder.glob("*.safetensors"), *folder.glob("*.bin")]:
        problems.append(
            f"model.path = {path!r}: has no weights (*.safetensors); save them there with "
            "model.save_pretrained"
        )
    return problems


def _context_problems(folder: Path, context: int) -> list[str]:
    try:
        config = json.loads((folder / "config.json").read_text(encoding="utf-8"))
    except (OSError, ValueError) as error:
        return [
            f"model.path = {str(folder)!r}: its config.json cannot be read ({error}); "
            "give a Hugging Face model directory"
        ]
    most = config.get("max_position_embeddings")
    if isinstance(most, int) and context > most:
        return [
            f"model.context = {context}: the model was made for {most} positions; "
            f"use model.context = {most} or less"
        ]
    return []


async def _code_problems(job: JobConfig, python_path: Sequence[str]) -> list[str]:
    questions: list[tuple[str, str, tuple[object, ...]]] = []
    if job.model.make is not None:
        questions.append(("model.make", "maker", (job.model.make,)))
    for domain in job.domains:
        name = f"domains[{domain.tag}]"
        arguments = (domain.environment, dict(domain.options), domain.envs_per_process)
        questions.append((f"{name}.environment", "environment", arguments))
        questions.append((f"{name}.reward", "reward", (domain.reward_places,)))
    problems: list[str] = []
    facts: dict[str, RewardFacts] = {}
    child: Child | None = None
    try:
        for key, method, arguments in questions:
            if child is None or not child.alive:
                child = await _inspector(python_path)
            answer = await _ask(child, method, arguments)
            if answer is not None:
                problems.append(f"{key} = {_shown(arguments[0])}: {answer}")
        if child is not None and not problems:
            for domain in job.domains:
                told = await child.call(
                    "facts", domain.reward_places, python_path, timeout=IMPORT_S
                )
                facts[f"domains[{domain.tag}].reward"] = msgspec.convert(told, RewardFacts)
    finally:
        if child is not None:
            await child.close(1.0)
    return problems or await platform_problems(
        facts, limit_s=job.timeouts.reward_s, python_path=python_path
    )


def _shown(value: object) -> str:
    """A value as the job file has it."""
    if not isinstance(value, tuple):
        return repr(value)
    shown = tuple(map(shown_url, value))
    return repr(shown[0] if len(shown) == 1 else shown)


async def _inspector(python_path: Sequence[str]) -> Child:
    try:
        return await spawn(
            inspect_host.ENTRY,
            None,
            name="preflight",
            env=child_environment(os.environ, "preflight"),
            inherit_env=False,
            python_path=python_path,
            heartbeat_timeout=IMPORT_S,
        )
    except ChildStartError as error:
        raise ConfigError(f"no child process can be started: {error}") from error


async def _ask(child: Child, method: str, arguments: tuple[object, ...]) -> str | None:
    try:
        return await child.call(method, *arguments, timeout=IMPORT_S)
    except CallTimeout:
        child.kill()
        return (
            f"importing or making it took more than {IMPORT_S:g} s; move work out of the module's "
            "body and of the constructor, an environment's into reset"
        )
    except ChildDied as error:
        return f"importing or making it ended the process: {in_a_line(error)}"
