"""Serve one model directory until told to stop: what `rollart serve` does.

Owns the engine's child, the listening socket and the scratch folder. Invariant: what can be refused
is refused before anything starts, and whichever way it ends nothing is left running.
"""

import asyncio
import json
import os
import tempfile
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path

from rollart.backends.renderers.hf_chat import HfChatRenderer
from rollart.core.errors import ConfigError, EngineLost
from rollart.launching import loop_signals
from rollart.process.errors import ChildStartError
from rollart.process.spawn import spawn
from rollart.runtimes.local import engine_child
from rollart.runtimes.local.child_env import child_environment
from rollart.runtimes.local.engine import EngineLimits, LocalEngine
from rollart.runtimes.local.engine_child import EngineChildConfig
from rollart.runtimes.local.preflight import model_problems
from rollart.runtimes.local.remote import in_a_line
from rollart.serving.admission import Admission, token_of
from rollart.serving.endpoint import Endpoint
from rollart.serving.http import HttpServer
from rollart.serving.model import ServedLimits, ServedModel

TOKEN = "ROLLART_SERVE_TOKEN"
"""Environment variable with the token that clients must send."""

USUAL_CONTEXT = 4096  # tokens; KV is reserved for as many in each slot
START_S, COMMAND_S = 600.0, 60.0
_STEP_TOKENS = 2048
_QUESTIONS_A_SLOT = 32


@dataclass(frozen=True, slots=True, kw_only=True)
class ServeSettings:
    """What is served where. None: the directory's name, and the model's own up to 4096 tokens."""

    model: Path
    host: str = "127.0.0.1"
    port: int = 8000
    name: str | None = None
    context: int | None = None
    slots: int = 8


def serve(settings: ServeSettings, say: Callable[[str], None]) -> None:
    """Serve until the first stop signal; `say` gets the line that tells where.

    Raises:
        ConfigError: it cannot be served; nothing was started.
        EngineLost: the engine ended; the message says why.
    """
    token = token_of(os.environ, TOKEN, settings.host)
    context = _context(settings)
    renderer = HfChatRenderer.load(settings.model)
    with tempfile.TemporaryDirectory(prefix="rollart-serve-") as scratch:
        config = EngineChildConfig(
            model=str(settings.model.resolve()),
            weights=scratch,
            run="serve",
            dtype="float32",
            kv="recompute",
            slots=settings.slots,
            step_tokens=_STEP_TOKENS,
            context=context,
        )
        asyncio.run(_serve(settings, config, renderer, token, say))


def _context(settings: ServeSettings) -> int:
    """Tokens of a question and its answer. Raises `ConfigError`, also for an unfit directory."""
    folder = settings.model
    problems = model_problems(str(folder), 1)
    if problems:
        raise ConfigError("; ".join(line.removeprefix("model.path = ") for line in problems))
    config = json.loads((folder / "config.json").read_text(encoding="utf-8"))
    most = config.get("max_position_embeddings", USUAL_CONTEXT)
    if settings.context is None:
        return min(most, USUAL_CONTEXT)
    if settings.context > most:
        raise ConfigError(
            f"--context {settings.context}: the model was made for {most} positions; "
            f"use --context {most} or less"
        )
    return settings.context


async def _serve(
    settings: ServeSettings,
    config: EngineChildConfig,
    renderer: HfChatRenderer,
    token: str,
    say: Callable[[str], None],
) -> None:
    stop = asyncio.Event()
    main = asyncio.current_task()
    assert main is not None
    listening = False

    def on_signal(_number: int) -> None:
        if listening:
            stop.set()
        else:
            main.cancel()

    try:
        with loop_signals(on_signal):
            engine = await _engine(config)
            try:
                limits = ServedLimits(
                    context=config.context, questions=config.slots * _QUESTIONS_A_SLOT
                )
                listening = True
                await _listen(settings, ServedModel(engine, renderer, limits), token, say, stop)
            finally:
                await engine.close()
    except asyncio.CancelledError:
        if listening:
            raise


async def _engine(config: EngineChildConfig) -> LocalEngine:
    try:
        child = await spawn(
            engine_child.ENTRY,
            config,
            name="serve-engine",
            env=child_environment(os.environ, config.run),
            inherit_env=False,
            start_timeout=START_S,
        )
    except ChildStartError as error:
        raise EngineLost("serve-engine", in_a_line(error)) from error
    return LocalEngine(
        child,
        worker="serve-engine",
        hardware="local",
        limits=EngineLimits(command_s=COMMAND_S, update_s=COMMAND_S),
        on_busy=lambda _: None,
    )


async def _listen(
    settings: ServeSettings,
    model: ServedModel,
    token: str,
    say: Callable[[str], None],
    stop: asyncio.Event,
) -> None:
    """Until stopped, or until the engine is gone: `EngineLost`."""
    name = settings.name or settings.model.resolve().name
    endpoint = Endpoint(model.chat, name=name)
    async with asyncio.TaskGroup() as group:
        server = HttpServer(group, endpoint.handle, endpoint.refuse, admit=Admission(token))
        try:
            port = await server.open(settings.host, settings.port)
        except OSError as error:
            reason = error.strerror or str(error)
            problem = f"--host {settings.host} --port {settings.port}: {reason}; use another port"
        else:
            problem = ""
            shown = f"[{settings.host}]" if ":" in settings.host else settings.host
            say(f"serving {name} on http://{shown}:{port}/v1 (Ctrl-C ends it)")
            watching = group.create_task(model.watch())
            stopped = group.create_task(stop.wait())
            await asyncio.wait((watching, stopped), return_when=asyncio.FIRST_COMPLETED)
            for task in (watching, stopped):
                task.cancel()
            server.close()
    if problem:
        raise ConfigError(problem)
    if model.lost.done():
        raise EngineLost("serve-engine", model.lost.result())
