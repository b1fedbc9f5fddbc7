"""Weights in shared memory: one writer, any number of readers, in any processes of one machine.

Owns a directory on a memory file system. A version is a data file and a manifest that names it;
the hard link that gives the manifest its final name is the commit, so a version is visible whole
or not at all, and a second commit of the same version fails. Files never change afterwards.
Who waits on whom: nobody. Every lock is taken without waiting and held by the kernel on behalf of
a process (`flock`), so it ends with that process, however it ends:

| lock                | held by                          | meaning                        |
|---------------------|----------------------------------|--------------------------------|
| manifest, shared    | a reader, while it reads         | the version is pinned          |
| manifest, exclusive | `collect`, while it deletes      | too late to read this version  |
| data, exclusive     | the writer, until it committed   | these files are not litter     |
| `.alive`, shared    | every store that is open         | the run's directory is in use  |
"""

import fcntl
import mmap
import os
import re
import secrets
import shutil
from collections.abc import Iterable, Iterator, Mapping
from contextlib import contextmanager
from pathlib import Path
from typing import Final
from urllib.parse import quote, unquote

import numpy as np
import numpy.typing as npt

from rollart.backends.weights.manifest import (
    BadManifest,
    Manifest,
    TensorEntry,
    aligned,
    content_digest,
    decode,
    encode,
)
from rollart.core.errors import RollartError, WeightsCorrupt, WeightsMissing
from rollart.core.identity import PolicyVersion
from rollart.core.ports import WeightTensor

_ALIVE: Final = ".alive"
_MANIFEST: Final = ".manifest"
_DATA: Final = ".data"
_DRAFT: Final = ".draft"
_SWEPT: Final = ".swept-"
_RUN_NAME: Final = re.compile(r"[A-Za-z0-9][\w.-]*")


class AlreadyPublished(RollartError):
    """This version is committed already; a version's weights never change."""


