"""A producer and its ranks in processes of their own, over descriptors and over FABRIC handles."""

from __future__ import annotations

import contextlib
import functools
import os
import threading
import warnings
from collections.abc import Iterator
from typing import Any

import pytest
import torch

from tests.processes.children import GRANULE, Child, Producer, Rank, Told
from vmmref import wire
from vmmref.conformance import payloads
from vmmref.errors import ArgumentError, ProducerGone
from vmmref.imports import close_imports
from vmmref.pool import VmmMemoryPool
from vmmref.proxy import TensorProxy
from vmmref.simcuda import Simulator
from vmmref_models.operations import Payload
from vmmref_models.reasons import Reason

HANDLE_TYPES = ["posix_fd", "fabric"]


@contextlib.contextmanager
def two_ranks() -> Iterator[list[Child]]:
    with Child(functools.partial(Rank, 0, 2)) as first, Child(functools.partial(Rank, 1, 2)) as second:
        yield [first, second]


@pytest.fixture(scope="module")
def ranks() -> Iterator[list[Child]]:
    """Two consumer processes, rank 0 and rank 1, which outlive the pools of many tests as consumers do."""
    with two_ranks() as children:
        yield children


def payload(dtype: str, number: int) -> torch.Tensor:
    """A tensor of a dtype, of a shape and with bytes of its own."""
    shape = [(), (7,), (3, 5), (2, 3, 4)][number % 4]
    count = wire.ELEMENT_BYTES[dtype]
    for length in shape:
        count *= length
    raw = payloads.values(Payload("bool" if dtype == "bool" else "uint8", (count,), number))
    return torch.frombuffer(bytearray(raw), dtype=torch.uint8).view(getattr(torch, dtype)).reshape(shape)


def published(pool: VmmMemoryPool, tensor: torch.Tensor) -> TensorProxy:
    proxy = pool.wrap_tensor(tensor)
    assert proxy is not None, "the pool is full"
    return proxy


def recycle_until(pool: VmmMemoryPool, most: int) -> None:
    """Passes until no more than `most` leases are out; the ranks have queued their acknowledgements."""
    pause = threading.Event()
    for _ in range(2000):
        pool.recycle()
        if pool.active_lease_count <= most:
            return
        pause.wait(0.005)
    raise AssertionError(f"{pool.active_lease_count} leases have not come back")


def recycle_all(pool: VmmMemoryPool) -> None:
    """Passes until every lease is back."""
    recycle_until(pool, 0)


def end(children: list[Child]) -> list[tuple[dict[str, int], int]]:
    return [child.ask("close") for child in children]


NOTHING: tuple[dict[str, int], int] = ({}, 0)


@pytest.mark.rule("CON-1")
@pytest.mark.rule("HND-1")
@pytest.mark.parametrize("handle_type", HANDLE_TYPES)
def test_con_1_every_dtype_reaches_every_process(simulator: Simulator, ranks: list[Child], handle_type: str) -> None:
    """
    Every byte of every dtype arrives in two processes, and none of the three keeps anything.

    Given: a pool of two ranks, each a process of its own.
    When: a tensor of every dtype is published, and its proxy is pickled to both.
    Then: dtype, shape and all bytes are equal; all leases come back; every process counts nothing left.
    """
    with VmmMemoryPool(GRANULE, "sim", 2, None, 64, handle_type=handle_type) as pool, warnings.catch_warnings():
        warnings.filterwarnings("ignore", message="ComplexHalf support is experimental")
        for number, dtype in enumerate(sorted(wire.ELEMENT_BYTES)):
            tensor = payload(dtype, number)
            proxy = published(pool, tensor)
            for rank in ranks:
                rank.send("read", proxy)
            expected = (str(tensor.dtype), tuple(tensor.shape), payloads.digest(tensor))
            assert [rank.answer() for rank in ranks] == [expected, expected]
        recycle_all(pool)
        assert pool.stats().free_bytes == pool.usable_size
        left = end(ranks)
    assert left == [NOTHING, NOTHING]


