"""A function behind functions-framework, which Cloud Run and Knative run."""

import asyncio
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from pathlib import Path

import pytest

from rollart.backends.rewards.opening import open_platform
from rollart.backends.rewards.platform import Fault, Platform, PlatformFault
from rollart.core.scoring.wire import Request, decode_answer, encode_request
from rollart.testing.conformance.platform import PlatformTrial, check_platform
from rollart.testing.loopback.apart import Apart
from rollart.testing.loopback.functions_framework import FunctionsFramework
from rollart.testing.platform import told_document


@pytest.mark.real
def test_http_conforms_with_the_real_functions_framework(deployed: Path) -> None:
    with Apart("framework", deployed, threads=16) as framework:

        async def make() -> Platform:
            return open_platform(framework.url, allow_hosts=None)

        @asynccontextmanager
        async def gone() -> AsyncIterator[None]:
            framework.down()
            yield
            framework.up()

        trial = PlatformTrial(
            function="judge:score",
            version="v1",
            hang_s=5.0,
            faults={"unavailable": gone},
        )
        asyncio.run(check_platform(make, trial))


@pytest.mark.real
def test_a_function_that_ends_its_process_costs_one_call(deployed: Path) -> None:
    async def main() -> None:
        async with FunctionsFramework(deployed) as framework:
            platform = open_platform(framework.url, allow_hosts=None)
            # 3 would be gunicorn's own word for a worker that cannot start; it would give up
            exits = encode_request(Request(key="x", trajectory=told_document("x", exit=7)))
            with pytest.raises(PlatformFault) as raised:
                await platform.call(exits, key="x", seconds=20)
            assert raised.value.fault is Fault.LOST  # its server says nothing of it
            good = encode_request(Request(key="k", trajectory=told_document("k", value=0.5)))
            answer = decode_answer(await platform.call(good, key="k", seconds=20))
            assert answer.verdict is not None
            assert answer.verdict.score == 0.5
            await platform.close()

    asyncio.run(main())
