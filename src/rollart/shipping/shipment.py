"""What is shipped, and what a target makes of it.

Invariant: texts only; nothing here touches the disk or runs anything.
"""

import math
import re
from collections.abc import Callable, Mapping
from dataclasses import dataclass

from rollart.core.errors import ConfigError
from rollart.core.scoring.declared import ServerlessSettings
from rollart.core.scoring.sources import Sources

MEMORY_MIB, TIMEOUT_S = 512, 60.0
"""Of functions that declare none."""

_NAME = re.compile(r"[a-z]([a-z0-9-]{0,46}[a-z0-9])?")  # Cloud Run's rule, the narrowest of all

STORES: Mapping[str, tuple[str, ...]] = {
    "file": (),
    "s3": ("fsspec", "s3fs"),
    "gs": ("fsspec", "gcsfs"),
    "oss": ("fsspec", "ossfs"),
}
"""What a function needs to read from a store, by the scheme of its URL."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Shipment:
    """One function on its way to a platform.

    Attributes:
        name: of the function over there.
        settings: what it declares with `@serverless`.
        requirements: packages it needs there, besides the target's own.
        store: URL of the folder that large documents lie in; empty: there is none.
        vendored: the requirements' files are in the package.
        python: version of the interpreter here, such as "3.11".
    """

    name: str
    sources: Sources
    settings: ServerlessSettings
    requirements: tuple[str, ...]
    store: str
    vendored: bool
    python: str

    @property
    def memory_mib(self) -> int:
        return self.settings.memory_mib or MEMORY_MIB

    @property
    def timeout_s(self) -> int:
        """Whole seconds, which is what platforms take."""
        return math.ceil(self.settings.timeout_s or TIMEOUT_S)


@dataclass(frozen=True, slots=True, kw_only=True)
class Target:
    """A platform to package for.

    Attributes:
        files: the generated files, by their place in the package.
        requirements: packages that the platform's handler needs.
        deploy: the one command that deploys the package, in a shell, in its folder.
        url: where it is then.
        memory_mib, timeout_s: least and most of each.
        python: version of the interpreter there; None: that of here.
        unzipped_mib: the largest package, unpacked; None where there is no such limit.
        beyond: what to do about a package that is larger.
        zipped: what the platform says of the packed one, to be told beside a large size.
    """

    name: str
    files: Callable[[Shipment], Mapping[str, str]]
    requirements: tuple[str, ...]
    deploy: Callable[[Shipment], str]
    url: Callable[[Shipment], str]
    memory_mib: tuple[int, int]
    timeout_s: tuple[int, int]
    python: str | None = None
    unzipped_mib: int | None = None
    beyond: str = ""
    zipped: str = ""

    def refuse_beyond_limits(self, shipment: Shipment) -> None:
        """Raises `ConfigError` for what the platform does not bear."""
        for what, unit, value, (least, most) in (
            ("memory", "MB", shipment.memory_mib, self.memory_mib),
            ("timeout", "s", shipment.timeout_s, self.timeout_s),
        ):
            if not least <= value <= most:
                raise ConfigError(
                    f"{shipment.sources.path}: {what} of {value} {unit}; {self.name} takes {least} "
                    f"to {most}: change @serverless({what}=…), or another --target"
                )


def name_of(path: str) -> str:
    """The name of the function at ``module:function``, as every platform bears it."""
    plain = re.sub(r"[^a-z0-9]+", "-", path.lower()).strip("-")
    return plain[:48].strip("-")


def checked_name(name: str) -> str:
    """Raises `ConfigError` for a name that some platform refuses."""
    if not _NAME.fullmatch(name):
        raise ConfigError(
            f"--name {name!r}: must be 1 to 48 of a-z, 0-9 and -, beginning with a letter and not "
            "ending with -; use --name my-reward"
        )
    return name


def store_requirements(store: str) -> tuple[str, ...]:
    """Packages that read from a store. Raises `ConfigError` for a store of an unknown kind."""
    if not store:
        return ()
    scheme, separator, rest = store.partition("://")
    if not separator or not rest or scheme not in STORES:
        known = ", ".join(f"{one}://" for one in STORES)
        raise ConfigError(
            f"--store {store!r}: must be the URL of a folder, of {known}; use --store "
            "s3://bucket/folder, as ?store= of the job's reward URL"
        )
    if scheme == "file" and not rest.startswith("/"):
        raise ConfigError(
            f"--store {store!r}: file:// must be the path of a folder, with no host in it; use "
            "--store file:///folder, with a share of another machine mounted there"
        )
    if "@" in rest.partition("/")[0]:
        raise ConfigError(
            "--store: a URL with a user or password in it would be written into the package; "
            "leave them out, the function's role on the platform grants access"
        )
    return STORES[scheme]


def pip_for(python: str) -> str:
    """The command that puts the listed requirements beside the function, as Linux there runs them.

    Wheels only, since nothing can be built for another machine.
    """
    return (
        f"python3 -m pip install --quiet --no-compile --target . --requirement requirements.txt "
        f"--only-binary=:all: --platform manylinux2014_x86_64 --python-version {python}"
    )
