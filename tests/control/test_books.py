"""The books of a run: credits, ledger, task queue and sample buffer."""

import asyncio
from collections import Counter
from dataclasses import replace

import pytest
from hypothesis import given
from hypothesis import strategies as st

from rollart.control.admission import Credits
from rollart.control.ledger import Ledger
from rollart.control.sample_buffer import SampleBuffer
from rollart.control.task_queue import QueuedTask, TaskQueue, next_domain
from rollart.core.events import Disposed, LateResult
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
    sources = {tag: CountedTasks(tag, count) for tag, count in counts.items()}
    return TaskQueue(sources, dict.fromkeys(counts, 1.0))


class TestTaskQueue:
    def test_requeued_tasks_come_first_in_the_order_of_their_return(self) -> None:
        async def main() -> list[tuple[str, int]]:
            tasks = queue(lake=None)
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
            tasks.on_end = lambda: ends.append(loop.time())
            entries = [await tasks.next() for _ in range(2)]
            assert not tasks.exhausted
            loop.call_later(5.0, tasks.requeue, entries[1])
            again = await tasks.next()
            assert (len(ends), loop.time()) == (2, 5.0)
            assert tasks.exhausted
            return again.task.domain

        assert run_virtual(main) == "maze"

    def test_without_any_task_to_come_the_wait_can_never_end(self) -> None:
        async def main() -> None:
            await queue(lake=0).next()

        with pytest.raises(SimulationDeadlock):
            run_virtual(main)

    @given(st.lists(st.sampled_from((0.5, 1.0, 2.0, 5.0)), min_size=1, max_size=4))
    def test_shares_follow_the_weights_over_any_stretch(self, weights: list[float]) -> None:
        by_domain = {f"d{i}": weight for i, weight in enumerate(weights)}
        drawn = dict.fromkeys(by_domain, 0)
        for total in range(1, 101):
            domain = next_domain(drawn, by_domain, set())
            assert domain is not None
            drawn[domain] += 1
            for name, weight in by_domain.items():
                assert abs(drawn[name] - total * weight / sum(weights)) <= len(weights)

    def test_a_domain_that_has_ended_leaves_its_share_to_the_others(self) -> None:
        async def main() -> Counter[str]:
            tasks = queue(lake=2, maze=None)
            return Counter([(await tasks.next()).task.domain for _ in range(10)])

        assert run_virtual(main) == {"lake": 2, "maze": 8}

    def test_a_restored_queue_goes_on_in_the_same_order(self) -> None:
        async def main() -> None:
            tasks, other = queue(lake=None, maze=None), queue(lake=None, maze=None)
            for _ in range(5):
                entry = await tasks.next()
            tasks.requeue(entry)
            other.restore(tasks.snapshot())
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
