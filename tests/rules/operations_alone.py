"""Making and ending pools, reservations and devices: what begins with nothing and leaves nothing."""

from __future__ import annotations

import contextlib
from collections.abc import Callable

from tests.rules.operations import Prepared
from tests.rules.toy import GRANULE
from vmmref.driver.device import Device
from vmmref.pool import VmmMemoryPool
from vmmref.reservation import VmmReservation
from vmmref.tensors import view_of_memory


def construct(handle_type: str, word_bytes: int = 4) -> Prepared:
    """A pool, from nothing."""
    made: list[VmmMemoryPool] = []

    def make() -> None:
        made.append(VmmMemoryPool(GRANULE, "sim", 2, None, 3, handle_type=handle_type, word_bytes=word_bytes))

    def end() -> None:
        for pool in made:
            pool.shutdown()

    return Prepared(make, end)


def construct_on_given_memory() -> Prepared:
    """A pool on the caller's memory."""
    with contextlib.ExitStack() as stack:
        device = stack.enter_context(contextlib.closing(Device("sim")))
        stack.enter_context(device)
        reservation = stack.enter_context(VmmReservation(device, GRANULE))
        reservation.map(0, GRANULE)
        given = view_of_memory(reservation.address, GRANULE, device)
        taken = stack.pop_all()

    def make() -> None:
        pool = VmmMemoryPool(GRANULE, "sim", 1, None, 2, handle_type="posix_fd", byte_tensor=given)
        taken.callback(pool.shutdown)

    return Prepared(make, taken.close)


def reserve_and_map() -> Prepared:
    """A reservation with a mapping of its own and one of an allocation that exists, and its end."""
    device = Device("sim")

    def reserve() -> None:
        with device, VmmReservation(device, 2 * GRANULE) as reservation:
            handle = reservation.map(0, GRANULE)
            reservation.map_existing(handle, GRANULE, GRANULE)

    return Prepared(reserve, device.close)


def open_and_close_a_device() -> Prepared:
    return Prepared(lambda: Device("sim").close())


ALONE: dict[str, Callable[[], Prepared]] = {
    "construct_posix_fd": lambda: construct("posix_fd"),
    "construct_fabric": lambda: construct("fabric", 8),
    "construct_on_given_memory": construct_on_given_memory,
    "reserve_and_map": reserve_and_map,
    "open_and_close_a_device": open_and_close_a_device,
}
"""Each begins with nothing and, after its end, leaves nothing."""
