"""The books of a run: credits, ledger, task queue and sample buffer."""

import asyncio
from collections import Counter
from collections.abc import AsyncGenerator, Mapping
from contextlib import asynccontextmanager
from dataclasses import replace

import pytest
from hypothesis import given
from hypothesis import strategies as st

from rollart.control.admission import Credits, domain_limits
from rollart.control.ledger import Ledger
from rollart.control.sample_buffer import SampleBuffer
from rollart.control.task_queue import QueuedTask, TaskQueue, next_domain
from rollart.core.events import Disposed, DomainClosed, LateResult, Warned
from rollart.core.ports import TaskSource
from rollart.core.types import Disposition, Task
from rollart.runtimes.sim.loop import SimulationDeadlock, run_virtual
from rollart.testing.parts import CountedTasks, EventRecorder
from rollart.testing.rig import identity
from rollart.testing.samples import sample_group


class TestCredits:
    def test_who_asks_waits_until_a_credit_is_given_back(self) -> None:
        async def main() -> float:
            held = Credits(2)
            held.take()
            held.take()
            asyncio.get_running_loop().call_later(3.0, held.give_back, 1)
            await held.available()
            return asyncio.get_running_loop().time()

        assert run_virtual(main) == 3.0

    def test_more_than_was_taken_cannot_be_given_back(self) -> None:
        held = Credits(2)
        held.take()
        with pytest.raises(RuntimeError, match="2 credits given back, 1 outstanding"):
            held.give_back(2)
        with pytest.raises(RuntimeError, match="-1 credits"):
            held.give_back(-1)

    def test_no_domain_may_hold_the_shares_that_the_others_have_in_a_batch(self) -> None:
        limits = domain_limits({"slow": 1.0, "fast": 3.0}, batch_groups=8, capacity=16)
        assert limits == {"slow": 10, "fast": 14}
        assert domain_limits({"lake": 2.0}, batch_groups=8, capacity=8) == {"lake": 8}
        crowd = domain_limits(dict.fromkeys("abcdef", 1.0), batch_groups=2, capacity=4)
        assert crowd == dict.fromkeys("abcdef", 1)

    def test_a_capacity_of_nothing_is_refused(self) -> None:
        with pytest.raises(ValueError, match="capacity is 0"):
            Credits(0)


class TestLedger:
    def test_what_starts_leaves_once_and_a_late_leaving_changes_nothing(self) -> None:
        async def main() -> None:
            events = EventRecorder()
            ledger = Ledger(events)
            first, again = identity(), replace(identity(), attempt=1)
            ledger.start(first)
            assert ledger.leave(first, Disposition.FAILED, reason="attempt 0 took too long")
            ledger.start(again)
            assert ledger.leave(again, Disposition.TRAINED)
            assert not ledger.leave(first, Disposition.TRAINED)
            assert not ledger.leave(identity(9), Disposition.TRAINED)
            assert (ledger.count(Disposition.FAILED), ledger.count(Disposition.TRAINED)) == (1, 1)
            assert len(events.of(Disposed)) == len(events.of(LateResult)) == 2
            assert ledger.balance(step=1, buffered=0, in_flight=0).balanced

        run_virtual(main)

    def test_nothing_starts_twice_at_once(self) -> None:
        ledger = Ledger(EventRecorder())
        ledger.start(identity())
        with pytest.raises(ValueError, match="started already"):
            ledger.start(identity())

    def test_a_balance_compares_the_books_with_the_live_objects(self) -> None:
        ledger = Ledger(EventRecorder())
        for member in range(3):
            ledger.start(identity(member))
        assert ledger.balance(step=0, buffered=2, in_flight=1).balanced
        assert not ledger.balance(step=0, buffered=2, in_flight=0).balanced
        assert ledger.open == 3

    def test_a_snapshot_keeps_what_comes_back_and_cancels_the_rest(self) -> None:
        async def main() -> None:
            ledger, restored = Ledger(EventRecorder()), Ledger(EventRecorder())
            for member in range(4):
                ledger.start(identity(member))
            ledger.leave(identity(0), Disposition.TRAINED)
            restored.restore(ledger.snapshot([identity(1), identity(0)]))
            assert restored.started == 4
            assert restored.balance(step=0, buffered=1, in_flight=0).balanced
            assert restored.count(Disposition.CANCELLED) == 2
            assert restored.leave(identity(1), Disposition.TRAINED)
            assert not restored.leave(identity(2), Disposition.TRAINED)

        run_virtual(main)


def queue(**counts: int | None) -> TaskQueue:
    """One source a domain, all of weight 1."""
    return queue_of({tag: CountedTasks(tag, count) for tag, count in counts.items()})


