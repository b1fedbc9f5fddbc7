"""The shared-memory store within one process: commits, pins, damage, collection, litter."""

import fcntl
import itertools
import os
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import cast

import numpy as np
import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from rollart.backends.weights.manifest import BadManifest, Manifest, TensorEntry, decode, encode
from rollart.backends.weights.shm import (
    AlreadyPublished,
    SharedMemoryWeightStore,
    sweep_abandoned,
)
from rollart.core.errors import WeightsCorrupt, WeightsMissing
from rollart.core.identity import PolicyVersion
from rollart.core.ports import WeightStore, WeightTensor
from rollart.testing.conformance import StoreTrial, check_weight_store

TensorsOf = Callable[[int], list[WeightTensor]]


def v(number: int, policy: str = "agent") -> PolicyVersion:
    return PolicyVersion(policy, number)


def whole_bytes(store: WeightStore, version: PolicyVersion) -> dict[str, bytes]:
    with store.read(version) as tensors:
        return {name: tensor.data.tobytes() for name, tensor in tensors.items()}


def data_file(store: SharedMemoryWeightStore) -> Path:
    (found,) = store.directory.glob("*.data")
    return found


def test_the_store_conforms_to_its_port(directory: Path) -> None:
    runs = itertools.count()
    opened: list[SharedMemoryWeightStore] = []

    def make() -> SharedMemoryWeightStore:
        opened.append(SharedMemoryWeightStore(directory, f"conformance-{next(runs)}"))
        return opened[-1]

    def corrupt(_: WeightStore, version: PolicyVersion) -> None:
        (data,) = opened[-1].directory.glob(f"{version}.*.data")
        data.write_bytes(b"\xff" + data.read_bytes()[1:])

    check_weight_store(
        make,
        StoreTrial(
            other=lambda _: SharedMemoryWeightStore(directory, opened[-1].directory.name),
            corrupt=corrupt,
            close=lambda store: cast("SharedMemoryWeightStore", store).close(),
        ),
    )


def test_what_is_published_is_read_back_byte_for_byte(
    store: SharedMemoryWeightStore, tensors_of: TensorsOf
) -> None:
    sent = [
        *tensors_of(1),
        WeightTensor(name="odd", shape=(1, 5), dtype="uint8", data=np.arange(5, dtype=np.uint8)),
        WeightTensor(name="empty", shape=(0, 3), dtype="float32", data=np.zeros(0, np.uint8)),
    ]
    store.publish(v(1), iter(sent))
    with store.read(v(1)) as got:
        assert list(got) == [tensor.name for tensor in sent]
        for tensor in sent:
            other = got[tensor.name]
            assert (other.shape, other.dtype) == (tensor.shape, tensor.dtype)
            assert np.array_equal(other.data, tensor.data)
            assert len(other.data) == 0 or other.data.ctypes.data % 64 == 0


def test_a_version_of_nothing_but_empty_tensors_can_be_read(
    store: SharedMemoryWeightStore,
) -> None:
    empty = WeightTensor(name="empty", shape=(0,), dtype="float32", data=np.zeros(0, np.uint8))
    store.publish(v(0), [empty])
    assert whole_bytes(store, v(0)) == {"empty": b""}


def test_tensors_of_equal_content_are_stored_once_and_arrive_under_each_name(
    store: SharedMemoryWeightStore,
) -> None:
    data = np.arange(4096, dtype=np.int32).view(np.uint8)
    names = ("embed_tokens.weight", "lm_head.weight")
    store.publish(
        v(0), [WeightTensor(name=n, shape=(4096,), dtype="int32", data=data) for n in names]
    )
    assert data_file(store).stat().st_size == data.nbytes
    assert whole_bytes(store, v(0)) == dict.fromkeys(names, data.tobytes())


def test_versions_are_listed_oldest_first_by_number_and_not_by_text(
    store: SharedMemoryWeightStore, tensors_of: TensorsOf
) -> None:
    for number in (10, 9, 2):
        store.publish(v(number), tensors_of(number))
    store.publish(v(3, "critic"), tensors_of(3))
    assert store.versions() == (v(2), v(9), v(10), v(3, "critic"))


