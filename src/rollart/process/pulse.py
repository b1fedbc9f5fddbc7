"""The child's daemon thread: beats for the owner, and ends the child when the owner is gone.

It needs no cooperation of the main thread, which may sleep, compute, or hang.
"""

from __future__ import annotations

import os
import threading

from rollart.process.blocking import BlockingChannel
from rollart.process.errors import ChannelClosed
from rollart.process.messages import Beat
from rollart.process.owner import end_own_group, owner_gone


def start_pulse(channel: BlockingChannel, interval: float) -> threading.Thread:
    """Start the thread.

    Args:
        interval: seconds between two beats; also the longest time until a new parent is noticed.
    """
    thread = threading.Thread(
        target=_pulse, args=(channel, os.getppid(), interval), name="rollart-pulse", daemon=True
    )
    thread.start()
    return thread


def _pulse(channel: BlockingChannel, owner_pid: int, interval: float) -> None:
    beat = Beat()
    while not owner_gone(owner_pid, channel.fileno(), interval):
        try:
            # While another thread is sending, its bytes are the sign of life.
            channel.try_send(beat)
        except ChannelClosed:
            break
    end_own_group()
