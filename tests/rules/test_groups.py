"""ACK-4: who acknowledges for whom is fixed when a lease is published, and one word stands for a whole group."""

from __future__ import annotations

import subprocess
from collections.abc import Callable
from typing import Any

import pytest
import torch

from tests.rules.toy import Make, Toy, another, bytes_of, content
from vmmref import FeatureTransport
from vmmref.errors import AlreadyReleased, ArgumentError, LeaseError, PoolClosing
from vmmref.groups import Groups, Ranks
from vmmref.packed import PackedTensorProxy
from vmmref.proxy import TensorProxy
from vmmref.simcuda import Simulator
from vmmref_models.reasons import Reason

PAIR_AND_ONE: Groups = [(1, 0), (2,)]
"""Of three ranks: 1 speaks for 0 and itself, 2 for itself."""


def grouped(pool: Toy, groups: Groups, value: int = 7, borrowable: bool = False) -> TensorProxy:
    proxy = pool.pool.wrap_tensor(bytes_of(value, 256), borrowable, groups)
    assert proxy is not None
    return proxy


def calls_for_work(simulator: Simulator) -> int:
    """Driver calls so far, but for those that make a context current."""
    return simulator.call_count() - sum(simulator.call_count(f"cuCtx{call}Current") for call in ("Get", "Set"))


@pytest.mark.rule("ACK-4")
@pytest.mark.parametrize("word_bytes", [4, 8])
def test_ack_4_one_word_stands_for_a_group(toy: Make, word_bytes: int) -> None:
    """
    A group's acknowledgement is one store into its speaker's word, and completes the lease for the whole group.

    Given: a lease of three ranks, published for the groups {1, 0}, led by 1, and {2}.
    When: the first group reads, a pass runs, rank 2 releases, and another pass runs.
    Then: word 1 is written and word 0 never; only the second pass takes the lease back.
    """
    pool = toy(consumers=3, word_bytes=word_bytes)
    proxy = grouped(pool, PAIR_AND_ONE)
    assert content(another(proxy).reconstruct_on_target_device("sim", 3, (1, 0))) == b"\7" * 256
    pool.drain()
    assert pool.words() == ((2, 0, 1, 0),)
    assert pool.pool.recycle() == 0
    another(proxy).release_without_reconstruction(3, 2)
    pool.drain()
    assert pool.words() == ((2, 0, 1, 1),)
    assert pool.pool.recycle() == 1
    pool.check_home()


@pytest.mark.rule("ACK-4")
@pytest.mark.parametrize("groups", [None, [(0,), (1,)], [[1], [0]]])
def test_ack_4_each_rank_alone_is_no_group(toy: Make, groups: Groups | None) -> None:
    """
    Groups of one rank each are what there is without groups, also in the wire form.

    Given: a lease of two ranks without groups, or with one for each rank.
    When: its proxy is written, and both ranks read.
    Then: the wire form names no speakers; both words are needed.
    """
    pool = toy(consumers=2)
    publication = pool.pool.begin_publish(bytes_of(7, 256), groups=groups)
    assert publication is not None
    proxy = another(pool.pool.finish_publish(publication))
    assert proxy.speakers == ()
    pool.read(proxy, 0)
    pool.drain()
    assert pool.pool.recycle() == 0
    pool.read(proxy, 1)
    pool.drain()
    assert pool.pool.recycle() == 1


@pytest.mark.rule("ACK-4")
def test_ack_4_all_ranks_are_meant_when_none_is_named(toy: Make) -> None:
    """
    A rank that is left out means the one group of all ranks, led by rank 0.

    Given: leases of three ranks: for one group led by 0, for one led by 2, and for each rank alone.
    When: each is released without naming a rank.
    Then: the first comes back; the others are refused with BAD_RANK.
    """
    pool = toy(slots=3, consumers=3)
    whole, led_by_two, alone = grouped(pool, [(0, 1, 2)]), grouped(pool, [(2, 0, 1)]), pool.wrap(1)
    whole.release_without_reconstruction()
    for proxy in (led_by_two, alone):
        with pytest.raises(ArgumentError) as refusal:
            proxy.release_without_reconstruction()
        assert (refusal.value.reason, refusal.value.rule) == (Reason.BAD_RANK, "ACK-4")
    pool.drain()
    assert pool.words() == ((2, 1, 0, 0), (2, 0, 0, 0), (2, 0, 0, 0))
    assert pool.pool.recycle() == 1


