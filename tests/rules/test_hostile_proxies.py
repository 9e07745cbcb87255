"""Proxies and listeners that somebody has forged: refused before anything is read, written or shown."""

from __future__ import annotations

import os
import socket
import threading
from collections.abc import Callable
from dataclasses import replace
from typing import Any

import pytest

from tests.rules.toy import Make, another
from vmmref import beacon, broker, imported, imports
from vmmref.beacon import is_dark
from vmmref.broker import TOKEN_BYTES, request_descriptor
from vmmref.errors import BrokerError, VmmRefError, WireFormError
from vmmref.imports import close_imports
from vmmref.proxy import TensorProxy
from vmmref.simcuda import Simulator
from vmmref_models.reasons import Reason

PATIENCE_SECONDS = 30.0


def forged(proxy: TensorProxy) -> TensorProxy:
    """A copy of a proxy that speaks of more memory than there is, and its lease far outside."""
    card = replace(proxy.card, memory_size=1 << 40, data_end=1 << 40)
    lease = proxy.lease._replace(start=1 << 36, end=(1 << 36) + 256)
    return TensorProxy.from_bytes(bytes(TensorProxy(card, lease, proxy.dtype, proxy.shape, True)))


@pytest.mark.rule("GEN-5")
@pytest.mark.parametrize("dropped", [False, True], ids=["imported", "dropped"])
def test_gen_5_a_card_that_contradicts_the_known_one_is_refused(toy: Make, simulator: Simulator, dropped: bool) -> None:
    """
    A forged card would lead reads and acknowledgements outside the pool's layout.

    Given: a pool that was imported, and maybe dropped again, and forged copies of a proxy that was not used.
    When: they are read, borrowed, given back or released.
    Then: BAD_WIRE_FORM with the fields, no driver call, no word written; and the honest proxy reads on.
    """
    pool = toy(slots=2)
    pool.consume(pool.wrap(1))
    proxy = pool.wrap(2)
    if dropped:
        close_imports(pool.pool.card.nonce)
    before, words = simulator.call_count(), pool.words()
    uses: list[Callable[[TensorProxy], Any]] = [
        lambda copy: copy.reconstruct_on_target_device("sim"),
        lambda copy: copy.borrow_on_target_device("sim"),
        lambda copy: copy.release_borrowed(),
        lambda copy: copy.release_without_reconstruction(device="sim"),
    ]
    for use in uses:
        with pytest.raises(WireFormError, match="contradict each other: memory_size is 1099511627776 and") as told:
            use(forged(proxy))
        assert (told.value.reason, told.value.rule) == (Reason.BAD_WIRE_FORM, "GEN-5")
    assert (simulator.call_count(), pool.words()) == (before, words)
    assert pool.read(another(proxy)) == b"\2" * 256


@pytest.mark.rule("GEN-5")
def test_gen_5_after_a_forged_card_the_honest_one_is_told(toy: Make) -> None:
    """
    Which of two cards is the forged one cannot be known; that they differ can, and no secret is shown.

    Given: a forged proxy that came first.
    When: the honest one is read.
    Then: BAD_WIRE_FORM, and the text names the locator without its bytes.
    """
    pool = toy(handle_type="posix_fd")
    proxy = pool.wrap(1)
    locator = proxy.card.locator + b"x"
    imports.IMPORTS.open(replace(proxy.card, locator=locator), "sim:0")
    with pytest.raises(WireFormError, match=r"contradict each other: their locator differ \[GEN-5\]"):
        another(proxy).reconstruct_on_target_device("sim")


def as_if_another_user(monkeypatch: pytest.MonkeyPatch) -> None:
    """Let whoever is connected to seem to be of a user that is not this one."""
    for module in (beacon, broker):
        monkeypatch.setattr(module, "peer_user", lambda _: os.geteuid() + 1)


