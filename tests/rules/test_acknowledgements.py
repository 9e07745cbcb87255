"""ACK: one word a rank, written by that rank, once a lease."""

from __future__ import annotations

from typing import Any

import pytest

from tests.rules.toy import Make, Toy, another, content
from vmmref.errors import AlreadyReleased, ArgumentError
from vmmref.imports import close_imports
from vmmref.simcuda import Simulator
from vmmref.simcuda.native import Option
from vmmref_models.reasons import Reason


@pytest.mark.rule("ACK-1")
def test_ack_1_an_acknowledgement_follows_its_copy_out(toy: Make) -> None:
    """
    A[r] = n is visible only when rank r's read is over.

    Given: a reader whose copy-out is queued.
    When: its pieces run one by one.
    Then: A[0] is 0 until copy and check have run, and the acknowledgement is the third piece.
    """
    pool = toy()
    reading = pool.start(pool.wrap(0xA1))
    stream = pool.rank_stream()
    for _ in range(2):
        assert pool.words() == ((2, 0),)
        pool.step(stream)
    assert reading.finish().tolist() == [0xA1] * 256
    assert pool.words() == ((2, 0),)
    pool.step(stream)
    assert pool.words() == ((2, 1),)


@pytest.mark.rule("ACK-1")
def test_ack_1_a_release_waits_behind_the_rank_s_reads(toy: Make) -> None:
    """
    All of a rank's work is in one order.

    Given: a queued copy-out of one lease, and behind it the release of another.
    When: the rank's stream runs piece by piece.
    Then: the released lease is acknowledged after the copy-out.
    """
    pool = toy(slots=2)
    first, second = pool.wrap(1), pool.wrap(2)
    reading = pool.start(first)
    pool.release(second)
    stream = pool.rank_stream()
    for _ in range(2):
        assert pool.words() == ((2, 0), (2, 0))
        pool.step(stream)
    pool.step(stream)
    assert pool.words() == ((2, 0), (2, 1))
    reading.finish()


@pytest.mark.rule("ACK-2")
@pytest.mark.parametrize("word_bytes", [4, 8])
def test_ack_2_a_word_never_falls(toy: Make, word_bytes: int) -> None:
    """
    A late acknowledgement of an old lease cannot hide a newer one.

    Given: copies of a first lease's proxy, and a second lease of the slot that the rank has acknowledged.
    When: the old copies are read and released.
    Then: the word stays at 2.
    """
    pool = toy(word_bytes=word_bytes)
    old = pool.wrap(1)
    aliases = [another(old), another(old)]
    pool.consume(old)
    pool.pool.recycle()
    pool.consume(pool.wrap(2))
    assert pool.words() == ((4, 2),)
    with pytest.raises(AlreadyReleased):
        pool.start(aliases[0])
    pool.release(aliases[1])
    pool.drain()
    assert pool.words() == ((4, 2),)
    assert pool.pool.recycle() == 1


@pytest.mark.rule("ACK-2")
def test_ack_2_a_late_acknowledgement_of_a_revoked_lease_comes_in_order(toy: Make) -> None:
    """
    Acknowledgements of one rank run in the order in which its table admitted them.

    Given: a queued acknowledgement of a lease that was revoked, and behind it one of the slot's next lease.
    When: they run.
    Then: the word goes 0, 1, 2.
    """
    pool = toy()
    old = pool.wrap(1)
    pool.release(old)
    pool.pool.revoke(old.lease)
    pool.release(pool.wrap(2))
    seen = [pool.words()[0][1]]
    while pool.step(pool.rank_stream()) is not None:
        seen.append(pool.words()[0][1])
    assert seen == [0, 1, 2]


@pytest.mark.rule("ACK-2")
def test_ack_2_a_table_outlives_its_import(toy: Make) -> None:
    """
    Dropping an import and making a new one does not make an old alias new.

    Given: a lease that was read and recycled, the slot's next lease read through a second import, and that one dropped.
    When: copies of the old proxy are released and read through a third import.
    Then: refused without a store; the word stays at 2 and the newer lease comes back.
    """
    pool = toy()
    old = pool.wrap(1)
    aliases = [another(old), another(old)]
    pool.consume(old)
    assert pool.pool.recycle() == 1
    close_imports(pool.pool.card.nonce)
    pool.consume(pool.wrap(2))
    close_imports(pool.pool.card.nonce)
    pool.release(aliases[0])
    with pytest.raises(AlreadyReleased):
        pool.start(aliases[1])
    pool.drain()
    assert pool.words() == ((4, 2),)
    assert pool.pool.recycle() == 1


