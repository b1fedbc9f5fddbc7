"""An owner to be killed: starts children, prints a line when they are ready, and waits.

Arguments: how (spawn, fork, forgotten), then entries of `process_children`.
"""

from __future__ import annotations

import asyncio
import signal
import subprocess
import sys
from pathlib import Path

from rollart.process.forkserver import ForkServer
from rollart.process.spawn import spawn

HERE = str(Path(__file__).parent)


async def main(how: str, entries: list[str]) -> None:
    names = [f"process_children:{entry}" for entry in entries]
    kept: list[object] = []
    if how == "spawn":
        for name in names:
            kept.append(await spawn(name, None, name=name, python_path=[HERE]))
    elif how == "fork":
        server = await ForkServer.start(python_path=[HERE])
        kept.append(server)
        for name in names:
            child = await server.fork(name, None, name=name)
            kept.append(child)
            if name.endswith("service"):
                await child.call("child_of_mine", timeout=5.0)
    else:  # the planted bug: children without any tie to their owner
        kept += forgotten_children(len(names))
    sys.stdout.write("ready\n")
    sys.stdout.flush()
    await asyncio.Event().wait()


def forgotten_children(count: int) -> list[subprocess.Popen[bytes]]:
    return [subprocess.Popen(["sleep", "60"], start_new_session=True) for _ in range(count)]


if __name__ == "__main__":
    # A test run that a shell put in the background hands down an ignored SIGINT.
    signal.signal(signal.SIGINT, signal.default_int_handler)
    asyncio.run(main(sys.argv[1], sys.argv[2:]))
