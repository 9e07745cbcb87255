"""CAN: cancel and revoke."""

from __future__ import annotations

from vmmref_models.families.history import answer, is_open, lease_named, must_refuse, word
from vmmref_models.operations import Cancel, CancelProxy, LeaseView, ReleaseLease, Revoke, Tamper
from vmmref_models.reasons import Reason
from vmmref_models.rules import HELD, Broken, Step, Verdict, rule
from vmmref_models.state import RETIRE_VALIDATE_MAX


@rule("CAN-1", on=(Cancel, Revoke, ReleaseLease))
def cancelling_gives_range_and_slot_back(step: Step) -> Verdict | None:
    """Cancelling a lease whose proxy was never handed on gives range and slot back."""
    lease = lease_named(step.past, step.operation)
    if lease is None or not is_open(step) or not step.past.is_active(lease) or lease.token in step.past.dispatched:
        return None
    return _ended(step, lease.view)


@rule("CAN-2", on=(Cancel, Revoke, CancelProxy, Tamper))
def cancelling_the_inactive_changes_nothing(step: Step) -> Verdict | None:
    """Cancelling what is not active (recycled, cancelled, of another pool, altered offsets) is refused and changes
    nothing.
    """
    operation, lease = step.operation, lease_named(step.past, step.operation)
    if lease is None or not is_open(step):
        return None
    if isinstance(operation, Tamper):
        return must_refuse(step, Reason.FOREIGN_POOL if operation.how == "pool" else Reason.INACTIVE_LEASE)
    if isinstance(operation, CancelProxy) and lease.is_pack:
        return None  # PACK-4 says what the second time does.
    return None if step.past.is_active(lease) else must_refuse(step, Reason.INACTIVE_LEASE)


@rule("CAN-3", on=(Cancel, Revoke, CancelProxy), needs=("revoke",))
def revoking_goes_through_retire(step: Step) -> Verdict | None:
    """Revoking a dispatched lease goes through retire: late readers get StaleLease, never other bytes (CON-5);
    borrowable ones as CON-6 says.
    """
    lease = lease_named(step.past, step.operation)
    if lease is None or not is_open(step) or not step.past.is_active(lease):
        return None
    if lease.token not in step.past.dispatched:
        return None
    verdict = _ended(step, lease.view) if not lease.borrowable else HELD
    if isinstance(verdict, Broken) or step.after.words is None or step.policies.protocol != RETIRE_VALIDATE_MAX:
        return verdict
    ready, retired = word(step.after.words, lease.slot, 0), 2 * lease.generation + 1
    if _waits(step) and ready != retired:
        return Broken(f"R of slot {lease.slot} is {retired}", f"{ready}")
    return HELD


def _waits(step: Step) -> bool:
    return not isinstance(step.operation, Cancel | Revoke) or step.operation.wait


def _ended(step: Step, lease: LeaseView) -> Verdict:
    """Held when the lease is gone, or retiring after a cancel that does not wait."""
    after = step.after
    if step.outcome.kind != "done":
        return Broken(f"{lease} is cancelled", answer(step.outcome))
    if not _waits(step):
        if after.leases is not None and after.retiring is not None and lease in after.leases:
            return HELD if lease.slot in after.retiring else Broken(f"{lease} is retiring", "it is active")
        return HELD
    if after.leases is not None and lease in after.leases:
        return Broken(f"{lease} is gone", "it holds its range and slot")
    if after.free_ranges is not None and not any(s <= lease.start and lease.end <= e for s, e in after.free_ranges):
        return Broken(f"[{lease.start}, {lease.end}) is free", f"free are {after.free_ranges}")
    if after.free_slots is not None and lease.slot not in (*after.free_slots, *(after.retired_slots or ())):
        return Broken(f"slot {lease.slot} is free or retired", f"free {after.free_slots}")
    return HELD
