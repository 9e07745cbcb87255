"""CON-6: looking at a lease's bytes in place."""

from __future__ import annotations

from vmmref_models.families.history import (
    BY_HANDLE,
    acknowledged_by_all,
    answer,
    has_entered,
    inner,
    is_acknowledged,
    is_live,
    is_open,
    lease_named,
    must_refuse,
    proxy_used,
    ranks_at_work,
    speaks,
    word_name,
)
from vmmref_models.operations import (
    Advance,
    Borrow,
    Cancel,
    CancelProxy,
    Claim,
    Collect,
    DropImport,
    Faulty,
    Fetch,
    Peek,
    Read,
    Reclaim,
    Recycle,
    Release,
    Return,
    Revoke,
)
from vmmref_models.reasons import Reason
from vmmref_models.rules import HELD, Broken, Step, Verdict, reachable, rule
from vmmref_models.state import CACHED, RETURNED, Lease, Proxy

LOOKS = (Borrow, Peek, Return, Read, Fetch)
NEED_A_VIEW = (Advance, Read, Fetch, Collect, Release, Claim, Reclaim, Recycle)
"""What the rule says nothing of while no view is out and nothing is set aside."""
ENDS = (*BY_HANDLE, CancelProxy)
"""What ends a lease before everybody has acknowledged."""


@rule(
    "CON-6",
    on=(*LOOKS, Collect, Release, Advance, DropImport, *ENDS, Claim, Reclaim, Recycle, Faulty),
    needs=("borrow",),
)
def a_borrowed_view_holds_its_range(step: Step) -> Verdict | None:
    """A borrowed view (zero copy): the lease says at publishing whether it may be borrowed; the process enters (nonce,
    slot, n) in its table before it checks R, so every other copy of that proxy is then refused; the ack is written at
    release only, after the reads enqueued before it; no view outlives the mapping. Revoking a borrowable, dispatched
    lease sets its range aside until every rank has acknowledged or is dead.
    """
    operation, past = step.operation, step.past
    if not past.consumers.views and not past.allocator.guarded and isinstance(operation, NEED_A_VIEW):
        return None
    forged = _acknowledged_under_a_view(step)
    if forged is not None:
        return forged
    if isinstance(operation, Borrow):
        return _borrowed(step)
    if isinstance(operation, Peek):
        return _peeked(step)
    if isinstance(operation, Return):
        return HELD if step.outcome.kind == "done" else Broken("done", answer(step.outcome))
    if isinstance(operation, DropImport):
        return _dropped(step)
    if isinstance(operation, Read | Fetch):
        return _second_copy(step)
    if isinstance(operation, ENDS):
        return _ended(step)
    return _taken_back(step) if isinstance(inner(step), Cancel | Claim | Reclaim | Recycle) else None


def _views(step: Step) -> list[Proxy]:
    """The proxies through which bytes are being looked at."""
    past = step.past
    found = [past.proxy(view.proxy) for view in past.consumers.views]
    return [proxy for proxy in found if proxy is not None]


def _acknowledged_under_a_view(step: Step) -> Broken | None:
    """The acknowledgement says that nobody looks any more."""
    if not step.changed_words or not step.past.consumers.views or isinstance(step.operation, Return):
        return None
    for proxy in _views(step):
        for slot, column, old, new in step.changed_words:
            if (slot, column, new) == (proxy.lease.slot, 1 + proxy.rank, proxy.lease.generation):
                return Broken(f"{word_name(slot, column)} stays {old} while rank {proxy.rank} looks", f"{new}")
    return None


def _borrowed(step: Step) -> Verdict | None:
    past = step.past
    proxy = proxy_used(past, step.operation)
    if proxy is None or not speaks(proxy):
        return None
    if not proxy.lease.borrowable:
        return must_refuse(step, Reason.NOT_BORROWABLE)
    if past.closed and not past.consumers.imported[past.process_of(proxy.rank)]:
        return None
    if has_entered(past, proxy):
        return must_refuse(step, Reason.ALREADY_RELEASED)
    if past.failed:
        return None
    if is_live(past, proxy.lease):
        return HELD if step.outcome.kind == "done" else Broken("a view: the lease is live", answer(step.outcome))
    if step.outcome.reason in (Reason.STALE_LEASE, Reason.PRODUCER_GONE):
        return HELD if step.outcome.reason is Reason.STALE_LEASE else None
    return Broken(f"refused {Reason.STALE_LEASE}: {proxy.lease.view} was retired", answer(step.outcome))


