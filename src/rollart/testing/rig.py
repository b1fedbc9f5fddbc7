"""Some of the control plane over scripted engines, for tests of one part."""

import asyncio
from collections.abc import AsyncGenerator, Callable, Sequence
from contextlib import asynccontextmanager
from dataclasses import dataclass

import numpy as np

from rollart.control.fleet import Fleet, FleetSettings
from rollart.control.llm_proxy import Answer, GenerateCall, LLMProxy
from rollart.core.identity import PolicyVersion, TrajectoryId
from rollart.core.ports import Affinity, Binding
from rollart.testing.engine import ScriptedEngine
from rollart.testing.parts import EventRecorder, ScriptedLauncher
from rollart.testing.script import Script

ANYWHERE = Affinity(by_domain={})
SETTINGS = FleetSettings(engine_s=10.0, weights_s=10.0, restarts=3)


@dataclass(slots=True, kw_only=True)
class ProxyRig:
    """A proxy over a fleet that serves version 0."""

    fleet: Fleet
    proxy: LLMProxy
    launcher: ScriptedLauncher
    events: EventRecorder

    @property
    def engines(self) -> list[ScriptedEngine]:
        """Every engine that was launched, replacements included, in order."""
        return self.launcher.engines

    def ask(
        self,
        member: int = 0,
        *,
        turn: int = 0,
        tokens: int = 10,
        prompt: int = 4,
        domain: str = "lake",
        on_start: Callable[[int], None] = lambda version: None,
    ) -> "asyncio.Task[Answer]":
        """One turn of the trajectory of `member`, in a task of its own."""
        call = GenerateCall(
            trajectory=identity(member, domain=domain),
            turn=turn,
            prompt=(np.ones(prompt, np.int32),),
            max_tokens=tokens,
            temperature=1.0,
            seed=1000 * member + turn,
        )
        return asyncio.get_running_loop().create_task(self.proxy.generate(call, on_start))

    async def update(self, number: int) -> None:
        """Suspend, give the engines a version, resume."""
        await self.proxy.suspend()
        try:
            await self.fleet.update(PolicyVersion("agent", number))
        finally:
            await self.proxy.resume()


def identity(member: int = 0, *, domain: str = "lake", group: int = 0) -> TrajectoryId:
    """Who a test's trajectory is."""
    return TrajectoryId(run="run", domain=domain, task="task-0", group=group, member=member)


@asynccontextmanager
async def proxy_rig(
    script: Script | None = None,
    *,
    engines: int = 1,
    hardware: Sequence[str] = (),
    context: int = 1024,
    affinity: Affinity = ANYWHERE,
    settings: FleetSettings = SETTINGS,
    launcher: ScriptedLauncher | None = None,
    proxy: type[LLMProxy] = LLMProxy,
    fleet: type[Fleet] = Fleet,
) -> AsyncGenerator[ProxyRig]:
    """A proxy whose engines serve version 0; everything is closed at the end.

    Args:
        hardware: the class of each engine; "virtual" where it says nothing.
    """
    launcher = launcher or ScriptedLauncher(script)
    events = EventRecorder()
    kinds = [*hardware, *["virtual"] * (engines - len(hardware))]
    bindings = [Binding(worker=f"engine-{i}", hardware=kind) for i, kind in enumerate(kinds)]
    made = fleet(launcher, bindings, settings, events)
    gateway = proxy(made, affinity=affinity, context=context, events=events)
    async with asyncio.TaskGroup() as group:
        await made.start(group)
        rig = ProxyRig(fleet=made, proxy=gateway, launcher=launcher, events=events)
        await rig.update(0)
        try:
            yield rig
        finally:
            await made.close()
