"""The router finds the least loaded engine as a look at all of them would, at less cost."""

from dataclasses import dataclass, field

from hypothesis import given
from hypothesis import strategies as st

from rollart.control.routing import SPARE_ENTRIES, Router

HARDWARE = ("fast", "slow")


@dataclass(slots=True)
class Engine:
    """Counts how often it is asked for its load."""

    hardware: str
    requests: int = 0
    asked: list[None] = field(default_factory=list[None])

    @property
    def load(self) -> int:
        self.asked.append(None)
        return self.requests


def least_of_all(engines: dict[str, Engine], wanted: str | None) -> Engine | None:
    fit = [engine for engine in engines.values() if engine.hardware == wanted]
    return min(fit or engines.values(), key=lambda engine: engine.requests, default=None)


@given(
    st.lists(st.sampled_from(HARDWARE), max_size=6),
    st.lists(st.tuples(st.sampled_from((None, *HARDWARE)), st.integers(0, 5)), max_size=60),
)
def test_whatever_comes_and_goes_the_least_loaded_is_chosen_and_the_first_among_equals(
    kinds: list[str], moves: list[tuple[str | None, int]]
) -> None:
    engines = {f"engine-{n}": Engine(kind) for n, kind in enumerate(kinds)}
    router = Router(engines)
    for wanted, number in moves:
        chosen = router.choose(wanted=wanted, holder=None)
        assert chosen is least_of_all(engines, wanted)
        if chosen is not None:
            chosen.requests += 1
        eased = engines.get(f"engine-{number}")
        if eased is not None and eased.requests:
            eased.requests -= 1
            router.eased(f"engine-{number}")


def test_an_engine_that_is_not_routable_may_finish_its_requests() -> None:
    engines = {"engine-0": Engine("fast")}
    router = Router(engines)
    router.eased("engine-9")
    assert router.choose(wanted=None, holder="engine-9") is engines["engine-0"]


def test_a_choice_among_many_engines_looks_at_few() -> None:
    engines = {f"engine-{n}": Engine("fast") for n in range(1000)}
    router = Router(engines)
    for _ in range(10):  # each engine is chosen and eased so often, and has one request meanwhile
        for name, engine in engines.items():
            chosen = router.choose(wanted="fast", holder=None)
            assert chosen is engine
            engine.requests += 1
            engine.requests -= 1
            router.eased(name)
            engine.requests += 1
        for name, engine in engines.items():
            engine.requests -= 1
            router.eased(name)
    asked = sum(len(engine.asked) for engine in engines.values())
    assert asked < 12 * 10 * len(engines) + SPARE_ENTRIES
