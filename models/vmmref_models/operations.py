"""The vocabulary of a pool under test: what a harness may ask for, and what it may be answered.

Objects are named by tokens that the harness chooses (a lease token at `Publish`, a proxy token at `Deliver`, a reader
token at `Read`, a look token at `Look`), so a sequence stays meaningful when a shrinker drops operations from it.
Token numbers are unique in a sequence and a kind.
"""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import TypeAlias

from vmmref_models.reasons import Reason

PUBLISH = "publish"
RETIRE = "retire"


def rank_stream(rank: int) -> str:
    """Name of the one stream that rank `rank` uses for a pool (ACK-2)."""
    return f"rank:{rank}"


@dataclass(frozen=True, slots=True)
class Payload:
    """What a lease carries, by seed: `dtype` as torch names it ("uint8"), `shape`, and how the source is laid out."""

    dtype: str
    shape: tuple[int, ...]
    seed: int
    layout: str = "contiguous"
    """"contiguous", "transposed" (non-contiguous), or "expanded" (zero stride)."""


Groups: TypeAlias = tuple[tuple[int, ...], ...]
"""The ranks of a pool in groups, each led by its first rank, which acknowledges for all of it; () = each rank alone."""


@dataclass(frozen=True, slots=True)
class Publish:
    """Lease a range and a slot, queue the copy and the ready store. Does not wait."""

    lease: int
    payload: Payload
    nbytes: int
    """Bytes of the payload: product of the shape times the element size."""
    digest: int
    """CRC-32 of the payload's dtype name, shape and bytes; what a reader must get back."""
    groups: Groups = ()
    """Who acknowledges for whom, fixed here for the lease's whole life (ACK-4)."""
    borrowable: bool = False
    """Whether ranks may look at the bytes in place (CON-6)."""


@dataclass(frozen=True, slots=True)
class Dispatch:
    """Wait until ready(slot) is visible to the host; from then on the lease's proxy may be delivered."""

    lease: int


@dataclass(frozen=True, slots=True)
class Wrap:
    """Publish and Dispatch in one call, as `wrap_tensor` does."""

    lease: int
    payload: Payload
    nbytes: int
    digest: int
    groups: Groups = ()
    borrowable: bool = False


@dataclass(frozen=True, slots=True)
class WrapPack:
    """Publish several tensors in one lease and dispatch it, as `wrap_tensors` does (PACK-1)."""

    lease: int
    payloads: tuple[Payload, ...]
    """At least one; their proxies are told apart by their place in this tuple."""
    sizes: tuple[int, ...]
    """Bytes of each payload."""
    digests: tuple[int, ...]
    groups: Groups = ()


@dataclass(frozen=True, slots=True)
class Deliver:
    """Give rank `rank` one more copy of a dispatched lease's proxy through its wire form, at any later time."""

    lease: int
    proxy: int
    rank: int
    part: int = 0
    """Of a pack: which of its tensors. Of any other lease 0."""


@dataclass(frozen=True, slots=True)
class Read:
    """Begin a reconstruction: enter the table, queue the copy-out and the read of R. Does not wait."""

    proxy: int
    reader: int


@dataclass(frozen=True, slots=True)
class Collect:
    """Finish a reconstruction: wait for its queued work, judge R, queue the acknowledgement."""

    reader: int


@dataclass(frozen=True, slots=True)
class Fetch:
    """Read and Collect in one call, as `reconstruct_on_target_device` does."""

    proxy: int
    reader: int


@dataclass(frozen=True, slots=True)
class Release:
    """Acknowledge without reading (`release_without_reconstruction`); nothing more after a read that acknowledged."""

    proxy: int


@dataclass(frozen=True, slots=True)
class Confirm:
    """A tensor's own acknowledgement (`acknowledge_consumption`): as Release, but of a pack refused until its rank has
    read the pack, or released it (PACK-3).
    """

    proxy: int


@dataclass(frozen=True, slots=True)
class ReleaseAs:
    """Release in the name of `ranks`, which is not the group that the lease was published for: always refused (ACK-4).

    The first of `ranks` speaks; () and repeated or unknown ranks are wrong, too.
    """

    proxy: int
    ranks: tuple[int, ...]


