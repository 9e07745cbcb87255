"""Bad input of the public interface: one clear refusal with a reason and a rule, before anything is taken."""

from __future__ import annotations

import threading
from collections.abc import Callable
from typing import Any

import numpy
import pytest
import torch

from tests.rules.toy import GRANULE, Make, Toy
from vmmref import VmmMemoryPool, VmmReservation, close_imports, errors
from vmmref.driver.device import Device
from vmmref.simcuda import Simulator

ARGUMENTS: list[dict[str, Any]] = [
    {"memory_size": 2**70},
    {"memory_size": "x"},
    {"memory_size": float("inf")},
    {"consumer_count": 70_000},
    {"max_inflight_slices": 2**40},
    {"wait_timeout": None},
    {"wait_timeout": 1e300},
    {"recycle_interval": 2**63},
    {"lease_deadline": 0},
    {"lease_deadline": "soon"},
    {"transport_name": None},
    {"transport_name": ""},
    {"transport_name": "\ud800"},
    {"transport_name": "x" * 256},
    {"handle_type": 3},
    {"clock": "x"},
    {"issued_generations": None},
    {"issued_generations": 5},
    {"issued_generations": (1, "2")},
    {"generation_limit": 0},
    {"generation_limit": 2**31},
    {"word_bytes": 5},
    {"data_size": 255},
    {"device": None},
    {"device": b"sim"},
    {"device": "sim:x"},
]


@pytest.mark.rule("LIFE-1")
@pytest.mark.parametrize("wrong", ARGUMENTS, ids=repr)
def test_life_1_a_bad_argument_is_refused_before_anything_is_taken(simulator: Simulator, wrong: dict[str, Any]) -> None:
    arguments: dict[str, Any] = {"memory_size": GRANULE, "device": "sim", "recycle_interval": None} | wrong
    calls = simulator.call_count()
    with pytest.raises((errors.ArgumentError, errors.UnsupportedError)) as refusal:
        VmmMemoryPool(**arguments)
    assert refusal.value.reason
    assert refusal.value.rule in str(refusal.value)
    if "device" not in wrong:
        assert simulator.call_count() == calls


@pytest.mark.rule("LIFE-1")
def test_life_1_numbers_of_numpy_are_numbers(toy: Make) -> None:
    pool = VmmMemoryPool(numpy.int64(GRANULE), "sim", numpy.int32(1), None, numpy.uint16(2))  # type: ignore[arg-type]
    assert (pool.usable_size, type(pool.usable_size)) == (GRANULE - 256, int)
    pool.shutdown()


@pytest.mark.rule("LIFE-4")
def test_life_4_impatience_does_not_unmap_what_the_device_still_writes(simulator: Simulator) -> None:
    """A constructor that times out waits for its own queued fill all the same, or leaves the memory mapped."""
    simulator.set_mode("threads")
    for _ in range(20):
        try:
            VmmMemoryPool(GRANULE, "sim", 1, None, 8, wait_timeout=1e-9).shutdown(timeout=30.0)
        except errors.WaitTimeout:
            continue
    assert simulator.violations() == ()


CALLS: list[tuple[str, Callable[[Toy], object]]] = [
    ("cancel nothing", lambda toy: toy.pool.cancel_lease(None)),  # type: ignore[arg-type]
    ("cancel a tuple", lambda toy: toy.pool.cancel_lease((b"", 0, 1, 256, 512, 1))),  # type: ignore[arg-type]
    ("revoke a text", lambda toy: toy.pool.revoke("x")),  # type: ignore[arg-type]
    ("release a number", lambda toy: toy.pool.release_lease(3)),  # type: ignore[arg-type]
    ("cancel no proxy", lambda toy: toy.pool.cancel_proxy(None)),  # type: ignore[arg-type]
    ("finish nothing", lambda toy: toy.pool.finish_publish(None)),  # type: ignore[arg-type]
    ("claim nothing", lambda toy: toy.pool.claim(None)),  # type: ignore[arg-type]
    ("pack a tensor", lambda toy: toy.pool.wrap_tensors(torch.ones(3))),  # type: ignore[arg-type]
    ("pack a number", lambda toy: toy.pool.wrap_tensors(3)),  # type: ignore[arg-type]
    ("publish a list", lambda toy: toy.pool.wrap_tensor([1])),
    ("publish a lost storage", lambda toy: toy.pool.wrap_tensor(without_storage())),
    ("shut down by text", lambda toy: toy.pool.shutdown("x")),  # type: ignore[arg-type]
    ("shut down never", lambda toy: toy.pool.shutdown(float("nan"))),
    ("drop by text", lambda toy: close_imports("x")),  # type: ignore[arg-type]
    ("drop never", lambda toy: close_imports(None, float("nan"))),
    ("watch a text", lambda toy: toy.pool.watch_consumer(0, "x")),  # type: ignore[arg-type]
    ("read on nothing", lambda toy: toy.wrap(1).reconstruct_on_target_device(None)),
    ("read on bytes", lambda toy: toy.wrap(1).reconstruct_on_target_device(b"sim")),
    ("read as rank 1 of 1", lambda toy: toy.wrap(1).reconstruct_on_target_device("sim", 1, 1)),
    ("read as 0.0", lambda toy: toy.wrap(1).reconstruct_on_target_device("sim", 1, 0.0)),  # type: ignore[arg-type]
    ("reserve without a device", lambda toy: VmmReservation("sim", GRANULE)),  # type: ignore[arg-type]
]


