"""Twelve failures from public bug reports, and the right outcome of each: numbers exact, on a toy pool.

Toy pool: alignment 256 bytes, control words of 4 bytes, a data area of 1024 bytes. Every scenario ends with the same
closing check: all leases gone, 1024 bytes free in one range, every slot listed once.
"""

from __future__ import annotations

import functools
import os
import pickle
from typing import Any

import pytest

from tests.rules.toy import DATA, GRANULE, UNKNOWN_ERROR, Make, Toy, another, bytes_of, content, counts
from vmmref import errors
from vmmref.driver import calls
from vmmref.driver.device import Device
from vmmref.handles import export_descriptor
from vmmref.proxy import TensorProxy
from vmmref.reservation import VmmReservation
from vmmref.simcuda import Simulator
from vmmref.unwind import Unwind


def closing_check(pool: Toy) -> None:
    pool.check_home()
    stats = pool.pool.stats()
    assert (stats.free_bytes, stats.largest_free) == (1024, 1024)


def proxy_of(pool: Toy, publication: Any) -> TensorProxy:
    """A proxy that left before the pool would have let it: what a pool without PUB-2 would send."""
    return TensorProxy(pool.pool.card, publication.lease, publication.dtype, publication.shape)


@pytest.mark.rule("PUB-1")
@pytest.mark.rule("PUB-2")
def test_1_ready_overtakes_the_copy(toy: Make) -> None:
    """
    A reader never takes what was in the range before for the tensor.

    Given: 512 bytes of 0xA1 whose copy is queued and held, and the ready store behind it.
    When: an early rank reads; the hold ends; a rank reads through the proxy that the pool gives out.
    Then: before, R is 0 and the early rank keeps nothing; afterwards 512 bytes of 0xA1.
    """
    pool = toy(consumers=2)
    publication = pool.begin(0xA1, 512)
    early = pool.start(proxy_of(pool, publication), rank=0)
    with pytest.raises(errors.StaleLease):
        early.finish()
    assert pool.words() == ((0, 0, 0),)
    proxy = pool.pool.finish_publish(publication)
    assert pool.words() == ((2, 0, 0),)
    assert pool.read(proxy, rank=1) == b"\xa1" * 512
    pool.pool.revoke(proxy.lease)
    closing_check(pool)


@pytest.mark.rule("ACK-1")
def test_2_ack_overtakes_the_copy_out(toy: Make) -> None:
    """
    A lease does not come back under a copy-out.

    Given: 1024 bytes of 0xA1, and rank 0's copy-out queued and held.
    When: a pass, a lease of 1024; the hold ends; a pass, a lease of 1024 with 0xB2.
    Then: nothing freed and refused; then one freed, slot 0 generation 2, and rank 0 holds only 0xA1.
    """
    pool = toy()
    reading = pool.start(pool.wrap(0xA1, 1024))
    assert pool.pool.recycle() == 0
    assert pool.pool.wrap_tensor(bytes_of(0xB2, 1024)) is None
    tensor = reading.finish()
    assert pool.pool.recycle() == 0
    pool.drain()
    assert pool.pool.recycle() == 1
    second = pool.wrap(0xB2, 1024)
    assert (second.lease.slot, second.lease.generation) == (0, 2)
    assert content(tensor) == b"\xa1" * 1024
    pool.consume(second)
    assert pool.pool.recycle() == 1
    closing_check(pool)


@pytest.mark.rule("GEN-4")
def test_3_late_alias_of_an_old_generation(toy: Make) -> None:
    """
    A pickled alias of a recycled lease reads nothing and writes nothing.

    Given: g1 read by both ranks and recycled, g2 in the same slot acknowledged by rank 0.
    When: rank 0 unpickles the alias of g1, reads it and releases it.
    Then: refused, and its word stays at 2; g2 stays until rank 1 has acknowledged, then it comes back once.
    """
    pool = toy(consumers=2)
    first = pool.wrap(0xA1, 512)
    pickled = pickle.dumps(first)
    pool.consume(first)
    assert pool.pool.recycle() == 1
    second = pool.wrap(0xB2, 512)
    assert second.lease.generation == 2
    pool.read(second, rank=0)
    pool.drain()
    for alias in (pickle.loads(pickled), pickle.loads(pickled)):
        with pytest.raises(errors.AlreadyReleased):
            pool.read(alias, rank=0)
        pool.release(pickle.loads(pickled), rank=0)
        pool.drain()
        assert pool.words() == ((4, 2, 1),)
    assert pool.pool.recycle() == 0
    pool.release(second, rank=1)
    pool.drain()
    assert [pool.pool.recycle() for _ in range(2)] == [1, 0]
    closing_check(pool)


