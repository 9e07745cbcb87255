"""HND-1, ERR-1, ERR-2: whatever driver call of an operation fails, nothing is lost and the first error is told."""

from __future__ import annotations

import contextlib
import functools
import itertools
from collections.abc import Callable

import pytest

from tests.rules.toy import DATA, UNKNOWN_ERROR, Make, Toy, another, bytes_of, counts, left_by
from vmmref.errors import AlreadyReleased, DriverError, LeaseError, PoolFailed, StaleLease
from vmmref.imports import IMPORTS, close_imports
from vmmref.proxy import TensorProxy
from vmmref.simcuda import Simulator

Act = Callable[[], object]


def wrap(pool: Toy) -> Act:
    return lambda: pool.pool.wrap_tensor(bytes_of(1, 256))


def begin_publish(pool: Toy) -> Act:
    return lambda: pool.begin(1)


def finish_publish(pool: Toy) -> Act:
    publication = pool.begin(1)
    return lambda: pool.pool.finish_publish(publication)


def copy(pool: Toy) -> Act:
    return lambda: pool.pool.copy_tensor(bytes_of(1, 256))


def first_reconstruction(pool: Toy) -> Act:
    proxy = pool.wrap(1)
    return lambda: pool.read(proxy)


def later_reconstruction(pool: Toy) -> Act:
    pool.consume(pool.wrap(1))
    proxy = pool.wrap(2)
    return lambda: pool.read(proxy, rank=1)


def collecting(pool: Toy) -> Act:
    reading = pool.start(pool.wrap(1))
    return reading.finish


def first_release(pool: Toy) -> Act:
    proxy = pool.wrap(1)
    return lambda: pool.release(proxy)


def later_release(pool: Toy) -> Act:
    pool.consume(pool.wrap(1))
    proxy = pool.wrap(2)
    return lambda: pool.release(proxy, rank=1)


def recycle(pool: Toy) -> Act:
    for value in (1, 2):
        pool.consume(pool.wrap(value))
    return pool.pool.recycle


def reclaim(pool: Toy) -> Act:
    pool.pool.begin_cancel(pool.begin(1).lease)
    pool.pool.begin_cancel(pool.wrap(2).lease)
    return pool.pool.reclaim


def cancel_queued(pool: Toy) -> Act:
    lease = pool.begin(1).lease
    return lambda: pool.pool.cancel_lease(lease)


def cancel_ready(pool: Toy) -> Act:
    lease = pool.wrap(1).lease
    return lambda: pool.pool.cancel_lease(lease)


def begin_cancel(pool: Toy) -> Act:
    lease = pool.begin(1).lease
    return lambda: pool.pool.begin_cancel(lease)


def revoke_under_a_reader(pool: Toy) -> Act:
    proxy = pool.wrap(1)
    reading = pool.start(proxy)

    def revoke() -> None:
        try:
            pool.pool.revoke(proxy.lease)
        finally:
            with contextlib.suppress(StaleLease):
                reading.finish()

    return revoke


OPERATIONS = [
    wrap, begin_publish, finish_publish, copy, first_reconstruction, later_reconstruction, collecting, first_release,
    later_release, recycle, reclaim, cancel_queued, cancel_ready, begin_cancel, revoke_under_a_reader,
]  # fmt: skip


def failing(simulator: Simulator, act: Act) -> tuple[str, bool]:
    """Name of the armed call that failed in `act` ("" = none), and whether `act` makes fewer calls than that."""
    told: list[DriverError] = []
    try:
        act()
    except DriverError as failure:
        told.append(failure)
    complete = bool(simulator.armed())
    simulator.clear_faults()
    assert [failure.result for failure in told] == ([] if complete else [UNKNOWN_ERROR]), "nobody was told"
    return "".join(failure.call for failure in told), complete


def words_are_sound(pool: Toy) -> None:
    """No word is above what the slot's last generation allows; R is 2n or 2n+1 of a generation that was issued."""
    for slot, (ready, *acknowledged) in enumerate(pool.words()):
        last = pool.pool.stats().generations[slot]
        assert ready // 2 <= last
        assert max(acknowledged) <= last


def drive_home(pool: Toy) -> None:
    """Let every rank take part in every lease that is still there, and take all of them back (LIV-1)."""
    for publication in pool.publications:
        with contextlib.suppress(LeaseError):
            pool.pool.finish_publish(publication)
    stats = pool.pool.stats()
    for lease in stats.leases:
        if lease.slot not in stats.retiring_slots:
            for rank in range(pool.consumers):
                pool.release(TensorProxy(pool.pool.card, lease, "uint8", (lease.nbytes,)), rank)
    pool.drain()
    pool.pool.recycle()
    pool.check_home()


