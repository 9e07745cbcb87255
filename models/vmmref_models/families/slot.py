"""SLOT: slots."""

from __future__ import annotations

from vmmref_models.families.history import PUBLISHES, granted
from vmmref_models.operations import Reclaim, Recycle
from vmmref_models.rules import BOOKS, GRANT, HELD, WORDS, Broken, Kind, Step, Verdict, rule
from vmmref_models.state import RETIRE_VALIDATE_MAX


@rule("SLOT-1", kind=Kind.ALWAYS, needs=("slots",))
def a_slot_is_in_one_list(step: Step) -> Verdict | None:
    """A slot is exactly one of free, leased, retired (last generation used), set aside. Nothing is in no list."""
    after = step.after
    if after.free_slots is None or after.leases is None or after.life == "failed" or step.past.failed:
        return None
    leased = [lease.slot for lease in after.leases]
    listed = sorted([*after.free_slots, *leased, *(after.retired_slots or ())])
    if listed != list(range(step.shape.slots)):
        got = f"free {list(after.free_slots)}, leased {leased}, retired {list(after.retired_slots or ())}"
        return Broken(f"each of {step.shape.slots} slots in exactly one list", got)
    return HELD


@rule("SLOT-2", signs=WORDS | BOOKS | GRANT)
def a_slot_carries_one_lease(step: Step) -> Verdict | None:
    """A slot carries at most one lease; a lease's words and bytes belong to the same slot."""
    leases = step.after.leases
    if not leases:
        return None
    slots = [lease.slot for lease in leases]
    if len(set(slots)) != len(slots):
        return Broken("one lease a slot", f"leases in slots {slots}")
    lease = granted(step)
    if lease is not None and lease not in leases:
        return Broken(f"{lease} among the leases", f"{leases}")
    if step.policies.protocol == RETIRE_VALIDATE_MAX and step.after.generations is not None:
        for slot, column, _, new in step.changed_words:
            if column == 0 and slot < len(step.after.generations) and new // 2 > step.after.generations[slot]:
                return Broken(f"R of slot {slot} for generations up to {step.after.generations[slot]}", f"{new}")
    return HELD


@rule("SLOT-3", on=(*PUBLISHES, Reclaim, Recycle), needs=("slots",), signs=BOOKS | GRANT)
def slots_are_reused_in_order(step: Step) -> Verdict | None:
    """Slots are reused so that churn spreads (first in, first out): no slot ages more than needed."""
    before, after = step.before.free_slots, step.after.free_slots
    if step.policies.slot_order != "fifo" or before is None or after is None:
        return None
    lease = granted(step)
    if lease is not None and before:
        if lease.slot != before[0]:
            return Broken(f"slot {before[0]}, free longest of {before}", f"slot {lease.slot}")
        return HELD if after == before[1:] else Broken(f"free slots {before[1:]}", f"{after}")
    if lease is None and len(after) > len(before):
        return HELD if after[: len(before)] == before else Broken(f"freed slots behind {before}", f"{after}")
    return None