@pytest.mark.rule("ACK-3")
def test_4_one_rank_acks_twice(toy: Make) -> None:
    """
    Two acknowledgements of one rank are one.

    Given: a lease of three ranks.
    When: ranks 0, 0 and 1 acknowledge; a pass; rank 2; a pass; rank 2 again; a pass.
    Then: 0, 1 and 0 leases come back, and the free bytes rise once.
    """
    pool = toy(consumers=3)
    proxy = pool.wrap(1, 1024)
    freed, free = [], []
    for ranks in ((0, 0, 1), (2,), (2,)):
        for rank in ranks:
            pool.release(another(proxy), rank)
        pool.drain()
        freed.append(pool.pool.recycle())
        free.append(pool.free)
    assert (freed, free) == ([0, 1, 0], [0, 1024, 1024])
    closing_check(pool)


@pytest.mark.rule("PUB-3")
@pytest.mark.rule("CAN-1")
def test_5_third_of_three_fails(toy: Make, simulator: Simulator) -> None:
    """
    A request that fails at its third tensor costs nothing.

    Given: 256 and 512 bytes queued, and an error when the third copy of 256 is queued.
    When: the request is dropped: its leases are cancelled; then the same request is sent again.
    Then: the error is the third tensor's; all bytes and slots are back; the second try works, and a slot that is used
    again has generation 2.
    """
    pool = toy(slots=4, consumers=2)
    queued = [pool.begin(1, 256), pool.begin(2, 512)]
    simulator.fail_call("cuMemcpyDtoDAsync", 1, UNKNOWN_ERROR)
    with pytest.raises(errors.DriverError) as failure:
        pool.begin(3, 256)
    assert failure.value.call == "cuMemcpyDtoDAsync"
    for publication in queued:
        pool.pool.cancel_lease(publication.lease)
    assert pool.pool.recycle() == 0
    closing_check(pool)
    used = pool.pool.stats().generations
    again = [pool.wrap(value, size) for value, size in ((1, 256), (2, 512), (3, 256))]
    assert [proxy.lease.generation for proxy in again] == [used[proxy.lease.slot] + 1 for proxy in again]
    assert 2 in [proxy.lease.generation for proxy in again]
    for value, proxy in enumerate(again, start=1):
        assert pool.read(proxy, rank=0) == bytes([value]) * proxy.nbytes
        pool.release(proxy, rank=1)
    pool.drain()
    assert pool.pool.recycle() == 3
    closing_check(pool)


@pytest.mark.rule("CON-3")
def test_6_abort_before_anyone_reads(toy: Make, simulator: Simulator) -> None:
    """
    An abort is an acknowledgement without a read, once a rank.

    Given: 512 bytes that two ranks were told of.
    When: rank 0 releases without reading, again, then rank 1; a pass after each; rank 1 reads.
    Then: 0, 0 and 1 leases come back; the read is refused, also through an unpickled copy, and no byte is read.
    """
    pool = toy(consumers=2)
    proxy = pool.wrap(0xA1, 512)
    copy = pickle.loads(pickle.dumps(proxy))
    freed = []
    for rank in (0, 0, 1):
        pool.release(proxy, rank)
        pool.drain()
        freed.append(pool.pool.recycle())
    assert freed == [0, 0, 1]
    copies = simulator.call_count("cuMemcpyDtoDAsync")
    for each in (proxy, copy):
        with pytest.raises(errors.AlreadyReleased, match="already released"):
            pool.read(each, rank=1)
    assert simulator.call_count("cuMemcpyDtoDAsync") == copies
    closing_check(pool)


@pytest.mark.rule("CON-4")
def test_7_one_rank_fails_in_the_middle(toy: Make, simulator: Simulator) -> None:
    """
    A rank that fails acknowledges for itself, once a lease; the other rank is not disturbed.

    Given: three leases of 256 bytes in one request for two ranks.
    When: rank 0 reads A, fails at B and cleans up B and C; a pass; rank 1 reads all three; a pass.
    Then: rank 0 has acknowledged A, B and C once each; 0 leases, then 3; rank 1 has right bytes; the pool serves on.
    """
    pool = toy(slots=3, consumers=2)
    proxies = [pool.wrap(value) for value in (0xA1, 0xB2, 0xC3)]
    pool.read(proxies[0], rank=0)
    simulator.fail_call("cuMemcpyDtoDAsync", 1, UNKNOWN_ERROR)
    with pytest.raises(errors.DriverError):
        pool.read(proxies[1], rank=0)
    stores = simulator.call_count("cuMemsetD32Async")
    for proxy in proxies:
        pool.release(proxy, rank=0)
    assert simulator.call_count("cuMemsetD32Async") == stores + 1
    pool.drain()
    assert pool.words() == ((2, 1, 0), (2, 1, 0), (2, 1, 0))
    assert pool.pool.recycle() == 0
    assert [pool.read(proxy, rank=1) for proxy in proxies] == [bytes([value]) * 256 for value in (0xA1, 0xB2, 0xC3)]
    pool.drain()
    assert pool.pool.recycle() == 3
    closing_check(pool)
    pool.consume(pool.wrap(1))
    assert pool.pool.recycle() == 1
    closing_check(pool)


