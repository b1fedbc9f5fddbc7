from rollart.core.events import Committed, Event, Stamped, Warned
from rollart.observe.recorder import SET_ASIDE_S, Recorder


class Clock:
    def __init__(self) -> None:
        self.now = 0.0

    def __call__(self) -> float:
        return self.now


def versions(events: list[Stamped]) -> list[int]:
    return [s.event.version for s in events if isinstance(s.event, Committed)]


def warnings(events: list[Stamped]) -> list[str]:
    return [s.event.message for s in events if isinstance(s.event, Warned)]


def test_events_are_stamped_with_loop_time_order_and_incarnation() -> None:
    clock, seen = Clock(), list[Stamped]()
    recorder = Recorder(clock, incarnation=2, next_seq=40)
    recorder.attach("list", seen.append)
    recorder.emit(Committed(version=1))
    clock.now = 1.5
    recorder.emit(Committed(version=2))
    assert [(s.time, s.seq, s.incarnation) for s in seen] == [(0.0, 40, 2), (1.5, 41, 2)]


def test_a_consumer_that_raises_disturbs_nobody_and_is_warned_of_once_a_minute() -> None:
    clock, seen, calls = Clock(), list[Stamped](), list[float]()

    def broken(stamped: Stamped) -> None:
        calls.append(stamped.time)
        raise RuntimeError("no network")

    recorder = Recorder(clock)
    recorder.attach("tensorboard", broken)
    recorder.attach("log", seen.append)
    minutes = 3
    for tick in range(minutes * 60):
        clock.now = float(tick)
        recorder.emit(Committed(version=tick))
    assert versions(seen) == list(range(minutes * 60))
    assert [s.seq for s in seen] == list(range(len(seen)))
    assert len(warnings(seen)) == minutes
    assert "tensorboard raised RuntimeError: no network" in warnings(seen)[0]
    assert calls == [0.0, SET_ASIDE_S, 2 * SET_ASIDE_S]


def test_a_consumer_that_recovers_gets_events_again() -> None:
    clock, got = Clock(), list[int]()

    def shaky(stamped: Stamped) -> None:
        if stamped.time == 0.0:
            raise OSError("disk full")
        if isinstance(stamped.event, Committed):
            got.append(stamped.event.version)

    recorder = Recorder(clock)
    recorder.attach("shaky", shaky)
    for tick in (0, 10, 59, 60, 61):
        clock.now = float(tick)
        recorder.emit(Committed(version=tick))
    assert got == [60, 61]


def test_an_event_emitted_by_a_consumer_comes_after_the_present_one_for_everybody() -> None:
    clock, first, last = Clock(), list[Stamped](), list[Stamped]()
    recorder = Recorder(clock)

    def echo(stamped: Stamped) -> None:
        if isinstance(stamped.event, Committed):
            recorder.warn(f"saw {stamped.event.version}")

    recorder.attach("first", first.append)
    recorder.attach("echo", echo)
    recorder.attach("last", last.append)
    recorder.emit(Committed(version=1))
    recorder.emit(Committed(version=2))
    assert first == last
    assert [type(s.event).__name__ for s in last] == ["Committed", "Warned"] * 2
    assert [s.seq for s in last] == [0, 1, 2, 3]


def test_a_recorder_is_an_event_sink() -> None:
    from rollart.core.ports import EventSink

    sink: EventSink = Recorder(lambda: 0.0)
    event: Event = Committed(version=0)
    sink.emit(event)
