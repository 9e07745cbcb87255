"""The ranks' processes: what they import, how they die, who comes after them."""

from __future__ import annotations

from dataclasses import replace

from vmmref_models import allocation, streams
from vmmref_models.observation import Observation
from vmmref_models.operations import DONE, Crash, DropImport, Import, Join, Outcome, refused
from vmmref_models.reasons import Reason
from vmmref_models.refusals import delivered, not_open, producer_gone
from vmmref_models.state import ACK, ENDED, RETIRE_VALIDATE_MAX, Consumers, Device, Piece, State, replaced
from vmmref_models.streams import rank_queue

# --- imports (HND-4) --------------------------------------------------------------------------------------------------


def has_import(state: State, rank: int, seen: Outcome | None) -> bool:
    """Whether the process of a rank holds an import of a pool that is gone.

    As the pool says where that is its own affair: where nobody could tell, and for a rank that came too late, which may
    have a process of its own.
    """
    if state.policies.protocol != RETIRE_VALIDATE_MAX and seen is not None:
        return seen.reason is not Reason.PRODUCER_GONE  # It may leave its memory in place.
    imported = state.consumers.imported[state.process_of(rank)]
    if imported is None or (imported and rank in state.consumers.late):
        return seen is None or seen.reason is not Reason.PRODUCER_GONE
    return imported


def with_import(state: State, consumers: Consumers, rank: int, imported: bool | None = True) -> Consumers:
    """What the ranks remember, the process of `rank` holding an import."""
    process = state.process_of(rank)
    if consumers.imported[process] is imported:
        return consumers
    return replace(consumers, imported=replaced(consumers.imported, process, imported))


def imported_perhaps(state: State, rank: int, observed: Observation | None) -> State:
    """The state after a call that did nothing else, but for which the process of `rank` may have imported the pool."""
    process = state.process_of(rank)
    if observed is None or state.consumers.imported[process] or state.closed:
        return state
    shown = observed.imports
    imported = None if shown is None or process >= len(shown) else shown[process] > 0
    return state.having(consumers=with_import(state, state.consumers, rank, imported))


def import_pool(state: State, operation: Import, seen: Outcome | None) -> tuple[State, Outcome]:
    """One import per pool and process: the second time nothing happens."""
    if state.closed and not has_import(state, operation.rank, seen):
        return state, producer_gone()
    return state.having(consumers=with_import(state, state.consumers, operation.rank)), DONE


def drop_import(state: State, operation: DropImport, seen: Outcome | None) -> tuple[State, Outcome]:
    """Let the process's queued work end, and give its memory back. The tables stay: late proxies are still refused.

    Readings that were not collected are given up: acknowledged behind their copies, as those that fail (CON-4).
    """
    process = state.process_of(operation.rank)
    ranks, consumers = state.ranks_of(process), state.consumers
    if any(delivered(state, view.proxy).rank in ranks for view in consumers.views):
        return state, refused(Reason.STILL_BORROWED, "a borrowed view has not been released [CON-6]")
    imported = consumers.imported[process]
    if imported is None:
        imported = bool(seen is not None and seen.count)
    given_up = [reader for reader in consumers.readers if delivered(state, reader.proxy).rank in ranks]
    device = state.device
    for reader in given_up:
        proxy = delivered(state, reader.proxy)
        lease, rank = proxy.lease, proxy.rank
        if consumers.tables[rank][lease.slot] == lease.generation:  # ACK-2, as at any late acknowledgement.
            device = streams.queued(device, rank_queue(rank), Piece(ACK, lease, rank))
    for rank in ranks:
        device = streams.run(device, rank_queue(rank), len(device.queues[rank_queue(rank)]))
    tokens = {reader.token for reader in given_up}
    names = {reader.proxy for reader in given_up}
    consumers = replace(
        consumers,
        imported=replaced(consumers.imported, process, False),
        readers=tuple(reader for reader in consumers.readers if reader.token not in tokens),
        proxies=tuple(replace(p, state=ENDED) if p.token in names else p for p in consumers.proxies),
    )
    return state.having(consumers=consumers, device=_forgetting(device, tokens)), Outcome("done", count=int(imported))