def queue_of(sources: Mapping[str, TaskSource], events: EventRecorder | None = None) -> TaskQueue:
    return TaskQueue(sources, dict.fromkeys(sources, 1.0), events or EventRecorder())


@asynccontextmanager
async def drawing(*queues: TaskQueue) -> AsyncGenerator[None]:
    """The queues draw from their sources."""
    async with asyncio.TaskGroup() as group:
        for tasks in queues:
            tasks.start(group)
        yield
        for tasks in queues:
            tasks.stop()


class Waiting(CountedTasks):
    """Gives its first task after `seconds`."""

    def __init__(self, seconds: float) -> None:
        super().__init__("slow", None)
        self._seconds = seconds

    async def next(self) -> Task | None:
        await asyncio.sleep(self._seconds)
        return await super().next()


class Failing(CountedTasks):
    def __init__(self) -> None:
        super().__init__("bad", None)

    async def next(self) -> Task | None:
        raise FileNotFoundError("no such file")


class TestTaskQueue:
    def test_requeued_tasks_come_first_in_the_order_of_their_return(self) -> None:
        async def main() -> list[tuple[str, int]]:
            tasks = queue(lake=None)
            async with drawing(tasks):
                first, second = await tasks.next(), await tasks.next()
                tasks.requeue(second)
                tasks.requeue(first, failed=True)
                drawn = [await tasks.next() for _ in range(3)]
            assert [entry.failures for entry in drawn] == [0, 1, 0]
            return [(entry.task.key, entry.requeues) for entry in drawn]

        assert run_virtual(main) == [("task-1", 1), ("task-0", 1), ("task-2", 0)]

    def test_when_all_sources_have_ended_the_next_task_is_a_requeued_one(self) -> None:
        async def main() -> str:
            tasks, ends = queue(lake=1, maze=1), list[float]()
            loop = asyncio.get_running_loop()
            tasks.on_change = lambda: ends.append(loop.time())
            async with drawing(tasks):
                entries = [await tasks.next() for _ in range(2)]
                loop.call_later(5.0, tasks.requeue, entries[1])
                again = await tasks.next()
            assert (len(ends), loop.time()) == (2, 5.0)
            assert tasks.exhausted
            return again.task.domain

        assert run_virtual(main) == "maze"

    def test_without_any_task_to_come_the_wait_can_never_end(self) -> None:
        async def main() -> None:
            tasks = queue(lake=0)
            async with drawing(tasks):
                await tasks.next()

        with pytest.raises(SimulationDeadlock):
            run_virtual(main)

    @given(st.lists(st.sampled_from((0.5, 1.0, 2.0, 5.0)), min_size=1, max_size=4))
    def test_shares_follow_the_weights_over_any_stretch(self, weights: list[float]) -> None:
        by_domain = {f"d{i}": weight for i, weight in enumerate(weights)}
        drawn = dict.fromkeys(by_domain, 0)
        for total in range(1, 101):
            domain = next_domain(drawn, by_domain, list(by_domain))
            assert domain is not None
            drawn[domain] += 1
            for name, weight in by_domain.items():
                assert abs(drawn[name] - total * weight / sum(weights)) <= len(weights)

    def test_a_domain_that_has_ended_leaves_its_share_to_the_others(self) -> None:
        async def main() -> Counter[str]:
            tasks = queue(lake=2, maze=None)
            async with drawing(tasks):
                return Counter([(await tasks.next()).task.domain for _ in range(10)])

        assert run_virtual(main) == {"lake": 2, "maze": 8}

    def test_a_slow_source_holds_back_its_own_domain_only_and_starving_is_told(self) -> None:
        async def main() -> Counter[str]:
            events = EventRecorder()
            tasks = queue_of({"slow": Waiting(100.0), "lake": CountedTasks("lake", None)}, events)
            loop, drawn = asyncio.get_running_loop(), Counter[str]()
            async with drawing(tasks):
                while loop.time() < 99.0:
                    drawn[(await tasks.next()).task.domain] += 1
                    await asyncio.sleep(1.0)
            late, starves = [warning.message for warning in events.of(Warned)]
            assert "domain slow took over 1 s to give a task: the others go first" in late
            assert starves == (
                "domain slow starves: its source gave no task for 30 s; the other domains go on"
            )
            return drawn

        assert run_virtual(main) == {"lake": 98}

    def test_a_source_that_fails_closes_its_domain_and_says_so(self) -> None:
        async def main() -> Counter[str]:
            events = EventRecorder()
            tasks = queue_of({"bad": Failing(), "lake": CountedTasks("lake", None)}, events)
            async with drawing(tasks):
                drawn = Counter([(await tasks.next()).task.domain for _ in range(5)])
            assert events.of(DomainClosed) == [
                DomainClosed(domain="bad", reason="its tasks failed: no such file")
            ]
            assert tasks.open_domains == ("lake",)
            return drawn

        assert run_virtual(main) == {"lake": 5}

    def test_a_closed_domain_gives_nothing_back_that_it_had_waiting(self) -> None:
        async def main() -> None:
            tasks = queue(lake=None, maze=None)
            async with drawing(tasks):
                entry = await tasks.next()
                tasks.close(entry.task.domain, "all its groups failed")
                tasks.requeue(entry)
                others = {(await tasks.next()).task.domain for _ in range(4)}
                assert others == {"maze"}

        run_virtual(main)

    def test_a_domain_that_may_not_admit_is_passed_over_also_where_it_was_requeued(self) -> None:
        async def main() -> None:
            tasks = queue(lake=None, maze=None)
            async with drawing(tasks):
                tasks.requeue(await tasks.next(lambda domain: domain == "lake"))
                assert (await tasks.next(lambda domain: domain == "maze")).requeues == 0
                assert (await tasks.next()).requeues == 1

        run_virtual(main)

    def test_a_restored_queue_goes_on_in_the_same_order(self) -> None:
        async def main() -> None:
            tasks, other = queue(lake=None, maze=None), queue(lake=None, maze=None)
            async with drawing(tasks):
                for _ in range(5):
                    entry = await tasks.next()
                tasks.requeue(entry)
                other.restore(tasks.snapshot())
                async with drawing(other):
                    for _ in range(6):
                        assert await tasks.next() == await other.next()

        run_virtual(main)


