"""What a rank does with its proxies: read, judge, release, look in place. All on one stream, in order."""

from __future__ import annotations

from dataclasses import replace

from vmmref_models import streams
from vmmref_models.observation import Observation
from vmmref_models.operations import (
    DONE,
    Borrow,
    Confirm,
    Deliver,
    Fetch,
    Outcome,
    Peek,
    ReleaseAs,
    Return,
    refused,
)
from vmmref_models.processes import has_import, imported_perhaps, with_import
from vmmref_models.reasons import Reason
from vmmref_models.refusals import delivered, granted, producer_gone
from vmmref_models.state import (
    ACK,
    BORROWED,
    CACHED,
    COPY_OUT,
    ENDED,
    FRESH,
    READ_READY,
    READING,
    RELEASED,
    RETIRE_VALIDATE_MAX,
    RETURNED,
    Lease,
    Piece,
    Proxy,
    Reader,
    State,
    View,
    replaced,
)
from vmmref_models.streams import rank_queue

Tables = tuple[tuple[int, ...], ...]


def deliver(state: State, operation: Deliver) -> tuple[State, Outcome]:
    """One more copy of the proxy reaches a rank. Proxies outlive leases: an old one may arrive at any later time."""
    lease, rank, proxies = granted(state, operation.lease), operation.rank, state.consumers.proxies
    made = Proxy(operation.proxy, lease, rank, part=operation.part)
    if lease.is_pack:
        made = replace(made, state=next((other.state for other in proxies if share(made, other)), FRESH))
    return state.having(consumers=replace(state.consumers, proxies=(*proxies, made))), DONE


def share(one: Proxy, other: Proxy) -> bool:
    """Whether two proxies of a rank are of one pack, so that what happens to one of them happens to the other."""
    return one.rank == other.rank and one.lease.is_pack and one.lease.token == other.lease.token


def read(
    state: State, proxy_token: int, reader: int, seen: Outcome | None, observed: Observation | None = None
) -> tuple[State, Outcome]:
    """Enter (slot, n) in the rank's table, then queue the copy-out and behind it the read of R (CON-5)."""
    proxy, consumers = delivered(state, proxy_token), state.consumers
    lease, rank = proxy.lease, proxy.rank
    if lease.groups and not lease.is_led_by(rank):
        return state, _bad_rank(proxy)
    if proxy.state == CACHED:
        return state, Outcome("done", cached=True)
    if state.closed and not has_import(state, rank, seen):
        return state, producer_gone()
    if consumers.tables[rank][lease.slot] >= lease.generation:
        return imported_perhaps(state, rank, observed), _already_released()
    entered = replace(
        consumers,
        tables=entered_in(consumers.tables, rank, lease),
        proxies=_in_state(consumers.proxies, proxy, READING),
        readers=(*consumers.readers, Reader(reader, proxy_token)),
    )
    work = (Piece(COPY_OUT, lease, rank, reader), Piece(READ_READY, lease, rank, reader))
    device = streams.queued(state.device, rank_queue(rank), *work)
    return state.having(consumers=with_import(state, entered, rank), device=device), DONE


def collect(state: State, reader_token: int, seen: Outcome | None) -> tuple[State, Outcome]:
    """Wait for the copy and for R. Not 2n: the lease was retired first, throw the copy away. Else queue A[r] := n."""
    reader = state.reader(reader_token)
    if reader is None:
        raise ValueError(f"reader {reader_token} is unknown")
    proxy, consumers = delivered(state, reader.proxy), state.consumers
    lease = proxy.lease
    device, arrival = streams.collected(state.device, rank_queue(proxy.rank), reader_token)
    valid = _judged(state, arrival.ready, lease, seen)
    readers = tuple(other for other in consumers.readers if other.token != reader_token)
    proxies = _in_state(consumers.proxies, proxy, CACHED if valid else ENDED)
    state = state.having(consumers=replace(consumers, readers=readers, proxies=proxies), device=device)
    if valid or lease.borrowable:
        state = _acknowledging(state, proxy)
    return state, Outcome("done", digest=_digest(arrival.content, proxy)) if valid else _stale()


