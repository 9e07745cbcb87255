"""CTL: control words."""

from __future__ import annotations

from vmmref_models.families.history import (
    PUBLISHES,
    acting_columns,
    answer,
    granted,
    inner,
    is_idle,
    stream_of,
    word_name,
)
from vmmref_models.operations import Advance, Collect, Confirm, Construct, Fetch, Release, Return
from vmmref_models.reasons import Reason
from vmmref_models.rules import GRANT, HELD, WORDS, Broken, Kind, Step, Verdict, rule
from vmmref_models.state import ACK, READY, RETIRE_VALIDATE_MAX, RETIRED


@rule("CTL-1", kind=Kind.ALWAYS)
def no_lease_overlaps_the_words(step: Step) -> Verdict | None:
    """All control words lie in [0, data_start), data_start = S x (1 + C) x W rounded up to 256; no lease ever overlaps
    them.
    """
    if not step.after.leases:
        return None
    start = step.shape.data_start
    for lease in step.after.leases:
        if lease.start < start:
            return Broken(f"leases at or behind data_start {start}", f"{lease}")
    return HELD


@rule("CTL-2", on=(Advance, *PUBLISHES, Fetch, Collect, Release, Confirm, Return), needs=("words",), signs=WORDS)
def one_store_changes_one_word(step: Step) -> Verdict | None:
    """Addresses are injective: ready(slot) = slot x (1 + C) x W, ack(slot, r) = ready(slot) + (1 + r) x W."""
    words, shape = step.after.words, step.shape
    if words is None:
        return None
    if len(words) != shape.slots or any(len(row) != 1 + shape.consumers for row in words):
        return Broken(f"{shape.slots} rows of {1 + shape.consumers} words", f"rows of {[len(row) for row in words]}")
    changes = step.changed_words
    if not changes or not (isinstance(step.operation, Advance) or is_idle(step.past)):
        return None  # Several stores may have run.
    if len(changes) > 1:
        return Broken("one store changes one word", ", ".join(word_name(change[0], change[1]) for change in changes))
    due, (slot, column, _, new) = _stored_word(step), changes[0]
    if due is not None and due != (slot, column):
        return Broken(f"the store goes to {word_name(*due)}", f"{word_name(slot, column)} became {new}")
    return HELD


def _stored_word(step: Step) -> tuple[int, int] | None:
    """Slot and column of the word that the piece which ran now stores into; None when it stores nothing."""
    if not isinstance(step.operation, Advance):
        return None
    for piece in step.past.device.queues[stream_of(step.past, step.operation)][:1]:
        if piece.kind in (READY, RETIRED, ACK):
            return piece.lease.slot, 1 + piece.rank if piece.kind == ACK else 0
    return None


@rule("CTL-3", needs=("words",), signs=WORDS | GRANT)
def words_are_zeroed_once(step: Step) -> Verdict | None:
    """Words are set to zero once, when the pool is created, and never again."""
    rewritten = [change for change in step.changed_words if change[2]]
    for slot, column, old, new in rewritten:
        if new == 0:
            return Broken(f"{word_name(slot, column)} is never zero again after {old}", "0")
    if rewritten:
        return HELD
    lease, words = granted(step), step.after.words
    if lease is None or words is None or not 0 <= lease.slot < len(words) or not any(words[lease.slot]):
        return None
    return HELD  # A slot was leased again, and its words are as the last lease left them.


@rule("CTL-4", needs=("words",), protocols=(RETIRE_VALIDATE_MAX,), signs=WORDS)
def one_writer_a_word(step: Step) -> Verdict | None:
    """One writer a word: R(slot) the producer, A[r] one stream of one process acting for rank r. Nobody stores into
    another rank's word: no group member, no canceller, no reaper.
    """
    changes = step.changed_words
    if not changes:
        return None
    operation = inner(step)
    writable = acting_columns(step.past, operation)
    for slot, column, old, new in changes:
        if column not in writable:
            parties = ["the producer" if own == 0 else f"rank {own - 1}" for own in writable]
            party = " and ".join(parties) or "nobody"
            expected = f"{party} is at work in {type(operation).__name__} and writes its own words only"
            return Broken(expected, f"{word_name(slot, column)} became {new}, was {old}")
    return HELD


@rule("CTL-5", on=(Construct,))
def no_room_behind_the_words_is_refused(step: Step) -> Verdict | None:
    """A pool with no room behind its control words is refused."""
    if not isinstance(step.operation, Construct) or step.operation.what != "control-only":
        return None
    if step.outcome.kind == "refused" and step.outcome.reason is Reason.POOL_TOO_SMALL:
        return HELD
    return Broken(f"refused {Reason.POOL_TOO_SMALL}", answer(step.outcome))


@rule("CTL-6", needs=("words",), protocols=(RETIRE_VALIDATE_MAX,), signs=WORDS)
def ready_word_never_decreases(step: Step) -> Verdict | None:
    """R never decreases: the producer's stores to R of one slot are ordered with each other, on whatever stream they
    run.
    """
    verdict: Verdict | None = None
    for slot, column, old, new in step.changed_words:
        if column == 0:
            verdict = HELD
            if new < old:
                return Broken(f"R of slot {slot} stays at {old} or rises", f"{new}")
    return verdict
