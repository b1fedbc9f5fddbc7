"""A reader in a process of its own, told what to do line by line.

python reader_child.py DIRECTORY RUN
stdin:  "read POLICY NUMBER SECONDS"      pins, holds for so long, answers
stdout: "pinned", then "ok FINGERPRINT" or "WeightsMissing: ..." or "WeightsCorrupt: ..."
"""

import sys
import time
from pathlib import Path

from rollart.backends.weights.shm import SharedMemoryWeightStore
from rollart.core.errors import RollartError
from rollart.core.identity import PolicyVersion


def main() -> None:
    directory, run = sys.argv[1:]
    store = SharedMemoryWeightStore(Path(directory), run)
    say("ready")
    for line in sys.stdin:
        _, policy, number, seconds = line.split()
        try:
            with store.read(PolicyVersion(policy, int(number))) as tensors:
                say("pinned")
                time.sleep(float(seconds))
                total = sum(int(tensor.data.sum(dtype="int64")) for tensor in tensors.values())
        except RollartError as error:
            say(f"{type(error).__name__}: {error}")
        else:
            say(f"ok {total}")


def say(line: str) -> None:
    sys.stdout.write(line + "\n")
    sys.stdout.flush()


if __name__ == "__main__":
    main()
