"""HND-4: imports of pools that have ended go by themselves, and never under anybody."""

from __future__ import annotations

import functools
import logging
import os
from dataclasses import replace

import pytest

from tests.processes.children import Child, Producer
from tests.rules.toy import GRANULE, UNKNOWN_ERROR, Make, Toy, another, bytes_of
from vmmref import simcuda
from vmmref.driver import streams
from vmmref.errors import DriverError, ProducerGone, StaleLease
from vmmref.imports import IMPORTS, close_imports, producer_is_gone
from vmmref.pool import VmmMemoryPool
from vmmref.simcuda import Simulator

HANDLE_TYPES = ["posix_fd", "fabric"]


def imported(pool: Toy) -> int:
    return len(IMPORTS.find(pool.pool.card.nonce))


@pytest.fixture
def ended(toy: Make) -> Toy:
    """A pool that a rank has read from, and that each test ends."""
    pool = toy(slots=3)
    pool.consume(pool.wrap(1))
    return pool


@pytest.mark.rule("HND-4")
@pytest.mark.parametrize("handle_type", HANDLE_TYPES)
def test_hnd_4_a_new_import_drops_those_of_ended_pools(toy: Make, simulator: Simulator, handle_type: str) -> None:
    """
    A consumer that outlives its producers holds the memory of none of them.

    Given: three pools after each other, each read from and shut down, and one beside them that lives.
    When: the next one is read from.
    Then: only the living one's import and the last one's exist, and so it stays.
    """
    living = toy(handle_type=handle_type)
    living.consume(living.wrap(1))
    for value in range(3):
        pool = toy(handle_type=handle_type)
        assert pool.read(pool.wrap(value)) == bytes([value]) * 256
        pool.drain()
        assert (imported(living), imported(pool)) == (1, 1)
        assert simulator.usage().mappings == 4
        pool.pool.shutdown()


@pytest.mark.rule("HND-4")
def test_hnd_4_dropping_imports_drops_those_of_ended_pools(toy: Make, ended: Toy) -> None:
    """
    Whoever drops one import gets rid of those that are over.

    Given: a pool that has ended, and one that lives, both imported.
    When: the imports of a third pool are dropped, of which there are none.
    Then: the ended one's import is gone, the other's is there.
    """
    living = toy()
    living.consume(living.wrap(1))
    ended.pool.shutdown()
    close_imports(b"another pool....")
    assert (imported(ended), imported(living)) == (0, 1)


@pytest.mark.rule("HND-4")
@pytest.mark.rule("REAP-3")
def test_hnd_4_a_read_that_comes_too_late_drops_imports(toy: Make, ended: Toy) -> None:
    """
    Being told that a producer is gone is an occasion to look for others.

    Given: a pool that has ended and is imported, and one that has ended and is not.
    When: the second one's proxy is read.
    Then: PRODUCER_GONE, and the first one's import is gone.
    """
    other = toy()
    proxy = other.wrap(1)
    other.pool.shutdown()
    ended.pool.shutdown()
    with pytest.raises(ProducerGone):
        proxy.reconstruct_on_target_device("sim")
    assert imported(ended) == 0


@pytest.mark.rule("HND-4")
@pytest.mark.parametrize("use", ["inside", "queued", "begun", "borrowed"])
def test_hnd_4_what_is_in_use_stays_for_the_next_time(toy: Make, use: str) -> None:
    """
    No import is dropped under a caller, queued work, a reading that was begun, or a view; nor is one waited for.

    Given: an import of a pool that has ended, used in one of these ways, on a device that does not run.
    When: another pool is imported; and another one when the use has ended.
    Then: the import is there after the first, and gone after the second.
    """
    pool, others = toy(slots=2), [toy(), toy()]
    pool.join()
    borrowed = pool.pool.wrap_tensor(bytes_of(9, 256), borrowable=True)
    assert borrowed is not None
    proxy = pool.wrap(1)
    (owner,) = IMPORTS.find(pool.pool.card.nonce)
    if use == "inside":
        owner.__enter__()
    elif use == "queued":
        pool.release(proxy)
    elif use == "begun":
        reading = pool.start(proxy)
        pool.drain()
    else:
        view = borrowed.borrow_on_target_device("sim")
        pool.drain()
    pool.pool.shutdown()
    others[0].join()
    assert imported(pool) == 1
    if use == "inside":
        owner.__exit__(None, None, None)
    elif use == "begun":
        assert reading.finish().tolist() == [1] * 256
    elif use == "borrowed":
        assert view.tolist() == [9] * 256
        borrowed.release_borrowed()
    pool.drain()
    others[1].join()
    assert imported(pool) == 0