def _judged(state: State, ready: int | None, lease: Lease, seen: Outcome | None) -> bool:
    """Whether the lease was live when R was read."""
    if seen is not None and _may_be_either(state):
        return seen.kind == "done"
    return ready == 2 * lease.generation


def _may_be_either(state: State) -> bool:
    """Whether a late reader may get its bytes or be told that they are stale.

    LIFE-3: how far a failed pool's retire stores got is unknown. LIFE-2: a closed pool with words of another kind may
    have left them, and the bytes, as they were.
    """
    return state.failed or (state.closed and state.policies.protocol != RETIRE_VALIDATE_MAX)


def _acknowledging(state: State, proxy: Proxy) -> State:
    """The state after A[rank] := n was queued, as far as it may still be.

    ACK-2: once the rank has entered a newer lease, this one is retired and its acknowledgement would come late, behind
    the newer one's, and lower the word. CON-6: also for a stale look at a lease that is set aside until all are done.
    """
    lease, rank = proxy.lease, proxy.rank
    if state.consumers.tables[rank][lease.slot] != lease.generation:
        return state
    return state.having(device=streams.queued(state.device, rank_queue(rank), Piece(ACK, lease, rank)))


def fetch(state: State, operation: Fetch, seen: Outcome | None, observed: Observation | None) -> tuple[State, Outcome]:
    """Read and collect. Of a pack: the first tensor that is fetched brings all of them."""
    state, outcome = read(state, operation.proxy, operation.reader, seen, observed)
    if outcome.kind != "done":
        return state, outcome
    if outcome.cached:
        proxy = delivered(state, operation.proxy)
        return state, replace(outcome, digest=proxy.lease.digest_of(proxy.part))
    return collect(state, operation.reader, seen)


def release(state: State, proxy_token: int, observed: Observation | None = None) -> tuple[State, Outcome]:
    """Acknowledge without reading. No effect once this rank has entered the lease: it counts once (ACK-3).

    The table admits only rising n per rank and slot, and one stream stores them, so A[r] never falls (ACK-2).
    """
    proxy, consumers = delivered(state, proxy_token), state.consumers
    lease, rank = proxy.lease, proxy.rank
    if lease.groups and not lease.is_led_by(rank):
        return state, _bad_rank(proxy)
    if proxy.state == FRESH:
        consumers = replace(consumers, proxies=_in_state(consumers.proxies, proxy, RELEASED))
    state = state.having(consumers=consumers)
    imported = consumers.imported[state.process_of(rank)]
    if state.closed and imported is False:
        return state, DONE
    if consumers.tables[rank][lease.slot] >= lease.generation:
        return imported_perhaps(state, rank, observed), DONE
    consumers = replace(consumers, tables=entered_in(consumers.tables, rank, lease))
    if state.closed and imported is None:  # Whether it was queued or not, no word can show it any more.
        return state.having(consumers=consumers), DONE
    return _acknowledging(state.having(consumers=with_import(state, consumers, rank)), proxy), DONE


def release_as(state: State, operation: ReleaseAs) -> tuple[State, Outcome]:
    """ACK-4: only the group that the lease was published for, named by the rank that leads it, may be named."""
    proxy = delivered(state, operation.proxy)
    return state, refused(Reason.BAD_RANK, f"ranks {operation.ranks} are no group of {proxy.lease.groups} [ACK-4]")


def confirm(state: State, operation: Confirm, observed: Observation | None) -> tuple[State, Outcome]:
    """A tensor's own acknowledgement. Of a pack: done once its rank took part, refused before (PACK-3)."""
    proxy = delivered(state, operation.proxy)
    if not proxy.lease.is_pack:
        return release(state, operation.proxy, observed)
    if not proxy.lease.is_led_by(proxy.rank):
        return state, _bad_rank(proxy)
    if proxy.state == FRESH:
        message = "Packed CUDA VMM features must be reconstructed before release [PACK-3]"
        return state, refused(Reason.NOT_RECONSTRUCTED, message)
    return state, DONE