@pytest.mark.rule("GEN-4")
@pytest.mark.rule("CON-3")
@pytest.mark.parametrize("handle_type", HANDLE_TYPES)
def test_gen_4_a_late_alias_is_refused_in_its_process(
    simulator: Simulator, ranks: list[Child], handle_type: str
) -> None:
    """
    An alias of a recycled lease reads nothing and writes nothing, in whatever process it turns up.

    Given: a lease that both processes have read, recycled; its slot leased again and read by rank 0 only.
    When: copies of the old proxy are read and released in both processes.
    Then: ALREADY_RELEASED; the new lease stays until rank 1 has read it, with its own bytes.
    """
    with VmmMemoryPool(GRANULE, "sim", 2, None, 1, handle_type=handle_type) as pool:
        old, first = payload("uint8", 2), payload("uint8", 6)
        proxy = published(pool, old)
        for rank in ranks:
            assert rank.ask("read", proxy)[2] == payloads.digest(old)
        recycle_all(pool)
        new = published(pool, first)
        assert (new.lease.slot, new.lease.generation) == (0, 2)
        assert ranks[0].ask("read", new)[2] == payloads.digest(first)
        for rank in ranks:
            with pytest.raises(Told) as refusal:
                rank.ask("read", proxy)
            assert refusal.value.reason == Reason.ALREADY_RELEASED
            rank.ask("release", proxy)
        assert (pool.recycle(), pool.active_lease_count) == (0, 1)
        assert ranks[1].ask("read", new)[2] == payloads.digest(first)
        recycle_all(pool)
        left = end(ranks)
    assert left == [NOTHING, NOTHING]


@pytest.mark.rule("CON-3")
@pytest.mark.parametrize("handle_type", HANDLE_TYPES)
def test_con_3_an_abort_in_both_processes(simulator: Simulator, ranks: list[Child], handle_type: str) -> None:
    """
    Releasing without reading gives a lease back, also when that is all that a process ever does with the pool.

    Given: a lease of two processes that have not seen the pool before.
    When: both release it, one of them twice, and then one reads.
    Then: the lease comes back once; the read is refused.
    """
    with VmmMemoryPool(GRANULE, "sim", 2, None, 4, handle_type=handle_type) as pool:
        proxy = published(pool, payload("float32", 1))
        ranks[0].ask("release", proxy)
        ranks[0].ask("release", proxy)
        assert pool.recycle() == 0
        ranks[1].ask("release", proxy)
        recycle_all(pool)
        with pytest.raises(Told) as refusal:
            ranks[1].ask("read", proxy)
        assert refusal.value.reason == Reason.ALREADY_RELEASED
        left = end(ranks)
    assert left == [NOTHING, NOTHING]


@pytest.mark.rule("HND-5")
@pytest.mark.rule("REAP-3")
@pytest.mark.parametrize("handle_type", HANDLE_TYPES)
def test_hnd_5_the_exporter_s_death_spares_its_importers(simulator: Simulator, handle_type: str) -> None:
    """
    An importer keeps the memory; who comes too late is told.

    Given: a producer process with two leases, of which this process has read the first, and of a second producer none.
    When: both producers are killed; the second lease is read; a lease of the second producer is read.
    Then: the second lease's bytes are right; for the other producer PRODUCER_GONE.
    """
    state = functools.partial(Producer, handle_type)
    with Child(state) as producer, Child(state) as stranger:
        proxies = [producer.ask("publish", value) for value in (0xA1, 0xB2)]
        unseen = stranger.ask("publish", 0xC3)
        assert proxies[0].reconstruct_on_target_device("sim").tolist() == [0xA1] * 256
        producer.kill()
        stranger.kill()
        assert proxies[1].reconstruct_on_target_device("sim").tolist() == [0xB2] * 256
        with pytest.raises(ProducerGone) as refusal:
            unseen.reconstruct_on_target_device("sim")
        assert (refusal.value.reason, refusal.value.rule) == (Reason.PRODUCER_GONE, "REAP-3")
    close_imports()
    assert simulator.usage().is_empty


@pytest.mark.rule("CAN-3")
@pytest.mark.parametrize("handle_type", HANDLE_TYPES)
def test_can_3_a_killed_consumer_does_not_stop_the_pool(simulator: Simulator, handle_type: str) -> None:
    """
    The leases of a dead rank can be revoked, and the others go on.

    Given: a lease that rank 0 has read and rank 1 has not.
    When: rank 1's process is killed; a pass; the lease is revoked; another lease is published.
    Then: the pass frees nothing; after the revoke all bytes are free; rank 0 reads the new lease.
    """
    with VmmMemoryPool(GRANULE, "sim", 2, None, 4, handle_type=handle_type) as pool, two_ranks() as ranks:
        first = published(pool, payload("int32", 3))
        warm = published(pool, payload("int32", 2))
        for rank in ranks:
            rank.ask("read", warm)
        ranks[0].ask("read", first)
        ranks[1].kill()
        pool.recycle()
        assert first.lease in pool.stats().leases
        pool.revoke(first.lease)
        recycle_all(pool)
        tensor = payload("int32", 7)
        assert ranks[0].ask("read", published(pool, tensor))[2] == payloads.digest(tensor)
        left = end(ranks[:1])
    assert left == [NOTHING]