class SharedMemoryWeightStore:
    """A `WeightStore` in `directory`/`run`, on a memory file system such as /dev/shm.

    Every process makes its own object on the same two arguments. While any of them is open the
    directory stays; `sweep_abandoned` removes the directories that no living process has open.
    Let the process that outlives the others (the run's main one) hold one throughout.

    Raises:
        ValueError: `run` is not a plain name.
    """

    def __init__(self, directory: str | Path, run: str) -> None:
        if not _RUN_NAME.fullmatch(run):
            raise ValueError(
                f"run = {run!r}: it names a directory; use letters, digits, '.', '_' and '-', "
                "for example 'lake-1'"
            )
        self._home = Path(directory) / run
        self._alive: int | None = _hold(self._home)

    @property
    def directory(self) -> Path:
        """Where this run's versions lie."""
        return self._home

    def publish(self, version: PolicyVersion, tensors: Iterable[WeightTensor]) -> None:
        """Write and commit a version. Tensors of equal content are stored once.

        So a tied tensor costs nothing, and still arrives under each of its names. Tensors are
        taken one at a time: beyond the store itself, no more than one is held in memory here.

        Raises:
            AlreadyPublished: the version is committed; nothing was changed.
            ValueError: two tensors have one name.
            OSError: the file system is full or gone.
        """
        if (self._home / (_stem(version) + _MANIFEST)).exists():
            raise _already_published(version)
        self._clear_litter()
        data, fd = self._new_data_file(version)
        draft = data.with_suffix(_DRAFT)
        committed = False
        try:
            entries, size = _write_tensors(fd, tensors)
            manifest = Manifest(version=version, data=data.name, bytes=size, tensors=entries)
            draft.write_bytes(encode(manifest))
            try:
                os.link(draft, self._home / (_stem(version) + _MANIFEST))
            except FileExistsError:
                raise _already_published(version) from None
            committed = True
        finally:
            draft.unlink(missing_ok=True)
            if not committed:
                data.unlink(missing_ok=True)
            os.close(fd)

    @contextmanager
    def read(self, version: PolicyVersion) -> Iterator[Mapping[str, WeightTensor]]:
        """Pin a version, map it, verify every tensor, and let go of it at the end.

        The arrays are the store's own memory, not copies. They may be written to, which changes
        a private copy of the page only. After the context they are no longer pinned.

        Raises:
            WeightsMissing: never committed, or collected.
            WeightsCorrupt: the bytes are not those of the manifest.
        """
        lease = self._pin(version)
        try:
            manifest = self._manifest(version, lease)
            content = self._map(manifest)
            yield {entry.name: _tensor(manifest, entry, content) for entry in manifest.tensors}
        finally:
            os.close(lease)

    def versions(self) -> tuple[PolicyVersion, ...]:
        """Committed versions, by policy name and oldest first."""
        found = self._home.glob("*" + _MANIFEST)
        return tuple(sorted(_version(path.name.removesuffix(_MANIFEST)) for path in found))

    def collect(self, keep: int) -> tuple[PolicyVersion, ...]:
        """Drop all but each policy's newest `keep` versions and those being read.

        Also removes what writers that died left behind. Returns the versions dropped.

        Raises:
            ValueError: keep is not positive: the newest version is always kept.
        """
        if keep < 1:
            raise ValueError(f"keep = {keep}: the newest version is always kept; use 1 or more")
        versions = self.versions()
        policies = {version.policy for version in versions}
        old = [
            version
            for policy in sorted(policies)
            for version in [v for v in versions if v.policy == policy][:-keep]
        ]
        dropped = tuple(version for version in old if self._drop(version))
        self._clear_litter()
        return dropped

    def close(self) -> None:
        """Let go of the directory; versions stay for the others. Idempotent."""
        if self._alive is not None:
            os.close(self._alive)
            self._alive = None

    def _new_data_file(self, version: PolicyVersion) -> tuple[Path, int]:
        """An empty file of a name never used before, locked as not being litter."""
        while True:
            data = self._home / f"{_stem(version)}.{secrets.token_hex(8)}{_DATA}"
            fd = os.open(data, os.O_WRONLY | os.O_CREAT | os.O_EXCL | os.O_CLOEXEC, 0o600)
            if _locked(fd, fcntl.LOCK_EX) and _is_at(fd, data):
                return data, fd
            os.close(fd)  # another process took it for litter before the lock was ours

    def _pin(self, version: PolicyVersion) -> int:
        """A descriptor of the manifest with a shared lock: the lease on this version."""
        path = self._home / (_stem(version) + _MANIFEST)
        try:
            lease = os.open(path, os.O_RDONLY | os.O_CLOEXEC)
        except FileNotFoundError:
            raise self._missing(version) from None
        if not (_locked(lease, fcntl.LOCK_SH) and _is_at(lease, path)):
            os.close(lease)  # it was being deleted, or it was deleted before the lock was ours
            raise self._missing(version)
        return lease

    def _manifest(self, version: PolicyVersion, lease: int) -> Manifest:
        try:
            manifest = decode(os.pread(lease, os.fstat(lease).st_size, 0))
        except BadManifest as error:
            raise _corrupt(version, str(error)) from error
        if manifest.version != version:
            raise _corrupt(version, f"the manifest is that of {manifest.version}")
        return manifest

    def _map(self, manifest: Manifest) -> npt.NDArray[np.uint8]:
        """The data file as an array [bytes]; its pages are mapped, not read."""
        try:
            fd = os.open(self._home / manifest.data, os.O_RDONLY | os.O_CLOEXEC)
        except FileNotFoundError:
            raise _corrupt(manifest.version, f"its data file {manifest.data} is gone") from None
        try:
            size = os.fstat(fd).st_size
            if size != manifest.bytes:  # a page beyond the file's end would kill the process
                raise _corrupt(
                    manifest.version, f"its data file has {size} bytes, not {manifest.bytes}"
                )
            if size == 0:
                return np.zeros(0, np.uint8)
            return np.frombuffer(mmap.mmap(fd, size, access=mmap.ACCESS_COPY), np.uint8)
        finally:
            os.close(fd)

    def _drop(self, version: PolicyVersion) -> bool:
        """Delete a version unless somebody reads it."""
        path = self._home / (_stem(version) + _MANIFEST)
        try:
            fd = os.open(path, os.O_RDONLY | os.O_CLOEXEC)
        except FileNotFoundError:
            return False
        try:
            if not (self._unread(fd) and _is_at(fd, path)):
                return False
            # Without its manifest the data file is litter, which is cleared next.
            path.unlink()
            return True
        finally:
            os.close(fd)

    def _unread(self, manifest: int) -> bool:
        """Whether no reader holds a lease; from then on no new one can get it."""
        return _locked(manifest, fcntl.LOCK_EX)

    def _clear_litter(self) -> None:
        """Remove data files and drafts whose writer died before it committed."""
        for data in self._home.glob("*" + _DATA):
            try:
                fd = os.open(data, os.O_RDONLY | os.O_CLOEXEC)
            except FileNotFoundError:
                continue
            try:
                # A lock that can be had means that the writer is done, so a commit that it made
                # is visible by now.
                if _locked(fd, fcntl.LOCK_EX) and not self._committed(data):
                    data.with_suffix(_DRAFT).unlink(missing_ok=True)
                    data.unlink(missing_ok=True)
            finally:
                os.close(fd)

    def _committed(self, data: Path) -> bool:
        manifest = data.with_suffix("").with_suffix(_MANIFEST)
        try:
            return decode(manifest.read_bytes()).data == data.name
        except (FileNotFoundError, BadManifest):
            return False

    def _missing(self, version: PolicyVersion) -> WeightsMissing:
        held = ", ".join(str(held) for held in self.versions()) or "none"
        return WeightsMissing(
            f"weights {version} are not in {self._home} (it holds: {held}); never committed, or "
            "collected: read the newest version, or collect with a larger keep"
        )