# --- looking in place (CON-6) -----------------------------------------------------------------------------------------


def borrow(
    state: State, operation: Borrow, seen: Outcome | None, observed: Observation | None
) -> tuple[State, Outcome]:
    """Enter the table, then read R and wait for it; the acknowledgement comes when the view is given back."""
    proxy, consumers = delivered(state, operation.proxy), state.consumers
    lease, rank = proxy.lease, proxy.rank
    if lease.groups and not lease.is_led_by(rank):
        return state, _bad_rank(proxy)
    if not lease.borrowable:
        return state, refused(Reason.NOT_BORROWABLE, "the lease was published to be copied [CON-6]")
    if state.closed and not has_import(state, rank, seen):
        return state, producer_gone()
    if consumers.tables[rank][lease.slot] >= lease.generation:
        return imported_perhaps(state, rank, observed), _already_released()
    queue = rank_queue(rank)
    device = streams.run(state.device, queue, len(state.device.queues[queue]))
    valid = _judged(state, device.words[lease.slot][0], lease, seen)
    consumers = replace(
        with_import(state, consumers, rank),
        tables=entered_in(consumers.tables, rank, lease),
        proxies=_in_state(consumers.proxies, proxy, BORROWED if valid else ENDED),
        views=(*consumers.views, View(operation.view, proxy.token)) if valid else consumers.views,
    )
    state = state.having(consumers=consumers, device=device)
    return (state, DONE) if valid else (_acknowledging(state, proxy), _stale())


def peek(state: State, operation: Peek) -> tuple[State, Outcome]:
    """Read the bytes that lie in the range now."""
    proxy = _borrowed(state, operation.view)
    return state, Outcome("done", digest=_digest(streams.content(state.device.whole, proxy.lease), proxy))


def give_back(state: State, operation: Return) -> tuple[State, Outcome]:
    """The view is gone, and its acknowledgement is queued behind what was read through it."""
    proxy, consumers = _borrowed(state, operation.view), state.consumers
    left = replace(
        consumers,
        proxies=_in_state(consumers.proxies, proxy, RETURNED),
        views=tuple(view for view in consumers.views if view.token != operation.view),
    )
    return _acknowledging(state.having(consumers=left), proxy), DONE


# --- small helpers ----------------------------------------------------------------------------------------------------


def _borrowed(state: State, token: int) -> Proxy:
    view = state.view(token)
    if view is None:
        raise ValueError(f"view {token} is not out")
    return delivered(state, view.proxy)


def _bad_rank(proxy: Proxy) -> Outcome:
    message = f"rank {proxy.rank} leads none of the groups {proxy.lease.groups} [ACK-4]"
    return refused(Reason.BAD_RANK, message)


def _already_released() -> Outcome:
    return refused(Reason.ALREADY_RELEASED, "CUDA VMM tensor has already released its pool slice [CON-3]")


def _stale() -> Outcome:
    return refused(Reason.STALE_LEASE, "the lease was retired before the copy had ended [CON-5]")


def entered_in(tables: Tables, rank: int, lease: Lease) -> Tables:
    """The tables after a rank has entered a lease."""
    return replaced(tables, rank, replaced(tables[rank], lease.slot, lease.generation))


def _in_state(proxies: tuple[Proxy, ...], proxy: Proxy, new_state: str) -> tuple[Proxy, ...]:
    """The proxies after what happened to one of them, and to those that share its pack."""
    return tuple(
        [
            replace(other, state=new_state) if other.token == proxy.token or share(proxy, other) else other
            for other in proxies
        ]
    )


def _digest(content: Lease | None, proxy: Proxy) -> int:
    """The digest of what arrived. Bytes of no single lease have one that no payload was given."""
    due = proxy.lease.digest_of(proxy.part)
    if content is None:
        return ~due & 0xFFFFFFFF
    return due if content.token == proxy.lease.token else content.digest
