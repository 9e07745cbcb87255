"""ERR: what a refusal says, and what it leaves as it was."""

from __future__ import annotations

import re
from collections.abc import Callable
from typing import Any

import pytest

from tests.rules.toy import GRANULE, UNKNOWN_ERROR, Make, another, bytes_of
from vmmref import errors
from vmmref.broker import TOKEN_BYTES, request_descriptor
from vmmref.driver.device import Device
from vmmref.pool import VmmMemoryPool
from vmmref.proxy import TensorProxy
from vmmref.reservation import VmmReservation
from vmmref.simcuda import Simulator
from vmmref_models.reasons import Reason

Use = Callable[[], object]


def make_pool(**settings: Any) -> Use:
    arguments: dict[str, Any] = {
        "memory_size": GRANULE,
        "device": "sim",
        "recycle_interval": None,
        "transport_name": "XPU IPC",
    }
    return lambda: VmmMemoryPool(**arguments | {"max_inflight_slices": 4} | settings)


def exhausted(toy: Make) -> Use:
    pool = toy(generation_limit=1, issued_generations=(1,), transport_name="XPU IPC")
    return lambda: pool.begin(1)


def released_twice(toy: Make) -> Use:
    pool = toy(transport_name="XPU IPC")
    lease = pool.wrap(1).lease
    pool.pool.release_lease(lease)
    return lambda: pool.pool.release_lease(lease)


def read_after_release(toy: Make) -> Use:
    pool = toy()
    proxy = pool.wrap(1)
    pool.release(proxy)
    return lambda: pool.read(another(proxy))


def closed(toy: Make) -> Use:
    pool = toy()
    pool.pool.shutdown()
    return lambda: pool.begin(1)


def failed(toy: Make) -> Use:
    pool = toy()
    publication = pool.begin(1)
    pool.simulator.fail_piece(1, UNKNOWN_ERROR)
    with pytest.raises(errors.DriverError):
        pool.pool.finish_publish(publication)
    return lambda: pool.begin(1)


def mapping_after_close(toy: Make) -> Use:
    device = Device("sim")
    reservation = VmmReservation(device, GRANULE)
    reservation.close()
    device.close()
    return lambda: reservation.map(0, GRANULE)


def existing_mapping_after_close(toy: Make) -> Use:
    device = Device("sim")
    reservation = VmmReservation(device, GRANULE)
    reservation.close()
    device.close()
    return lambda: reservation.map_existing(1, 0, GRANULE)


def mapping_outside(toy: Make) -> Use:
    def attempt() -> None:
        device = Device("sim")
        try:
            with VmmReservation(device, GRANULE) as reservation:
                reservation.map(GRANULE, GRANULE)
        finally:
            device.close()

    return attempt


