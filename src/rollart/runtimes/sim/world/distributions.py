"""Distributions as a world file spells them, and numbers drawn from them by name.

Invariant: a draw is a pure function of a distribution and of a place in 0..1, and the place comes
from names alone, so the order of draws changes nothing.

    2.5                                             always the same
    { uniform = [30, 50] }                          between two
    { exponential = 60 }                            by its mean
    { lognormal = { median = 150, sigma = 0.7 } }   by its median, or by its mean
    { normal = { mean = 10, sigma = 3 } }           truncated at 0
    { values = [1, 1, 4] }                          one of these, each as likely

Each but the first may have `most = 400` (larger draws become that) and
`tail = { chance = 1e-3, up_to = 40 }`: so often, something between the mean and so many times it.
"""

import math
from collections.abc import Callable
from hashlib import blake2b
from statistics import NormalDist
from typing import Annotated

from pydantic import Field, model_validator

from rollart.core.config import Section
from rollart.core.identity import derive_seed

NotNegative = Annotated[float, Field(ge=0)]
Above0 = Annotated[float, Field(gt=0)]
Chance = Annotated[float, Field(ge=0, le=1)]

_STANDARD = NormalDist()
_PLACES = 52
"""Bits of a place: so many, and a half, are exact in a float."""
_LAST = 1 - 2**-53
"""The last place before 1 that a float can say."""

Drawer = Callable[[float], float]
"""The value at a place in 0..1."""


class Lognormal(Section):
    """By its median or its mean; `sigma` is of the logarithm."""

    median: Above0 | None = None
    mean: Above0 | None = None
    sigma: NotNegative

    @model_validator(mode="after")
    def one_middle(self) -> "Lognormal":
        if (self.median is None) == (self.mean is None):
            raise ValueError(
                "needs a median or a mean, not both; use { median = 150, sigma = 0.7 }"
            )
        return self

    @property
    def middle(self) -> float:
        """The median."""
        if self.median is not None:
            return self.median
        assert self.mean is not None
        return self.mean / math.exp(self.sigma**2 / 2)


class Normal(Section):
    """Mean and sigma of the whole; what lies below 0 is never drawn, so what is drawn is more."""

    mean: NotNegative
    sigma: NotNegative


class Tail(Section):
    """With this chance a draw lies between the mean and `up_to` times it, evenly by magnitude."""

    chance: Chance
    up_to: Annotated[float, Field(gt=1)]


class Distribution(Section):
    """What a key of a world file may hold; see the module."""

    constant: NotNegative | None = None
    uniform: Annotated[tuple[NotNegative, NotNegative] | None, Field(strict=False)] = None
    exponential: Above0 | None = None
    lognormal: Lognormal | None = None
    normal: Normal | None = None
    values: Annotated[tuple[NotNegative, ...] | None, Field(strict=False, min_length=1)] = None
    tail: Tail | None = None
    most: Above0 | None = None

    @model_validator(mode="before")
    @classmethod
    def a_number_is_a_constant(cls, given: object) -> object:
        number = isinstance(given, int | float) and not isinstance(given, bool)
        return {"constant": given} if number else given

    @model_validator(mode="after")
    def one_shape(self) -> "Distribution":
        shapes = [name for name in SHAPES if getattr(self, name) is not None]
        if len(shapes) != 1:
            said = " and ".join(shapes) or "no shape"
            raise ValueError(
                f"says {said}; use a number, or one of {', '.join(SHAPES)}, such as "
                "{ uniform = [1, 4] }"
            )
        if self.uniform is not None and self.uniform[0] > self.uniform[1]:
            low, high = self.uniform
            raise ValueError(f"uniform = [{low:g}, {high:g}]: from more to less; swap them")
        return self


SHAPES = ("constant", "uniform", "exponential", "lognormal", "normal", "values")


def constant(value: float) -> Distribution:
    """Always `value`."""
    return Distribution(constant=value)


def uniform(low: float, high: float) -> Distribution:
    """Evenly between two."""
    return Distribution(uniform=(low, high))


def mean_of(distribution: Distribution) -> float:
    """The mean of the shape, its tail and limit left out."""
    d = distribution
    if d.constant is not None:
        return d.constant
    if d.uniform is not None:
        return sum(d.uniform) / 2
    if d.exponential is not None:
        return d.exponential
    if d.lognormal is not None:
        return d.lognormal.middle * math.exp(d.lognormal.sigma**2 / 2)
    if d.normal is not None:
        return _mean_above_0(d.normal)
    assert d.values is not None
    return sum(d.values) / len(d.values)


