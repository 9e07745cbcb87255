"""HND-1, ERR-1, ERR-2: whatever driver calls of an operation fail, nothing is lost and the first error is told.

The number of (operation, k) pairs that were tried is in the summary at the end of the test run.
"""

from __future__ import annotations

import contextlib
import itertools
from functools import partial

import pytest

from tests.rules.faults import FAULTS, Attempt, Faults, assert_nothing_left, assert_told, drive_home, words_are_sound
from tests.rules.operations import Prepare
from tests.rules.operations_alone import ALONE, construct
from tests.rules.operations_of_consumers import OF_CONSUMERS
from tests.rules.operations_of_producers import OF_PRODUCERS
from tests.rules.toy import DATA, UNKNOWN_ERROR, Make, another, counts
from vmmref.errors import AlreadyReleased, DriverError, PoolFailed
from vmmref.imports import IMPORTS, close_imports
from vmmref.simcuda import Simulator


@pytest.mark.rule("HND-1")
@pytest.mark.rule("ERR-1")
@pytest.mark.rule("ERR-2")
@pytest.mark.parametrize("faults", FAULTS, ids=lambda faults: faults.name)
@pytest.mark.parametrize(("handle_type", "word_bytes"), [("posix_fd", 4), ("fabric", 8)])
@pytest.mark.parametrize("prepare", [*OF_PRODUCERS, *OF_CONSUMERS], ids=lambda prepare: prepare.__name__)
def test_err_1_every_call_of_an_operation_fails(
    toy: Make, simulator: Simulator, attempt: Attempt, prepare: Prepare, handle_type: str, word_bytes: int,
    faults: Faults,
) -> None:  # fmt: skip
    """
    Failed driver calls cost no range, no slot, no word and no handle.

    Given: the k-th driver call fails, for every k that the operation makes, and maybe the calls of the clean-up too.
    When: the operation is called on a pool in use.
    Then: the first error reaches the caller, with the later ones as notes; ranges and slots are accounted for; either
    the pool has failed and refuses every use, or every lease still comes back and the pool serves; at the end nothing
    is left but what the driver itself refused to take back.
    """
    for k in itertools.count(1):
        pool = toy(slots=3, consumers=2, handle_type=handle_type, word_bytes=word_bytes)
        act, after = prepare(pool)
        tried = attempt(act, faults, k)
        assert_told(tried, faults)
        pool.check_accounts()
        words_are_sound(pool)
        if pool.pool.life == "failed":
            with pytest.raises(PoolFailed):
                pool.begin(1)
            with contextlib.suppress(PoolFailed):
                after()
        else:
            after()
            drive_home(pool)
            words_are_sound(pool)
            assert pool.read(pool.wrap(7, DATA)) == b"\7" * DATA
        pool.close()
        assert_nothing_left(simulator, tried, k)
        if tried.complete:
            break
    assert k > 1


@pytest.mark.rule("HND-1")
@pytest.mark.rule("LIFE-4")
@pytest.mark.parametrize("faults", FAULTS, ids=lambda faults: faults.name)
@pytest.mark.parametrize("name", ALONE)
def test_hnd_1_every_call_of_taking_and_giving_back_fails(
    simulator: Simulator, attempt: Attempt, name: str, faults: Faults
) -> None:
    """
    What begins with nothing leaves nothing, at whatever step it fails.

    Given: the k-th driver call fails, for every k of making and ending a pool or a reservation, and maybe later ones.
    When: it is tried; and again without faults.
    Then: the first error, and nothing is left but what the driver itself refused to take back; then no error.
    """
    for k in itertools.count(1):
        act, after = ALONE[name]()
        tried = attempt(act, faults, k)
        assert_told(tried, faults)
        simulator.drain_all()
        after()
        assert_nothing_left(simulator, tried, k)
        act, after = ALONE[name]()
        act()
        after()
        assert counts(simulator) == {}
        if tried.complete:
            break
    assert k > 5


