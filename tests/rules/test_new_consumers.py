"""ACK-2, REAP-1: a new process for a rank begins where the rank's words say that the old one has ended."""

from __future__ import annotations

import functools
import itertools
import threading

import pytest

from tests.processes.children import Child, Rank, Told
from tests.rules.toy import DATA, GRANULE, UNKNOWN_ERROR, Make, another, bytes_of, counts, left_by
from vmmref import simcuda
from vmmref.driver import streams
from vmmref.errors import AlreadyReleased, DriverError, WaitTimeout
from vmmref.imports import IMPORTS, close_imports
from vmmref.pool import VmmMemoryPool
from vmmref.simcuda import Simulator
from vmmref_models.reasons import Reason

RANK = functools.partial(Rank, 0, 1)
"""The only rank of a pool, in a process of its own."""


def recycled(pool: VmmMemoryPool) -> None:
    """Passes until every lease is back; the rank has queued its acknowledgements."""
    pause = threading.Event()
    for _ in range(2000):
        pool.recycle()
        if not pool.active_lease_count:
            return
        pause.wait(0.005)
    raise AssertionError(f"{pool.active_lease_count} leases have not come back")


@pytest.mark.rule("ACK-2")
@pytest.mark.parametrize("word_bytes", [4, 8])
@pytest.mark.parametrize("consumers", [1, 3])
def test_ack_2_a_new_table_begins_with_the_words(toy: Make, word_bytes: int, consumers: int) -> None:
    """
    What an earlier process of a rank has acknowledged is not acknowledged again, so the word does not fall.

    Given: a slot's first lease, read and recycled, and its second one, read; and a new process for the ranks.
    When: copies of the first lease's proxy are read and released there, and one of the second's.
    Then: refused without a store; every word stays at 2, and the second lease comes back.
    """
    pool = toy(slots=2, consumers=consumers, word_bytes=word_bytes)
    old = pool.wrap(1, DATA)
    pool.consume(old)
    assert pool.pool.recycle() == 1
    pool.wrap(3)
    new = pool.wrap(2)
    assert (new.lease.slot, new.lease.generation) == (old.lease.slot, 2)
    pool.consume(new)
    pool.replace_consumers()
    for rank, proxy in itertools.product(range(consumers), (old, new)):
        pool.release(another(proxy), rank)
        with pytest.raises(AlreadyReleased) as refusal:
            pool.start(another(proxy), rank)
        assert refusal.value.reason is Reason.ALREADY_RELEASED
    pool.drain()
    assert pool.words()[0] == (4, *[2] * consumers)
    assert pool.pool.recycle() == 1


@pytest.mark.rule("ACK-2")
@pytest.mark.rule("REAP-1")
def test_reap_1_what_the_old_process_did_not_acknowledge_is_open_to_the_new_one(toy: Make) -> None:
    """
    A new process takes part in the leases that the old one has only begun with.

    Given: a lease that a rank has begun to read when its process ended, and one that it had released.
    When: the new process reads both.
    Then: it gets the first one's bytes; the second is refused.
    """
    pool = toy(slots=2)
    begun, released = pool.wrap(1), pool.wrap(2)
    pool.release(another(released))
    pool.drain()
    # The table of the old process has this lease; its words do not.
    IMPORTS._known[pool.pool.card.nonce].tables[0].enter(begun.lease)
    with pytest.raises(AlreadyReleased):
        pool.start(another(begun))
    pool.replace_consumers()
    assert pool.read(another(begun)) == b"\1" * 256
    with pytest.raises(AlreadyReleased):
        pool.start(another(released))
    pool.drain()
    assert pool.pool.recycle() == 2


@pytest.mark.rule("ACK-2")
def test_ack_2_words_are_read_once_a_rank_and_process(toy: Make, simulator: Simulator) -> None:
    """
    A table that is known needs no look at the words, also through another import.

    Given: a rank that has taken part.
    When: it reads on, and again through a new import.
    Then: each reading copies one word to the host, the first one the words as well.
    """
    pool = toy(slots=3)
    copies = []
    for value in range(3):
        before = simulator.call_count("cuMemcpyDtoHAsync")
        pool.read(pool.wrap(value))
        copies.append(simulator.call_count("cuMemcpyDtoHAsync") - before)
        if value:
            close_imports(pool.pool.card.nonce)
    assert copies == [2, 1, 1]