def _peeked(step: Step) -> Verdict | None:
    proxy = proxy_used(step.past, step.operation)
    if proxy is None:
        return None
    if step.outcome.kind != "done" or step.outcome.digest != proxy.lease.digest:
        return Broken(f"digest {proxy.lease.digest:#010x} as long as the view is out", answer(step.outcome))
    return HELD


def _dropped(step: Step) -> Verdict | None:
    ranks = ranks_at_work(step.past, step.operation)
    if any(proxy.rank in ranks for proxy in _views(step)):
        return must_refuse(step, Reason.STILL_BORROWED)
    if step.outcome.reason is Reason.STILL_BORROWED:
        return Broken("done: no view of the process is out", answer(step.outcome))
    return None


def _second_copy(step: Step) -> Verdict | None:
    """Another copy of a proxy does not get in under the view of its rank."""
    proxy = proxy_used(step.past, step.operation)
    if proxy is None or proxy.state == CACHED or not step.past.consumers.views:
        return None
    own = [view for view in _views(step) if (view.rank, view.lease.token) == (proxy.rank, proxy.lease.token)]
    return must_refuse(step, Reason.ALREADY_RELEASED) if own else None


def _ended(step: Step) -> Verdict | None:
    """A borrowable lease that was ended early keeps its range, and is reported."""
    lease, after = lease_named(step.past, step.operation), step.after
    if lease is None or not lease.borrowable or lease.token not in step.past.dispatched or not is_open(step):
        return None
    if not step.past.is_active(lease) or acknowledged_by_all(step, lease):
        return None
    if step.outcome.kind != "done":
        return Broken(f"{lease.view} is ended", answer(step.outcome))
    if after.leases is None or after.retiring is None:
        return None
    if lease.view not in after.leases or lease.slot not in after.retiring:
        return Broken(f"{lease.view} keeps its range and slot: ranks may look at it", f"retiring {after.retiring}")
    waits = not isinstance(step.operation, Cancel | Revoke) or step.operation.wait
    if waits and after.set_aside is not None and lease.slot not in after.set_aside:
        return Broken(f"{lease.view} among what is set aside", f"slots {after.set_aside}")
    return HELD


def _taken_back(step: Step) -> Verdict | None:
    """What was set aside comes back when every rank has acknowledged or is dead, and not before."""
    verdict: Verdict | None = None
    for lease in _guarded(step):
        if lease.view in step.left and not _is_done_with(step, lease):
            words = step.past.device.words[lease.slot][1:]
            return Broken(f"{lease.view} stays set aside: acknowledged were {words}", "its range is free")
        verdict = HELD
    return verdict


def _guarded(step: Step) -> list[Lease]:
    """The leases that were ended while ranks might look at their bytes; a failing cancel's own one included."""
    past, operation = step.past, inner(step)
    slots = past.allocator.guarded
    held = [lease for lease in past.allocator.held if lease is not None and lease.slot in slots]
    own = past.lease(operation.lease) if isinstance(operation, Cancel) else None
    if own is not None and own.borrowable and own.token in past.dispatched and past.is_active(own):
        held.append(own)
    return held


def _is_done_with(step: Step, lease: Lease) -> bool:
    return is_acknowledged(step.past, lease, step.past.device.words, inner(step))


@reachable("CON-6", "freed-after-return", on=(Reclaim, Recycle), needs=("borrow",))
def a_revoked_lease_came_back_after_its_view(step: Step) -> Verdict | None:
    """A lease that was revoked under a view came back after the view had been given back."""
    allocator = step.past.allocator
    returned = {proxy.lease.token for proxy in step.past.consumers.proxies if proxy.state == RETURNED}
    for slot in {*allocator.guarded, *allocator.set_aside}:
        lease = allocator.held[slot]
        if lease is not None and lease.view in step.left and lease.token in returned:
            return HELD
    return None


@reachable("CON-6", "peeked-after-revoke", on=(Peek,), needs=("borrow", "revoke"))
def a_view_was_read_after_its_lease_was_revoked(step: Step) -> Verdict | None:
    """A view was read through after its lease had been retired."""
    proxy = proxy_used(step.past, step.operation)
    return HELD if proxy is not None and not is_live(step.past, proxy.lease) else None


@reachable("CON-6", "second-copy", on=(Read, Fetch, Borrow), needs=("borrow",))
def a_second_copy_came_under_a_view(step: Step) -> Verdict | None:
    """A second copy of a proxy came to a rank that was looking at the lease."""
    proxy = proxy_used(step.past, step.operation)
    if proxy is None or step.outcome.reason is not Reason.ALREADY_RELEASED:
        return None
    return HELD if any((v.rank, v.lease.token) == (proxy.rank, proxy.lease.token) for v in _views(step)) else None