@pytest.mark.parametrize("policy", ["a/b", "..", "a@1", "ü %2F", "x.y", ""])
def test_any_policy_name_is_kept_apart_and_stays_in_the_directory(
    store: SharedMemoryWeightStore, tensors_of: TensorsOf, policy: str
) -> None:
    store.publish(v(1, policy), tensors_of(1))
    store.publish(v(1, "other"), tensors_of(2))
    assert set(store.versions()) == {v(1, policy), v(1, "other")}
    assert whole_bytes(store, v(1, policy)) != whole_bytes(store, v(1, "other"))
    assert {path.parent for path in store.directory.parent.rglob("*.data")} == {store.directory}


def test_publishing_a_version_twice_is_an_error_and_leaves_the_first(
    store: SharedMemoryWeightStore, tensors_of: TensorsOf
) -> None:
    store.publish(v(1), tensors_of(1))
    before = whole_bytes(store, v(1))
    with pytest.raises(AlreadyPublished, match="agent@1"):
        store.publish(v(1), tensors_of(2))
    assert whole_bytes(store, v(1)) == before
    assert len(list(store.directory.glob("*.data"))) == 1


def test_of_two_writers_of_one_version_exactly_one_commits(
    store: SharedMemoryWeightStore, directory: Path, tensors_of: TensorsOf
) -> None:
    other = SharedMemoryWeightStore(directory, "run-1")

    def overtaken() -> Iterator[WeightTensor]:
        first, *rest = tensors_of(1)
        yield first
        other.publish(v(1), tensors_of(2))  # commits while this one is still writing
        yield from rest

    with pytest.raises(AlreadyPublished):
        store.publish(v(1), overtaken())
    got = whole_bytes(store, v(1))
    assert got == {tensor.name: tensor.data.tobytes() for tensor in tensors_of(2)}
    assert len(list(store.directory.glob("*.d*"))) == 1
    other.close()


def test_a_name_given_twice_is_refused_and_nothing_is_left_behind(
    store: SharedMemoryWeightStore, tensors_of: TensorsOf
) -> None:
    with pytest.raises(ValueError, match=r"'layer\.0' is given twice"):
        store.publish(v(1), [*tensors_of(1), tensors_of(1)[0]])
    assert store.versions() == ()
    assert [path.name for path in store.directory.iterdir()] == [".alive"]


def test_a_version_half_written_is_invisible_and_a_writers_error_leaves_no_trace(
    store: SharedMemoryWeightStore, directory: Path, tensors_of: TensorsOf
) -> None:
    reader = SharedMemoryWeightStore(directory, "run-1")
    seen: list[tuple[PolicyVersion, ...]] = []

    def torn() -> Iterator[WeightTensor]:
        yield from tensors_of(1)
        seen.append(reader.versions())
        with pytest.raises(WeightsMissing), reader.read(v(1)):
            pass
        reader.collect(keep=1)  # clears litter: a living writer's files are none
        raise RuntimeError("the trainer stops here")

    with pytest.raises(RuntimeError, match="stops here"):
        store.publish(v(1), torn())
    assert seen == [()]
    assert [path.name for path in store.directory.iterdir()] == [".alive"]
    store.publish(v(1), tensors_of(1))
    assert reader.versions() == (v(1),)
    reader.close()


def test_collecting_while_another_writes_does_not_take_the_file_from_it(
    store: SharedMemoryWeightStore, directory: Path, tensors_of: TensorsOf
) -> None:
    other = SharedMemoryWeightStore(directory, "run-1")

    def interrupted() -> Iterator[WeightTensor]:
        for tensor in tensors_of(1):
            other.collect(keep=1)
            yield tensor

    store.publish(v(1), interrupted())
    other.collect(keep=1)
    assert whole_bytes(other, v(1)).keys() == {f"layer.{place}" for place in range(4)}
    other.close()


def test_reading_a_version_never_committed_names_it_and_what_there_is(
    store: SharedMemoryWeightStore, tensors_of: TensorsOf
) -> None:
    store.publish(v(1), tensors_of(1))
    with (
        pytest.raises(WeightsMissing, match=r"agent@7.*agent@1.*read the newest"),
        store.read(v(7)),
    ):
        pass


