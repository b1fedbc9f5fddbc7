"""Runs benchmarks: all of them, or those named: `python -m benchmarks engine trainer`."""

import subprocess
import sys
from pathlib import Path

ALL = sorted(path.stem for path in Path(__file__).parent.glob("[a-z]*.py"))


def main() -> None:
    for name in sys.argv[1:] or ALL:
        if name not in ALL:
            sys.exit(f"{name!r} is no benchmark; there are: {', '.join(ALL)}")
        print(f"\n## {name}\n", flush=True)
        subprocess.run([sys.executable, "-m", f"benchmarks.{name}"], check=True)


if __name__ == "__main__":
    main()
