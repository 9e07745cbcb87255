"""Driver calls that are made to fail, how many of them, and what must hold whatever came of it."""

from __future__ import annotations

import contextlib
from collections import Counter
from collections.abc import Callable, Sequence
from typing import Any, NamedTuple

import pytest

from tests.rules.operations import Act
from tests.rules.toy import UNKNOWN_ERROR, Toy, counts, left_by
from vmmref.driver import calls
from vmmref.errors import DriverError, LeaseError, VmmRefError
from vmmref.proxy import TensorProxy
from vmmref.simcuda import Simulator

OUT_OF_MEMORY = 2
LOST = 700
"""CUDA_ERROR_ILLEGAL_ADDRESS, after which a real driver answers nothing else: what later faults answer."""
MANY = 400
"""More calls than any operation makes."""
SECOND = 3
"""How far behind the first failure a second one is tried: a clean-up makes few calls."""
PAIRS = pytest.StashKey[Counter[str]]()
"""Where the pairs are counted, by what failed; `tests/rules/conftest.py` shows them."""


class Faults(NamedTuple):
    """Which calls fail beside the k-th, and how."""

    name: str
    first: int
    """What the k-th call answers."""
    behind: Sequence[int] = ()
    """How far behind it further calls fail with LOST, 1 = the next: those of the clean-up."""

    def arm(self, simulator: Simulator, k: int) -> None:
        """Let them fail from now on."""
        simulator.fail_any(k, self.first)
        for behind in self.behind:
            simulator.fail_any(k + behind, LOST)


FAULTS = (
    Faults("one call", UNKNOWN_ERROR),
    Faults("one call for want of memory", OUT_OF_MEMORY),
    *(Faults(f"a call and the one {behind} behind it", UNKNOWN_ERROR, (behind,)) for behind in range(1, SECOND + 1)),
    Faults("a call and all behind it", UNKNOWN_ERROR, range(1, MANY + 1)),
)


class Tried(NamedTuple):
    """What came of an operation under faults."""

    failed: tuple[str, ...]
    """The calls that failed, in order."""
    error: BaseException | None
    complete: bool
    """Whether the operation makes fewer calls than k."""

    @property
    def left(self) -> dict[str, int]:
        """What may stay behind: what the driver itself has refused to take back (HND-1)."""
        total: Counter[str] = Counter()
        for call in self.failed:
            total.update(left_by(call))
        return dict(total)


Attempt = Callable[[Act, Faults, int], Tried]
"""The fixture `attempt`: runs an operation whose k-th call, and maybe later ones, fail."""


@pytest.fixture
def pairs(request: pytest.FixtureRequest) -> Counter[str]:
    """How many (operation, k) pairs were tried, by what failed; all tests of a run count in the same one."""
    return request.config.stash.setdefault(PAIRS, Counter())


@pytest.fixture
def attempt(simulator: Simulator, monkeypatch: pytest.MonkeyPatch, pairs: Counter[str]) -> Attempt:
    failed: list[str] = []
    failure = calls.failure

    def noted(call: str, result: Any) -> DriverError:
        failed.append(call)
        return failure(call, result)

    monkeypatch.setattr(calls, "failure", noted)

    def run(act: Act, faults: Faults, k: int) -> Tried:
        failed.clear()
        faults.arm(simulator, k)
        error: BaseException | None = None
        try:
            act()
        except VmmRefError as told:
            error = told
        complete = simulator.armed() == 1 + len(faults.behind)
        simulator.clear_faults()
        if not complete:
            pairs[faults.name] += 1
        return Tried(tuple(failed), error, complete)

    return run


def assert_told(tried: Tried, faults: Faults) -> None:
    """ERR-2: the first error is the one that is reported; what failed afterwards is in its notes."""
    if tried.complete:
        assert tried.error is None
        return
    # Memory of the caller's that cannot be exported is refused as such, because of the driver's error (PUB-5).
    cause = tried.error if isinstance(tried.error, DriverError) else getattr(tried.error, "__cause__", None)
    assert isinstance(cause, DriverError), f"nobody was told of {tried.failed}, but {tried.error!r}"
    assert (cause.call, cause.result) == (tried.failed[0], faults.first)
    notes = " ".join(getattr(tried.error, "__notes__", ()))
    assert set(tried.failed[1:]) <= {call for call in tried.failed if call in notes}, f"{tried.failed}: {notes}"


def assert_nothing_left(simulator: Simulator, tried: Tried, k: int) -> None:
    """HND-1: nothing but what the driver itself has refused to take back. Then that goes, too."""
    left = counts(simulator)
    if "its memory stays mapped" in " ".join(getattr(tried.error, "__notes__", ())):
        # LIFE-4: the device may still write there, and nobody can find out.
        left = {}
    unexplained = {kind: count for kind, count in left.items() if count > tried.left.get(kind, 0)}
    assert unexplained == {}, f"call {k}: {tried.failed}"
    assert simulator.violations() == (), f"call {k}: {tried.failed}"
    simulator.reset()


def words_are_sound(pool: Toy) -> None:
    """No word is above what the slot's last generation allows; R is 2n or 2n+1 of a generation that was issued."""
    for slot, (ready, *acknowledged) in enumerate(pool.words()):
        last = pool.pool.stats().generations[slot]
        assert ready // 2 <= last
        assert max(acknowledged) <= last


def take_part(pool: Toy) -> None:
    """Let every rank take part in every lease that is still there, and recycle."""
    for publication in pool.publications:
        with contextlib.suppress(LeaseError):
            pool.pool.finish_publish(publication)
    stats = pool.pool.stats()
    for lease in stats.leases:
        if lease.slot not in stats.retiring_slots:
            for rank in range(pool.consumers):
                pool.release(TensorProxy(pool.pool.card, lease, "uint8", (lease.nbytes,)), rank)
    pool.drain()
    # One pass more for a lease that outlives its end: it is set aside by the first one (CON-6).
    for _ in range(2):
        pool.pool.recycle()


def drive_home(pool: Toy) -> None:
    """Take every lease back (LIV-1)."""
    take_part(pool)
    pool.check_home()


def ending_of(act: Act) -> BaseException | None:
    """The error of an operation that may fail, or None."""
    try:
        act()
    except VmmRefError as error:
        return error
    return None