@pytest.mark.rule("BRK-1")
def test_brk_1_no_token_is_shown_to_another_user(monkeypatch: pytest.MonkeyPatch) -> None:
    """
    Whoever listens under a dead producer's names gets no token, and is no sign of life.

    Given: a listener of another user.
    When: a descriptor is asked for, and whether the pool lives, twice.
    Then: NO_DESCRIPTOR, and the listener has been sent nothing; the pool has ended.
    """
    as_if_another_user(monkeypatch)
    with socket.socket(socket.AF_UNIX, socket.SOCK_SEQPACKET | socket.SOCK_CLOEXEC) as listener:
        listener.bind(b"")
        listener.listen(1)
        name = bytes(listener.getsockname())
        with pytest.raises(BrokerError, match="listens there") as refusal:
            request_descriptor(bytes(TOKEN_BYTES) + name, "CUDA VMM")
        assert refusal.value.reason is Reason.NO_DESCRIPTOR
        visitor, _ = listener.accept()
        with visitor:
            assert visitor.recv(64) == b""
        assert [is_dark(name), is_dark(name)] == [True, True]


@pytest.mark.rule("REC-4")
@pytest.mark.rule("HND-4")
def test_rec_4_a_producer_that_does_not_answer_holds_up_no_other_pool(
    toy: Make, monkeypatch: pytest.MonkeyPatch
) -> None:
    """
    The table of imports is not locked while a producer is asked; who wants the same import shares the answer.

    Given: a thread that waits for a producer, and a second one that wants the same pool.
    When: another pool is read and imports are dropped; and then the producer's answer is an error.
    Then: both went on at once; both threads have that error, and the producer was asked once.
    """
    stalled, living = toy(handle_type="posix_fd"), toy()
    proxy = stalled.wrap(1)
    asked, answer, errors = threading.Semaphore(0), threading.Event(), []

    def stall(card: Any) -> int:
        asked.release()
        assert answer.wait(PATIENCE_SECONDS)
        raise BrokerError(Reason.NO_DESCRIPTOR, "BRK-3", "no answer")

    def read() -> None:
        try:
            imports.IMPORTS.open(proxy.card, "sim:0")
        except VmmRefError as error:
            errors.append(error)

    monkeypatch.setattr(imported, "_descriptor_of", stall)
    threads = [threading.Thread(target=read) for _ in range(2)]
    for thread in threads:
        thread.start()
    assert asked.acquire(timeout=PATIENCE_SECONDS)
    assert living.read(living.wrap(3)) == b"\3" * 256
    living.drain()
    close_imports(timeout_seconds=1.0)
    answer.set()
    for thread in threads:
        thread.join(PATIENCE_SECONDS)
    assert [error.reason for error in errors] == [Reason.NO_DESCRIPTOR] * 2


@pytest.mark.rule("HND-4")
def test_hnd_4_a_reader_waits_for_who_drops_the_import(toy: Make, monkeypatch: pytest.MonkeyPatch) -> None:
    """
    A living pool's reader is never told that its producer is gone: it waits for a drop and imports again.

    Given: an import that a thread is dropping.
    When: another thread reads from the pool.
    Then: it waits for the drop, and gets the bytes through a new import.
    """
    pool = toy(slots=2)
    pool.consume(pool.wrap(1))
    proxy = pool.wrap(2)
    (old,) = imports.IMPORTS.find(pool.pool.card.nonce)
    dropping, go_on = threading.Event(), threading.Event()
    end = old._end

    def held(timeout_seconds: float) -> None:
        dropping.set()
        assert go_on.wait(PATIENCE_SECONDS)
        end(timeout_seconds)

    monkeypatch.setattr(old, "_end", held)
    entered: list[imported.PoolImport] = []

    def enter() -> None:
        with imports.IMPORTS.inside(proxy.card, "sim:0") as owner:
            entered.append(owner)

    closer = threading.Thread(target=close_imports, args=(pool.pool.card.nonce,))
    closer.start()
    assert dropping.wait(PATIENCE_SECONDS)
    reader = threading.Thread(target=enter)
    reader.start()
    reader.join(0.05)
    assert entered == []
    go_on.set()
    for thread in (closer, reader):
        thread.join(PATIENCE_SECONDS)
    assert len(entered) == 1
    assert entered[0] is not old
    assert pool.read(another(proxy)) == b"\2" * 256
