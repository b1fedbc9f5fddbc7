"""Where every device's time went: a run's idle account (`idle_causes` says what causes mean).

Invariant: each device's shares add up to 1.
"""

import math
from collections import defaultdict
from collections.abc import Mapping, Sequence
from dataclasses import dataclass

from rollart.observe.idle_books import Books
from rollart.observe.idle_causes import CAUSES, CODE, Cause
from rollart.observe.idle_log import ENGINE, REWARD, TRAINER, Device, IdleLog
from rollart.observe.intervals import Interval
from rollart.observe.sweep import Floats

Named = tuple[tuple[str, float], ...]
Busy = Mapping[tuple[str, str], Sequence[Interval]]
"""Intervals (s) by device and kind of work."""

ROUNDING = 1e-9
"""Differences of shares below it are those of floating-point sums."""
_ORDER = {TRAINER: 0, ENGINE: 1, REWARD: 2}


@dataclass(frozen=True, slots=True, kw_only=True)
class DeviceAccount:
    """One device's `seconds` of the window, of which `shares` by cause add up to 1.

    `role` is engine, trainer or reward; `slots` how many accelerators it is. `wasted` are shares of
    `seconds` too, and part of busy: generation by how its trajectories left untrained.
    """

    device: str
    hardware: str
    role: str
    slots: float
    seconds: float
    shares: Named
    wasted: Named


@dataclass(frozen=True, slots=True, kw_only=True)
class ClassAccount:
    """All devices of one hardware class in one role: means over their slots and seconds."""

    hardware: str
    role: str
    devices: int
    slots: float
    shares: Named
    wasted: Named


@dataclass(frozen=True, slots=True, kw_only=True)
class IdleAccount:
    """Devices by name and by class; none where no device says when it is busy or there."""

    window_s: float
    devices: tuple[DeviceAccount, ...]
    classes: tuple[ClassAccount, ...]


def account(log: IdleLog, busy: Busy, window: Interval) -> IdleAccount:
    """The account over `window` (s) of what `log` has taken."""
    if window[1] <= window[0]:
        return IdleAccount(window_s=0.0, devices=(), classes=())
    log.close(window[1])
    works: defaultdict[str, dict[str, Sequence[Interval]]] = defaultdict(dict)
    for (device, work), intervals in busy.items():
        works[device][work] = intervals
    books = Books(log, works, window)
    found = [(device, _within(device.there, window)) for device in log.devices(works)]
    devices = tuple(_entry(books, device, span) for device, span in found if span[1] > span[0])
    return IdleAccount(window_s=window[1] - window[0], devices=devices, classes=_classes(devices))


def _within(there: Interval | None, window: Interval) -> Interval:
    return window if there is None else (max(there[0], window[0]), min(there[1], window[1]))


def _entry(books: Books, device: Device, span: Interval) -> DeviceAccount:
    shares = whole(books.seconds(device, span), span)
    return DeviceAccount(
        device=device.name,
        hardware=device.hardware,
        role=device.role,
        slots=device.slots,
        seconds=span[1] - span[0],
        shares=tuple((cause.value, shares[CODE[cause]]) for cause in CAUSES),
        wasted=books.wasted(device, span),
    )


def _classes(devices: Sequence[DeviceAccount]) -> tuple[ClassAccount, ...]:
    groups: defaultdict[tuple[str, str], list[DeviceAccount]] = defaultdict(list)
    for device in devices:
        groups[device.hardware, device.role].append(device)
    return tuple(
        ClassAccount(
            hardware=hardware,
            role=role,
            devices=len(members),
            slots=sum(member.slots for member in members),
            shares=_mean(members, [dict(member.shares) for member in members]),
            wasted=_mean(members, [dict(member.wasted) for member in members]),
        )
        for (hardware, role), members in sorted(groups.items(), key=lambda one: _ORDER[one[0][1]])
    )


def _mean(devices: Sequence[DeviceAccount], values: Sequence[Mapping[str, float]]) -> Named:
    weight = math.fsum(device.slots * device.seconds for device in devices)
    return tuple(
        (
            name,
            math.fsum(
                device.slots * device.seconds * value.get(name, 0.0)
                for device, value in zip(devices, values, strict=True)
            )
            / weight,
        )
        for name in dict.fromkeys(name for value in values for name in value)
    )


def whole(seconds: Floats, window: Interval) -> list[float]:
    """Seconds as shares of the window that add up to 1; what no rule spoke of is unknown."""
    length = window[1] - window[0]
    shares = [float(second) / length for second in seconds]
    largest = max(range(len(shares)), key=lambda at: shares[at])
    missing = 1.0 - math.fsum(shares)
    shares[largest if abs(missing) < ROUNDING else CODE[Cause.UNKNOWN]] += missing
    return shares
