"""From small numbers to the next operation: one decoder for Hypothesis draws, seeded walks and anything else.

`Drawer.build(kind, pick)` makes one operation of a kind out of choices `pick(n)` in [0, n); choice 0 is always the
simplest, so a shrinker that lowers numbers simplifies operations. `Drawer.next(pick)` chooses the kind too, by the
weights of the episode's flavour.
"""

from __future__ import annotations

from collections.abc import Callable

from vmmref.conformance.deck import dealt, deck, small_cards
from vmmref.conformance.flavours import BASIC, Flavour, Pick
from vmmref.conformance.kinds import ALTERED, CONSTRUCTS, FAULTY, MOST_CALLS, UNUSABLE, attempts, drawable
from vmmref.conformance.subject import Description
from vmmref.conformance.tokens import Tokens
from vmmref_models.observation import Shape
from vmmref_models.operations import (
    Advance,
    Attempt,
    Borrow,
    Cancel,
    CancelProxy,
    Claim,
    Collect,
    Confirm,
    Construct,
    Crash,
    Deliver,
    Dispatch,
    DropImport,
    Expire,
    Faulty,
    Fetch,
    Groups,
    Import,
    Join,
    Look,
    Operation,
    Payload,
    Peek,
    Publish,
    PublishUnusable,
    Read,
    Reap,
    Reclaim,
    Recycle,
    Release,
    ReleaseAs,
    ReleaseLease,
    Return,
    Revoke,
    Shutdown,
    Tamper,
    Wrap,
    WrapPack,
)
from vmmref_models.state import Lease, State
from vmmref_models.step import enabled, runnable

SEEDS = 17
"""Payloads of neighbouring leases differ, and yet come from a cache."""
ATTEMPT_SEEDS = 1000
MOST_PARTS = 5
"""Tensors of one pack."""
MOST_LOOKS = 3
MOST_VIEWS = 4
TRIES = 24
"""Choices of a kind before `next` falls back on one that is always possible."""
RECENT = 12
"""Old handles are drawn among this many of the latest."""


