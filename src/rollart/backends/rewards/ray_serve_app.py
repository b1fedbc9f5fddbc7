"""A reward function as a Ray Serve application: no replica at rest, more as calls queue up.

    serve run rollart.backends.rewards.ray_serve_app:application function=judge:score --name judge

Invariant: a replica has one call at a time, so what scales is how many run; a call runs in a thread
of it, so the replica goes on answering its health checks. A call that its caller has given up and
that still runs fails them, so Serve replaces a replica that hangs.
"""

import asyncio
import sys
from collections.abc import Callable
from importlib import import_module
from pathlib import Path
from typing import Any, cast

from pydantic import BaseModel, ConfigDict, Field
from ray import serve

from rollart.core.errors import ConfigError
from rollart.core.scoring.declared import declared_settings
from rollart.core.scoring.handle import Handler
from rollart.core.scoring.sources import sources_of

REPLICAS = 8
"""At most, of a function that declares no concurrency."""

_MIB = 1 << 20


class Arguments(BaseModel):
    """What ``serve run …:application`` takes as ``key=value``.

    Attributes:
        function: ``module:function``, in the folder that it is run in or installed.
        version: that it answers with; by default the hash of its sources, as a job computes it.
        max_replicas: by default the concurrency that the function declares.
        num_cpus: reserved for a replica while there is one; a function that waits needs few.
        downscale_s: seconds without calls after which a replica ends.
    """

    model_config = ConfigDict(extra="forbid")

    function: str
    version: str | None = None
    max_replicas: int | None = Field(default=None, gt=0)
    num_cpus: float = Field(default=1.0, ge=0)
    downscale_s: float = Field(default=30.0, ge=0)


class Scorer:
    """One replica."""

    def __init__(self, function: str, version: str) -> None:
        self._handler = Handler(_loaded(function), path=function, version=version)
        self._given_up: set[asyncio.Future[bytes]] = set()

    async def score(self, body: bytes) -> bytes:
        """Answer a request of `core.scoring.wire`."""
        loop = asyncio.get_running_loop()
        work = loop.run_in_executor(None, self._handler.handle, body)
        try:
            return await asyncio.shield(work)
        except asyncio.CancelledError:
            self._given_up.add(work)
            work.add_done_callback(self._given_up.discard)
            raise

    def check_health(self) -> None:
        """Asked by Serve every ten seconds; three failures in a row replace the replica."""
        if self._given_up:
            raise RuntimeError(f"{len(self._given_up)} calls run on that nobody waits for")


def application(arguments: Arguments) -> Any:
    """The application, for ``serve run`` or `ray.serve.run`.

    Raises `ConfigError` for a function that is not there.
    """
    settings = declared_settings(_loaded(arguments.function))
    version = arguments.version or sources_of(arguments.function, [str(Path.cwd())]).version
    options: dict[str, float] = {"num_cpus": arguments.num_cpus}
    if settings.memory_mib is not None:
        options["memory"] = float(settings.memory_mib * _MIB)
    deployment = serve.deployment(
        Scorer,
        name="Scorer",
        max_ongoing_requests=1,
        ray_actor_options=options,
        autoscaling_config={
            "min_replicas": 0,
            "max_replicas": arguments.max_replicas or settings.concurrency or REPLICAS,
            "target_ongoing_requests": 1,
            "upscale_delay_s": 0.0,
            "downscale_delay_s": arguments.downscale_s,
            "downscale_to_zero_delay_s": arguments.downscale_s,
            "metrics_interval_s": 0.5,  # by default 10 and 30: longer than most rewards take
            "look_back_period_s": 2.0,
        },
    )
    return cast("Any", deployment).bind(arguments.function, version)


def _loaded(path: str) -> Callable[..., Any]:
    module, _, name = path.partition(":")
    here = str(Path.cwd())
    if here not in sys.path:
        sys.path.insert(0, here)
    try:
        function = getattr(import_module(module), name)
    except (ImportError, AttributeError, ValueError) as error:
        raise ConfigError(
            f"function={path}: cannot be imported ({error}); give module:function, and run serve "
            "in its folder"
        ) from error
    return cast("Callable[..., Any]", function)