@pytest.mark.parametrize("place", [0, 4096, 4 * 4096 - 1])
def test_a_single_changed_byte_is_detected(
    store: SharedMemoryWeightStore, tensors_of: TensorsOf, place: int
) -> None:
    store.publish(v(1), tensors_of(1))
    with data_file(store).open("r+b") as file:
        file.seek(place)
        byte = file.read(1)
        file.seek(place)
        file.write(bytes([byte[0] ^ 1]))
    with pytest.raises(WeightsCorrupt, match=r"agent@1.*SHA-256.*newer one"), store.read(v(1)):
        pass


def test_a_shortened_or_missing_data_file_is_damage_and_no_crash(
    store: SharedMemoryWeightStore, tensors_of: TensorsOf
) -> None:
    store.publish(v(1), tensors_of(1))
    os.truncate(data_file(store), 5000)
    with pytest.raises(WeightsCorrupt, match="5000 bytes"), store.read(v(1)):
        pass
    data_file(store).unlink()
    with pytest.raises(WeightsCorrupt, match="gone"), store.read(v(1)):
        pass


@settings(max_examples=60, deadline=None)
@given(st.data())
def test_a_manifest_changed_anywhere_is_refused(draw: st.DataObject) -> None:
    entry = TensorEntry(name="w", shape=(2, 3), dtype="int8", offset=64, bytes=6, sha256="00")
    manifest = Manifest(version=v(3), data="x.data", bytes=70, tensors=(entry,))
    text = bytearray(encode(manifest))
    assert decode(bytes(text)) == manifest
    at = draw.draw(st.integers(0, len(text) - 1))
    text[at] ^= draw.draw(st.integers(1, 255))
    with pytest.raises(BadManifest):
        decode(bytes(text))
    with pytest.raises(BadManifest):
        decode(bytes(text[:at]))


def test_a_damaged_manifest_is_reported_with_its_version_and_can_be_collected(
    store: SharedMemoryWeightStore, tensors_of: TensorsOf
) -> None:
    store.publish(v(1), tensors_of(1))
    (manifest,) = store.directory.glob("*.manifest")
    manifest.write_bytes(manifest.read_bytes()[:-1])
    with pytest.raises(WeightsCorrupt, match="agent@1"), store.read(v(1)):
        pass
    store.publish(v(2), tensors_of(2))
    assert store.collect(keep=1) == (v(1),)
    assert len(list(store.directory.glob("*.data"))) == 1


def test_what_a_reader_writes_changes_nobody_elses_bytes(
    store: SharedMemoryWeightStore, tensors_of: TensorsOf
) -> None:
    store.publish(v(1), tensors_of(1))
    before = whole_bytes(store, v(1))
    with store.read(v(1)) as mine:
        mine["layer.0"].data[:] = 0
        assert whole_bytes(store, v(1)) == before


def test_collect_keeps_the_newest_of_each_policy_and_frees_the_rest(
    store: SharedMemoryWeightStore, tensors_of: TensorsOf
) -> None:
    for number in range(5):
        store.publish(v(number), tensors_of(number))
    store.publish(v(0, "critic"), tensors_of(9))
    assert store.collect(keep=2) == (v(0), v(1), v(2))
    assert store.versions() == (v(3), v(4), v(0, "critic"))
    assert len(list(store.directory.glob("*.data"))) == 3
    assert store.collect(keep=2) == ()
    with pytest.raises(ValueError, match="use 1 or more"):
        store.collect(keep=0)


def held_version_survives(store: SharedMemoryWeightStore, tensors_of: TensorsOf) -> bool:
    store.publish(v(1), tensors_of(1))
    with store.read(v(1)):
        for number in range(2, 6):
            store.publish(v(number), tensors_of(number))
            store.collect(keep=1)
        survived = v(1) in store.versions()
    store.collect(keep=1)
    assert store.versions() == (v(5),)
    return survived


def test_a_version_being_read_is_not_collected_until_its_last_reader_is_done(
    store: SharedMemoryWeightStore, tensors_of: TensorsOf
) -> None:
    assert held_version_survives(store, tensors_of)


def test_a_collector_that_looks_at_age_alone_would_be_caught(
    directory: Path, tensors_of: TensorsOf
) -> None:
    class ByAge(SharedMemoryWeightStore):
        def _unread(self, manifest: int) -> bool:
            return True

    store = ByAge(directory, "by-age")
    assert not held_version_survives(store, tensors_of)
    store.close()


