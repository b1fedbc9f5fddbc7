"""How large installed packages are, with all that they need."""

import re
from collections.abc import Iterable, Mapping
from importlib import metadata
from pathlib import Path

MEBIBYTE = 1 << 20
_NAME = re.compile(r"[A-Za-z0-9][A-Za-z0-9._-]*")


def installed_sizes(requirements: Iterable[str]) -> Mapping[str, int]:
    """Bytes of each installed distribution that these need, themselves included, largest first.

    What is not installed is not counted, so the sum is no more than it will be.
    """
    sizes: dict[str, int] = {}
    todo = [*requirements]
    while todo:
        found = _NAME.match(todo.pop())
        name = "" if found is None else found[0].lower().replace("_", "-")
        if not name or name in sizes:
            continue
        try:
            distribution = metadata.distribution(name)
        except metadata.PackageNotFoundError:
            continue
        sizes[name] = sum(_size(Path(str(file.locate()))) for file in distribution.files or ())
        todo += [one for one in distribution.requires or () if "extra ==" not in one]
    return dict(sorted(sizes.items(), key=lambda item: -item[1]))


def folder_size(folder: Path) -> int:
    """Bytes of all files in a folder."""
    return sum(_size(file) for file in folder.rglob("*"))


def _size(file: Path) -> int:
    return file.stat().st_size if file.is_file() else 0
