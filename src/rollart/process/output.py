"""What a child writes to stdout and stderr: read at once, its end kept, optionally logged.

Invariant: the pipe is always read, so a child never blocks on it while the owner's loop runs;
memory and log file are bounded.
"""

from __future__ import annotations

import asyncio
import contextlib
import os
from pathlib import Path
from typing import BinaryIO

KEPT_BYTES = 64 * 1024
LOG_LIMIT = 64 * 1024 * 1024
"""Largest log file in bytes; what comes later is dropped after a note."""

_READ_SIZE = 64 * 1024
_LAST_READS = 16  # at most 1 MiB more at the end: a pipe holds 64 KiB, but others may still write


class OutputTail:
    """Reads one pipe in the running loop until `close`; owns the descriptor.

    Raises:
        OSError: the log file cannot be opened; the descriptor is then closed.
    """

    def __init__(self, fd: int, log_file: Path | None) -> None:
        self._fd = fd
        self._kept = bytearray()
        self._log: BinaryIO | None = None
        self._log_left = LOG_LIMIT
        self._loop = asyncio.get_running_loop()
        try:
            if log_file is not None:
                self._log = log_file.open("ab", buffering=0)
            os.set_blocking(fd, False)
            self._loop.add_reader(fd, self._read)
        except BaseException:
            self._close_files()
            raise

    def last_lines(self, count: int = 20) -> str:
        """The last lines written so far, undecodable bytes replaced."""
        return "\n".join(self._kept.decode(errors="replace").splitlines()[-count:])

    def close(self) -> None:
        """Read what is still there and close the pipe; harmless when closed."""
        if self._fd >= 0:
            for _ in range(_LAST_READS):
                if self._fd < 0 or not self._read():
                    break
        self._close_files()

    def _read(self) -> bool:
        try:
            data = os.read(self._fd, _READ_SIZE)
        except BlockingIOError:
            return False
        if not data:
            self._close_files()
            return False
        self._kept += data
        if len(self._kept) > 2 * KEPT_BYTES:
            del self._kept[:-KEPT_BYTES]
        self._write_log(data)
        return True

    def _write_log(self, data: bytes) -> None:
        if self._log is None or self._log_left <= 0:
            return
        # A full disk must not end the run: the log is a convenience.
        with contextlib.suppress(OSError):
            self._log.write(data[: self._log_left])
            self._log_left -= len(data)
            if self._log_left <= 0:
                self._log.write(b"\n[log limit reached; later output is dropped]\n")

    def _close_files(self) -> None:
        if self._fd >= 0:
            self._loop.remove_reader(self._fd)
            os.close(self._fd)
            self._fd = -1
        if self._log is not None:
            self._log.close()
            self._log = None
