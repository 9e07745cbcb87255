"""BRK-3 seen from the pool: a broker that is broken is told to the producer at the next use that needs it."""

from __future__ import annotations

import hmac
import os
import pickle
import threading

import pytest

from tests.rules.test_handles import in_forked_child
from tests.rules.toy import Make, Toy, another
from vmmref.broker import request_descriptor
from vmmref.errors import BrokerError, PoolClosing
from vmmref_models.reasons import Reason


class Bug(Exception):
    """What nobody has thought of."""


def kill_the_broker(pool: Toy, monkeypatch: pytest.MonkeyPatch) -> None:
    """Let a pool's broker die of a request; the client is refused."""

    def compare(*_: object) -> bool:
        raise Bug("never heard of")

    with monkeypatch.context() as buggy:
        buggy.setattr(hmac, "compare_digest", compare)
        with pytest.raises(BrokerError) as refusal:
            request_descriptor(pool.pool.card.locator, "CUDA VMM")
    assert refusal.value.reason is Reason.NO_DESCRIPTOR


@pytest.mark.rule("BRK-3")
def test_brk_3_a_proxy_does_not_travel_when_the_broker_has_died(toy: Make, monkeypatch: pytest.MonkeyPatch) -> None:
    """
    A proxy that no other process could use does not leave.

    Given: a pool whose broker has died, with a proxy in this process.
    When: the proxy's wire form is asked for; it is read here; the pool publishes, recycles and is shut down.
    Then: BROKER_FAILED each time for the wire form; all the rest works, because nothing of it needs the broker.
    """
    pool = toy(slots=2, handle_type="posix_fd")
    proxy = pool.wrap(1)
    here = another(proxy)
    kill_the_broker(pool, monkeypatch)
    for travel in (bytes, pickle.dumps):
        with pytest.raises(BrokerError, match="CUDA VMM POSIX FD broker failed: Bug: never heard of") as told:
            travel(proxy)
        assert (told.value.reason, told.value.rule) == (Reason.BROKER_FAILED, "BRK-3")
    assert pool.read(here) == b"\1" * 256
    pool.drain()
    assert pool.pool.recycle() == 1
    assert pool.read(pool.wrap(2)) == b"\2" * 256
    pool.close()
    assert pool.pool.life == "closed"


@pytest.mark.rule("BRK-3")
def test_brk_3_a_shutdown_tells_what_nobody_was_told(toy: Make, monkeypatch: pytest.MonkeyPatch) -> None:
    """
    A broker that died after the last proxy had left is told at the shutdown, which gives everything back.

    Given: a pool whose broker has died, and nobody who has asked for a wire form since.
    When: it is shut down, twice.
    Then: BROKER_FAILED, with the pool closed; then nothing (the fixture counts what is left).
    """
    pool = toy(handle_type="posix_fd")
    bytes(pool.wrap(1))
    kill_the_broker(pool, monkeypatch)
    with pytest.raises(BrokerError) as told:
        pool.pool.shutdown()
    assert told.value.reason is Reason.BROKER_FAILED
    assert pool.pool.life == "closed"
    pool.pool.shutdown()
    with pytest.raises(PoolClosing):
        pool.begin(1)


@pytest.mark.rule("BRK-3")
def test_brk_3_a_proxy_travels_when_the_broker_could_start_at_last(toy: Make, monkeypatch: pytest.MonkeyPatch) -> None:
    """
    A process that may start no thread just now is told, and nothing is broken for good.

    Given: a pool whose broker has not been needed yet, in a process that has as many threads as it may have.
    When: the first wire form is asked for; and again when there is room.
    Then: BROKER_FAILED; then the wire form.
    """

    def refuse(_: threading.Thread) -> None:
        raise RuntimeError("can't start new thread")

    pool = toy(handle_type="posix_fd")
    proxy = pool.wrap(1)
    with monkeypatch.context() as full:
        full.setattr(threading.Thread, "start", refuse)
        with pytest.raises(BrokerError) as told:
            bytes(proxy)
    assert told.value.reason is Reason.BROKER_FAILED
    assert pool.read(another(proxy)) == b"\1" * 256


@pytest.mark.rule("HND-7")
def test_hnd_7_a_fork_of_the_producer_serves_nobody(toy: Make) -> None:
    """
    A forked child does not begin to serve on its parent's socket.

    Given: a pool whose broker has not been needed yet.
    When: the process forks and the child asks for a wire form; then the parent does.
    Then: FORKED in the child; the parent's proxy travels, and a descriptor can be had.
    """
    pool = toy(handle_type="posix_fd")
    proxy = pool.wrap(1)
    assert in_forked_child([lambda: bytes(proxy)]) == [Reason.FORKED]
    bytes(proxy)
    os.close(request_descriptor(pool.pool.card.locator, "CUDA VMM"))
