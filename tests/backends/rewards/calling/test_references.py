"""Documents above a platform's limit go by way of a store, while their call lasts."""

import asyncio
import hashlib
import json
import os
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

import pytest

from rollart.backends.rewards.calling.references import THREADS, References
from rollart.backends.rewards.platform import Fault, PlatformFault
from rollart.core.errors import ConfigError, FailureKind
from rollart.core.scoring.handle import Handler
from rollart.core.scoring.wire import Request, decode_answer, encode_request
from rollart.runtimes.sim.loop import run_virtual
from rollart.testing.platform import ANSWERS, FUNCTION, VERSION, Act, score_as_told, told_document

SIX_MB = 6 * 1024 * 1024
FILLING = "x" * (7 * 1024 * 1024)


class MemoryObjects:
    """A store that takes its time, and may fail."""

    def __init__(self, write_s: float = 0.0, failures: int = 0) -> None:
        self.held: dict[str, bytes] = {}
        self.written = 0
        self._write_s = write_s
        self._failures = failures

    async def write(self, url: str, data: bytes) -> None:
        self.held[url] = data[: len(data) // 2]
        await asyncio.sleep(self._write_s)
        if self._failures:
            self._failures -= 1
            raise OSError("the disk is full")
        self.held[url] = data
        self.written += 1

    async def remove(self, url: str) -> None:
        del self.held[url]


def test_seven_megabytes_go_by_reference_and_are_removed_afterwards(rig: Any) -> None:
    objects = MemoryObjects()

    def play(n: int, time: float, request: Request) -> Act:
        assert request.trajectory is None
        assert request.reference is not None
        data = objects.held[request.reference.url]
        assert len(data) == request.reference.size > SIX_MB
        assert hashlib.sha256(data).hexdigest() == request.reference.sha256
        value = json.loads(data)["task"]["payload"]["value"]
        return Act(fault="unavailable") if n == 0 else Act(seconds=0.1, score=value)

    async def main() -> None:
        store = References("s3://bucket/rewards", objects=objects)
        made = rig(play, body_bytes=SIX_MB, store=store)
        outcome = await made.score(value=0.5, filling=FILLING)
        assert outcome.verdict.score == 0.5
        assert outcome.by_reference
        assert outcome.sent_bytes < 1000
        assert (outcome.tries, objects.written) == (2, 1)
        await store.close()
        assert objects.held == {}
        small = await rig(store=store).score()
        assert not small.by_reference

    run_virtual(main)


def test_above_the_limit_with_no_store_is_told_with_size_limit_and_remedy(rig: Any) -> None:
    async def main() -> None:
        made = rig(body_bytes=SIX_MB)
        outcome = await made.score(filling=FILLING)
        assert outcome.verdict.score is None
        assert outcome.verdict.failure is FailureKind.REWARD_ERROR
        for said in (str(SIX_MB), "7340", "?store="):
            assert said in outcome.verdict.reason
        assert made.requests == outcome.tries == 0
        assert asyncio.get_running_loop().time() == 0

    run_virtual(main)


def test_the_limit_holds_for_the_encoded_request(rig: Any) -> None:
    """A quotation mark takes two bytes and a character of another script three."""

    async def main() -> None:
        for filling in ('"' * 600, "冰" * 400):
            made = rig(body_bytes=1500)
            assert (await made.score(filling=filling)).verdict.score is None
        fits = rig(body_bytes=1500)
        outcome = await fits.score(filling="x" * 600)
        assert outcome.verdict.score == 1.0
        assert 1000 < outcome.sent_bytes <= 1500

    run_virtual(main)


def test_a_store_that_fails_is_tried_again_and_named(rig: Any) -> None:
    async def main() -> None:
        objects = MemoryObjects(failures=2)
        store = References("s3://bucket", objects=objects)
        made = rig(lambda n, time, request: Act(score=0.5), body_bytes=100, store=store)
        assert (await made.score()).verdict.score == 0.5
        broken = References("s3://bucket", objects=MemoryObjects(failures=10**6))
        made = rig(body_bytes=100, store=broken, breaker_failures=1)
        outcome = await made.score(seconds=5.0)
        assert outcome.verdict.failure is FailureKind.REWARD_TIMEOUT
        assert "s3://bucket: OSError: the disk is full" in outcome.verdict.reason
        assert made.states == []  # it says nothing about the platform
        for one in (store, broken):
            await one.close()
        assert objects.held == {}

    run_virtual(main)


@pytest.mark.parametrize("when", [0.5, 1.5])
def test_a_cancelled_call_leaves_no_document(rig: Any, when: float) -> None:
    """While it is written, which goes on to its end; while the function works."""

    async def main() -> None:
        objects = MemoryObjects(write_s=1.0)
        store = References("s3://bucket", objects=objects)
        made = rig(lambda n, time, request: Act(seconds=9.0), body_bytes=100, store=store)
        call = asyncio.ensure_future(made.score())
        await asyncio.sleep(when)
        call.cancel()
        await asyncio.wait((call,))
        assert asyncio.get_running_loop().time() == when
        await store.close()
        assert objects.held == {}
        assert asyncio.all_tasks() == {asyncio.current_task()}

    run_virtual(main)


def test_equal_documents_are_one_object_until_the_last_is_done_with() -> None:
    async def main() -> None:
        objects = MemoryObjects(write_s=1.0)
        store = References("s3://bucket/", objects=objects)
        one, two = await asyncio.gather(store.put(b"document"), store.put(b"document"))
        assert one == two
        assert objects.written == 1
        store.drop(one)
        await asyncio.sleep(0.1)
        assert list(objects.held) == [two.url]
        store.drop(two)
        again = await store.put(b"document")  # while it is being removed
        assert objects.held[again.url] == b"document"
        store.drop(again)
        await store.close()
        assert objects.held == {}

    run_virtual(main)


def test_a_write_given_up_is_not_taken_for_a_whole_document() -> None:
    async def main() -> None:
        objects = MemoryObjects(write_s=1.0, failures=1)
        store = References("s3://bucket", objects=objects)
        first = asyncio.ensure_future(store.put(b"document"))
        await asyncio.sleep(0.5)
        second = asyncio.ensure_future(store.put(b"document"))
        with pytest.raises(PlatformFault) as caught:
            await first
        assert caught.value.fault is Fault.UNAVAILABLE
        found = await second
        assert objects.held[found.url] == b"document"
        store.drop(found)
        await store.close()
        assert objects.held == {}

    run_virtual(main)


def test_a_store_that_hangs_is_unavailable_in_time_and_what_it_writes_late_is_removed() -> None:
    async def main() -> None:
        objects = MemoryObjects(write_s=100.0)
        store = References("s3://bucket", objects=objects, seconds=60.0)
        with pytest.raises(PlatformFault, match="not written within 60 s") as caught:
            await store.put(b"document")
        assert caught.value.fault is Fault.UNAVAILABLE
        assert asyncio.get_running_loop().time() == 60.0
        await store.close()
        assert asyncio.get_running_loop().time() == 100.0
        assert objects.held == {}
        await store.close()

    run_virtual(main)


def test_close_does_not_wait_for_a_store_that_hangs_for_good() -> None:
    async def main() -> None:
        store = References("s3://bucket", objects=MemoryObjects(write_s=1e9), seconds=5.0)
        with pytest.raises(PlatformFault):
            await store.put(b"document")
        await store.close()
        assert asyncio.get_running_loop().time() == 10.0
        assert asyncio.all_tasks() == {asyncio.current_task()}

    run_virtual(main)


def test_names_are_resolved_while_every_thread_of_the_store_hangs(tmp_path: Path) -> None:
    """Names are resolved in the loop's own threads. A pipe that nobody reads hangs its writer."""

    async def main() -> None:
        loop = asyncio.get_running_loop()
        few = ThreadPoolExecutor(1)
        loop.set_default_executor(few)
        store = References(tmp_path.as_uri())
        data = [b"%d" % i for i in range(2 * THREADS)]
        pipes = [tmp_path / f"{hashlib.sha256(one).hexdigest()}.json" for one in data]
        for pipe in pipes:
            os.mkfifo(pipe)
        puts = [asyncio.ensure_future(store.put(one)) for one in data]
        await asyncio.sleep(0.2)
        assert not any(put.done() for put in puts)
        async with asyncio.timeout(5.0):
            assert await loop.getaddrinfo("localhost", 80)
        readers = [os.open(pipe, os.O_RDWR) for pipe in pipes]
        for reference in await asyncio.gather(*puts):
            store.drop(reference)
        await store.close()
        for reader in readers:
            os.close(reader)

    asyncio.run(main())


@pytest.mark.parametrize("scheme", ["file", "memory"])
def test_a_function_finds_what_was_stored(tmp_path: Path, scheme: str) -> None:
    folder = (tmp_path / "a folder").as_uri() if scheme == "file" else "memory://rewards"
    handler = Handler(score_as_told, path=FUNCTION, version=VERSION, store=folder)

    async def main() -> None:
        store = References(folder)
        reference = await store.put(json.dumps(told_document(value=0.5)).encode())
        request = encode_request(Request(key="k", reference=reference))
        verdict = decode_answer(handler.handle(request)).verdict
        assert verdict is not None
        assert verdict.score == 0.5
        store.drop(reference)
        await store.close()
        assert "k" not in decode_answer(handler.handle(request)).error
        assert decode_answer(handler.handle(request)).verdict is None

    asyncio.run(main())


def test_a_store_that_nothing_serves_is_refused_with_the_remedy() -> None:
    for url in ("nowhere://bucket", "/a/folder", "s3x"):
        with pytest.raises(ConfigError, match=r"\?store="):
            References(url)


def test_a_folder_is_made_in_one_that_is_there_and_nowhere_else(tmp_path: Path) -> None:
    async def main() -> None:
        store = References((tmp_path / "new").as_uri())
        await store.check(5.0)
        assert not (tmp_path / "new").exists()
        store.drop(await store.put(b"document"))
        await store.close()
        assert [*(tmp_path / "new").iterdir()] == []
        (tmp_path / "file").write_text("precious")
        for wrong, why in (
            ("moutn/rewards", f"no folder {tmp_path / 'moutn'} to make it in"),
            ("file", "is no folder"),
            ("file/deeper", "no folder"),
        ):
            store = References((tmp_path / wrong).as_uri())
            with pytest.raises(ConfigError, match=why):
                await store.check(5.0)
            with pytest.raises(PlatformFault, match=why):
                await store.put(b"document")
            await store.close()

    asyncio.run(main())
    assert sorted(one.name for one in tmp_path.iterdir()) == ["file", "new"]


def test_a_folder_that_does_not_answer_is_refused_in_time(tmp_path: Path) -> None:
    """A pipe that nobody reads hangs its writer, and so every thread of the store."""

    async def main() -> None:
        store = References(tmp_path.as_uri())
        data = [b"%d" % i for i in range(THREADS)]
        pipes = [tmp_path / f"{hashlib.sha256(one).hexdigest()}.json" for one in data]
        for pipe in pipes:
            os.mkfifo(pipe)
        puts = [asyncio.ensure_future(store.put(one)) for one in data]
        await asyncio.sleep(0.2)
        try:
            with pytest.raises(ConfigError, match=r"does not answer within 0\.2 s"):
                await store.check(0.2)
        finally:
            readers = [os.open(pipe, os.O_RDWR) for pipe in pipes]
        for reference in await asyncio.gather(*puts):
            store.drop(reference)
        await store.close()
        for reader in readers:
            os.close(reader)

    asyncio.run(main())


def test_a_folder_whose_parent_is_gone_by_then_is_not_made(tmp_path: Path) -> None:
    """A disk was unmounted in a run: what would be stored must not fill the one below it."""

    async def main() -> None:
        (tmp_path / "disk").mkdir()
        store = References((tmp_path / "disk/rewards").as_uri())
        (tmp_path / "disk").rmdir()
        with pytest.raises(PlatformFault, match=f"no folder {tmp_path / 'disk'} to make it in"):
            await store.put(b"document")
        await store.close()

    asyncio.run(main())
    assert [*tmp_path.iterdir()] == []


def test_answers_need_no_store(rig: Any) -> None:
    async def main() -> None:
        assert (await rig(lambda n, time, request: ANSWERS).score(value=2.0)).verdict.score == 2.0

    run_virtual(main)
