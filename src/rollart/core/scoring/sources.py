"""Which files a reward function is made of, which packages it needs, and the hash that names it.

Invariant: the same files give the same version on every machine, wherever they lie; nothing is
imported to find out.
"""

import ast
import hashlib
import sys
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from functools import cached_property
from importlib import metadata
from importlib.machinery import PathFinder
from pathlib import Path

from rollart.core.errors import ConfigError

PROJECT = "rollart"
VERSION_LENGTH = 16  # hex digits: 64 bits tell versions apart, and a person can read them


@dataclass(frozen=True, kw_only=True)
class Sources:
    """A function's own code.

    Attributes:
        path: ``module:function``.
        files: where each lies in a package, and where it is now; sorted.
        requirements: other packages that it imports, as pip names them with their versions.
    """

    path: str
    files: tuple[tuple[str, Path], ...]
    requirements: tuple[str, ...]

    @cached_property
    def version(self) -> str:
        """Hash of the path and of every file's place and content."""
        whole = hashlib.sha256(self.path.encode())
        for place, file in self.files:
            content = hashlib.sha256(file.read_bytes()).hexdigest()
            whole.update(f"\n{place} {content}".encode())
        return whole.hexdigest()[:VERSION_LENGTH]


def sources_of(path: str, roots: Sequence[str]) -> Sources:
    """The sources of the function at `path`.

    Modules under `roots` are its own, and so are those that they import from there; the module
    itself is its own wherever it lies. The standard library is left out.

    Raises `ConfigError` naming a module that is not there, or cannot be read.
    """
    first = path.partition(":")[0]
    files: dict[str, Path] = {}
    packages: set[str] = set()
    todo, seen = [first], set[str]()
    while todo:
        module = todo.pop()
        if module in seen:
            continue
        seen.add(module)
        file = _own_file(module, roots) or (_any_file(module) if module == first else None)
        if file is not None:
            files[_place(module, file)] = file
            todo += [name for name in _imports(module, file) if name not in seen]
            todo += [name for name in _parents(module) if name not in seen]
        elif module == first:
            raise ConfigError(
                f"{path!r}: there is no module {first} in {', '.join(roots) or 'any folder'}; "
                "give module:function with the module beside the job file"
            )
        else:
            packages.add(module.partition(".")[0])
    return Sources(
        path=path,
        files=tuple(sorted(files.items())),
        requirements=tuple(sorted(_requirements(packages))),
    )


def _own_file(module: str, roots: Sequence[str]) -> Path | None:
    """A module's file under the roots."""
    if module.partition(".")[0] == PROJECT:
        return None
    return _find(module, [str(Path(root).resolve()) for root in roots])


def _any_file(module: str) -> Path | None:
    return _find(module, sys.path)


def _find(module: str, where: Sequence[str]) -> Path | None:
    path: Sequence[str] | None = list(where)
    parts = module.split(".")
    for depth in range(len(parts)):
        spec = PathFinder.find_spec(".".join(parts[: depth + 1]), path)
        if spec is None:
            return None
        if depth == len(parts) - 1:
            found = None if spec.origin is None else Path(spec.origin)
            return found if found is not None and found.suffix == ".py" else None
        path = spec.submodule_search_locations
        if path is None:
            return None
    return None


def _place(module: str, file: Path) -> str:
    folders = module.split(".")
    return "/".join((*folders, "__init__.py") if file.name == "__init__.py" else folders) + (
        "" if file.name == "__init__.py" else ".py"
    )


def _parents(module: str) -> Iterator[str]:
    parts = module.split(".")
    return (".".join(parts[:depth]) for depth in range(1, len(parts)))


def _imports(module: str, file: Path) -> Iterator[str]:
    """Names that a file imports anywhere in it; of ``from a import b``, both a and a.b."""
    try:
        tree = ast.parse(file.read_text(encoding="utf-8"))
    except (OSError, SyntaxError, UnicodeDecodeError) as error:
        raise ConfigError(f"{file}: cannot be read as Python ({error})") from error
    package = module if file.name == "__init__.py" else module.rpartition(".")[0]
    for node in ast.walk(tree):
        if isinstance(node, ast.Import):
            yield from (one.name for one in node.names)
        elif isinstance(node, ast.ImportFrom):
            base = _absolute(node, package)
            if base:
                yield base
                yield from (f"{base}.{one.name}" for one in node.names if one.name != "*")


def _absolute(node: ast.ImportFrom, package: str) -> str:
    if not node.level:
        return node.module or ""
    parts = package.split(".")
    kept = parts[: len(parts) - node.level + 1]
    return ".".join((*kept, node.module) if node.module else kept)


def _requirements(packages: set[str]) -> Iterator[str]:
    known = metadata.packages_distributions()
    for package in packages - {PROJECT, ""} - set(sys.stdlib_module_names):
        for distribution in known.get(package, (package,)):
            try:
                yield f"{distribution}=={metadata.version(distribution)}"
            except metadata.PackageNotFoundError:
                yield distribution