@pytest.mark.rule("HND-1")
@pytest.mark.rule("ERR-1")
@pytest.mark.rule("ERR-2")
@pytest.mark.parametrize("word_bytes", [4, 8])
@pytest.mark.parametrize("handle_type", ["posix_fd", "fabric"])
@pytest.mark.parametrize("operation", OPERATIONS, ids=lambda operation: operation.__name__)
def test_err_1_every_call_of_an_operation_fails_once(
    toy: Make, simulator: Simulator, operation: Callable[[Toy], Act], handle_type: str, word_bytes: int
) -> None:
    """
    A failed driver call costs no range, no slot, no word and no handle.

    Given: the k-th driver call fails, for every k that the operation makes.
    When: the operation is called on a pool in use.
    Then: that error reaches the caller; ranges and slots are accounted for; either the pool has failed and refuses
    every use, or every lease still comes back and the pool serves; at the end nothing is left but what the driver
    itself refused to take back.
    """
    for k in itertools.count(1):
        pool = toy(slots=3, consumers=2, handle_type=handle_type, word_bytes=word_bytes)
        act = operation(pool)
        simulator.fail_any(k, UNKNOWN_ERROR)
        failed_call, complete = failing(simulator, act)
        pool.check_accounts()
        words_are_sound(pool)
        if pool.pool.life == "failed":
            with pytest.raises(PoolFailed):
                pool.begin(1)
        else:
            drive_home(pool)
            words_are_sound(pool)
            assert pool.read(pool.wrap(7, DATA)) == b"\7" * DATA
        pool.close()
        assert counts(simulator).items() <= left_by(failed_call).items(), f"call {k}: {failed_call}"
        assert simulator.violations() == (), f"call {k}: {failed_call}"
        simulator.reset()
        if complete:
            break
    assert k > 2


@pytest.mark.rule("HND-1")
@pytest.mark.rule("LIFE-2")
@pytest.mark.parametrize("handle_type", ["posix_fd", "fabric"])
def test_hnd_1_every_call_of_a_shutdown_fails_once(toy: Make, simulator: Simulator, handle_type: str) -> None:
    """
    A shutdown that fails can be called again, and gives everything back once.

    Given: the k-th driver call fails, for every k that shutdown makes, of a pool with leases in every phase.
    When: it is shut down, and again.
    Then: that error, then none; nothing is left but what the driver itself refused to take back.
    """
    for k in itertools.count(1):
        pool = toy(slots=4, handle_type=handle_type)
        pool.begin(1)
        pool.wrap(2)
        pool.pool.begin_cancel(pool.wrap(3).lease)
        pool.pool.begin_cancel(pool.begin(4).lease)
        simulator.fail_any(k, UNKNOWN_ERROR)
        failed_call, complete = failing(simulator, pool.pool.shutdown)
        pool.check_accounts()
        pool.pool.shutdown()
        if pool.pool.failure is None:
            pool.check_home()
        assert pool.pool.life == "closed"
        assert counts(simulator).items() <= left_by(failed_call).items(), f"call {k}: {failed_call}"
        assert simulator.violations() == (), f"call {k}: {failed_call}"
        simulator.reset()
        if complete:
            break
    assert k > 20


@pytest.mark.rule("HND-1")
@pytest.mark.rule("HND-4")
def test_hnd_4_every_call_of_dropping_an_import_fails_once(toy: Make, simulator: Simulator) -> None:
    """
    An import is dropped once, also when the driver refuses something.

    Given: the k-th driver call fails, for every k of dropping an import with queued work.
    When: it is dropped, and dropped again.
    Then: that error, then none; nothing of the import is left but what the driver itself refused to take back.
    """
    for k in itertools.count(1):
        pool = toy(slots=2, consumers=2)
        proxies = [pool.wrap(value) for value in (1, 2)]
        before = counts(simulator)
        pool.consume(proxies[0])
        pool.start(proxies[1])
        simulator.fail_any(k, UNKNOWN_ERROR)
        nonce = pool.pool.card.nonce
        failed_call, complete = failing(simulator, functools.partial(close_imports, nonce))
        close_imports(nonce)
        assert IMPORTS.find(nonce) == ()
        left = {kind: count - before.get(kind, 0) for kind, count in counts(simulator).items()}
        assert {kind: count for kind, count in left.items() if count} == left_by(failed_call), f"call {k}"
        assert simulator.violations() == (), f"call {k}: {failed_call}"
        pool.close()
        simulator.reset()
        if complete:
            break
    assert k > 8


@pytest.mark.rule("CON-4")
def test_con_4_a_failed_import_leaves_the_proxy_as_it_was(toy: Make, simulator: Simulator) -> None:
    """
    Before the rank has entered its table, a failure costs nothing: the same proxy can be read later.

    Given: an import whose address reservation fails.
    When: a proxy is read, and read again without the fault.
    Then: the driver's error and no acknowledgement; then the right bytes.
    """
    pool = toy()
    proxy = pool.wrap(0xA1)
    simulator.fail_call("cuMemAddressReserve", 1, UNKNOWN_ERROR)
    with pytest.raises(DriverError):
        pool.read(proxy)
    pool.drain()
    assert pool.words() == ((2, 0),)
    assert pool.read(proxy) == b"\xa1" * 256
    with pytest.raises(AlreadyReleased):
        pool.read(another(proxy))