@pytest.mark.rule("HND-4")
def test_hnd_4_an_import_of_a_living_pool_stays(toy: Make) -> None:
    """
    Only the end of a pool lets its import go by itself.

    Given: an idle import of a pool that lives.
    When: other pools are imported and dropped.
    Then: it is the same import as before.
    """
    pool = toy()
    pool.join()
    before = IMPORTS.find(pool.pool.card.nonce)
    other = toy()
    other.join()
    close_imports(other.pool.card.nonce)
    assert IMPORTS.find(pool.pool.card.nonce) == before


@pytest.mark.rule("HND-4")
def test_hnd_4_another_pool_s_failure_is_not_the_reader_s(
    toy: Make, simulator: Simulator, ended: Toy, caplog: pytest.LogCaptureFixture
) -> None:
    """
    A driver that refuses to take an ended pool's import back does not keep anybody from reading.

    Given: an import of an ended pool that cannot be unmapped.
    When: another pool is read from.
    Then: the right bytes; the failure is logged, and not tried again.
    """
    other = toy()
    proxy = other.wrap(5)
    ended.pool.shutdown()
    simulator.fail_call("cuStreamDestroy", 1, UNKNOWN_ERROR)
    with caplog.at_level(logging.WARNING, "vmmref"):
        assert other.read(proxy) == b"\5" * 256
    assert "cuStreamDestroy" in caplog.text
    assert imported(ended) == 0
    asked = simulator.call_count("cuStreamDestroy")
    close_imports(b"another pool....")
    assert simulator.call_count("cuStreamDestroy") == asked
    # The stream that the driver has kept must not count as a leak of this test's.
    other.close()
    simulator.reset()


@pytest.mark.rule("HND-4")
@pytest.mark.rule("ACK-2")
def test_hnd_4_tables_go_with_the_pool(toy: Make) -> None:
    """
    What a process remembers of a pool goes when the pool has ended and is not imported any more, and not before.

    Given: a pool that was read from and whose import was dropped while it lived.
    When: imports are swept while it lives, and after its end.
    Then: its tables are there the first time, and gone the second.
    """
    pool = toy()
    nonce = pool.pool.card.nonce
    pool.consume(pool.wrap(1))
    close_imports(nonce)
    close_imports(nonce)
    assert IMPORTS.device_of(nonce, 0) == "sim:0"
    pool.pool.shutdown()
    close_imports(b"another pool....")
    assert IMPORTS.device_of(nonce, 0) is None


@pytest.mark.rule("HND-4")
def test_hnd_4_a_given_up_reading_can_be_finished(toy: Make) -> None:
    """
    An import that could not be dropped in time is as it was: its readings are good, and acknowledged once.

    Given: a reading that was begun, on a device that does not run.
    When: the import is to be dropped, with no patience, and the reading is finished when the device runs.
    Then: the right bytes, one acknowledgement, and nothing queued behind it.
    """
    pool = toy()
    pool.join()
    reading = pool.start(pool.wrap(3))
    with streams.progress(None), pytest.raises(TimeoutError):
        close_imports(pool.pool.card.nonce, timeout_seconds=0.0)
    pool.drain()
    assert pool.words() == ((2, 1),)
    assert reading.finish().tolist() == [3] * 256
    assert pool.step(pool.rank_stream()) is None


