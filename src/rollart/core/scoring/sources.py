"""Which files a reward function is made of, which packages it needs, and the hash that names it.

Invariant: the same files give the same version on every machine, wherever they lie; nothing is
imported to find out.
"""

import ast
import hashlib
import sys
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from functools import cache, cached_property
from importlib import metadata
from importlib.machinery import EXTENSION_SUFFIXES
from pathlib import Path

from rollart.core.errors import ConfigError

PROJECT = "rollart"
_INIT = "__init__.py"
VERSION_LENGTH = 16  # hex digits: 64 bits tell versions apart, and a person can read them


@dataclass(frozen=True, kw_only=True)
class Sources:
    """A function's own code.

    Attributes:
        path: ``module:function``.
        files: where each lies in a package, and where it is now; sorted.
        foreign: modules of other packages that it imports.
    """

    path: str
    files: tuple[tuple[str, Path], ...]
    foreign: frozenset[str]

    @cached_property
    def requirements(self) -> tuple[str, ...]:
        """The packages of the foreign modules, as pip names them, with the versions here."""
        return tuple(sorted(set(_requirements(self.foreign))))

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
    itself is its own wherever it lies. The standard library is left out, and so is what only a
    type checker reads.

    Raises `ConfigError` naming a module that is not there, or cannot be read.
    """
    first = path.partition(":")[0]
    folders = [Path(root).resolve() for root in roots]
    files: dict[str, Path] = {}
    foreign: set[str] = set()
    todo, seen, own = [first], set[str](), set[str]()
    while todo:
        module = todo.pop()
        if module in seen:
            continue
        seen.add(module)
        top = module.partition(".")[0]
        file = None if top == PROJECT else _find(module, folders)
        if file is not None:
            own.add(top)
        elif module == first:
            file = _find(module, [Path(folder) for folder in sys.path])
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
            foreign.add(module)
    # A name imported out of an own module looks like a module of it, and is no package.
    own |= {PROJECT, ""} | sys.stdlib_module_names
    return Sources(
        path=path,
        files=tuple(sorted(files.items())),
        foreign=frozenset(one for one in foreign if one.partition(".")[0] not in own),
    )


def _find(module: str, folders: Sequence[Path]) -> Path | None:
    """A module's file, as an import would find it in these folders; nothing is imported."""
    *parents, name = module.split(".")
    for parent in parents:
        package = next((f / parent for f in folders if (f / parent / _INIT).is_file()), None)
        # Without an __init__.py all folders of this name are one package.
        folders = [package] if package else [f / parent for f in folders if (f / parent).is_dir()]
    for folder in folders:
        for file in (folder / name / _INIT, folder / f"{name}.py"):
            if file.is_file():
                return file
        for suffix in EXTENSION_SUFFIXES:
            if (file := folder / f"{name}{suffix}").is_file() and not _is_installed(file):
                raise ConfigError(
                    f"{file}: compiled code cannot travel with a reward function; install it as a "
                    "package of its own, or import Python instead"
                )
    return None


def _is_installed(file: Path) -> bool:
    return any(part in {"site-packages", "dist-packages", "lib-dynload"} for part in file.parts)


def _place(module: str, file: Path) -> str:
    whole = module.replace(".", "/")
    return f"{whole}/{_INIT}" if file.name == _INIT else f"{whole}.py"


def _parents(module: str) -> Iterator[str]:
    parts = module.split(".")
    return (".".join(parts[:depth]) for depth in range(1, len(parts)))


def _imports(module: str, file: Path) -> Iterator[str]:
    """Names that a file imports anywhere in it; of ``from a import b``, both a and a.b."""
    try:
        tree = ast.parse(file.read_bytes(), str(file))
    except (OSError, SyntaxError, ValueError) as error:
        raise ConfigError(f"{file}: cannot be read as Python ({error})") from error
    package = module if file.name == _INIT else module.rpartition(".")[0]
    for node in _walk(tree):
        if isinstance(node, ast.Import):
            yield from (one.name for one in node.names)
        elif isinstance(node, ast.ImportFrom):
            base = _absolute(node, package)
            if base:
                yield base
                yield from (f"{base}.{one.name}" for one in node.names if one.name != "*")


def _walk(tree: ast.AST) -> Iterator[ast.AST]:
    """Every node but those under ``if TYPE_CHECKING``."""
    todo = [tree]
    while todo:
        node = todo.pop()
        yield node
        if isinstance(node, ast.If) and _is_type_checking(node.test):
            todo += node.orelse
        else:
            todo += ast.iter_child_nodes(node)


def _is_type_checking(test: ast.expr) -> bool:
    name = test.id if isinstance(test, ast.Name) else getattr(test, "attr", "")
    return name == "TYPE_CHECKING"


def _absolute(node: ast.ImportFrom, package: str) -> str:
    if not node.level:
        return node.module or ""
    parts = package.split(".")
    kept = parts[: len(parts) - node.level + 1]
    return ".".join((*kept, node.module) if node.module else kept)


def _requirements(modules: frozenset[str]) -> Iterator[str]:
    """The distributions that these modules come from."""
    known: Mapping[str, list[str]] = _distributions() if modules else {}
    for module in modules:
        top = module.partition(".")[0]
        for distribution in _providers(module, known.get(top, [top])):
            try:
                yield f"{distribution}=={metadata.version(distribution)}"
            except metadata.PackageNotFoundError:
                yield distribution


@cache  # it reads the records of all that is installed, which takes a second
def _distributions() -> Mapping[str, list[str]]:
    return metadata.packages_distributions()


def _providers(module: str, candidates: Sequence[str]) -> Sequence[str]:
    """Of the distributions that share a top-level name, such as `google`, those with the module."""
    if len(set(candidates)) == 1:
        return candidates[:1]
    whole = module.replace(".", "/")
    places = {f"{whole}/{_INIT}", f"{whole}.py"}
    return [
        one
        for one in candidates
        if any(file.as_posix() in places for file in metadata.files(one) or ())
    ]