QUOTED: list[tuple[str, Reason, Callable[[Make], Use]]] = [
    ("XPU IPC pool is too small after control metadata: pool=2097152, control=2097152", Reason.POOL_TOO_SMALL,
     lambda toy: make_pool(max_inflight_slices=GRANULE // 8)),
    ("XPU IPC pool slot generation exhausted", Reason.GENERATION_EXHAUSTED, exhausted),
    ("byte_tensor must be a sufficiently large contiguous uint8 tensor on cpu", Reason.UNUSABLE_BACKING,
     lambda toy: make_pool(byte_tensor=bytes_of(0, 8))),
    ("CUDA VMM tensor has already released its pool slice", Reason.ALREADY_RELEASED, read_after_release),
    ("Cannot release inactive XPU IPC pool lease (slot=0, generation=1)", Reason.INACTIVE_LEASE, released_twice),
    ("memory_size must be positive", Reason.BAD_ARGUMENT, lambda toy: make_pool(memory_size=0)),
    ("consumer_count must be positive", Reason.BAD_ARGUMENT, lambda toy: make_pool(consumer_count=0)),
    ("max_inflight_slices must be positive", Reason.BAD_ARGUMENT, lambda toy: make_pool(max_inflight_slices=0)),
    ("recycle_interval must be positive", Reason.BAD_ARGUMENT, lambda toy: make_pool(recycle_interval=0)),
    ("CUDA VMM multimodal pool is closing", Reason.POOL_CLOSING, closed),
    ("CUDA VMM multimodal pool failed", Reason.POOL_FAILED, failed),
    ("VmmReservation.map after close", Reason.RESERVATION_CLOSED, mapping_after_close),
    ("VmmReservation.map_existing after close", Reason.RESERVATION_CLOSED, existing_mapping_after_close),
    ("mapping [2097152, 4194304) is outside reservation [0, 2097152)", Reason.OUTSIDE_RESERVATION, mapping_outside),
    ("CUDA VMM POSIX FD broker returned no file descriptor", Reason.NO_DESCRIPTOR,
     lambda toy: lambda: request_descriptor(bytes(TOKEN_BYTES) + b"\0nobody-listens-here", "CUDA VMM")),
]  # fmt: skip


@pytest.mark.rule("ERR-2")
@pytest.mark.parametrize(("start", "reason", "refused"), QUOTED, ids=[quoted[0][:40] for quoted in QUOTED])
def test_err_2_quoted_messages_stand_word_for_word(
    toy: Make, start: str, reason: Reason, refused: Callable[[Make], Use]
) -> None:
    """
    Operators match on the start of a message, programs on its reason.

    Given: something that is refused with a message that the rules quote.
    When: it is done.
    Then: the text starts with the quoted words and ends with a rule's identifier; the reason is the rule's.
    """
    use = refused(toy)
    with pytest.raises(errors.VmmRefError) as refusal:
        use()
    assert str(refusal.value).startswith(start)
    assert re.search(r" \[[A-Z]+-\d+\]$", str(refusal.value))
    assert str(refusal.value).endswith(f"[{refusal.value.rule}]")
    assert refusal.value.reason is reason


@pytest.mark.rule("ERR-2")
def test_err_2_errors_are_also_what_the_original_raises() -> None:
    """
    Callers that catch the built-in types still do.

    Given: the tree of errors.
    When: its branches are compared with built-in types.
    Then: bad input is a ValueError, everything else a RuntimeError or a TimeoutError.
    """
    builtin = {
        errors.ArgumentError: ValueError,
        errors.TensorError: ValueError,
        errors.FieldError: TypeError,
        errors.MissingProcessor: ValueError,
        errors.WireFormError: ValueError,
        errors.WaitTimeout: TimeoutError,
    }
    kinds = [kind for kind in vars(errors).values() if isinstance(kind, type) and issubclass(kind, errors.VmmRefError)]
    for kind in kinds:
        if kind is not errors.VmmRefError:
            assert issubclass(kind, builtin.get(kind, RuntimeError)), kind


@pytest.mark.rule("ERR-2")
def test_err_2_the_first_error_is_not_lost(toy: Make, simulator: Simulator) -> None:
    """
    A clean-up that fails does not hide why it was needed.

    Given: a constructor whose third step fails, and whose clean-up fails as well.
    When: the pool is made.
    Then: the first error, with the other one as a note.
    """
    simulator.fail_call("cuMemSetAccess", 1, UNKNOWN_ERROR)
    simulator.fail_call("cuMemRelease", 1, 1)
    with pytest.raises(errors.DriverError) as failure:
        make_pool(handle_type="posix_fd")()
    assert (failure.value.call, failure.value.result) == ("cuMemSetAccess", UNKNOWN_ERROR)
    assert ["cuMemRelease" in note for note in failure.value.__notes__] == [True]
    simulator.reset()


@pytest.mark.rule("ERR-1")
def test_err_1_a_refusal_changes_nothing(toy: Make) -> None:
    """
    After any refusal the pool is exactly as before.

    Given: a full pool with an active, a retiring and a retired slot, and a rank that has taken part.
    When: everything that must be refused is tried, one after the other.
    Then: ranges, slots, generations and words are the same after each.
    """
    pool = toy(slots=3, consumers=2, generation_limit=4, issued_generations=(4, 0, 0))
    active, retiring = pool.wrap(1, 512), pool.wrap(2, 512)
    pool.release(active, rank=0)
    pool.drain()
    pool.pool.begin_cancel(retiring.lease)
    other = toy()
    foreign = other.wrap(1)
    refused: list[Use] = [
        lambda: pool.pool.cancel_lease(retiring.lease),
        lambda: pool.pool.revoke(active.lease._replace(generation=2)),
        lambda: pool.pool.release_lease(active.lease._replace(start=0)),
        lambda: pool.pool.cancel_lease(foreign.lease),
        lambda: pool.pool.wrap_tensor(bytes_of(1, 0)),
        lambda: pool.read(another(active), rank=0),
        lambda: pool.read(active, rank=2),
        lambda: pool.release(active, rank=-1),
        lambda: TensorProxy.from_bytes(bytes(active)[:-1]),
        lambda: active.reconstruct_on_target_device("nowhere", 2, 1),
    ]
    before = pool.state()
    for use in refused:
        with pytest.raises(errors.VmmRefError) as refusal:
            use()
        assert not isinstance(refusal.value, errors.DriverError | errors.WaitTimeout)
        assert pool.state() == before
    assert pool.pool.wrap_tensor(bytes_of(1, 1)) is None
    assert pool.state() == before
