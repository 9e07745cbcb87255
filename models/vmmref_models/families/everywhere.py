"""ERR and LIV: over everything."""

from __future__ import annotations

from vmmref_models.families.history import PUBLISHES, answer, first_change, is_open, proxy_used, word_name
from vmmref_models.operations import Borrow, Collect, Fetch, Read
from vmmref_models.rules import HELD, TROUBLE, Broken, Run, Step, Verdict, rule, run_rule


@rule("ERR-1", signs=TROUBLE)
def a_refusal_changes_nothing(step: Step) -> Verdict | None:
    """A refused or failed operation leaves the abstract state as it was, or as its rule says."""
    if step.outcome.kind not in ("refused", "full"):
        return None
    waits = isinstance(step.operation, Collect | Fetch | Borrow)  # And so for what its rank had queued before.
    change = first_change(step, words=not waits)
    if change is not None:
        return Broken(f"nothing changed: {answer(step.outcome)}", change)
    if waits:
        proxy = proxy_used(step.past, step.operation)
        for slot, column, old, new in step.changed_words:
            if proxy is None or column != 1 + proxy.rank:
                return Broken(f"{word_name(slot, column)} stays {old}: {answer(step.outcome)}", f"{new}")
    return HELD


@rule("ERR-2", signs=TROUBLE)
def every_refusal_has_a_reason(step: Step) -> Verdict | None:
    """Every refusal has a reason code, the rule's identifier and a message with the values; the original error is never
    lost behind a clean-up error.
    """
    outcome = step.outcome
    if outcome.kind == "done" or outcome.kind == "full":
        return None
    if outcome.kind == "crashed":
        if isinstance(step.operation, (*PUBLISHES, Read, Collect, Fetch)) and is_open(step):
            return None  # CON-1, CON-2, CON-3, CON-5, ACK-4, RNG-5 or GEN-3 says which answer was due.
        return Broken("an answer, or a refusal with a reason", answer(outcome))
    if outcome.reason is None:
        return Broken("a refusal with a reason", f"{outcome.kind} without one: {outcome.message!r}")
    if not outcome.message:
        return Broken(f"a message with {outcome.reason}", "none")
    return HELD


@run_rule("LIV-1")
def every_acknowledged_lease_is_recycled(run: Run) -> Verdict | None:
    """If every live consumer acknowledges, every lease is recycled in the end."""
    if not run.driven_home or run.state.failed or run.last.leases is None:
        return None
    if run.last.leases:
        return Broken("no lease left: every rank has acknowledged", f"{run.last.leases}")
    free, shape = run.last.free_ranges, run.state.shape
    whole = ((shape.data_start, shape.data_end),)
    if free is not None and free != whole:
        return Broken(f"one free range {whole[0]}", f"{free}")
    return HELD


@run_rule("LIV-2")
def nothing_gets_stuck(run: Run) -> Verdict | None:
    """No sequence of operations ends in a state where nothing can proceed and nobody is told."""
    if run.stuck:
        return Broken("everything comes to an end, or somebody is told", "; ".join(run.stuck))
    if not run.driven_home or run.state.failed:
        return None
    if run.last.retiring:
        return Broken("no lease retiring after a pass with nothing queued", f"slots {run.last.retiring}")
    return HELD
