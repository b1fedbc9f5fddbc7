"""What every child with torch does first and last."""

import os
import sys
from typing import NoReturn


def compute_on_one_thread() -> None:
    """A second thread on a core that another child uses makes both many times slower."""
    import torch

    torch.set_num_threads(1)


def end_at_once() -> NoReturn:
    """End in order but without the interpreter's own end, which with torch takes a second."""
    sys.stdout.flush()
    sys.stderr.flush()
    os._exit(0)