@pytest.mark.rule("RNG-5")
def test_8_slow_rank_and_a_full_pool(toy: Make) -> None:
    """
    A full pool refuses without a trace, and serves again where the slow rank has let go.

    Given: A and B of 512 bytes, both read by rank 0 only.
    When: C of 256 bytes is asked for; a pass; rank 1 acknowledges A; a pass; C is asked for again.
    Then: the refusal changes nothing and the caller still has its tensor; C then starts where A did, B is as it was.
    """
    pool = toy(slots=2, consumers=2)
    a, b = pool.wrap(0xA1, 512), pool.wrap(0xB2, 512)
    for proxy in (a, b):
        pool.read(proxy, rank=0)
    pool.drain()
    before, tensor = pool.state(), bytes_of(0xC3, 256)
    assert pool.pool.wrap_tensor(tensor) is None
    assert (pool.state(), content(tensor)) == (before, b"\xc3" * 256)
    assert pool.pool.recycle() == 0
    pool.release(a, rank=1)
    pool.drain()
    assert pool.pool.recycle() == 1
    c = pool.wrap(0xC3, 256)
    assert (c.lease.start, c.lease.end) == (a.lease.start, a.lease.start + 256)
    assert pool.read(b, rank=1) == b"\xb2" * 512
    pool.consume(c)
    assert pool.pool.recycle() == 2
    closing_check(pool)


@pytest.mark.rule("REC-6")
def test_9_stale_release_after_reissue(toy: Make) -> None:
    """
    A late release of an old handle does not free its successor.

    Given: A (g1) recycled, B (g2) in the same slot and range.
    When: A is released twice; B is acknowledged; a pass.
    Then: both releases are refused; B is readable and nothing is free until its acknowledgement; then 1024 bytes, once.
    """
    pool = toy()
    a = pool.wrap(0xA1, 1024)
    pool.consume(a)
    assert pool.pool.recycle() == 1
    b = pool.wrap(0xB2, 1024)
    assert (b.lease.generation, b.lease.start) == (2, a.lease.start)
    for _ in range(2):
        with pytest.raises(errors.LeaseError, match=r"slot=0, generation=1"):
            pool.pool.release_lease(a.lease)
        assert (pool.free, pool.pool.recycle()) == (0, 0)
    assert pool.read(b) == b"\xb2" * 1024
    pool.drain()
    assert ([pool.pool.recycle() for _ in range(2)], pool.free) == ([1, 0], 1024)
    closing_check(pool)


@pytest.mark.rule("GEN-2")
@pytest.mark.rule("GEN-3")
def test_10_generation_ceiling(toy: Make) -> None:
    """
    A ceiling is reached without a repeated number.

    Given: two slots and a ceiling of 3.
    When: slot 0 is used up while slot 1 holds its first lease; then slot 1 is used up.
    Then: generation 3 works in full; full is not exhausted; every pair comes once; then GENERATION_EXHAUSTED.
    """
    pool = toy(slots=2, generation_limit=3)
    issued: list[tuple[int, int]] = []

    def publish() -> TensorProxy:
        proxy = pool.wrap(len(issued))
        issued.append((proxy.lease.slot, proxy.lease.generation))
        return proxy

    def use(proxy: TensorProxy) -> None:
        assert pool.read(proxy) == bytes([issued.index((proxy.lease.slot, proxy.lease.generation))]) * 256
        pool.drain()
        assert pool.pool.recycle() == 1

    use(publish())
    held = publish()
    use(publish())
    use(publish())
    assert issued == [(0, 1), (1, 1), (0, 2), (0, 3)]
    assert pool.words()[0] == (2 * 3 + 1, 3)
    assert pool.pool.wrap_tensor(bytes_of(1, 1)) is None
    use(held)
    use(publish())
    use(publish())
    with pytest.raises(errors.GenerationExhausted):
        publish()
    assert sorted(issued) == [(slot, generation) for slot in range(2) for generation in (1, 2, 3)]
    closing_check(pool)


def import_members(device: Device, descriptors: list[int]) -> VmmReservation:
    """Map every member side by side and close its descriptor; a failure gives everything back."""
    unwind = Unwind()
    for descriptor in reversed(descriptors):
        unwind.push(functools.partial(os.close, descriptor))
    try:
        reservation = VmmReservation(device, len(descriptors) * GRANULE)
        unwind.push(reservation.close)
        for member, descriptor in enumerate(descriptors):
            handle = calls.import_descriptor(descriptor)
            try:
                reservation.map_existing(handle, member * GRANULE, GRANULE)
            finally:
                # The mapping keeps the memory.
                calls.release_memory(handle)
    except BaseException as error:
        unwind.run(cause=error)
        raise
    for descriptor in descriptors:
        os.close(descriptor)
    return reservation