class TestSampleBuffer:
    def test_a_batch_takes_the_oldest_starts_first_and_leaves_the_rest_in_place(self) -> None:
        buffer = SampleBuffer()
        for number, start in enumerate((3, 1, 2, 1, 3, 2, 1, 0, 4, 4)):
            buffer.put(sample_group(number, start=start))
        assert [group.id for group in buffer.take(4)] == [7, 1, 3, 6]
        assert [group.id for group in buffer.snapshot()] == [0, 2, 4, 5, 8, 9]
        assert (len(buffer), buffer.trajectories) == (6, 12)
        assert [group.id for group in buffer.take(10)] == [2, 5, 0, 4, 8, 9]
        assert buffer.take(1) == ()

    def test_what_is_condemned_leaves_whole_and_nothing_else_does(self) -> None:
        buffer = SampleBuffer()
        for number in range(4):
            buffer.put(sample_group(number, start=number))
        gone = buffer.evict(lambda group: group.start_version < 2)
        assert [group.id for group in gone] == [0, 1]
        assert [group.id for group in buffer.snapshot()] == [2, 3]

    def test_the_oldest_start_is_that_of_the_groups_that_are_left(self) -> None:
        buffer = SampleBuffer()
        assert buffer.oldest_start is None
        for number, start in enumerate((3, 1, 2, 1)):
            buffer.put(sample_group(number, start=start))
        assert buffer.oldest_start == 1
        buffer.take(1)
        assert buffer.oldest_start == 1
        buffer.evict(lambda group: group.start_version == 1)
        assert buffer.oldest_start == 2
        other = SampleBuffer()
        other.restore(buffer.snapshot())
        other.take(1)
        assert other.oldest_start == 3

    def test_a_group_cannot_be_put_twice(self) -> None:
        buffer = SampleBuffer()
        buffer.put(sample_group(1))
        with pytest.raises(ValueError, match="group 1 is in the buffer already"):
            buffer.put(sample_group(1))

    def test_who_waits_hears_of_each_change_also_of_one_that_came_before(self) -> None:
        async def main() -> list[float]:
            buffer, heard, loop = SampleBuffer(), list[float](), asyncio.get_running_loop()
            buffer.put(sample_group(0))
            loop.call_later(2.0, buffer.put, sample_group(1))
            loop.call_later(3.0, buffer.wake)
            for _ in range(3):
                await buffer.changed()
                heard.append(loop.time())
            return heard

        assert run_virtual(main) == [0.0, 2.0, 3.0]

    def test_a_restored_buffer_holds_the_same_groups_in_the_same_order(self) -> None:
        buffer, other = SampleBuffer(), SampleBuffer()
        for number in (5, 3, 4):
            buffer.put(sample_group(number))
        other.restore(buffer.snapshot())
        assert other.snapshot() == buffer.snapshot()


def test_a_task_that_comes_again_keeps_count_of_why() -> None:
    entry = QueuedTask(task=Task(domain="lake", key="task-0"))
    assert entry.again().again(failed=True) == replace(entry, requeues=2, failures=1)
