"""HND: handles, mappings, descriptors, and the imports of a consumer."""

from __future__ import annotations

import fcntl
import os
import signal
import warnings
from collections.abc import Callable
from typing import Any

import pytest

from tests.rules.toy import GRANULE, Make, another, bytes_of
from vmmref import packed
from vmmref.driver import streams
from vmmref.driver.device import Device
from vmmref.errors import ArgumentError, ForkError, ReservationError, WaitTimeout
from vmmref.imports import IMPORTS, close_imports
from vmmref.packed import PackedTensorProxy
from vmmref.pool import VmmMemoryPool
from vmmref.reservation import VmmReservation
from vmmref.simcuda import Simulator
from vmmref_models.reasons import Reason


@pytest.fixture
def device(simulator: Simulator) -> Any:
    opened = Device("sim")
    yield opened
    opened.close()


@pytest.mark.rule("HND-1")
@pytest.mark.parametrize("handle_type", ["posix_fd", "fabric"])
def test_hnd_1_a_whole_life_gives_everything_back(simulator: Simulator, handle_type: str) -> None:
    """
    What a pool and its consumers take is given back exactly once.

    Given: a pool that is imported by two ranks, with leases in every phase.
    When: import and pool are closed.
    Then: no handle, mapping, reservation, descriptor, stream, event or pinned memory is left; no double release.
    """
    descriptors = os.listdir("/proc/self/fd")
    with VmmMemoryPool(GRANULE, "sim", 2, None, 4, handle_type=handle_type) as pool:
        read, released, queued = (pool.wrap_tensor(bytes_of(value, 256)) for value in range(3))
        assert read is not None
        assert released is not None
        assert queued is not None
        for rank in range(2):
            another(read).reconstruct_on_target_device("sim", 2, rank)
        another(released).release_without_reconstruction(2, 0)
        reading = another(queued).begin_reconstruction("sim", 2, 1)
        assert simulator.usage().mappings == 2
        pool.begin_publish(bytes_of(3, 256))
        reading.finish()
        close_imports(pool.card.nonce)
        assert simulator.usage().mappings == 1
    assert simulator.usage().is_empty
    assert os.listdir("/proc/self/fd") == descriptors


@pytest.mark.rule("HND-2")
def test_hnd_2_a_closed_reservation_is_not_mapped(device: Device, simulator: Simulator) -> None:
    """
    After close the addresses may be anybody's.

    Given: a closed reservation.
    When: something is mapped into it, and it is closed again.
    Then: RESERVATION_CLOSED before any driver call; the second close does nothing.
    """
    reservation = VmmReservation(device, GRANULE)
    reservation.close()
    calls_before = simulator.call_count()
    maps: list[tuple[Callable[[], Any], str]] = [
        (lambda: reservation.map(0, GRANULE), "VmmReservation.map after close"),
        (lambda: reservation.map_existing(7, 0, GRANULE), "VmmReservation.map_existing after close"),
    ]
    for attempt, message in maps:
        with pytest.raises(ReservationError, match=message) as refusal:
            attempt()
        assert (refusal.value.reason, refusal.value.rule) == (Reason.RESERVATION_CLOSED, "HND-2")
    reservation.close()
    assert simulator.call_count() == calls_before


@pytest.mark.rule("HND-3")
@pytest.mark.parametrize(
    ("offset", "size"),
    [(0, 3), (2, 1), (-1, 1), (0, 0), (0, -1), (0.5, 1), (0, 0.5), (1, 1)],
    ids=["long", "behind", "before", "nothing", "negative", "odd offset", "odd size", "overlap"],
)
def test_hnd_3_offsets_and_sizes_are_checked_first(
    device: Device, simulator: Simulator, offset: float, size: float
) -> None:
    """
    A mapping that does not fit is refused before the driver is asked.

    Given: a reservation of two granules, of which the second is mapped.
    When: a mapping is asked for that is outside of it, no whole number of granules, or over the other one.
    Then: OUTSIDE_RESERVATION with the numbers, and no driver call.
    """
    with VmmReservation(device, 2 * GRANULE) as reservation:
        reservation.map(GRANULE, GRANULE)
        calls_before = simulator.call_count()
        with pytest.raises(ArgumentError, match=r"mapping \[") as refusal:
            reservation.map(int(offset * GRANULE), int(size * GRANULE))
        assert (refusal.value.reason, refusal.value.rule) == (Reason.OUTSIDE_RESERVATION, "HND-3")
        assert simulator.call_count() == calls_before


@pytest.mark.rule("HND-4")
def test_hnd_4_one_import_a_pool_and_device(toy: Make, simulator: Simulator) -> None:
    """
    Proxies of one pool share one import; another pool has its own.

    Given: two pools.
    When: several ranks read several proxies of each.
    Then: two imports in all, each keyed by its pool's nonce; dropping one leaves the other.
    """
    pools = [toy(slots=2, consumers=2), toy(slots=2, consumers=2)]
    for pool in pools:
        for value in (1, 2):
            pool.consume(pool.wrap(value))
    imports = [IMPORTS.find(pool.pool.card.nonce) for pool in pools]
    assert [len(found) for found in imports] == [1, 1]
    assert imports[0] != imports[1]
    assert simulator.usage().mappings == 4
    close_imports(pools[0].pool.card.nonce)
    assert [len(IMPORTS.find(pool.pool.card.nonce)) for pool in pools] == [0, 1]
    assert simulator.usage().mappings == 3