@pytest.mark.rule("ACK-4")
@pytest.mark.parametrize(
    "groups",
    [
        [], (), [[]], [(0, 1, 2), ()], [(0, 1)], [(0, 1), (1, 2)], [(0, 0, 1, 2)], [(0, 1, 3), (2,)], [(-1, 0), (1, 2)],
        [(0, True, 2)], [0, 1, 2], "012", [("0", "1", "2")], 7, [(0, 1.0, 2)], [{0, 1, 2}], {0: (0, 1, 2)},
    ],
)  # fmt: skip
def test_ack_4_bad_groups_take_nothing(toy: Make, simulator: Simulator, groups: Any) -> None:
    """
    Groups that are not disjoint, not complete or not made of ranks are refused before anything is taken.

    Given: a pool of three ranks.
    When: a tensor, several, or the first half of a publication is asked for with such groups, or a request.
    Then: BAD_RANK each time, without a driver call; nothing is held.
    """
    pool = toy(consumers=3)
    before, calls = pool.state(), calls_for_work(simulator)
    tensor = bytes_of(1, 256)
    attempts: list[Callable[[], Any]] = [
        lambda: pool.pool.wrap_tensor(tensor, groups=groups),
        lambda: pool.pool.begin_publish(tensor, groups=groups),
        lambda: pool.pool.wrap_tensors([tensor, tensor], groups),
        lambda: FeatureTransport(pool.pool, processor=1).publish({"a": tensor}, groups=groups),
    ]
    for attempt in attempts:
        with pytest.raises(ArgumentError) as refusal:
            attempt()
        assert (refusal.value.reason, refusal.value.rule) == (Reason.BAD_RANK, "ACK-4")
    assert (calls_for_work(simulator), pool.state()) == (calls, before)


@pytest.mark.rule("ACK-4")
def test_ack_4_a_closed_pool_says_so_first(toy: Make) -> None:
    """
    Whether the pool still serves comes before what it was asked for.

    Given: a pool that is shut down.
    When: a tensor is published for bad groups.
    Then: POOL_CLOSING.
    """
    pool = toy(consumers=3)
    pool.pool.shutdown()
    with pytest.raises(PoolClosing):
        pool.pool.wrap_tensor(bytes_of(1, 256), groups=[(0, 1)])


WRONG_RANKS: list[Ranks] = [
    (), [], (0,), (1,), (2, 2), (0, 1), (1, 0, 2), (2, 1), (1, 1, 0), (1, 3), (-1,), 0, 1, 3, -1, None, (1, False),
    True,
]  # fmt: skip
"""Of PAIR_AND_ONE: parts, wholes and more of groups, other leaders, strangers, repetitions, and what is no rank."""


@pytest.mark.rule("ACK-4")
@pytest.mark.parametrize("ranks", [*WRONG_RANKS, "10", b"\1\0", (1.0, 0), {1, 0}, object()], ids=repr)
def test_ack_4_what_is_no_group_of_the_lease_is_refused(toy: Make, simulator: Simulator, ranks: Any) -> None:
    """
    An acknowledgement names exactly a group that the lease was published for, its speaker first.

    Given: a borrowable lease for {1, 0} and {2}, and a pack for the same groups.
    When: anything else is named in any call of their proxies.
    Then: BAD_RANK before any device work, table entry or write: the right group reads both afterwards.
    """
    pool = toy(slots=2, consumers=3)
    single = another(grouped(pool, PAIR_AND_ONE, borrowable=True))
    packed = pool.pool.wrap_tensors([bytes_of(1, 8), bytes_of(2, 8)], PAIR_AND_ONE)
    assert packed is not None
    pack = PackedTensorProxy.from_bytes(bytes(packed[1]))
    calls = calls_for_work(simulator)
    attempts: list[Callable[[], Any]] = [
        lambda: single.reconstruct_on_target_device("sim", 3, ranks),
        lambda: single.begin_reconstruction("sim", 3, ranks),
        lambda: single.borrow_on_target_device("sim", 3, ranks),
        lambda: single.release_borrowed(3, ranks),
        lambda: single.release_without_reconstruction(3, ranks),
        lambda: single.acknowledge_consumption(3, ranks),
        lambda: pack.reconstruct_on_target_device("sim", 3, ranks),
        lambda: pack.release_without_reconstruction(3, ranks),
        lambda: pack.acknowledge_consumption(3, ranks),
        lambda: FeatureTransport.receive({"a": single, "b": pack}, "sim", 3, ranks),
        lambda: FeatureTransport.abort({"a": single, "b": pack}, 3, ranks),
    ]
    for attempt in attempts:
        with pytest.raises(ArgumentError) as refusal:
            attempt()
        assert (refusal.value.reason, refusal.value.rule) == (Reason.BAD_RANK, "ACK-4")
    assert calls_for_work(simulator) == calls
    assert content(single.reconstruct_on_target_device("sim", 3, (1, 0))) == b"\7" * 256
    assert content(pack.reconstruct_on_target_device("sim", 3, (1, 0))) == b"\2" * 8


