"""What the hunt has found, each as small as it gets."""

import asyncio

from rollart.chaos import scripted_scene
from rollart.core.events import EngineDown
from rollart.runtimes.sim.chaos.faults import draw_faults
from rollart.runtimes.sim.chaos.run import play
from rollart.runtimes.sim.loop import run_virtual
from rollart.testing.rig import proxy_rig
from rollart.testing.script import Script

MUTE = Script(token_s=(1e6, 1e6))


def test_a_silent_engine_is_given_up_however_its_deadline_is_rounded() -> None:
    """Seed 248: this time plus what is left of the patience may be this time again."""

    async def main(asked_at: float) -> None:
        async with proxy_rig(MUTE) as rig:
            await asyncio.sleep(asked_at - asyncio.get_running_loop().time())
            asking = rig.ask()
            await asyncio.sleep(11.0)
            assert [down.engine for down in rig.events.of(EngineDown)] == ["engine-0"]
            asking.cancel()
            await asyncio.wait([asking])

    for number in range(40):
        run_virtual(main(10.0 + number / 9), max_callbacks_per_instant=1000)


def test_a_run_that_ends_lets_a_round_of_evaluation_go_before_it_closes_the_engines() -> None:
    """Seed 973: the trainer dies while held-out episodes generate."""
    scene = scripted_scene(973)
    assert play(scene, draw_faults(973, scene.job)).broken == ()