@pytest.mark.rule("HND-4")
def test_hnd_4_an_import_outlives_the_work_queued_on_it(toy: Make, simulator: Simulator) -> None:
    """
    An import is not dropped under a queued copy-out, read of R or acknowledgement.

    Given: a reader with nothing run, of a pool that is shut down.
    When: the import is dropped while the device does not run, and again when it does.
    Then: TIMED_OUT and the mapping still there; then it is dropped, and nothing ran on unmapped memory.
    """
    pool = toy()
    pool.start(pool.wrap(1))
    pool.pool.shutdown()
    with streams.progress(None), pytest.raises(WaitTimeout, match="rank 0"):
        close_imports(pool.pool.card.nonce, timeout_seconds=0.01)
    assert simulator.usage().mappings == 1
    close_imports(pool.pool.card.nonce)
    assert simulator.usage().is_empty


@pytest.mark.rule("HND-6")
def test_hnd_6_every_descriptor_is_close_on_exec(toy: Make) -> None:
    """
    No program that is started later inherits a descriptor of the pool.

    Given: what is open in this process.
    When: a pool with a broker is made and imported.
    Then: every descriptor that has come has the flag.
    """
    before = set(os.listdir("/proc/self/fd"))
    pool = toy(handle_type="posix_fd")
    pool.read(another(pool.wrap(1)))
    come = [int(name) for name in set(os.listdir("/proc/self/fd")) - before]
    flags = {}
    for descriptor in come:
        try:
            flags[descriptor] = fcntl.fcntl(descriptor, fcntl.F_GETFD) & fcntl.FD_CLOEXEC
        except OSError:
            continue
    assert len(flags) >= 2
    assert all(flags.values()), flags


@pytest.mark.rule("HND-7")
def test_hnd_7_use_after_fork_is_refused(toy: Make) -> None:
    """
    A forked child is told before the driver is touched.

    Given: a pool and an import.
    When: the process forks and the child uses, ends or reads from them.
    Then: FORKED each time, in the child; the parent goes on.
    """
    pool = toy(slots=2)
    read, fresh = pool.wrap(1), pool.wrap(2)
    pool.read(another(read))
    uses: list[Callable[[], Any]] = [
        lambda: pool.begin(1),
        pool.pool.recycle,
        lambda: pool.pool.cancel_lease(read.lease),
        pool.pool.shutdown,
        lambda: pool.start(fresh),
        lambda: pool.release(fresh),
        lambda: another(fresh).reconstruct_on_target_device("sim:0"),
        lambda: VmmMemoryPool(GRANULE, "sim", 1, None, 4),
    ]
    assert in_forked_child(uses) == [Reason.FORKED] * len(uses)
    assert pool.read(fresh) == b"\2" * 256


@pytest.mark.rule("HND-7")
def test_hnd_7_a_lock_held_at_the_fork_is_not_waited_for(toy: Make) -> None:
    """
    A forked child waits for no thread of its parent's.

    Given: an import and a pack, and a parent that holds the locks of both tables.
    When: it forks, and the child reads, drops the import and parses a child of the pack.
    Then: FORKED for the first two; the third, which needs no driver, is answered.
    """
    pool = toy(slots=2)
    fresh = pool.wrap(1)
    pool.join()
    packs = pool.pool.wrap_tensors([bytes_of(2, 128)])
    assert packs is not None
    form = bytes(packs[0])
    uses: list[Callable[[], Any]] = [
        lambda: another(fresh).reconstruct_on_target_device("sim:0"),
        lambda: close_imports(pool.pool.card.nonce),
        lambda: PackedTensorProxy.from_bytes(form).offset,
    ]
    with IMPORTS._lock, packed._wholes_lock:
        answers = in_forked_child([lambda: signal.alarm(30), *uses])
    assert answers[1:] == [Reason.FORKED, Reason.FORKED, "returned 0"]


def in_forked_child(uses: list[Callable[[], Any]]) -> list[str]:
    """What each use ends with in a forked child: the reason of its refusal, or something else."""
    reader, writer = os.pipe()
    with warnings.catch_warnings():
        # Newer Pythons warn of a fork with threads about; that is what the rule is for.
        warnings.simplefilter("ignore", DeprecationWarning)
        child = os.fork()
    if not child:
        try:
            os.close(reader)
            os.write(writer, "\n".join(outcome(use) for use in uses).encode())
        finally:
            os._exit(0)
    os.close(writer)
    with os.fdopen(reader, "rb") as answers:
        answered = answers.read().decode()
    os.waitpid(child, 0)
    return answered.split("\n")


def outcome(use: Callable[[], Any]) -> str:
    try:
        return f"returned {use()!r}"
    except ForkError as refusal:
        return refusal.reason
    except BaseException as error:
        return repr(error)