def _forgetting(device: Device, readers: set[int]) -> Device:
    """The device without what these readers have received."""
    if not readers:
        return device
    return replace(device, arrivals=tuple(arrival for arrival in device.arrivals if arrival.reader not in readers))


def swept(state: State, observed: Observation | None) -> State:
    """The state after something else happened in the processes: an import of a closed pool may have been dropped then.

    HND-4: as soon as nothing is queued, begun or borrowed there.
    """
    if not state.closed or observed is None or observed.imports is None:
        return state
    consumers = state.consumers
    busy = [reader.proxy for reader in consumers.readers] + [view.proxy for view in consumers.views]
    in_use = {delivered(state, proxy).rank for proxy in busy}
    in_use |= {rank for rank in range(state.shape.consumers) if state.device.queues[rank_queue(rank)]}
    for process, count in enumerate(observed.imports[: len(consumers.imported)]):
        if not count and not in_use.intersection(state.ranks_of(process)):
            consumers = replace(consumers, imported=replaced(consumers.imported, process, False))
    return state.having(consumers=consumers)


def told_apart_no_more(state: State) -> State:
    """The state at the end of a pool: where imports are not shown, a rank that comes now may have one or not."""
    if state.shape.apart or "imports" in state.policies.capabilities:
        return state
    late = tuple([rank for rank, table in enumerate(state.consumers.tables) if not any(table)])
    return state.having(consumers=replace(state.consumers, late=late))


# --- death (REAP-1) ---------------------------------------------------------------------------------------------------


def crash(state: State, operation: Crash) -> tuple[State, Outcome]:
    """The process of a rank is gone, and with it what it had queued and remembered. No word changes."""
    rank, consumers = operation.rank, state.consumers
    gone = {proxy.token for proxy in consumers.proxies if proxy.rank == rank}
    readers = {reader.token for reader in consumers.readers if reader.proxy in gone}
    device = replace(state.device, queues=replaced(state.device.queues, rank_queue(rank), ()))
    left = replace(
        consumers,
        tables=replaced(consumers.tables, rank, (0,) * state.shape.slots),
        proxies=tuple(proxy for proxy in consumers.proxies if proxy.rank != rank),
        readers=tuple(reader for reader in consumers.readers if reader.token not in readers),
        views=tuple(view for view in consumers.views if view.proxy not in gone),
        imported=replaced(consumers.imported, state.process_of(rank), False),
        dead=tuple(sorted((*consumers.dead, rank))),
    )
    return state.having(consumers=left, device=_forgetting(device, readers)), DONE


def reap(state: State) -> tuple[State, Outcome]:
    """Count the processes that have died: on the host, for every lease that is out and every new one; in no word."""
    closed = not_open(state)
    if closed is not None:
        return state, closed
    found = tuple(rank for rank in state.consumers.dead if rank not in state.allocator.vacant)
    if found:
        state = state.having(allocator=allocation.excuse(state.allocator, found))
    return state, Outcome("done", count=len(found))


def join(state: State, operation: Join) -> tuple[State, Outcome]:
    """A new process acts for a rank whose old one was counted dead: two would be two writers of its words (CTL-4).

    Its table starts with what the rank's words say, so that a late proxy cannot lower them (ACK-2).
    """
    rank = operation.rank
    closed = not_open(state)
    if closed is not None:
        return state, closed
    if rank not in state.allocator.vacant:
        return state, refused(Reason.BAD_RANK, f"rank {rank} has a process that was not seen dead [REAP-1]")
    consumers = replace(
        state.consumers,
        tables=replaced(state.consumers.tables, rank, tuple(row[1 + rank] for row in state.device.words)),
        dead=tuple(other for other in state.consumers.dead if other != rank),
    )
    return state.having(consumers=consumers, allocator=allocation.expect(state.allocator, rank)), DONE
