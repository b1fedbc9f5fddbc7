"""``python -m rollart.process.main FD``: a child on an inherited socket; started by `spawn`."""

from __future__ import annotations

import socket
import sys

from rollart.process.bootstrap import run_child


def main() -> None:
    """Run the child; argv holds the number of the socket's descriptor."""
    sock = socket.socket(fileno=int(sys.argv[1]))
    sock.set_inheritable(False)
    run_child(sock)


if __name__ == "__main__":
    main()
