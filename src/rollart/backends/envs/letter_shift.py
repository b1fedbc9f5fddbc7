"""Letter shift: one question, one long answer, credit for every letter of it.

Owns the question, its answer, the reward, and the split of the messages by their hash.
Invariant: the task determines the episode. Blocks for microseconds; nothing waits here.
"""

import hashlib
import random
from collections import Counter
from collections.abc import Iterator, Mapping, Sequence
from typing import ClassVar

from rollart.core.types import JsonValue, Message, Observation, StepResult, Task

LETTERS = "abcd"
HELDOUT_BUCKETS = 4
LENGTH = 8


class LetterShift:
    """Answer a message in capitals by the successor of each of its letters, in small ones.

    ``A C D B`` is answered by ``b d a c``: after the last letter comes the first. A valid answer
    has as many letters as the message, 8 if not told otherwise, and nothing else.

    The reward is the share of letters that are right in their place; for an answer that is not
    valid, ``invalid_reward`` times the share of places without a letter, so that a policy that has
    lost the form of an answer is led back to it. Metrics: ``success`` is the same share (0 if
    invalid), ``exact`` is 1 where every letter is right, ``invalid``. No fixed answer can expect
    more than chance, 1 in 4, and the message itself copied scores 0.
    """

    replayable: ClassVar[bool] = True

    def __init__(self, *, length: int = LENGTH, invalid_reward: float = -0.5) -> None:
        """Take the domain's options; ``length`` only shapes which messages are drawn.

        Raises ValueError for a message without letters.
        """
        if length < 1:
            raise ValueError(f"length = {length}: at least 1, for example {LENGTH}")
        self._invalid_reward = invalid_reward
        self._answer = ""

    def reset(self, task: Task, seed: int) -> Observation:
        """Ask about the payload's ``message``; ``seed`` changes nothing.

        Raises ValueError if that is no message.
        """
        message = task.payload.get("message")
        if not isinstance(message, str) or not message or set(message) - set(LETTERS.upper()):
            raise ValueError(
                f"task {task.key!r} has message {message!r}: give capitals from "
                f"{LETTERS.upper()}, for example {{'message': 'ACDBBADC'}}"
            )
        self._answer = shifted(message)
        return _as_user(" ".join(message))

    def step(self, action: str) -> StepResult:
        """Judge the answer, which ends the episode; raises RuntimeError before a ``reset``."""
        if not self._answer:
            raise RuntimeError("step before reset: reset the environment with a task first")
        given = action.split()
        valid = len(given) == len(self._answer) and set(given) <= set(LETTERS)
        share = right_share("".join(given), self._answer) if valid else 0.0
        return StepResult(
            observation=_as_user(" ".join(self._answer)),
            reward=share if valid else self._invalid_reward * misplaced(given, len(self._answer)),
            done=True,
            metrics=(
                ("success", share),
                ("exact", float(share == 1.0)),
                ("invalid", float(not valid)),
            ),
        )

    @staticmethod
    def train_tasks(
        seed: int, *, length: int = LENGTH, **_options: object
    ) -> Iterator[dict[str, JsonValue]]:
        """The endless training sequence of ``seed``; no held-out message is ever in it."""
        rng = random.Random(f"letter-shift-train:{seed}")
        while True:
            message = _draw(rng, length)
            if not is_heldout(message):
                yield {"message": message}

    @staticmethod
    def heldout_tasks(
        count: int, seed: int, *, length: int = LENGTH, **_options: object
    ) -> Sequence[dict[str, JsonValue]]:
        """``count`` distinct messages of the held-out side.

        Raises ValueError when 200 draws a wanted message do not bring that many distinct ones.
        """
        rng = random.Random(f"letter-shift-heldout:{seed}")
        found: dict[str, None] = {}
        for _ in range(200 * count):
            if len(found) == count:
                break
            message = _draw(rng, length)
            if is_heldout(message):
                found[message] = None
        if len(found) < count:
            raise ValueError(
                f"count = {count}: only {len(found)} distinct held-out messages of {length} "
                f"letters were found; ask for at most {len(found)}, or for longer messages"
            )
        return [{"message": message} for message in found]

    @staticmethod
    def baselines(
        tasks: Sequence[Mapping[str, JsonValue]], **_options: object
    ) -> Mapping[str, float]:
        """Mean share right on ``tasks`` of answers that need no understanding."""
        messages = [str(task["message"]) for task in tasks]
        if not messages:
            raise ValueError("tasks is empty: give at least one task")
        rng = random.Random("letter-shift-baseline")
        answers = [shifted(message) for message in messages]
        most_frequent = [
            Counter(column).most_common(1)[0][1]
            for column in zip(*answers, strict=True)  # the best possible letter for each place
        ]
        by_chance = [_draw(rng, len(answer)).lower() for answer in answers]
        copied = [message.lower() for message in messages]
        return {
            "best fixed answer": sum(most_frequent) / sum(map(len, answers)),
            "random letters": _mean_share(by_chance, answers),
            "the message copied": _mean_share(copied, answers),
        }


def shifted(message: str) -> str:
    """The right answer to a message in capitals, without spaces."""
    places = map(LETTERS.index, message.lower())
    return "".join(LETTERS[(place + 1) % len(LETTERS)] for place in places)


def right_share(given: str, answer: str) -> float:
    """Share of places in 0..1 where two texts of one length agree."""
    return sum(a == b for a, b in zip(given, answer, strict=True)) / len(answer)


def is_heldout(message: str) -> bool:
    """Whether the message's hash puts it on the held-out side: one in ``HELDOUT_BUCKETS``."""
    digest = hashlib.blake2b(message.encode(), digest_size=8).digest()
    return int.from_bytes(digest) % HELDOUT_BUCKETS == 0


def vocabulary() -> tuple[str, ...]:
    """Every word that questions and answers can hold, for a tokenizer made for this domain."""
    return (*LETTERS, *LETTERS.upper())


def _draw(rng: random.Random, length: int) -> str:
    return "".join(rng.choices(LETTERS.upper(), k=length))


def _mean_share(given: Sequence[str], answers: Sequence[str]) -> float:
    return sum(map(right_share, given, answers)) / len(answers)


def _as_user(text: str) -> Observation:
    return Observation(messages=(Message(role="user", content=text),))


def misplaced(given: Sequence[str], length: int) -> float:
    """Share of places, wanted or given, that do not hold a letter; above 0 if it is invalid."""
    places = max(len(given), length)
    return 1.0 - sum(word in set(LETTERS) for word in given[:length]) / places