@dataclass(frozen=True, slots=True)
class Borrow:
    """Look at the bytes in place: enter the table, check R, hand out a view (`borrow_on_target_device`). Waits."""

    proxy: int
    view: int


@dataclass(frozen=True, slots=True)
class Peek:
    """Read through a borrowed view that has not been given back. Waits; answers the digest."""

    view: int


@dataclass(frozen=True, slots=True)
class Return:
    """Give a borrowed view back: queue the acknowledgement behind the reads made so far (`release_borrowed`)."""

    view: int


@dataclass(frozen=True, slots=True)
class Advance:
    """Let the oldest queued piece of one stream run: PUBLISH, RETIRE or rank_stream(r)."""

    stream: str


@dataclass(frozen=True, slots=True)
class Look:
    """First half of a recycle pass: take a snapshot of every acknowledgement word."""

    look: int


@dataclass(frozen=True, slots=True)
class Claim:
    """Second half: claim every lease that look `look` saw fully acknowledged, and queue their retire stores."""

    look: int


@dataclass(frozen=True, slots=True)
class Reclaim:
    """Free the ranges and slots of retiring leases whose retire store the host has seen complete; `wait` for all."""

    wait: bool


@dataclass(frozen=True, slots=True)
class Recycle:
    """Look, Claim, Reclaim(wait=True): one whole pass. Answers how many leases it took back."""


@dataclass(frozen=True, slots=True)
class Cancel:
    """Claim a lease by its producer's handle and queue its retire store; `wait` frees it too before returning."""

    lease: int
    wait: bool


@dataclass(frozen=True, slots=True)
class Revoke:
    """As Cancel, for a lease whose proxy has been handed on (CAN-3)."""

    lease: int
    wait: bool


@dataclass(frozen=True, slots=True)
class CancelProxy:
    """Cancel by a proxy (`cancel_proxy`), and wait. Of a pack any tensor's proxy cancels the whole, once; the second
    time is done and changes nothing (PACK-4). Of any other lease as Cancel(wait=True).
    """

    lease: int
    part: int = 0


@dataclass(frozen=True, slots=True)
class Expire:
    """Let so much time pass that every lease dispatched until now is past its deadline (REAP-2)."""


@dataclass(frozen=True, slots=True)
class Crash:
    """Kill the process of rank `rank` (`Shape.apart`): its queued work, table, readings, views and proxies are gone."""

    rank: int


@dataclass(frozen=True, slots=True)
class Reap:
    """Let the pool count the processes that have died since the last time. Answers how many."""


@dataclass(frozen=True, slots=True)
class Join:
    """A new process acts for rank `rank`, and the pool is told so (`watch_consumer`).

    Refused BAD_RANK while the pool has not seen the old one dead.
    """

    rank: int


@dataclass(frozen=True, slots=True)
class Import:
    """Let the process of rank `rank` import the pool; nothing when it has (HND-4)."""

    rank: int


@dataclass(frozen=True, slots=True)
class DropImport:
    """Let the process of rank `rank` drop its import of the pool (`close_imports`): its queued work ends first.

    Readings that were begun and not collected are given up. Refused STILL_BORROWED while a view is out (CON-6).
    """

    rank: int


@dataclass(frozen=True, slots=True)
class Attempt:
    """A short experiment beside the pool that ends by itself; `vmmref_models.attempts` says what each must answer.

    `seed` varies what the experiment leaves open (which garbage, how many clients, which tensors).
    """

    what: str
    seed: int = 0


@dataclass(frozen=True, slots=True)
class ReleaseLease:
    """The producer's low-level release of a lease handle, current or old (REC-6)."""

    lease: int


@dataclass(frozen=True, slots=True)
class Tamper:
    """Cancel with a handle that was altered; must be refused and change nothing.

    `how`: "generation" (an older one), "offset" (start moved by one alignment), "pool" (another pool's nonce).
    """

    lease: int
    how: str