def test_a_version_may_be_published_again_after_it_was_collected(
    store: SharedMemoryWeightStore, tensors_of: TensorsOf
) -> None:
    for number in (1, 2):
        store.publish(v(number), tensors_of(number))
    store.collect(keep=1)
    store.publish(v(1), tensors_of(5))
    assert whole_bytes(store, v(1))["layer.0"] == tensors_of(5)[0].data.tobytes()


def test_files_of_a_writer_that_died_are_cleared_by_the_next(
    store: SharedMemoryWeightStore, tensors_of: TensorsOf
) -> None:
    store.publish(v(1), tensors_of(1))
    for name in ("agent@2.0123456789abcdef.data", "agent@2.0123456789abcdef.draft"):
        (store.directory / name).write_bytes(b"half")
    store.publish(v(2), tensors_of(2))
    assert not list(store.directory.glob("*.0123456789abcdef.*"))
    assert store.versions() == (v(1), v(2))


@settings(
    max_examples=40, deadline=None, suppress_health_check=[HealthCheck.function_scoped_fixture]
)
@given(plan=st.lists(st.sampled_from(["publish", "pin", "unpin", "collect"]), max_size=25))
def test_in_any_order_of_calls_every_pinned_version_stays_readable(
    directory: Path, tensors_of: TensorsOf, plan: list[str]
) -> None:
    store = SharedMemoryWeightStore(directory, f"plan-{next(_runs)}")
    pins, published = [], 0
    for action in plan:
        if action == "publish":
            store.publish(v(published), tensors_of(published))
            published += 1
        elif action == "pin" and store.versions():
            version = store.versions()[-1]
            lease = store.read(version)
            pins.append((version, lease, lease.__enter__()))
        elif action == "unpin" and pins:
            pins.pop(0)[1].__exit__(None, None, None)
        elif action == "collect":
            store.collect(keep=1)
            wanted = {version for version, _, _ in pins} | (
                {v(published - 1)} if published else set()
            )
            assert set(store.versions()) == wanted
        for version, _, tensors in pins:
            assert version in store.versions()
            assert np.array_equal(tensors["layer.3"].data, tensors_of(version.number)[3].data)
    for _, lease, _ in pins:
        lease.__exit__(None, None, None)
    store.close()


_runs = itertools.count()


@pytest.mark.parametrize("run", ["", "../x", "a/b", ".hidden"])
def test_a_run_that_is_no_plain_name_is_refused(directory: Path, run: str) -> None:
    with pytest.raises(ValueError, match="names a directory"):
        SharedMemoryWeightStore(directory, run)


def test_only_runs_that_nobody_has_open_are_swept(directory: Path, tensors_of: TensorsOf) -> None:
    mine, child, old = (SharedMemoryWeightStore(directory, run) for run in ("a", "a", "b"))
    old.publish(v(0), tensors_of(0))
    old.close()
    old.close()
    mine.close()
    assert sweep_abandoned(directory) == ("b",)
    child.publish(v(0), tensors_of(0))
    child.close()
    assert sweep_abandoned(directory) == ("a",)
    assert list(directory.iterdir()) == []
    assert sweep_abandoned(directory / "absent") == ()


def test_a_sweep_that_died_half_way_is_finished_by_the_next(directory: Path) -> None:
    half = directory / ".swept-0123"
    half.mkdir()
    (half / ".alive").touch()
    assert sweep_abandoned(directory) == ()
    assert not half.exists()


def test_a_store_that_opens_during_a_sweep_gets_a_directory_that_lasts(directory: Path) -> None:
    SharedMemoryWeightStore(directory, "a").close()
    fd = os.open(directory / "a" / ".alive", os.O_RDONLY)
    fcntl.flock(fd, fcntl.LOCK_EX)  # a sweep is under way ...
    (directory / "a").rename(directory / ".swept-0")  # ... and has moved the directory
    store = SharedMemoryWeightStore(directory, "a")
    os.close(fd)
    assert sweep_abandoned(directory) == ()
    assert store.directory.is_dir()
    store.close()