@pytest.mark.rule("ACK-2")
def test_ack_2_a_rank_acts_on_one_device(simulator: Simulator) -> None:
    """
    One word has one stream: a rank does not act on two devices of its process.

    Given: two devices, a pool on the first, and rank 0 that reads on the second.
    When: rank 0 reads and releases on the first as well, and rank 1 there for the first time.
    Then: rank 0 gets the bytes across devices, and BAD_RANK for the other device; rank 1 acts where it wants.
    """
    simulator.configure({Option.DEVICES: 2})
    pool = Toy(simulator, slots=2, consumers=2)
    first, second = pool.wrap(0xA1), pool.wrap(0xB2)
    assert content(first.reconstruct_on_target_device("sim:1", 2, 0)) == b"\xa1" * 256
    for use in (
        lambda: second.reconstruct_on_target_device("sim:0", 2, 0),
        lambda: second.release_without_reconstruction(2, 0, device="sim:0"),
    ):
        with pytest.raises(ArgumentError) as refusal:
            use()
        assert (refusal.value.reason, refusal.value.rule) == (Reason.BAD_RANK, "ACK-2")
    assert content(second.reconstruct_on_target_device("sim:1", 2, 0)) == b"\xb2" * 256
    for proxy in (first, second):
        assert len(content(proxy.reconstruct_on_target_device("sim:0", 2, 1))) == 256
    pool.drain()
    assert pool.pool.recycle() == 2
    pool.close()
    simulator.reset()
    simulator.configure({Option.DEVICES: 1})


@pytest.mark.rule("ACK-3")
def test_ack_3_a_rank_counts_once(toy: Make) -> None:
    """
    However often and through however many copies a rank acknowledges, it counts once.

    Given: a lease of two ranks.
    When: rank 0 reads, and then releases and acknowledges again and again through several copies.
    Then: a pass frees nothing until rank 1 has taken part, and then one lease.
    """
    pool = toy(consumers=2)
    proxy = pool.wrap(1)
    copies = [another(proxy) for _ in range(3)]
    pool.read(proxy, rank=0)
    for copy in (proxy, *copies):
        pool.release(copy, rank=0)
        copy.acknowledge_consumption(2, 0)
    pool.drain()
    assert (pool.words(), pool.pool.recycle()) == (((2, 1, 0),), 0)
    pool.release(copies[0], rank=1)
    pool.drain()
    assert (pool.pool.recycle(), pool.pool.recycle()) == (1, 0)


@pytest.mark.rule("ACK-4")
@pytest.mark.parametrize(
    ("count", "rank"),
    [(1, 0), (3, 0), (0, 0), (2, 2), (2, -1), (2, None), (2, True), (2, 0.0), (2, (0, 1)), (2, [0, 0]), (2, "0")],
    ids=str,
)
def test_ack_4_another_rank_set_is_refused(toy: Make, count: Any, rank: Any) -> None:
    """
    The words a lease waits for are fixed when it is published.

    Given: a lease of two ranks.
    When: somebody takes part under another number of ranks, or as no one of them.
    Then: BAD_RANK before any write; both ranks may still take part.
    """
    pool = toy(consumers=2)
    proxy = pool.wrap(1)
    before = pool.state()
    for use in (
        lambda: proxy.reconstruct_on_target_device("sim", count, rank),
        lambda: proxy.release_without_reconstruction(count, rank),
        lambda: proxy.acknowledge_consumption(count, rank),
    ):
        with pytest.raises(ArgumentError) as refusal:
            use()
        assert (refusal.value.reason, refusal.value.rule) == (Reason.BAD_RANK, "ACK-4")
    assert pool.state() == before
    pool.consume(proxy)
    assert pool.pool.recycle() == 1


@pytest.mark.rule("ACK-5")
def test_ack_5_an_acknowledgement_counts_for_its_lease_only(toy: Make) -> None:
    """
    What the lease before has left in the words completes nothing.

    Given: a slot that two ranks have acknowledged at generation 1 and that is leased again.
    When: a pass runs before, between and after their acknowledgements of generation 2.
    Then: it frees the lease only after both.
    """
    pool = toy(consumers=2)
    pool.consume(pool.wrap(1))
    assert pool.pool.recycle() == 1
    second = pool.wrap(2)
    assert (pool.words(), pool.pool.recycle()) == (((4, 1, 1),), 0)
    pool.read(second, rank=0)
    pool.drain()
    assert (pool.words(), pool.pool.recycle()) == (((4, 2, 1),), 0)
    pool.read(second, rank=1)
    pool.drain()
    assert (pool.words(), pool.pool.recycle()) == (((4, 2, 2),), 1)