def sweep_abandoned(directory: str | Path) -> tuple[str, ...]:
    """Remove the runs in `directory` that no living process has open; returns their names.

    Shared memory outlives a killed run; call this when a run begins and when it has ended.
    """
    swept: list[str] = []
    for alive in sorted(Path(directory).glob("*/" + _ALIVE)):
        home = alive.parent
        try:
            fd = os.open(alive, os.O_RDONLY | os.O_CLOEXEC)
        except FileNotFoundError:
            continue
        try:
            if _locked(fd, fcntl.LOCK_EX) and _is_at(fd, alive):
                # Out of the way in one step: a store that opens meanwhile makes the directory
                # anew, and never finds it half deleted.
                doomed = home.rename(home.with_name(f"{_SWEPT}{secrets.token_hex(8)}"))
                shutil.rmtree(doomed, ignore_errors=True)
                swept.append(home.name)
        finally:
            os.close(fd)
    return tuple(name for name in swept if not name.startswith(_SWEPT))


def _hold(home: Path) -> int:
    """Make the directory and hold a shared lock on its marker."""
    marker = home / _ALIVE
    while True:
        home.mkdir(mode=0o700, parents=True, exist_ok=True)
        try:
            fd = os.open(marker, os.O_RDWR | os.O_CREAT | os.O_CLOEXEC, 0o600)
        except FileNotFoundError:
            continue  # swept since it was made
        fcntl.flock(fd, fcntl.LOCK_SH)  # waits for a sweep under way to have renamed it
        if _is_at(fd, marker):
            return fd
        os.close(fd)


def _is_at(fd: int, path: Path) -> bool:
    """Whether `path` still names the open file, and not another or none."""
    try:
        return os.path.samestat(os.fstat(fd), path.stat())
    except FileNotFoundError:
        return False


def _locked(fd: int, kind: int) -> bool:
    try:
        fcntl.flock(fd, kind | fcntl.LOCK_NB)
    except BlockingIOError:
        return False
    return True


def _stem(version: PolicyVersion) -> str:
    """A file name without a dot or a slash from the policy's own name."""
    return f"{quote(version.policy, safe='').replace('.', '%2E')}@{version.number}"


def _version(stem: str) -> PolicyVersion:
    policy, _, number = stem.rpartition("@")
    return PolicyVersion(unquote(policy), int(number))


def _write_tensors(fd: int, tensors: Iterable[WeightTensor]) -> tuple[tuple[TensorEntry, ...], int]:
    entries: dict[str, TensorEntry] = {}
    places: dict[str, int] = {}  # digest of the content -> offset
    end = 0
    for tensor in tensors:
        if tensor.name in entries:
            raise ValueError(f"tensor {tensor.name!r} is given twice; each name comes once")
        digest = content_digest(tensor.data)
        if digest not in places:
            places[digest] = aligned(end) if len(tensor.data) else 0
            end = max(end, places[digest] + len(tensor.data))
            _write_all(fd, tensor.data.data, places[digest])
        entries[tensor.name] = TensorEntry(
            name=tensor.name,
            shape=tensor.shape,
            dtype=tensor.dtype,
            offset=places[digest],
            bytes=len(tensor.data),
            sha256=digest,
        )
    return tuple(entries.values()), end


def _write_all(fd: int, data: memoryview, offset: int) -> None:
    """One call writes at most 2 GiB."""
    done = 0
    while done < len(data):
        done += os.pwrite(fd, data[done:], offset + done)


def _tensor(manifest: Manifest, entry: TensorEntry, content: npt.NDArray[np.uint8]) -> WeightTensor:
    data = content[entry.offset : entry.offset + entry.bytes]
    if content_digest(data) != entry.sha256:
        raise _corrupt(manifest.version, f"the bytes of {entry.name} have another SHA-256")
    return WeightTensor(name=entry.name, shape=entry.shape, dtype=entry.dtype, data=data)


def _already_published(version: PolicyVersion) -> AlreadyPublished:
    return AlreadyPublished(
        f"weights {version} are published already and never change; publish the next version, "
        "or give the run another name"
    )


def _corrupt(version: PolicyVersion, detail: str) -> WeightsCorrupt:
    return WeightsCorrupt(
        f"weights {version} are damaged: {detail}; keep the version in use and read a newer one"
    )
