"""HND-2, HND-3, HND-6, HND-7: reservations, descriptors, and use after fork."""

from __future__ import annotations

import contextlib
import os
import socket
from collections.abc import Iterator

from vmmref.broker import TOKEN_BYTES, request_descriptor
from vmmref.conformance.subjects.experiments.trial import PATIENCE_SECONDS, Trial, answer_of, in_fork, open_descriptors
from vmmref.driver.device import Device
from vmmref.imports import IMPORTS, close_imports
from vmmref.pool import VmmMemoryPool
from vmmref.proxy import TensorProxy
from vmmref.reservation import VmmReservation
from vmmref_models.operations import DONE, Outcome, refused
from vmmref_models.reasons import Reason


@contextlib.contextmanager
def _reservation(trial: Trial, granules: int) -> Iterator[VmmReservation]:
    device = Device(trial.ground.device)
    try:
        reservation = trial.parts.reservation(device, granules * trial.ground.granularity)
        try:
            with device:
                yield reservation
        finally:
            reservation.close()
    finally:
        device.close()


def map_after_close(trial: Trial) -> Outcome:
    """Map new memory into a reservation that was closed, with or without something in it before."""
    granules, size = 1 + trial.random.randrange(3), trial.ground.granularity
    with _reservation(trial, granules) as reservation:
        if trial.chance():
            reservation.map(trial.random.randrange(granules) * size, size)
        reservation.close()
        return answer_of(lambda: reservation.map(trial.random.randrange(granules) * size, size))


def map_existing_after_close(trial: Trial) -> Outcome:
    """Map an allocation that lives into a reservation that was closed."""
    granules, size = 1 + trial.random.randrange(3), trial.ground.granularity
    with _reservation(trial, 1) as holder, _reservation(trial, granules) as reservation:
        handle = holder.map(0, size)
        if trial.chance():
            reservation.map_existing(handle, trial.random.randrange(granules) * size, size)
        reservation.close()
        return answer_of(lambda: reservation.map_existing(handle, trial.random.randrange(granules) * size, size))


def map_outside(trial: Trial) -> Outcome:
    """Map before the start of a reservation, beyond its end, or over both."""
    granules, size = 1 + trial.random.randrange(3), trial.ground.granularity
    offset, length = trial.random.choice(
        ((granules, 1), (granules - 1, 2), (-1, 1), (0, granules + 1), (-1, granules + 2))
    )
    with _reservation(trial, 1) as holder, _reservation(trial, granules) as reservation:
        if trial.chance():
            return answer_of(lambda: reservation.map(offset * size, length * size))
        handle = holder.map(0, size)
        return answer_of(lambda: reservation.map_existing(handle, offset * size, length * size))


def descriptors(trial: Trial) -> Outcome:
    """Open every kind of descriptor that a producer and its consumers have; each must be close-on-exec (HND-6)."""
    before = open_descriptors()
    with contextlib.ExitStack() as opened:
        pool = opened.enter_context(trial.pool(handle_type="posix_fd"))
        pool.watch_consumer(0, os.getppid())
        wire = bytes(trial.published(pool))
        if trial.chance():
            trial.parts.proxy.from_bytes(wire).reconstruct_on_target_device(trial.ground.device)
        for _ in range(1 + trial.random.randrange(3)):
            opened.callback(os.close, request_descriptor(pool.card.locator, pool.transport_name))
        if trial.chance():
            silent = opened.enter_context(socket.socket(socket.AF_UNIX, socket.SOCK_SEQPACKET | socket.SOCK_CLOEXEC))
            silent.settimeout(PATIENCE_SECONDS)
            silent.connect(pool.card.locator[TOKEN_BYTES:])
        for descriptor in open_descriptors() - before:
            with contextlib.suppress(OSError):
                trial.check(not os.get_inheritable(descriptor), f"descriptor {descriptor} would be inherited")
    return DONE


def use_after_fork(trial: Trial) -> Outcome:
    """Use a pool, its proxies and its import in a forked child; every use must be refused with FORKED (HND-7)."""
    with trial.pool() as pool:
        copy = trial.parts.proxy.from_bytes(bytes(trial.published(pool)))
        if trial.chance():
            IMPORTS.open(pool.card, f"{trial.ground.device.partition(':')[0]}:0")
        answers = in_fork(lambda: _used(trial, pool, copy)).decode().split()
    other = [answer for answer in answers if answer != Reason.FORKED]
    if not answers or other:
        return Outcome("done", message=f"the child was answered {other or 'nothing'}")
    return refused(Reason.FORKED, f"{len(answers)} uses in a forked child were refused [HND-7]")


def _used(trial: Trial, pool: VmmMemoryPool, copy: TensorProxy) -> bytes:
    """In the child: three uses of what the parent made, and the reason of each refusal ("done" where there is none)."""
    device = trial.ground.device
    uses = [
        lambda: pool.wrap_tensor(trial.tensor(trial.payload())),
        pool.recycle,
        lambda: pool.cancel_lease(copy.lease),
        pool.shutdown,
        lambda: copy.reconstruct_on_target_device(device),
        lambda: copy.release_without_reconstruction(device=device),
        lambda: trial.parts.pool(trial.ground.granularity, device, 1, None),
    ]
    if IMPORTS.find(pool.card.nonce):
        uses.append(lambda: close_imports(pool.card.nonce))
    answers = [answer_of(use) for use in trial.random.sample(uses, 3)]
    return " ".join(str(answer.reason or answer.kind) for answer in answers).encode()