@pytest.mark.rule("HND-4")
def test_hnd_4_a_given_up_reading_of_a_borrowable_lease_acknowledges_once(toy: Make) -> None:
    """
    A stale reader that was given up has said that it is done (CON-6).

    Given: a reading of a borrowable lease that was given up, and the lease revoked before its copy.
    When: it is finished.
    Then: STALE_LEASE, and nothing is queued.
    """
    pool = toy()
    pool.join()
    proxy = pool.pool.wrap_tensor(bytes_of(4, 256), borrowable=True)
    assert proxy is not None
    reading = pool.start(proxy)
    pool.pool.revoke(proxy.lease)
    with streams.progress(None), pytest.raises(TimeoutError):
        close_imports(pool.pool.card.nonce, timeout_seconds=0.0)
    with pytest.raises(StaleLease):
        reading.finish()
    pool.drain()
    assert pool.words() == ((3, 1),)
    assert pool.pool.recycle() == 1


@pytest.mark.rule("HND-4")
@pytest.mark.rule("REAP-3")
@pytest.mark.parametrize("handle_type", HANDLE_TYPES)
def test_hnd_4_a_killed_producer_s_memory_is_given_back(handle_type: str) -> None:
    """
    The memory of a producer that was killed goes as soon as its consumer turns to the next one.

    Given: a consumer that has read from a producer process, which is then killed.
    When: it reads from the next producer.
    Then: it holds one import; the first pool is known to have ended as soon as its process is dead.
    """
    simulator = simcuda.load()
    simulator.reset()
    simulator.set_mode("threads")
    state = functools.partial(Producer, handle_type)
    with Child(state) as first, Child(state) as second:
        proxies = [first.ask("publish", 1), second.ask("publish", 2)]
        assert proxies[0].reconstruct_on_target_device("sim").tolist() == [1] * 256
        assert [producer_is_gone(proxy.card) for proxy in proxies] == [False, False]
        first.kill()
        assert [producer_is_gone(proxy.card) for proxy in proxies] == [True, False]
        assert proxies[1].reconstruct_on_target_device("sim").tolist() == [2] * 256
        assert [len(IMPORTS.find(proxy.card.nonce)) for proxy in proxies] == [0, 1]
    close_imports()
    assert simulator.usage().is_empty


@pytest.mark.rule("HND-4")
def test_hnd_4_a_reused_process_number_is_no_sign_of_life(toy: Make) -> None:
    """
    What a pool's card says of its process is for people; that the pool lives is asked of the pool.

    Given: a proxy whose card names this living process, of a pool that has ended, and one that names no process.
    When: it is asked whether their producers are gone.
    Then: only the first one is.
    """
    ended, living = toy(), toy()
    cards = [replace(ended.pool.card, producer_pid=os.getpid()), replace(living.pool.card, producer_pid=2**22 + 7)]
    ended.pool.shutdown()
    assert [producer_is_gone(card) for card in cards] == [True, False]


@pytest.mark.rule("HND-4")
@pytest.mark.rule("HND-1")
def test_hnd_4_a_sweep_that_fails_is_told_to_who_asked_for_it(toy: Make, simulator: Simulator, ended: Toy) -> None:
    """
    `close_imports` says what could not be given back, also of pools that have ended.

    Given: an import of an ended pool whose stream cannot be destroyed.
    When: imports are dropped, twice.
    Then: the driver's error, then none.
    """
    ended.pool.shutdown()
    simulator.fail_call("cuStreamDestroy", 1, UNKNOWN_ERROR)
    with pytest.raises(DriverError):
        close_imports(b"another pool....")
    close_imports(b"another pool....")
    assert imported(ended) == 0
    simulator.reset()


@pytest.mark.rule("REAP-3")
def test_reap_3_the_end_of_a_pool_of_this_process_is_told_as_well(simulator: Simulator) -> None:
    """
    A producer that reads its own proxies reaches the pool without a broker, and hears of its end as others do.

    Given: a proxy of a pool of this very process.
    When: it is read after the pool's end.
    Then: PRODUCER_GONE.
    """
    with VmmMemoryPool(GRANULE, "sim", 1, None, 1, handle_type="posix_fd") as pool:
        proxy = pool.wrap_tensor(bytes_of(1, 256))
        assert proxy is not None
        assert not producer_is_gone(pool.card)
    assert producer_is_gone(pool.card)
    with pytest.raises(ProducerGone, match="has been shut down"):
        another(proxy).reconstruct_on_target_device("sim")