def without_storage() -> torch.Tensor:
    tensor = torch.ones(16)
    tensor.untyped_storage().resize_(0)
    return tensor


@pytest.mark.rule("ERR-2")
@pytest.mark.parametrize("call", [call for _, call in CALLS], ids=[name for name, _ in CALLS])
def test_err_2_a_wrong_argument_of_a_call_is_refused(toy: Make, call: Callable[[Toy], object]) -> None:
    pool = toy()
    before = pool.pool.stats().free_bytes
    with pytest.raises(errors.VmmRefError) as refusal:
        call(pool)
    assert refusal.value.reason
    assert f"[{refusal.value.rule}]" in str(refusal.value)
    leases = pool.pool.stats().leases
    assert pool.pool.stats().free_bytes == before - sum(lease.end - lease.start for lease in leases)
    for lease in leases:
        pool.pool.cancel_lease(lease)
    pool.check_home()


@pytest.mark.rule("HND-3")
@pytest.mark.parametrize("where", [("a", GRANULE), (0.0, GRANULE), (0, None), (1, GRANULE)])
def test_hnd_3_a_mapping_is_checked_first(simulator: Simulator, where: tuple[Any, Any]) -> None:
    device = Device("sim")
    with (
        VmmReservation(device, GRANULE) as reservation,
        pytest.raises(errors.ArgumentError, match="outside reservation"),
    ):
        reservation.map(*where)
    device.close()


@pytest.mark.rule("HND-4")
def test_hnd_4_a_reading_whose_import_was_dropped_says_so(toy: Make) -> None:
    pool = toy()
    reading = pool.start(pool.wrap(1))
    close_imports(pool.pool.card.nonce)
    with pytest.raises(errors.ProducerGone, match="dropped its import"):
        reading.finish()


@pytest.mark.rule("GEN-5")
def test_gen_5_looks_and_publications_of_another_pool_are_refused(toy: Make) -> None:
    """
    Everything that one pool hands out is of no use to another.

    Given: two pools; a look at one of them and a publication of one of them.
    When: the other pool is to claim by the look, or to finish the publication.
    Then: both are refused with FOREIGN_POOL, and the leases are as they were.
    """
    one, other = toy(), toy()
    publication = one.begin(1)
    lease = other.wrap(2).lease
    for call in (lambda: other.pool.claim(one.pool.look()), lambda: other.pool.finish_publish(publication)):
        with pytest.raises(errors.LeaseError) as refusal:
            call()
        assert refusal.value.reason == "FOREIGN_POOL"
    assert other.pool.stats().leases == (lease,)
    assert one.pool.stats().leases == (publication.lease,)


@pytest.mark.rule("CON-2")
def test_con_2_a_reading_that_is_finished_twice_gives_back_once(toy: Make) -> None:
    """
    Finishing again answers the same tensor and touches nothing.

    Given: a reading that was finished twice.
    When: two further readings are under way at once, and the first of their leases is revoked.
    Then: the revoked one is stale and the other is right: they do not share the place of R.
    """
    pool = toy(slots=3)
    reading = pool.start(pool.wrap(1))
    assert reading.finish() is reading.finish()
    pool.drain()
    revoked, kept = pool.wrap(2), pool.wrap(3)
    pool.pool.revoke(revoked.lease)
    late, right = pool.start(revoked), pool.start(kept)
    pool.drain()
    with pytest.raises(errors.StaleLease):
        late.finish()
    with pytest.raises(errors.AlreadyReleased):
        late.finish()
    assert bytes(right.finish().numpy()) == b"\3" * 256


@pytest.mark.rule("HND-4")
def test_hnd_4_an_import_is_not_dropped_under_a_reader(simulator: Simulator) -> None:
    """
    Dropping imports while another thread reads ends neither in a fault nor in a lost lease.

    Given: a pool whose proxies one thread reads, with streams that run by themselves.
    When: another thread drops every import of the process, again and again.
    Then: each reading gives the right bytes or says that the import was dropped; every lease comes back.
    """
    simulator.set_mode("threads")
    stop, wrong = threading.Event(), []

    def drop() -> None:
        while not stop.is_set():
            close_imports()

    with VmmMemoryPool(GRANULE, "sim", 1, None, 8) as pool:
        thread = threading.Thread(target=drop)
        thread.start()
        for number in range(300):
            proxy = pool.wrap_tensor(torch.full((100,), number % 251, dtype=torch.uint8))
            pool.recycle()
            if proxy is None:
                continue
            try:
                tensor = proxy.reconstruct_on_target_device("sim")
                if not bool((tensor == number % 251).all()):
                    wrong.append(number)
            except errors.ProducerGone:
                pool.cancel_proxy(proxy) if not proxy.took_part(0) else None
        stop.set()
        thread.join(30)
        assert (wrong, pool.life) == ([], "open")
    close_imports()
    assert simulator.violations() == ()