@pytest.mark.rule("HND-1")
@pytest.mark.parametrize("clean_up_fails", [False, True])
def test_11_import_fails_at_member_2_of_3(
    simulator: Simulator, monkeypatch: pytest.MonkeyPatch, clean_up_fails: bool
) -> None:
    """
    An import of several members that fails half-way gives back what it took, and only that.

    Given: three members to import, all counts noted; the import of the second fails, and perhaps an unmap as well.
    When: they are imported; and again without the fault.
    Then: member 1 is unmapped, the reservation freed, the descriptors closed, members 2 and 3 never unmapped; counts as
    at the start; the caller sees the import's error also when the clean-up fails; the second try works.
    """
    device = Device("sim")
    exporter = VmmReservation(device, 3 * GRANULE)
    handles = [exporter.map(member * GRANULE, GRANULE) for member in range(3)]
    before = counts(simulator), len(os.listdir("/proc/self/fd"))
    unmapped: list[int] = []
    unmap = calls.unmap_memory

    def note_unmap(address: int, size: int) -> None:
        unmapped.append(address)
        unmap(address, size)

    monkeypatch.setattr(calls, "unmap_memory", note_unmap)
    simulator.fail_call("cuMemImportFromShareableHandle", 2, UNKNOWN_ERROR)
    if clean_up_fails:
        simulator.fail_call("cuMemAddressFree", 1, 1)
    with pytest.raises(errors.DriverError) as failure:
        import_members(device, [export_descriptor(handle) for handle in handles])
    assert (failure.value.call, failure.value.result) == ("cuMemImportFromShareableHandle", UNKNOWN_ERROR)
    assert len(unmapped) == 1
    expected = before[0] | ({"reservations": 2} if clean_up_fails else {})
    assert (counts(simulator), len(os.listdir("/proc/self/fd"))) == (expected, before[1])
    assert bool(getattr(failure.value, "__notes__", [])) == clean_up_fails

    imported = import_members(device, [export_descriptor(handle) for handle in handles])
    assert counts(simulator)["mappings"] == 6
    imported.close()
    exporter.close()
    device.close()
    assert len(unmapped) == 1 + 3 + 3
    if clean_up_fails:
        simulator.reset()


@pytest.mark.rule("REAP-2")
def test_12_time_out_then_the_late_reader(toy: Make) -> None:
    """
    A late lease is set aside and not reissued; its late reader has right bytes; it comes back once.

    Given: two slots, A and B of 512 bytes, a deadline of 5 ticks, and a reader of A that comes at tick 7.
    When: B is acknowledged at 1, its range leased at 2 and acknowledged at 3; at 6 two leases of 512 are asked for; A
    is read at 7 and acknowledged at 8; at 9 one more is asked for.
    Then: 2 and the first of 6 come from B's range, the second of 6 is refused while A is set aside (capacity lower by
    512); 7 has A's bytes; 9 comes from A's range.
    """
    tick = 0.0
    pool = toy(slots=2, lease_deadline=5.0, clock=lambda: tick)

    def alloc(value: int) -> TensorProxy | None:
        pool.pool.recycle()
        return pool.pool.wrap_tensor(bytes_of(value, 512))

    a, b = pool.wrap(0xA1, 512), pool.wrap(0xB2, 512)
    tick = 1.0
    pool.consume(b)
    tick = 2.0
    second = alloc(2)
    assert second is not None
    assert second.lease.start == b.lease.start
    tick = 3.0
    pool.consume(second)
    tick = 5.0
    assert pool.pool.stats().set_aside_slots == ()
    tick = 6.0
    third = alloc(3)
    assert third is not None
    assert third.lease.start == b.lease.start
    stats = pool.pool.stats()
    assert (stats.set_aside_slots, stats.capacity) == ((a.lease.slot,), DATA - 512)
    assert alloc(4) is None
    assert pool.words()[a.lease.slot][0] == 2
    tick = 7.0
    assert content(pool.start(a).finish()) == b"\xa1" * 512
    assert alloc(5) is None
    tick = 8.0
    pool.drain()
    tick = 9.0
    fourth = alloc(6)
    assert fourth is not None
    assert fourth.lease.start == a.lease.start
    assert (pool.pool.stats().set_aside_slots, pool.pool.stats().capacity) == ((), DATA)
    for proxy, value in ((third, 3), (fourth, 6)):
        assert pool.read(proxy) == bytes([value]) * 512
    pool.drain()
    assert pool.pool.recycle() == 2
    closing_check(pool)