@pytest.mark.rule("HND-1")
@pytest.mark.rule("LIFE-4")
@pytest.mark.parametrize("faults", FAULTS, ids=lambda faults: faults.name)
def test_hnd_1_every_call_of_choosing_a_handle_type_fails(
    simulator: Simulator, attempt: Attempt, faults: Faults
) -> None:
    """
    A probe that fails is an answer, and costs nothing.

    Given: the k-th driver call fails, for every k of making a pool that chooses its handle type.
    When: it is made and shut down.
    Then: the first error, or a pool of the other type; nothing is left but what the driver refused to take back.
    """
    for k in itertools.count(1):
        act, after = construct("auto")
        tried = attempt(act, faults, k)
        assert tried.error is None or isinstance(tried.error, DriverError)
        after()
        assert_nothing_left(simulator, tried, k)
        if tried.complete:
            break
    assert k > 20


@pytest.mark.rule("HND-1")
@pytest.mark.rule("LIFE-2")
@pytest.mark.parametrize("faults", FAULTS, ids=lambda faults: faults.name)
@pytest.mark.parametrize("handle_type", ["posix_fd", "fabric"])
def test_hnd_1_every_call_of_a_shutdown_fails(
    toy: Make, simulator: Simulator, attempt: Attempt, handle_type: str, faults: Faults
) -> None:
    """
    A shutdown that fails can be called again, and gives everything back once.

    Given: the k-th driver call fails, for every k that shutdown makes, of a pool with leases in every phase.
    When: it is shut down, and again.
    Then: that error, then none; nothing is left but what the driver itself refused to take back.
    """
    for k in itertools.count(1):
        pool = toy(slots=4, handle_type=handle_type)
        pool.begin(1)
        pool.wrap(2)
        pool.pool.begin_cancel(pool.wrap(3).lease)
        pool.pool.begin_cancel(pool.begin(4).lease)
        tried = attempt(pool.pool.shutdown, faults, k)
        assert_told(tried, faults)
        pool.check_accounts()
        pool.pool.shutdown()
        if pool.pool.failure is None:
            pool.check_home()
        assert pool.pool.life == "closed"
        assert_nothing_left(simulator, tried, k)
        if tried.complete:
            break
    assert k > 20


@pytest.mark.rule("HND-1")
@pytest.mark.rule("HND-4")
@pytest.mark.parametrize("faults", FAULTS, ids=lambda faults: faults.name)
def test_hnd_4_every_call_of_dropping_an_import_fails(
    toy: Make, simulator: Simulator, attempt: Attempt, faults: Faults
) -> None:
    """
    An import is dropped once, also when the driver refuses something.

    Given: the k-th driver call fails, for every k of dropping an import with queued work.
    When: it is dropped, and dropped again.
    Then: that error, then none; nothing of the import is left but what the driver itself refused to take back.
    """
    for k in itertools.count(1):
        pool = toy(slots=2, consumers=2)
        proxies = [pool.wrap(value) for value in (1, 2)]
        before = counts(simulator)
        pool.consume(proxies[0])
        pool.start(proxies[1])
        nonce = pool.pool.card.nonce
        tried = attempt(partial(close_imports, nonce), faults, k)
        assert_told(tried, faults)
        close_imports(nonce)
        assert IMPORTS.find(nonce) == ()
        left = {kind: count - before.get(kind, 0) for kind, count in counts(simulator).items()}
        unexplained = {kind: count for kind, count in left.items() if count > tried.left.get(kind, 0)}
        assert unexplained == {}, f"call {k}: {tried.failed}"
        pool.close()
        assert_nothing_left(simulator, tried, k)
        if tried.complete:
            break
    assert k > 8


@pytest.mark.rule("CON-4")
def test_con_4_a_failed_import_leaves_the_proxy_as_it_was(toy: Make, simulator: Simulator) -> None:
    """
    Before the rank has entered its table, a failure costs nothing: the same proxy can be read later.

    Given: an import whose address reservation fails.
    When: a proxy is read, and read again without the fault.
    Then: the driver's error and no acknowledgement; then the right bytes.
    """
    pool = toy()
    proxy = pool.wrap(0xA1)
    simulator.fail_call("cuMemAddressReserve", 1, UNKNOWN_ERROR)
    with pytest.raises(DriverError):
        pool.read(proxy)
    pool.drain()
    assert pool.words() == ((2, 0),)
    assert pool.read(proxy) == b"\xa1" * 256
    with pytest.raises(AlreadyReleased):
        pool.read(another(proxy))
