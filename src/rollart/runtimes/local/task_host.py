"""The tasks' child: runs what an environment class says about tasks.

Owns the user's generator and a bounded stock of payloads made ahead of need. Blocks in user code.
"""

import inspect
import itertools
import json
from collections import deque
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import msgspec

from rollart.core.types import JsonValue
from rollart.process.serve import ChildPort, Request
from rollart.runtimes.local.codec import Packed, plain
from rollart.runtimes.local.user_code import load, show_prints_at_once

ENTRY = "rollart.runtimes.local.task_host:entry"
STOCK = 256
"""Payloads made ahead."""


@dataclass(frozen=True, slots=True, kw_only=True)
class TaskHostConfig:
    """Import path of the class, its options, the seed of its tasks, and how many to pass over."""

    environment: str
    options: dict[str, Any]
    seed: int
    position: int = 0


def entry(port: ChildPort, config: Any) -> None:
    """Answer calls until stopped; between them, fill the stock once it was asked for."""
    settings = msgspec.convert(config, TaskHostConfig)
    show_prints_at_once()
    host = TaskHost(load(settings.environment), settings)
    port.ready()
    while not port.stopping:
        for request in port.requests(0.0 if host.hungry else None):
            answer(port, host, request)
        if host.hungry:
            host.make_one()


def answer(port: ChildPort, host: "TaskHost", request: Request) -> None:
    """Reply with the result, or with what user code raised."""
    try:
        port.reply(request.id, getattr(host, request.method)(*request.args))
    except Exception as error:
        if request.id is None:
            raise
        port.reply_error(request.id, error)


class TaskHost:
    """What can be asked about the tasks of one environment class."""

    def __init__(self, environment: Any, settings: TaskHostConfig) -> None:
        self._environment = environment
        self._settings = settings
        self._stock: deque[Packed] = deque()
        self._tasks: Iterator[Mapping[str, JsonValue]] | None = None
        self._over = False
        self._error: Exception | None = None

    @property
    def hungry(self) -> bool:
        """Whether payloads should be made ahead now."""
        return self._tasks is not None and not self._over and len(self._stock) < STOCK

    def make_one(self) -> None:
        """Add one payload to the stock, or note that there are no more, or what was raised."""
        assert self._tasks is not None
        try:
            self._stock.append(as_payload(next(self._tasks)))
        except StopIteration:
            self._over = True
        except Exception as error:
            self._over, self._error = True, error

    def take(self) -> Packed:
        """The payloads in stock, at least one; an empty list when there are no more.

        Raises what the user's generator raised, once the payloads before it are gone.
        """
        if self._tasks is None:
            self._tasks = itertools.islice(self._begin(), self._settings.position, None)
        if not self._stock and not self._over:
            self.make_one()
        if not self._stock and self._error is not None:
            raise self._error
        taken = list(self._stock)
        self._stock.clear()
        return taken

    def heldout(self, count: int) -> Packed:
        """At most `count` distinct payloads for evaluation."""
        made = getattr(self._environment, "heldout_tasks", None)
        if made is None:
            return [{} for _ in range(count)]
        payloads = made(count, self._settings.seed, **self._settings.options)
        distinct = {json.dumps(one, sort_keys=True): one for one in map(as_payload, payloads)}
        return list(distinct.values())[:count]

    def baselines(self, payloads: Sequence[Packed]) -> Packed:
        """Named success rates of simple policies on these tasks; none if the class has none."""
        measure = getattr(self._environment, "baselines", None)
        if measure is None:
            return []
        measured = measure(payloads, **self._settings.options)
        return [(str(name), float(success)) for name, success in measured.items()]

    def replayable(self) -> bool:
        """Whether the class promises that (task, seed, actions) determine the episode."""
        return bool(getattr(self._environment, "replayable", False))

    def _begin(self) -> Iterator[Mapping[str, JsonValue]]:
        made = getattr(self._environment, "train_tasks", None)
        if made is None:
            return itertools.repeat({})
        return iter(made(self._settings.seed, **self._settings.options))


def as_payload(value: object) -> Packed:
    """A task's payload as plain JSON.

    Raises `TypeError` for anything but a mapping of JSON values.
    """
    if inspect.isawaitable(value) or not isinstance(value, Mapping):
        raise TypeError(
            f"a task is {type(value).__name__}; yield its payload, a dict of JSON values"
        )
    return plain(value)
