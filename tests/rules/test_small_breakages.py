"""Small steps that are easy to lose in a port, and that larger tests meet by chance or not at all."""

from __future__ import annotations

import threading
from typing import Any

import pytest

from tests.rules.toy import Make, Toy, another, bytes_of
from vmmref.driver import calls
from vmmref.driver.device import Device
from vmmref.errors import AlreadyReleased, WaitTimeout
from vmmref.imports import IMPORTS
from vmmref.life import Life, State
from vmmref.proxy import TensorProxy
from vmmref.reader import RankReader
from vmmref_models.reasons import Reason

SLOTS = 3
WAIT_SECONDS = 10.0


def lent(pool: Toy) -> TensorProxy:
    """A proxy that may be borrowed, as a consumer gets it."""
    proxy = pool.pool.wrap_tensor(bytes_of(1, 256), borrowable=True)
    assert proxy is not None
    return another(proxy)


def reader_of(pool: Toy) -> RankReader:
    """The reader of rank 0, which has taken part."""
    (imported,) = IMPORTS.find(pool.pool.card.nonce)
    return imported.rank(0)


@pytest.mark.rule("ACK-2")
@pytest.mark.parametrize("word_bytes", [4, 8])
def test_ack_2_a_new_table_learns_every_slot(toy: Make, word_bytes: int) -> None:
    """
    A new process of a rank knows what was acknowledged in each slot, not only in the first.

    Given: a lease in each of three slots, all released by both ranks.
    When: new processes take the ranks' places and read copies of the three proxies.
    Then: every one is refused with ALREADY_RELEASED, and no word has changed.
    """
    pool = toy(slots=SLOTS, consumers=2, word_bytes=word_bytes)
    proxies = [pool.wrap(value) for value in range(1, SLOTS + 1)]
    assert sorted(proxy.lease.slot for proxy in proxies) == list(range(SLOTS))
    for proxy in proxies:
        pool.consume(another(proxy))
    pool.replace_consumers()
    words = pool.words()
    for proxy in proxies:
        for rank in range(2):
            with pytest.raises(AlreadyReleased) as refusal:
                pool.start(another(proxy), rank)
            assert refusal.value.reason is Reason.ALREADY_RELEASED
    pool.drain()
    assert pool.words() == words


@pytest.mark.rule("CON-6")
@pytest.mark.rule("HND-4")
def test_con_6_a_view_that_is_out_keeps_its_rank_busy(toy: Make) -> None:
    """
    A rank whose stream is idle is busy all the same while somebody looks at the pool's memory through it.

    Given: a borrowed view, with everything that was queued done.
    When: the rank is asked whether it is busy, before and after the view is released.
    Then: yes, and the import is not dropped; then no.
    """
    pool = toy()
    proxy = lent(pool)
    proxy.borrow_on_target_device("sim")
    pool.drain()
    reader = reader_of(pool)
    assert calls.stream_idle(reader.stream.handle)
    assert reader.is_busy
    (imported,) = IMPORTS.find(pool.pool.card.nonce)
    imported.close_if_idle()
    assert not imported.closed
    proxy.release_borrowed()
    pool.drain()
    assert not reader.is_busy


@pytest.mark.rule("CON-6")
@pytest.mark.parametrize("word_bytes", [4, 8])
def test_con_6_a_view_s_acknowledgement_is_ordered_after_torch(
    toy: Make, monkeypatch: pytest.MonkeyPatch, word_bytes: int
) -> None:
    """
    What torch has queued that reads a view comes before the acknowledgement.

    Torch queues nothing on a simulated device, so the order itself cannot be seen there: this looks at the calls.

    Given: a borrowed view, and nothing queued on the rank's stream.
    When: the view is released, twice.
    Then: the rank's stream was ordered after torch's once, and then the acknowledgement was queued.
    """
    pool = toy(word_bytes=word_bytes)
    proxy = lent(pool)
    proxy.borrow_on_target_device("sim")
    pool.drain()
    stream = reader_of(pool).stream.handle
    ordered = list[tuple[int, bool]]()

    def order_after_torch(device: Device, later: int) -> None:
        ordered.append((later, calls.stream_idle(later)))

    monkeypatch.setattr(Device, "order_after_torch", order_after_torch)
    proxy.release_borrowed()
    proxy.release_borrowed()
    assert ordered == [(stream, True)]
    assert not calls.stream_idle(stream)
    pool.drain()
    assert pool.words() == ((2, 1),)


@pytest.mark.rule("LIFE-2")
def test_life_2_a_second_closer_waits_for_the_first(toy: Make) -> None:
    """
    Who shuts down a pool that another thread is shutting down is answered when that one has ended, or is told so.

    Given: a thread that has begun to close a pool's life and has not ended.
    When: another thread begins with little patience; with much patience; and the first one ends.
    Then: TIMED_OUT; no answer before the first one's end; then that the pool is closed already.
    """
    life = Life(toy().pool._device, "CUDA VMM")
    assert life.begin_close(WAIT_SECONDS)
    answers = list[Any]()

    def close_too() -> None:
        try:
            life.begin_close(0.01)
        except WaitTimeout as failure:
            answers.append(failure.reason)
        patient.set()
        answers.append((life.begin_close(WAIT_SECONDS), life.state))

    patient = threading.Event()
    second = threading.Thread(target=close_too)
    second.start()
    assert patient.wait(WAIT_SECONDS)
    assert answers == [Reason.TIMED_OUT]
    life.end_close(closed=True)
    second.join(WAIT_SECONDS)
    assert answers == [Reason.TIMED_OUT, (False, State.CLOSED)]