@pytest.mark.rule("ACK-2")
@pytest.mark.rule("HND-1")
def test_ack_2_a_rank_that_cannot_see_its_words_takes_part_in_nothing(toy: Make, simulator: Simulator) -> None:
    """
    Without the words a rank does not know what it may acknowledge: then it is not let in, and nothing is lost.

    Given: the k-th driver call fails, for every k of the way to a rank's first reading, in a process that is new.
    When: a lease that the old process has acknowledged is released; and again without the fault.
    Then: the error, or nothing; the word never falls, and what the failed attempt took goes with the import.
    """
    for k in itertools.count(1):
        pool = toy(slots=1, word_bytes=8)
        old = pool.wrap(1)
        pool.consume(old)
        pool.pool.recycle()
        pool.consume(pool.wrap(2))
        pool.replace_consumers()
        before = counts(simulator)
        simulator.fail_any(k, UNKNOWN_ERROR)
        failed_call = ""
        try:
            pool.release(another(old))
        except DriverError as failure:
            failed_call = failure.call
        complete = bool(simulator.armed())
        simulator.clear_faults()
        pool.release(another(old))
        pool.drain()
        assert pool.words() == ((4, 2),), f"call {k}"
        close_imports(pool.pool.card.nonce)
        left = {kind: count - before.get(kind, 0) for kind, count in counts(simulator).items()}
        assert {kind: count for kind, count in left.items() if count} == left_by(failed_call), f"call {k}"
        pool.close()
        assert simulator.violations() == (), f"call {k}"
        simulator.reset()
        if complete:
            break
    assert k > 12


@pytest.mark.rule("ACK-2")
@pytest.mark.rule("LIFE-5")
def test_ack_2_a_device_that_does_not_run_is_told(
    toy: Make, simulator: Simulator, monkeypatch: pytest.MonkeyPatch
) -> None:
    """
    The look at the words has an end; what its copy still writes to stays until that is over.

    Given: a device that does not run.
    When: a rank takes part for the first time, and again when the device runs.
    Then: TIMED_OUT, and nothing in the table; then the right bytes, and everything is given back.
    """
    monkeypatch.setattr("vmmref.reader.WAIT_SECONDS", 0.01)
    pool = toy()
    proxy = pool.wrap(1)
    before = counts(simulator)
    with streams.progress(None), pytest.raises(WaitTimeout) as failure:
        pool.start(proxy)
    assert failure.value.reason is Reason.TIMED_OUT
    assert not proxy.took_part(0)
    assert pool.read(proxy) == b"\1" * 256
    close_imports(pool.pool.card.nonce)
    assert counts(simulator) == before


@pytest.mark.rule("ACK-2")
@pytest.mark.rule("REAP-1")
def test_reap_1_a_new_process_takes_a_dead_one_s_place() -> None:
    """
    The number of a dead rank goes to a new process, and its word does not fall.

    Given: a consumer process that has read two leases of one slot and is killed.
    When: a new one is watched in its place, releases and reads the first lease's proxy, and reads a third lease.
    Then: ALREADY_RELEASED for the first; the third is right and comes back, which a fallen word could not hide.
    """
    simulator = simcuda.load()
    simulator.reset()
    simulator.set_mode("threads")
    with VmmMemoryPool(GRANULE, "sim", 1, None, 1, handle_type="posix_fd") as pool:
        first = pool.wrap_tensor(bytes_of(1, 256))
        with Child(RANK) as old:
            pool.watch_consumer(0, old.process.process_id)
            old.ask("read", first)
            recycled(pool)
            second = pool.wrap_tensor(bytes_of(2, 256))
            old.ask("read", second)
            recycled(pool)
            old.kill()
        assert pool.reap() == [0]
        with Child(RANK) as new:
            pool.watch_consumer(0, new.process.process_id)
            third = pool.wrap_tensor(bytes_of(3, 256))
            new.ask("release", first)
            with pytest.raises(Told) as refusal:
                new.ask("read", first)
            assert refusal.value.reason == Reason.ALREADY_RELEASED
            assert pool.look()._words.tolist() == [6, 2]
            new.ask("read", third)
            recycled(pool)
            assert new.ask("close") == ({}, 0)
    assert simulator.usage().is_empty