@dataclass(frozen=True, slots=True)
class PublishUnusable:
    """Publish something no pool may take: "empty" (no elements) or "wrong-device"."""

    what: str


@dataclass(frozen=True, slots=True)
class Shutdown:
    """End the pool: newcomers are refused, queued work ends, every lease is retired, memory is given back."""


@dataclass(frozen=True, slots=True)
class Construct:
    """Make a second, short-lived pool beside the one under test and close it again.

    `what`: "valid"; or one bad argument that must be refused before anything is taken: "memory_size",
    "consumer_count", "max_inflight_slices", "recycle_interval" (each zero or negative; LIFE-1), "below-granule"
    (LIFE-1), "control-only" (no room behind the control words; CTL-5), "backing-dtype", "backing-size",
    "backing-strided" (PUB-5).
    """

    what: str


Disturbed: TypeAlias = Publish | Wrap | WrapPack | Read | Fetch | Borrow | Recycle | Cancel | Construct | Attempt
"""What a failing driver call may be put into; of the experiments "request" only."""


@dataclass(frozen=True, slots=True)
class Faulty:
    """Do `operation` while its `call`-th driver call (1-based) fails. Needs the capability "faults".

    Enabled while no stream has queued work; when the operation fails, what it has queued itself ends before it returns.
    So nobody has to guess how far queued work had got. A pass is not disturbed while a death has not been counted.
    """

    operation: Disturbed
    call: int


Operation: TypeAlias = (
    Publish
    | Dispatch
    | Wrap
    | WrapPack
    | Deliver
    | Read
    | Collect
    | Fetch
    | Release
    | Confirm
    | ReleaseAs
    | Borrow
    | Peek
    | Return
    | Advance
    | Look
    | Claim
    | Reclaim
    | Recycle
    | Cancel
    | Revoke
    | CancelProxy
    | ReleaseLease
    | Expire
    | Crash
    | Reap
    | Join
    | Import
    | DropImport
    | Tamper
    | PublishUnusable
    | Shutdown
    | Construct
    | Attempt
    | Faulty
)


@dataclass(frozen=True, slots=True)
class LeaseView:
    """A lease as anybody may see it: slot, generation, the bytes [start, end) it holds and the bytes it uses."""

    slot: int
    generation: int
    start: int
    end: int
    nbytes: int


@dataclass(frozen=True, slots=True)
class Outcome:
    """What an operation answered.

    `kind`: "done"; "full" (RNG-5, a normal answer); "refused" (the pool said no, `reason` says why, nothing changed);
    "failed" (a driver call failed, `reason` is DRIVER_CALL_FAILED or POOL_FAILED); "crashed" (anything else: an
    exception that is no refusal; never right).
    """

    kind: str
    reason: Reason | None = None
    lease: LeaseView | None = None
    """Of Publish, Wrap and WrapPack."""
    places: tuple[int, ...] | None = None
    """Of WrapPack: where each tensor begins, in bytes from the lease's start."""
    digest: int | None = None
    """Of Collect, Fetch and Peek: CRC-32 as in `Publish.digest` of what the rank got."""
    cached: bool = False
    """Of Read and Fetch: answered from the proxy's own cache; no pool read, no acknowledgement."""
    count: int | None = None
    """Of Recycle, Reclaim and Claim: how many leases were freed (Claim: claimed). Of Reap: how many ranks were found
    dead. Of DropImport: how many imports were dropped. Of a failed Faulty(Read | Fetch): 1
    when the rank had entered the lease in its table, so that its acknowledgement is queued (CON-4), 0 when the failure
    came before."""
    leftovers: int | None = None
    """Of Construct and Attempt, also inside Faulty: handles, mappings, reservations, descriptors, streams, events left
    behind; of Attempt also leases, fields and clients that are not as they must be."""
    message: str = field(default="", compare=False)
    """The error's text, for people; never compared."""


DONE = Outcome("done")
FULL = Outcome("full", Reason.POOL_FULL)


def refused(reason: Reason, message: str = "") -> Outcome:
    """An answer that says no and changed nothing."""
    return Outcome("refused", reason, message=message)
