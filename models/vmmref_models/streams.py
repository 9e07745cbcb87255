"""Streams and memory: what is queued, what may run, and what each piece does when it runs."""

from __future__ import annotations

from dataclasses import replace

from vmmref_models.state import (
    ACK,
    COPY,
    COPY_OUT,
    READ_READY,
    READY,
    RETIRED,
    Arrival,
    Device,
    Lease,
    Piece,
    replaced,
)

PUBLISH_QUEUE = 0
RETIRE_QUEUE = 1
FIRST_RANK_QUEUE = 2


def rank_queue(rank: int) -> int:
    """Index in `Device.queues` of the one stream that rank `rank` uses (ACK-2)."""
    return FIRST_RANK_QUEUE + rank


def queued(device: Device, index: int, *pieces: Piece) -> Device:
    """The device after `pieces` were appended to one stream; none of them has run."""
    queues = replaced(device.queues, index, device.queues[index] + pieces)
    return Device(device.words, queues, device.whole, device.arrivals)


def is_queued(device: Device, index: int, kind: str, lease: Lease) -> bool:
    """Whether a piece of this kind for this lease has not run yet."""
    return any(piece.kind == kind and piece.lease.token == lease.token for piece in device.queues[index])


def may_run(device: Device, index: int) -> bool:
    """Whether the stream has work and its oldest piece is not waiting for another stream.

    REC-2, CTL-6: a retire store waits for its lease's ready store, else R would fall back from 2n + 1 to 2n.
    """
    if not device.queues[index]:
        return False
    head = device.queues[index][0]
    return head.kind != RETIRED or not is_queued(device, PUBLISH_QUEUE, READY, head.lease)


def run(device: Device, index: int, count: int) -> Device:
    """The device after the oldest `count` pieces of one stream ran, in order."""
    queue = device.queues[index]
    words, whole, arrivals = device.words, device.whole, device.arrivals
    for piece in queue[:count]:
        lease, slot = piece.lease, piece.lease.slot
        if piece.kind == COPY:
            whole = copied(whole, lease)
        elif piece.kind == READY:
            words = stored(words, slot, 0, 2 * lease.generation)
        elif piece.kind == RETIRED:
            words = stored(words, slot, 0, 2 * lease.generation + 1)
        elif piece.kind == COPY_OUT:
            arrivals = (*arrivals, Arrival(piece.reader, content(whole, lease)))
        elif piece.kind == READ_READY:
            ready = words[slot][0]
            arrivals = tuple(
                replace(arrival, ready=ready) if arrival.reader == piece.reader else arrival for arrival in arrivals
            )
        elif piece.kind == ACK:
            words = stored(words, slot, 1 + piece.rank, lease.generation)
    return Device(words, replaced(device.queues, index, queue[count:]), whole, arrivals)


def stored(words: tuple[tuple[int, ...], ...], slot: int, column: int, value: int) -> tuple[tuple[int, ...], ...]:
    """The words after one store: column 0 is R, column 1 + r is A[r]."""
    return replaced(words, slot, replaced(words[slot], column, value))


def copied(whole: tuple[Lease, ...], lease: Lease) -> tuple[Lease, ...]:
    """The leases that are whole after `lease` was copied in: every other one that it overlaps is damaged."""
    start, end = lease.view.start, lease.view.end
    return (*(other for other in whole if other.view.end <= start or end <= other.view.start), lease)


def content(whole: tuple[Lease, ...], lease: Lease) -> Lease | None:
    """Whose bytes a copy-out of `lease` brings: its own, another whole lease's of the same range, or nobody's."""
    for other in whole:
        if other.view.start == lease.view.start and other.view.nbytes == lease.view.nbytes:
            return other
    return None


def drained(device: Device, index: int, kind: str, lease: Lease) -> Device:
    """The device after one stream ran up to and including this piece; as it is when that piece has already run."""
    queue = device.queues[index]
    for position, piece in enumerate(queue):
        if piece.kind == kind and piece.lease.token == lease.token:
            return run(device, index, position + 1)
    return device


def collected(device: Device, index: int, reader: int) -> tuple[Device, Arrival]:
    """The device after a rank's stream ran up to this reader's read of R, and what the reader received."""
    for position, piece in enumerate(device.queues[index]):
        if piece.kind == READ_READY and piece.reader == reader:
            device = run(device, index, position + 1)
            break
    for arrival in device.arrivals:
        if arrival.reader == reader:
            return replace(device, arrivals=tuple(a for a in device.arrivals if a.reader != reader)), arrival
    raise ValueError(f"reader {reader} has nothing queued and nothing received")


def retired_up_to(device: Device, lease: Lease | None = None) -> Device:
    """The device after "retire" ran up to this lease's retire store, or wholly; each waits for its ready store."""
    while device.queues[RETIRE_QUEUE]:
        if lease is not None and not is_queued(device, RETIRE_QUEUE, RETIRED, lease):
            break
        head = device.queues[RETIRE_QUEUE][0]
        device = drained(device, PUBLISH_QUEUE, READY, head.lease)
        device = run(device, RETIRE_QUEUE, 1)
    return device


def emptied(device: Device) -> Device:
    """The device after every stream ran to its end: publish, retire, then the ranks in order."""
    for index, queue in enumerate(device.queues):
        if index == RETIRE_QUEUE:
            device = retired_up_to(device)
        elif queue:
            device = run(device, index, len(queue))
    return device