@pytest.mark.rule("REC-3")
@pytest.mark.rule("LIV-1")
@pytest.mark.parametrize("handle_type", HANDLE_TYPES)
def test_liv_1_many_threads_and_processes_at_once(simulator: Simulator, ranks: list[Child], handle_type: str) -> None:
    """
    Real concurrency: every byte is right, every lease comes back.

    Given: four publishing threads, a recycler thread, two consumer processes, and some leases that are cancelled.
    When: each thread publishes sixty tensors of changing sizes to both ranks.
    Then: every digest is right, and in the end nothing is leased and nothing left.
    """
    wrong: list[Any] = []
    locks = [threading.Lock(), threading.Lock()]
    pause = threading.Event()

    def publish(thread: int, pool: VmmMemoryPool) -> None:
        generator = torch.Generator().manual_seed(thread)
        for number in range(60):
            size = 1 + (number * 997 + thread * 131) % 4096
            tensor = torch.randint(0, 256, (size,), dtype=torch.uint8, generator=generator)
            while (proxy := pool.wrap_tensor(tensor)) is None:
                pause.wait(0.001)
            if number % 10 == 9:
                pool.cancel_proxy(proxy)
                continue
            for rank, lock in zip(ranks, locks, strict=True):
                with lock:
                    digest = rank.ask("read", proxy)[2]
                if digest != payloads.digest(tensor):
                    wrong.append((thread, number))

    def publish_and_tell(thread: int, pool: VmmMemoryPool) -> None:
        try:
            publish(thread, pool)
        except BaseException as error:
            wrong.append(error)

    with VmmMemoryPool(GRANULE, "sim", 2, 0.002, 8, handle_type=handle_type, data_size=16 << 10) as pool:
        threads = [threading.Thread(target=publish_and_tell, args=(thread, pool)) for thread in range(4)]
        for thread in threads:
            thread.start()
        for thread in threads:
            thread.join(120)
        assert not any(thread.is_alive() for thread in threads)
        recycle_all(pool)
        assert (wrong, pool.failure) == ([], None)
        left = end(ranks)
    assert left == [NOTHING, NOTHING]


@pytest.mark.rule("REAP-1")
@pytest.mark.parametrize("handle_type", HANDLE_TYPES)
def test_reap_1_a_dead_consumer_gives_its_leases_back(simulator: Simulator, handle_type: str) -> None:
    """
    The rank of a process that has died is counted for every lease it has not acknowledged; the others are undisturbed.

    Given: two watched processes, and three leases: rank 0 has read two of them, rank 1 holds all and has read none.
    When: rank 1's process is killed; rank 0 reads the third lease; a lease without a rank 1 is published; then a new
        process is watched for rank 1, and a lease for both is published.
    Then: passes free nothing before the death, and two leases after it; the third and the fourth come back by rank 0
        alone; the last one comes back only when both have read it.
    """
    with VmmMemoryPool(GRANULE, "sim", 2, None, 4, handle_type=handle_type) as pool, two_ranks() as ranks:
        for number, rank in enumerate(ranks):
            pool.watch_consumer(number, rank.process.process_id)
        warm = published(pool, payload("int32", 9))
        for rank in ranks:
            rank.ask("read", warm)
        recycle_all(pool)
        proxies = [published(pool, payload("int32", value)) for value in range(3)]
        for proxy in proxies[:2]:
            ranks[0].ask("read", proxy)
        assert pool.reap() == []
        assert pool.recycle() == 0
        ranks[1].kill()
        recycle_until(pool, 1)
        assert ranks[0].ask("read", proxies[2])[2] == payloads.digest(payload("int32", 2))
        recycle_until(pool, 0)
        ranks[0].ask("read", published(pool, payload("int32", 4)))
        recycle_until(pool, 0)
        with Child(functools.partial(Rank, 1, 2)) as newcomer:
            pool.watch_consumer(1, newcomer.process.process_id)
            both = published(pool, payload("int32", 5))
            ranks[0].ask("read", both)
            assert pool.recycle() == 0
            assert newcomer.ask("read", both)[2] == payloads.digest(payload("int32", 5))
            recycle_until(pool, 0)
            left = end([ranks[0], newcomer])
    assert left == [NOTHING, NOTHING]


@pytest.mark.rule("REAP-1")
def test_reap_1_who_can_be_watched(simulator: Simulator) -> None:
    """
    A rank has one process, which exists.

    Given: a pool of two ranks, rank 0 acted for by this process.
    When: another process is named for rank 0, a rank that is none, a process that is none.
    Then: each is refused, and nothing is left open by the pool.
    """
    with VmmMemoryPool(GRANULE, "sim", 2, None, 4) as pool:
        pool.watch_consumer(0, os.getpid())
        for rank, process, reason in ((0, 1, "BAD_RANK"), (2, 1, "BAD_RANK"), (1, 2**22 + 1, "BAD_ARGUMENT")):
            with pytest.raises(ArgumentError) as refusal:
                pool.watch_consumer(rank, process)
            assert refusal.value.reason == reason