@pytest.mark.rule("ACK-4")
def test_ack_4_a_wrong_rank_comes_before_everything_else(toy: Make) -> None:
    """
    Who is spoken for is told that, and not what became of the lease.

    Given: a lease whose group {0, 1} has read it through the same copy of the proxy.
    When: rank 1 asks by itself, and a second copy asks for the group.
    Then: BAD_RANK, though the copy has the tensor; the second copy is refused as released already.
    """
    pool = toy(consumers=2)
    proxy = grouped(pool, [(0, 1)])
    copy = another(proxy)
    tensor = proxy.reconstruct_on_target_device("sim")
    assert proxy.reconstruct_on_target_device("sim", 2, (0, 1)) is tensor
    with pytest.raises(ArgumentError):
        proxy.reconstruct_on_target_device("sim", 2, 1)
    with pytest.raises(AlreadyReleased):
        copy.reconstruct_on_target_device("sim", 2, [0, 1])
    assert [proxy.took_part(rank) for rank in range(3)] == [True, True, False]
    assert [copy.took_part(rank) for rank in range(2)] == [False, False]


@pytest.mark.rule("ACK-4")
def test_ack_4_a_changed_set_on_a_retry_is_refused(toy: Make) -> None:
    """
    The set that a group acknowledges for is what was published, however often it asks.

    Given: a lease for {0, 1} and {2}, which the first group has released.
    When: rank 0 tries again, for all three ranks.
    Then: BAD_RANK; the lease still waits for rank 2.
    """
    pool = toy(consumers=3)
    proxy = grouped(pool, [(0, 1), (2,)])
    proxy.release_without_reconstruction(3, (0, 1))
    with pytest.raises(ArgumentError):
        proxy.release_without_reconstruction(3, (0, 1, 2))
    pool.drain()
    assert pool.words() == ((2, 1, 0, 0),)
    assert pool.pool.recycle() == 0


@pytest.mark.rule("ACK-4")
@pytest.mark.rule("REAP-1")
@pytest.mark.parametrize(("dead", "freed"), [(1, 1), (0, 0)], ids=["the speaker", "a member"])
def test_reap_1_a_speaker_s_death_covers_its_group(toy: Make, dead: int, freed: int) -> None:
    """
    A lease waits for a group until its speaker has acknowledged or is dead; a member's death changes nothing.

    Given: a lease for {1, 0} and {2}; rank 2 has acknowledged, and rank 1 or rank 0 belongs to another process.
    When: that process dies and a pass runs.
    Then: the lease comes back if it was the speaker, and not if it was the other one.
    """
    pool = toy(consumers=3)
    proxy = grouped(pool, PAIR_AND_ONE)
    proxy.release_without_reconstruction(3, 2)
    pool.drain()
    process = subprocess.Popen(["sleep", "60"])
    try:
        pool.pool.watch_consumer(dead, process.pid)
        assert pool.pool.recycle() == 0
    finally:
        process.kill()
        process.wait(10)
    assert pool.pool.recycle() == freed
    # No word was written for anybody.
    assert pool.words()[0][1:] == (0, 0, 1)


@pytest.mark.rule("ACK-4")
def test_ack_4_what_a_lease_waits_for_is_told(toy: Make) -> None:
    """
    The statistics name the ranks that hold leases back, a group by its speaker.

    Given: a lease for {1, 0} and {2}, one for each rank alone, and one that was not handed out.
    When: some ranks acknowledge and the pool looks.
    Then: before the look all speakers are listed, behind it those that are left; a claimed lease is not listed.
    """
    pool = toy(slots=3, consumers=3)
    first, second = grouped(pool, PAIR_AND_ONE), pool.wrap(2)
    pool.begin(3)
    assert pool.pool.stats().unreleased == ((0, (1, 2)), (1, (0, 1, 2)))
    first.release_without_reconstruction(3, (1, 0))
    second.release_without_reconstruction(3, 2)
    pool.drain()
    assert pool.pool.stats().unreleased == ((0, (1, 2)), (1, (0, 1, 2)))
    pool.pool.look()
    assert pool.pool.stats().unreleased == ((0, (2,)), (1, (0, 1)))
    pool.pool.begin_cancel(second.lease)
    assert pool.pool.stats().unreleased == ((0, (2,)),)


@pytest.mark.rule("ACK-4")
@pytest.mark.rule("PACK-3")
def test_ack_4_a_request_of_groups(toy: Make) -> None:
    """
    A request is published for groups as a tensor is, and received or aborted by them.

    Given: a request of three tensors, one of them on its own, for the groups {1, 0} and {2}.
    When: the first group receives and rank 2 aborts.
    Then: the bytes are right, and both leases come back.
    """
    pool = toy(slots=2, consumers=3)
    tensors = {name: torch.arange(20, dtype=torch.int16) + number for number, name in enumerate("abc")}
    fields: dict[str, Any] = dict(tensors)
    transport = FeatureTransport(pool.pool, processor=1)
    request = transport.publish(fields, single=["c"], groups=PAIR_AND_ONE)
    assert len(request.leases) == 2
    with pytest.raises(LeaseError):
        fields["a"].acknowledge_consumption(3, [1, 0])
    got = transport.receive(fields, "sim", 3, [1, 0])
    assert all(torch.equal(got[name], tensors[name]) for name in tensors)
    transport.abort(fields, 3, 2)
    pool.drain()
    assert pool.pool.recycle() == 2
    pool.check_home()
