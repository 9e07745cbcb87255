"""HND: imports, and what experiments show of handles, mappings and descriptors. HND-1 is judged with a pool's life."""

from __future__ import annotations

from vmmref_models.families.experiments import tried
from vmmref_models.families.history import inner, proxy_used, rank_pieces
from vmmref_models.operations import (
    Attempt,
    Borrow,
    Confirm,
    Construct,
    Crash,
    DropImport,
    Fetch,
    Import,
    Join,
    Operation,
    Read,
    Release,
    Shutdown,
)
from vmmref_models.rules import HELD, Broken, Step, Verdict, reachable, rule
from vmmref_models.state import State

TOUCH_IMPORTS = (Read, Fetch, Borrow, Release, Confirm)
"""What a rank does and may import the pool for."""


@rule("HND-2", on=(Attempt,))
def a_closed_reservation_is_not_mapped(step: Step) -> Verdict | None:
    """ "VmmReservation.map after close", "VmmReservation.map_existing after close"."""
    return tried(step, "HND-2")


@rule("HND-3", on=(Attempt,))
def offsets_are_checked_first(step: Step) -> Verdict | None:
    """ "mapping [...) is outside reservation [...)": offsets and sizes are checked before the driver is called."""
    return tried(step, "HND-3")


@rule("HND-4", on=(*TOUCH_IMPORTS, Import, DropImport, Crash, Join, Shutdown, Attempt, Construct), needs=("imports",))
def one_import_a_process(step: Step) -> Verdict | None:
    """One import per pool and device, keyed by the pool's identity (nonce), dropped when the pool ends and no stream of
    the consumer holds a queued copy-out, read of R or ack, stale or not, and no borrowed view lives.
    """
    imports, before = step.after.imports, step.before.imports
    if imports is None or step.outcome.kind == "failed":
        return None
    if before == imports and isinstance(step.operation, TOUCH_IMPORTS) and set(imports) == {1}:
        return HELD if _due(step) else None  # The most common case, and nothing to look at.
    processes = step.shape.consumers if step.shape.apart else 1
    if len(imports) != processes or any(not 0 <= count <= 1 for count in imports):
        return Broken(f"0 or 1 import in each of {processes} processes", f"{imports}")
    due = _due(step)
    process = _process_at_work(step.past, inner(step))
    if due is not None and process is not None and imports[process] != due:
        return Broken(f"{due} import in process {process} after {type(inner(step)).__name__}", f"{imports}")
    if before is None or len(before) != processes:
        return None if due is None else HELD
    count = step.outcome.count if isinstance(step.operation, DropImport) and step.outcome.kind == "done" else None
    if count is not None and process is not None and count != before[process]:
        return Broken(f"{before[process]} dropped", f"{count}")
    for other, (old, new) in enumerate(zip(before, imports, strict=True)):
        if other != process and old != new and (new > old or not _may_be_dropped(step.past, other)):
            return Broken(f"process {other} as before: {before}", f"{imports}")
    return None if due is None else HELD


def _due(step: Step) -> int | None:
    """How many imports the process at work must hold afterwards; None where either may be."""
    operation, outcome = step.operation, step.outcome
    if isinstance(operation, Crash):
        return 0
    if outcome.kind != "done":
        return None
    if isinstance(operation, DropImport | Join):
        return 0
    reads = isinstance(operation, Read | Fetch | Borrow) and not outcome.cached
    return 1 if isinstance(operation, Import) or reads else None


def _process_at_work(past: State, operation: Operation) -> int | None:
    if isinstance(operation, Import | DropImport | Crash | Join):
        return past.process_of(operation.rank)
    proxy = proxy_used(past, operation)
    return past.process_of(proxy.rank) if proxy is not None else None


def _may_be_dropped(past: State, process: int) -> bool:
    """Whether the pool has ended, and nothing of this process is queued, begun or borrowed."""
    ranks = past.ranks_of(process)
    consumers = past.consumers
    tokens = {*[reader.proxy for reader in consumers.readers], *[view.proxy for view in consumers.views]}
    begun = any(proxy.token in tokens and proxy.rank in ranks for proxy in consumers.proxies)
    return past.closed and not begun and not any(rank_pieces(past, rank) for rank in ranks)


@reachable("HND-4", "dropped-under-work", on=(DropImport,), needs=("imports",))
def an_import_was_dropped_with_work_queued(step: Step) -> Verdict | None:
    """An import was dropped while work of its process was queued."""
    operation = step.operation
    if not isinstance(operation, DropImport) or not step.outcome.count:
        return None
    ranks = step.past.ranks_of(step.past.process_of(operation.rank))
    return HELD if any(rank_pieces(step.past, rank) for rank in ranks) else None


@reachable("HND-4", "imported-again", on=(Read, Fetch, Borrow, Import), needs=("imports",))
def a_pool_was_imported_again(step: Step) -> Verdict | None:
    """A process that had taken part and dropped its import imported the pool again."""
    if step.before.imports is None or step.before.imports == step.after.imports or step.after.imports is None:
        return None
    process = _process_at_work(step.past, step.operation)
    if process is None:
        return None
    took_part = any(any(step.past.consumers.tables[rank]) for rank in step.past.ranks_of(process))
    is_new = len(step.before.imports) > process and not step.before.imports[process]
    return HELD if took_part and is_new and step.after.imports[process : process + 1] == (1,) else None


@rule("HND-5", on=(Attempt,))
def the_exporters_death_spares_its_importers(step: Step) -> Verdict | None:
    """The exporter's death neither faults an importer nor frees memory under it."""
    return tried(step, "HND-5")


@rule("HND-6", on=(Attempt,))
def descriptors_are_close_on_exec(step: Step) -> Verdict | None:
    """Every descriptor is close-on-exec, also received ones."""
    return tried(step, "HND-6")


@rule("HND-7", on=(Attempt,))
def use_after_fork_is_refused(step: Step) -> Verdict | None:
    """Use after fork is refused with a clear error."""
    return tried(step, "HND-7")