def _mean_above_0(normal: Normal) -> float:
    if normal.sigma == 0:
        return normal.mean
    start = -normal.mean / normal.sigma
    return normal.mean + normal.sigma * _STANDARD.pdf(start) / (1 - _STANDARD.cdf(start))


def least(distribution: Distribution) -> float:
    """What no draw is below."""
    return drawer(distribution)(0.5 / (1 << _PLACES))


def most_of(distribution: Distribution) -> float:
    """What no draw is above; infinite where there is no bound."""
    d = distribution
    bound = math.inf
    if d.constant is not None:
        bound = d.constant
    elif d.uniform is not None:
        bound = d.uniform[1]
    elif d.values is not None:
        bound = max(d.values)
    if d.tail is not None and d.tail.chance > 0:
        bound = max(bound, mean_of(d) * d.tail.up_to)
    return bound if d.most is None else min(bound, d.most)


def drawer(distribution: Distribution) -> Drawer:
    """The values of a distribution by place, least first."""
    body = _shape(distribution)
    tail, most = distribution.tail, distribution.most
    if tail is not None and tail.chance > 0:
        body = _with_tail(body, tail, mean_of(distribution))
    if most is None:
        return body
    return lambda place: min(body(place), most)


def counter(distribution: Distribution) -> Callable[[float], int]:
    """The same in whole numbers from 1 on; those of a uniform shape are all as likely."""
    if distribution.uniform is not None and distribution.tail is None:
        low, high = map(round, distribution.uniform)
        most = distribution.most
        high = high if most is None else min(high, int(most))
        return lambda place: max(1, low + int(place * (high - low + 1)))
    body = drawer(distribution)
    return lambda place: max(1, round(body(place)))


def is_constant(distribution: Distribution) -> bool:
    """Whether every draw is the same, so that none need be made."""
    return distribution.constant is not None and distribution.tail is None


def _shape(d: Distribution) -> Drawer:
    if d.constant is not None:
        value = d.constant
        return lambda place: value
    if d.uniform is not None:
        low, high = d.uniform
        return lambda place: low + place * (high - low)
    if d.exponential is not None:
        mean = d.exponential
        return lambda place: -mean * math.log1p(-place)
    if d.lognormal is not None:
        median, sigma = d.lognormal.middle, d.lognormal.sigma
        return lambda place: median * math.exp(sigma * _STANDARD.inv_cdf(place))
    if d.normal is not None:
        return _truncated(d.normal)
    assert d.values is not None
    values = tuple(sorted(d.values))
    return lambda place: values[int(place * len(values))]


def _truncated(normal: Normal) -> Drawer:
    mean, sigma = normal.mean, normal.sigma
    if sigma == 0:
        return lambda place: mean
    below = _STANDARD.cdf(-mean / sigma)
    # Rounding may give a little below 0 at the very first places.
    return lambda place: max(
        0.0, mean + sigma * _STANDARD.inv_cdf(min(below + place * (1 - below), _LAST))
    )


def _with_tail(body: Drawer, tail: Tail, mean: float) -> Drawer:
    starts = 1 - tail.chance

    def draw(place: float) -> float:
        if place < starts:
            return body(place / starts)
        return mean * tail.up_to ** ((place - starts) / tail.chance)

    return draw


def place(*name: str | int) -> float:
    """A place in 0..1, both ends excluded, from names: the same in every process."""
    bits = derive_seed(*name) >> (63 - _PLACES)
    return (bits + 0.5) / (1 << _PLACES)


def places_of(seed: int, what: str) -> Callable[[str, int], float]:
    """`place(seed, what, name, turn)` of a name and a turn, at half the cost: each turn asks."""
    head = _hash_of(f"int:{seed}\x1fstr:{what}\x1fstr:")
    return lambda name, turn: _place_after(head, f"{name}\x1fint:{turn}")


def numbered_places(what: str) -> Callable[[int], float]:
    """`place(what, number)` of a number, likewise."""
    head = _hash_of(f"str:{what}\x1fint:")
    return lambda number: _place_after(head, str(number))


def _hash_of(text: str) -> blake2b:
    return blake2b(text.encode(), digest_size=8)


def _place_after(head: blake2b, rest: str) -> float:
    whole = head.copy()
    whole.update(rest.encode())
    return ((int.from_bytes(whole.digest(), "big") >> (64 - _PLACES)) + 0.5) / (1 << _PLACES)
