"""Lease protocols by name: the right one, its near misses, and the simpler ones that engines have used.

Every wrong one stands here with the scope in which `vmmref_models.explore` refutes it, the rules that it breaks there
and the length of the shortest sequence for each. All but two of them (slot-before-retire and acknowledges-first) keep
every rule as long as nothing goes wrong; that is why example tests cannot tell them apart.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, replace
from types import MappingProxyType
from typing import Final

from vmmref_models.small_pool.protocol import (
    Acknowledge,
    Check,
    Ended,
    Group,
    Late,
    Protocol,
    Reaper,
    Table,
    Wait,
)
from vmmref_models.small_pool.scope import Scope, faults_from

RETIRE_VALIDATE_MAX: Final = Protocol("retire-validate-max", "Retire before freeing, check R after the copy, max.")

DEVICE_WAIT_FORM: Final = replace(
    RETIRE_VALIDATE_MAX,
    name="retire-validate-max-device-wait",
    sentence="The same, and readers wait for R on the device instead of getting their proxy when R is seen.",
    wait=Wait.AT_LEAST,
)

SMALLEST_SAFE: Final = replace(
    RETIRE_VALIDATE_MAX,
    name="smallest-safe-profile",
    sentence="What the reference pool does: a plain store on one stream a rank, and the host judges R.",
    acknowledge=Acknowledge.STORE,
    host_judges=True,
)

PLAIN_STORE: Final = replace(
    RETIRE_VALIDATE_MAX,
    name="plain-store",
    sentence="A plain store on one stream a rank, behind the check on the same stream.",
    acknowledge=Acknowledge.STORE,
)

LATE_RETIRED: Final = replace(
    RETIRE_VALIDATE_MAX,
    name="late-retired",
    sentence="A late lease is retired and set aside, and stale readers acknowledge; only safe with an atomic max.",
    late=Late.RETIRED,
    stale_acknowledges=True,
)

RIGHT: Final[Mapping[str, Protocol]] = MappingProxyType(
    {
        protocol.name: protocol
        for protocol in (RETIRE_VALIDATE_MAX, DEVICE_WAIT_FORM, SMALLEST_SAFE, PLAIN_STORE, LATE_RETIRED)
    }
)
"""The protocols that keep every rule."""


DEFAULT_SCOPE: Final = Scope(faults=faults_from("dup,revoke"))
"""A scope in which most wrong protocols show, and which is searched in seconds."""


@dataclass(frozen=True)
class KnownWrong:
    """A protocol that is known to be wrong, and where it shows."""

    protocol: Protocol
    scope: Scope
    broken: Mapping[str, int]
    """The rules that it breaks in this scope, the telling one first, each with its shortest sequence in steps."""

    @property
    def rule(self) -> str:
        """The rule that it is known for."""
        return next(iter(self.broken))


def _scope(faults: str = "", slots: int = 1, units: int = 1, leases: int = 2, halves: int = 1) -> Scope:
    """A small scope of two ranks: known-wrong protocols need no more."""
    return Scope(slots, units, 2, leases, halves, faults=faults_from(faults))


GEQ_PLAIN: Final = Protocol(
    "geq-plain",
    "R = n; readers wait for R >= n; ranks store n; the recycler compares for equality; nothing is checked or retired.",
    wait=Wait.AT_LEAST,
    check=Check.NEVER,
    acknowledge=Acknowledge.STORE,
    table=Table.NEVER,
    retires=False,
)
_WHOLE: Final = (
    KnownWrong(
        replace(
            GEQ_PLAIN,
            name="boolean-ack",
            sentence="Words are zeroed at publishing, ranks store 1, the recycler counts words that are not zero.",
            acknowledge=Acknowledge.FLAG,
        ),
        _scope("dup"),
        {"CON-1": 18, "REC-1": 26},
    ),
    KnownWrong(GEQ_PLAIN, _scope("dup"), {"CON-1": 18, "ACK-2": 23, "LIV-1": 29}),
    KnownWrong(
        replace(GEQ_PLAIN, name="eq-wait", sentence="As geq-plain; readers wait for R = n.", wait=Wait.EQUAL),
        _scope("dup"),
        {"LIV-2": 23, "CON-1": 18, "LIV-1": 23},
    ),
    KnownWrong(
        replace(
            GEQ_PLAIN, name="geq-max", sentence="As geq-plain; ranks store by atomic max.", acknowledge=Acknowledge.MAX
        ),
        _scope("dup"),
        {"CON-1": 18},
    ),
    KnownWrong(
        replace(
            GEQ_PLAIN,
            name="host-table",
            sentence="As geq-plain, and a table in each process admits one use a rank, slot and generation.",
            table=Table.ENQUEUE,
        ),
        _scope("foreign"),
        {"CON-1": 13},
    ),
    KnownWrong(
        replace(
            GEQ_PLAIN,
            name="max-no-retire",
            sentence="As geq-max, and R is checked before and after the copy, but nothing is stored at retirement.",
            acknowledge=Acknowledge.MAX,
            check=Check.BEFORE_AND_AFTER,
        ),
        _scope("dup"),
        {"CON-1": 23},
    ),
    KnownWrong(
        replace(
            DEVICE_WAIT_FORM,
            name="validate-before",
            sentence="Retire store and atomic max, but R is checked before the copy only.",
            check=Check.BEFORE,
            table=Table.NEVER,
        ),
        _scope("revoke"),
        {"CON-1": 14},
    ),
)


def _near(name: str, sentence: str, scope: Scope, broken: Mapping[str, int], protocol: Protocol) -> KnownWrong:
    return KnownWrong(replace(protocol, name=name, sentence=sentence), scope, broken)


_RIGHT: Final = RETIRE_VALIDATE_MAX
_NOT_ATOMIC: Final = replace(_RIGHT, acknowledge=Acknowledge.LOAD_THEN_STORE)
_NEAR_MISSES: Final = (
    _near(
        "retire-overtakes-ready",
        "The retire store may run while the lease's own copy and ready store are queued.",
        _scope("revoke", leases=1),
        {"CTL-6": 7, "CON-1": 10},
        replace(DEVICE_WAIT_FORM, retire_waits_for=Ended.NOTHING),
    ),
    _near(
        "failure-forgets-ready",
        "After a failed publication only the copy is waited for.",
        _scope("copy-fail"),
        {"LIV-1": 17, "CTL-6": 6, "CON-5": 14},
        replace(_RIGHT, retire_waits_for=Ended.COPY, free_waits_for=Ended.COPY),
    ),
    _near(
        "failure-forgets-copy",
        "After a failed publication nothing is waited for.",
        _scope("copy-fail"),
        {"CON-1": 13, "CTL-6": 6, "CON-5": 14, "LIV-1": 17},
        replace(_RIGHT, retire_waits_for=Ended.NOTHING, free_waits_for=Ended.NOTHING),
    ),
    _near(
        "range-before-retire",
        "The range goes back when the retire store is queued.",
        _scope("revoke", slots=2),
        {"CON-1": 12},
        replace(_RIGHT, early_range=True),
    ),
    _near(
        "slot-before-retire",
        "The slot goes back when the retire store is queued.",
        _scope(units=2),
        {"LIV-1": 28, "CTL-6": 20, "CON-5": 24},
        replace(_RIGHT, early_slot=True),
    ),
    _near(
        "stale-silent-set-aside",
        "A late lease is retired and set aside, and stale readers write nothing.",
        _scope("deadline", leases=1),
        {"LIV-1": 13},
        replace(_RIGHT, late=Late.RETIRED),
    ),
    _near(
        "borrow-free-on-revoke",
        "A revoke frees at once although views may be borrowed.",
        _scope("revoke,borrow"),
        {"CON-6": 12},
        replace(_RIGHT, borrow_holds=False),
    ),
    _near(
        "borrow-table-late",
        "The table is entered when the acknowledgement is done.",
        _scope("dup,borrow"),
        {"CON-6": 21},
        replace(_RIGHT, table=Table.COMPLETION),
    ),
    _near(
        "group-store-leader-dies",
        "A group acknowledgement stores into every member's word; the reaper counts the leader only.",
        _scope("crash,group", leases=1),
        {"LIV-1": 7},
        replace(_RIGHT, group=Group.EVERY_WORD),
    ),
    _near(
        "max-two-streams",
        "Max as a load, a comparison and a store, on two streams of one rank.",
        _scope("revoke"),
        {"ACK-2": 22, "LIV-1": 28},
        replace(_NOT_ATOMIC, streams=2),
    ),
    _near(
        "store-two-streams",
        "A plain store on two streams of one rank.",
        _scope("revoke"),
        {"ACK-2": 20, "LIV-1": 25},
        replace(PLAIN_STORE, streams=2),
    ),
    _near(
        "rejoin-early",
        "A dead rank is counted, and its number goes to a new process, while the old device work runs.",
        _scope("crash,rejoin"),
        {"LIV-1": 37, "ACK-2": 31},
        replace(_NOT_ATOMIC, reaper=Reaper.COUNTS_EARLY, rejoin_waits=False),
    ),
    _near(
        "reaper-forges-early",
        "The reaper writes a dead rank's words while its device work runs.",
        _scope("crash,revoke"),
        {"LIV-1": 26, "ACK-2": 19},
        replace(_NOT_ATOMIC, reaper=Reaper.FORGES),
    ),
    _near(
        "fail-no-ack",
        "A reader whose work failed does not acknowledge; the table refuses its retry.",
        _scope("reader-fail", leases=1),
        {"LIV-1": 10},
        replace(_RIGHT, failed_acknowledges=False),
    ),
    _near(
        "no-claim",
        "A look, or a revoke, is acted on without claiming the lease.",
        _scope("revoke", leases=1),
        {"REC-5": 20},
        replace(_RIGHT, claims=False),
    ),
    _near(
        "check-mid-copy",
        "R is read before the last byte has arrived.",
        _scope("revoke", halves=2),
        {"CON-1": 17},
        replace(_RIGHT, check=Check.MIDDLE),
    ),
    _near(
        "acknowledges-first",
        "The acknowledgement may run before the copy-out.",
        _scope(leases=1),
        {"REC-1": 13, "CON-5": 14},
        replace(_RIGHT, acknowledges_first=True),
    ),
    _near(
        "late-judged-acknowledgement",
        "The host judges R and queues a plain store then, though its rank has entered a newer lease of the slot.",
        _scope("revoke"),
        {"ACK-2": 22, "LIV-1": 28},
        replace(SMALLEST_SAFE, leaves_out_late=False),
    ),
    _near(
        "judged-no-table",
        "The host judges R and queues a plain store, and no table says what its rank has entered since.",
        _scope("revoke"),
        {"ACK-2": 22, "LIV-1": 30},
        replace(SMALLEST_SAFE, table=Table.NEVER),
    ),
    _near(
        "stale-store-no-table",
        "A stale reader acknowledges by a plain store, and no table refuses it when its rank has read a newer lease.",
        _scope("revoke"),
        {"ACK-2": 20, "LIV-1": 28},
        replace(PLAIN_STORE, table=Table.NEVER, stale_acknowledges=True),
    ),
    _near(
        "unsent-not-retired",
        "A lease that was never dispatched is freed without a retire store, and its proxies are handed on later.",
        _scope("cancel,late-delivery"),
        {"CON-1": 11},
        replace(_RIGHT, retires_unsent=False),
    ),
    _near(
        "unmap-with-queued-work",
        "The producer unmaps without waiting for its queued work.",
        _scope("shutdown", leases=1),
        {"LIFE-2": 4},
        replace(_RIGHT, unmap_waits=False),
    ),
    _near(
        "import-dropped-early",
        "A consumer drops its import under a queued copy.",
        _scope("shutdown", leases=1),
        {"HND-4": 13},
        replace(_RIGHT, drop_waits=False),
    ),
    _near(
        "device-wait",
        "Readers wait for R on the device, and the producer may die.",
        _scope("producer-crash", leases=1),
        {"LIV-2": 5},
        DEVICE_WAIT_FORM,
    ),
    _near(
        "hold-undispatched",
        "Held until all have acknowledged, also when nobody has the lease.",
        _scope("shutdown", leases=1),
        {"LIV-1": 7},
        replace(_RIGHT, holds_unsent=True),
    ),
)

KNOWN_WRONG: Final[Mapping[str, KnownWrong]] = MappingProxyType(
    {known.protocol.name: known for known in (*_WHOLE, *_NEAR_MISSES)}
)
"""The protocols that break a rule, simpler ones first, then near misses of the right one."""

PROTOCOLS: Final[Mapping[str, Protocol]] = MappingProxyType(
    {**RIGHT, **{name: known.protocol for name, known in KNOWN_WRONG.items()}}
)
"""Every protocol by name."""

RELYING: Final[Mapping[str, KnownWrong]] = MappingProxyType(
    {
        "used-once": KnownWrong(GEQ_PLAIN, _scope("dup"), {"CON-1": 18, "ACK-2": 23, "LIV-1": 29}),
        "own-ack-only": KnownWrong(GEQ_PLAIN, _scope("foreign"), {"CON-1": 13, "ACK-2": 18, "LIV-1": 24}),
        "no-cancel-after-delivery": KnownWrong(GEQ_PLAIN, _scope("revoke"), {"CON-1": 11, "ACK-2": 16, "LIV-1": 22}),
        "no-delivery-after-cancel": KnownWrong(
            GEQ_PLAIN, _scope("cancel,late-delivery"), {"CON-1": 11, "ACK-2": 16, "LIV-1": 22}
        ),
    }
)
"""For each environment obligation a protocol that relies on it, and what breaks when it is not kept."""
