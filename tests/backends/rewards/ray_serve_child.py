"""A cluster with a reward on it, and a client of it: `ray_serve_child.py RESULT [ADDRESS]`.

Ray keeps threads and processes of its own, so both are apart from the tests.
"""

import asyncio
import json
import os
import subprocess
import sys
import time
from pathlib import Path

from rollart.backends.rewards.opening import open_platform
from rollart.backends.rewards.platform import PlatformFault
from rollart.core.errors import ConfigError
from rollart.core.scoring.wire import Request, decode_answer, encode_request
from rollart.testing.conformance.platform import PlatformTrial, check_platform
from rollart.testing.platform import FUNCTION, told_document


def serve_it(result: Path) -> None:
    import ray
    from ray import serve

    from rollart.backends.rewards.ray_serve_app import Arguments, application

    ray.init(
        num_cpus=2,
        include_dashboard=False,
        log_to_driver=False,
    )
    try:
        serve.start(http_options={"location": "NoServer"})
        arguments = Arguments(
            function=FUNCTION, version="v1", max_replicas=4, num_cpus=0.1, downscale_s=60.0
        )
        serve.run(application(arguments), name="judge", route_prefix=None)
        address = ray.get_runtime_context().gcs_address
        command = [sys.executable, __file__, str(result), address]
        client = subprocess.run(command, check=False, timeout=240, env=dict(os.environ))
        if client.returncode:
            sys.exit(client.returncode)
    finally:
        serve.shutdown()
        ray.shutdown()


async def use(address: str) -> dict[str, object]:
    url = f"serve://judge?address={address}"

    async def make():
        return open_platform(url, allow_hosts=None)

    told: dict[str, object] = {}
    begun = time.monotonic()
    begin = time.monotonic()
    nowhere = open_platform("serve://judge?address=127.0.0.1:1", allow_hosts=None)
    try:
        await nowhere.call(b"{}", key="k", seconds=30)
    except PlatformFault as fault:
        told["nowhere"] = fault.fault
    await nowhere.close()
    told["nowhere_s"] = time.monotonic() - begin
    platform = await make()
    body = encode_request(Request(key="k", trajectory=told_document("k", value=0.5)))
    begin = time.monotonic()
    answer = decode_answer(await platform.call(body, key="k", seconds=60))
    told["cold_s"] = time.monotonic() - begin
    told["first"] = answer.verdict and answer.verdict.score
    times = []
    for _ in range(20):
        begin = time.monotonic()
        await platform.call(body, key="k", seconds=60)
        times.append(time.monotonic() - begin)
    told["warm_s"] = sorted(times)[10]
    missing = open_platform(f"serve://nothing?address={address}", allow_hosts=None)
    try:
        await missing.call(body, key="k", seconds=30)
    except ConfigError as error:
        told["missing"] = str(error)
    await missing.close()
    await platform.close()
    trial = PlatformTrial(
        function=FUNCTION,
        version="v1",
        crashes=True,
        together=False,  # replicas come while calls wait, seconds later
        concurrent=4,
        wait_s=0.2,
        hang_s=3.0,
        threads=64,  # Ray's own
        patience_s=60.0,
    )
    await check_platform(make, trial)
    told["conforms"] = True
    told["took_s"] = time.monotonic() - begun
    return told


if __name__ == "__main__":
    sys.path.insert(0, str(Path.cwd()))
    if len(sys.argv) > 2:
        told = asyncio.run(use(sys.argv[2]))
        Path(sys.argv[1]).write_text(json.dumps(told))
    else:
        serve_it(Path(sys.argv[1]))