class Drawer:
    """Draws the operations of one episode."""

    def __init__(
        self, description: Description, shape: Shape, flavour: Flavour, tokens: Tokens, client: str = "any"
    ) -> None:
        self.shape = shape
        self.flavour = flavour
        self.well_behaved = client == "well-behaved"
        self.split = "split" in description.capabilities
        self.dtypes = description.payload_dtypes
        chosen = (self.dtypes, shape.data_size, flavour.whole_dtypes, self.well_behaved)
        self.cards, self.small_cards = len(deck(*chosen)), small_cards(*chosen)
        self.grouped = flavour.grouped if shape.consumers > 1 and "groups" in description.capabilities else 0
        self.borrowable = flavour.borrowable if "borrow" in description.capabilities else 0
        possible = attempts(description, client)
        self.attempts = tuple(what for what in flavour.attempts if what in possible)
        self.tokens = tokens
        self.state: State | None = None
        self.kinds = drawable(description, client)
        self.faulty_kinds = tuple(kind for kind in flavour.faulty or FAULTY if kind in self.kinds)
        weights = {**BASIC, **flavour.weights}
        self.wheel = tuple(kind for kind in sorted(self.kinds) for _ in range(weights.get(kind, 0)))
        self.builders: dict[str, Callable[[Pick], Operation | None]] = {
            "Publish": self._publish,
            "Wrap": self._wrap,
            "WrapPack": self._wrap_pack,
            "Dispatch": self._dispatch,
            "Deliver": self._deliver,
            "Read": self._read,
            "Fetch": self._fetch,
            "Collect": self._collect,
            "Release": self._release,
            "Confirm": self._confirm,
            "ReleaseAs": self._release_as,
            "Borrow": self._borrow,
            "Peek": self._peek,
            "Return": self._return,
            "Import": self._import,
            "DropImport": self._drop_import,
            "Crash": self._crash,
            "Join": self._join,
            "Advance": self._advance,
            "Look": self._look,
            "Claim": self._claim,
            "Reclaim": lambda pick: Reclaim(wait=pick(2) == 0),
            "Recycle": lambda pick: Recycle(),
            "Cancel": self._cancel,
            "Revoke": self._revoke,
            "CancelProxy": self._cancel_proxy,
            "ReleaseLease": self._release_lease,
            "Expire": lambda pick: Expire(),
            "Reap": lambda pick: Reap(),
            "Tamper": self._tamper,
            "PublishUnusable": lambda pick: PublishUnusable(UNUSABLE[pick(len(UNUSABLE))]),
            "Shutdown": lambda pick: Shutdown(),
            "Construct": lambda pick: Construct(CONSTRUCTS[pick(len(CONSTRUCTS))]),
            "Attempt": self._attempt,
            "Faulty": self._faulty,
        }

    def next(self, pick: Pick, state: State) -> Operation:
        """The next operation, enabled in `state`."""
        self.state = state
        wheel = self.wheel
        for _ in range(TRIES):
            operation = self.build(wheel[pick(len(wheel))], pick)
            if operation is not None:
                return operation
        return self._wrap(pick) if "Wrap" in self.kinds else self._publish(pick)

    def build(self, kind: str, pick: Pick) -> Operation | None:
        """One operation of this kind, or None where nothing of the kind is possible now."""
        operation = self.builders[kind](pick)
        if operation is None or self.state is None or not enabled(self.state, operation):
            return None
        return operation

    def promising(self, kind: str) -> bool:
        """Whether the tokens that an operation of this kind needs have been handed out. Cheaper than `build`."""
        tokens = self.tokens
        match kind:
            case "Dispatch":
                return bool(tokens.waiting)
            case "Deliver" | "CancelProxy":
                return bool(tokens.dispatched)
            case "Read" | "Fetch" | "Release" | "Confirm":
                return bool(tokens.fresh if self.well_behaved else tokens.copies)
            case "ReleaseAs":
                return bool(tokens.copies)
            case "Borrow":
                return bool(self.borrowable and tokens.copies)
            case "Collect":
                return bool(tokens.readers)
            case "Peek" | "Return":
                return bool(tokens.views)
            case "Look":
                return len(tokens.looks) < MOST_LOOKS
            case "Claim":
                return bool(tokens.looks)
            case "Cancel" | "Revoke" | "ReleaseLease" | "Tamper":
                return bool(tokens.waiting or tokens.dispatched)
            case "Advance":
                return self.state is not None and any(self.state.device.queues)
            case "Crash" | "Join" | "Reap":
                return self.shape.apart
            case "Attempt":
                return bool(self.attempts)
            case _:
                return True

    # What a producer does

    def _payload(self, index: int, token: int) -> tuple[Payload, int, int]:
        whole, ordinary = self.flavour.whole_dtypes, self.well_behaved
        return dealt(self.dtypes, self.shape.data_size, whole, ordinary, index, token % SEEDS)

    def _publish(self, pick: Pick) -> Publish:
        token = self.tokens.new()
        payload = self._payload(pick(self.cards), token)
        return Publish(token, *payload, borrowable=self._may_be_borrowed(pick), groups=self._groups(pick))

    def _wrap(self, pick: Pick) -> Wrap:
        token = self.tokens.new()
        payload = self._payload(pick(self.cards), token)
        return Wrap(token, *payload, borrowable=self._may_be_borrowed(pick), groups=self._groups(pick))

    def _wrap_pack(self, pick: Pick) -> WrapPack:
        """Mostly of tensors that fit together, sometimes of any."""
        token = self.tokens.new()
        cards = self.small_cards if pick(8) < 7 else range(self.cards)
        numbers = range(1 + pick(MOST_PARTS))
        parts = [self._payload(cards[pick(len(cards))], token + number) for number in numbers]
        tensors, sizes, digests = zip(*parts, strict=True)
        return WrapPack(token, tensors, sizes, digests, self._groups(pick))

    def _may_be_borrowed(self, pick: Pick) -> bool:
        return bool(self.borrowable) and pick(16) + self.borrowable >= 16

    def _groups(self, pick: Pick) -> Groups:
        """Each rank alone, or the ranks in any groups, of which any rank may be the leader."""
        if not self.grouped or pick(16) + self.grouped < 16:
            return ()
        groups: list[list[int]] = []
        for rank in range(self.shape.consumers):
            place = pick(len(groups) + 1)
            if place == len(groups):
                groups.append([rank])
            else:
                groups[place].insert(0 if pick(2) else len(groups[place]), rank)
        return tuple(tuple(group) for group in groups)

    def _dispatch(self, pick: Pick) -> Dispatch | None:
        waiting = self.tokens.waiting
        return Dispatch(waiting[pick(len(waiting))].token) if waiting else None

    def _handle(self, pick: Pick) -> int | None:
        """A lease by its producer's handle: mostly one that still holds its slot, sometimes any old one."""
        tokens = self.tokens
        every = tokens.waiting + tokens.dispatched[-RECENT:]
        if self.well_behaved:
            every = [
                lease for lease in every if lease.token not in tokens.delivered and lease.token not in tokens.cancelled
            ]
        elif pick(16) + self.flavour.stale < 16 and self.state is not None:
            active = {held.token for held in self.state.allocator.held if held is not None}
            every = [lease for lease in every if lease.token in active] or every
        return every[pick(len(every))].token if every else None

    def _cancel(self, pick: Pick) -> Cancel | None:
        token = self._handle(pick)
        return None if token is None else Cancel(token, wait=not self.split or pick(2) == 0)

    def _revoke(self, pick: Pick) -> Revoke | None:
        token = self._handle(pick)
        return None if token is None else Revoke(token, wait=not self.split or pick(2) == 0)

    def _cancel_proxy(self, pick: Pick) -> CancelProxy | None:
        token = self._handle(pick)
        if token is None:
            return None
        parts = next((lease.parts for lease in self.tokens.dispatched if lease.token == token), 1)
        return CancelProxy(token, pick(parts))

    def _release_lease(self, pick: Pick) -> ReleaseLease | None:
        token = self._handle(pick)
        return None if token is None else ReleaseLease(token)

    def _tamper(self, pick: Pick) -> Tamper | None:
        token = self._handle(pick)
        return None if token is None else Tamper(token, ALTERED[pick(len(ALTERED))])

    def _look(self, pick: Pick) -> Look | None:
        return Look(self.tokens.new()) if len(self.tokens.looks) < MOST_LOOKS else None

    def _claim(self, pick: Pick) -> Claim | None:
        looks = self.tokens.looks
        return Claim(looks[pick(len(looks))]) if looks else None

    # What consumers do

    def _deliver(self, pick: Pick) -> Deliver | None:
        tokens = self.tokens
        owing = [lease for lease in tokens.dispatched if lease.owed]
        if self.well_behaved:
            owing = [lease for lease in owing if lease.token not in tokens.cancelled]
        if owing and (self.well_behaved or pick(16) + self.flavour.stale < 16):
            lease = owing[pick(len(owing))]
            return Deliver(lease.token, tokens.new(), lease.owed[pick(len(lease.owed))], _one_of(lease.parts, pick))
        if self.well_behaved or not tokens.dispatched:
            return None
        recent = tokens.dispatched[-RECENT:]
        lease = recent[pick(len(recent))]
        return Deliver(lease.token, tokens.new(), pick(self.shape.consumers), _one_of(lease.parts, pick))

    def _proxy(self, pick: Pick) -> int | None:
        tokens = self.tokens
        if tokens.fresh and (self.well_behaved or pick(16) + self.flavour.stale < 16):
            return tokens.fresh[pick(len(tokens.fresh))].token
        if self.well_behaved or not tokens.copies:
            return None
        recent = tokens.copies[-RECENT:]
        return recent[pick(len(recent))].token

    def _read(self, pick: Pick) -> Read | None:
        proxy = self._proxy(pick)
        return None if proxy is None else Read(proxy, self.tokens.new())

    def _fetch(self, pick: Pick) -> Fetch | None:
        proxy = self._proxy(pick)
        return None if proxy is None else Fetch(proxy, self.tokens.new())

    def _collect(self, pick: Pick) -> Collect | None:
        readers = self.tokens.readers
        return Collect(readers[pick(len(readers))].token) if readers else None

    def _release(self, pick: Pick) -> Release | None:
        proxy = self._proxy(pick)
        return None if proxy is None else Release(proxy)

    def _confirm(self, pick: Pick) -> Confirm | None:
        proxy = self._proxy(pick)
        lease = self._lease_of(proxy)
        if proxy is None or lease is None or (self.well_behaved and lease.is_pack):
            # A pack is confirmed after it was read: by a copy that was used before.
            return None
        return Confirm(proxy)

    def _lease_of(self, proxy: int | None) -> Lease | None:
        known = self.state.proxy(proxy) if self.state is not None and proxy is not None else None
        return None if known is None else known.lease

    def _release_as(self, pick: Pick) -> ReleaseAs | None:
        """Ranks that are no group which the lease waits for: none, one twice, unknown ones, a part, more, another
        leader."""
        proxy = self._proxy(pick)
        known = self.state.proxy(proxy) if self.state is not None and proxy is not None else None
        if known is None:
            return None
        rank, consumers = known.rank, self.shape.consumers
        group = next((group for group in known.lease.groups if rank in group), (rank,))
        others = tuple(other for other in range(consumers) if other not in group)
        wrong = ((), (rank, rank), (consumers,), (rank, consumers + 1), group[:-1], group[1:] + group[:1],
                 group + others[:1], (*group, group[0]), others)  # fmt: skip
        return ReleaseAs(known.token, wrong[pick(len(wrong))])

    def _borrow(self, pick: Pick) -> Borrow | None:
        proxy = self._proxy(pick) if len(self.tokens.views) < MOST_VIEWS else None
        lease = self._lease_of(proxy)
        if proxy is None or lease is None or (self.well_behaved and not lease.borrowable):
            return None
        return Borrow(proxy, self.tokens.new())

    def _peek(self, pick: Pick) -> Peek | None:
        views = self.tokens.views
        return Peek(views[pick(len(views))].token) if views else None

    def _return(self, pick: Pick) -> Return | None:
        views = self.tokens.views
        return Return(views[pick(len(views))].token) if views else None

    # What their processes do

    def _import(self, pick: Pick) -> Import:
        return Import(pick(self.shape.consumers))

    def _drop_import(self, pick: Pick) -> DropImport:
        return DropImport(pick(self.shape.consumers))

    def _crash(self, pick: Pick) -> Crash | None:
        return Crash(pick(self.shape.consumers)) if self.shape.apart else None

    def _join(self, pick: Pick) -> Join | None:
        dead = self.state.consumers.dead if self.state is not None else ()
        return Join(dead[pick(len(dead))]) if dead else None

    # What goes on beside the pool

    def _attempt(self, pick: Pick) -> Attempt | None:
        if not self.attempts:
            return None
        return Attempt(self.attempts[pick(len(self.attempts))], pick(ATTEMPT_SEEDS))

    # What the device and its driver do

    def _advance(self, pick: Pick) -> Advance | None:
        if self.state is None:
            return None
        streams = runnable(self.state)
        return Advance(streams[pick(len(streams))]) if streams else None

    def _faulty(self, pick: Pick) -> Operation | None:
        if not self.faulty_kinds:
            return None
        if self.state is not None and any(self.state.device.queues):
            # A fault wants empty streams; emptying them is the way there.
            return self._advance(pick)
        kind = self.faulty_kinds[pick(len(self.faulty_kinds))]
        # A constructor that is refused makes few calls or none; of the experiments one is done with a failing call.
        plain = {"Construct": Construct("valid"), "Attempt": Attempt("request", pick(ATTEMPT_SEEDS))}.get(kind)
        inner = plain if plain is not None and pick(4) else self.build(kind, pick)
        if not isinstance(
            inner, Publish | Wrap | WrapPack | Read | Fetch | Borrow | Recycle | Cancel | Construct | Attempt
        ):
            return None
        # Early calls more often: most operations make fewer than the most.
        return Faulty(inner, 1 + pick(1 + pick(MOST_CALLS[type(inner).__name__])))


def _one_of(parts: int, pick: Pick) -> int:
    """Which tensor of a lease; most leases have one, about which nothing is chosen."""
    return pick(parts) if parts > 1 else 0
