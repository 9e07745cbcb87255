"""Operations as lines for people."""

from __future__ import annotations

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


def text(operation: Operation) -> str:
    """One line for people: "publish L3: 512 B uint8", "read P4 as r7"."""
    match operation:
        case Publish() | Wrap():
            verb = "publish" if isinstance(operation, Publish) else "wrap"
            extra = ", may be borrowed" if operation.borrowable else ""
            said = _payload(operation.payload)
            return f"{verb} L{operation.lease}: {operation.nbytes} B ({said}){_groups(operation.groups)}{extra}"
        case Dispatch():
            return f"dispatch L{operation.lease}"
        case Deliver():
            part = f", tensor {operation.part}" if operation.part else ""
            return f"deliver L{operation.lease}{part} to rank {operation.rank} as P{operation.proxy}"
        case Read() | Fetch():
            verb = "begin reading" if isinstance(operation, Read) else "fetch"
            return f"{verb} P{operation.proxy} (reader {operation.reader})"
        case Collect():
            return f"collect reader {operation.reader}"
        case Release():
            return f"release P{operation.proxy} without reading"
        case Advance():
            return f"run the oldest piece of {operation.stream}"
        case Look():
            return f"look {operation.look} at the acknowledgements"
        case Claim():
            return f"claim what look {operation.look} saw complete"
        case Reclaim():
            return "reclaim all that is retiring" if operation.wait else "reclaim what has been retired"
        case Recycle():
            return "recycle"
        case Cancel() | Revoke():
            verb = "cancel" if isinstance(operation, Cancel) else "revoke"
            return f"{verb} L{operation.lease}" + ("" if operation.wait else " without waiting")
        case ReleaseLease():
            return f"release the lease handle of L{operation.lease}"
        case Tamper():
            return f"cancel L{operation.lease} with an altered {operation.how}"
        case PublishUnusable():
            return f"publish an unusable tensor ({operation.what})"
        case Shutdown():
            return "shut down"
        case Construct():
            return f"make a second pool ({operation.what})"
        case Faulty():
            return f"{text(operation.operation)}, driver call {operation.call} fails"
        case _:
            return _rare(operation)


def _rare(operation: Operation) -> str:
    match operation:
        case WrapPack():
            tensors = "; ".join(
                f"{size} B ({_payload(p)})" for p, size in zip(operation.payloads, operation.sizes, strict=False)
            )
            return f"wrap L{operation.lease} as a pack: {tensors}{_groups(operation.groups)}"
        case CancelProxy():
            part = f", tensor {operation.part}" if operation.part else ""
            return f"cancel by a proxy of L{operation.lease}{part}"
        case Confirm():
            return f"confirm P{operation.proxy}"
        case ReleaseAs():
            return f"release P{operation.proxy} in the name of ranks {list(operation.ranks)}"
        case Borrow():
            return f"borrow P{operation.proxy} as view {operation.view}"
        case Peek():
            return f"read through view {operation.view}"
        case Return():
            return f"give view {operation.view} back"
        case Expire():
            return "let every deadline pass"
        case Crash():
            return f"kill the process of rank {operation.rank}"
        case Reap():
            return "count the dead"
        case Join():
            return f"let a new process act for rank {operation.rank}"
        case Import():
            return f"import the pool for rank {operation.rank}"
        case DropImport():
            return f"drop the import of rank {operation.rank}"
        case Attempt():
            return f"beside the pool: {operation.what} (seed {operation.seed})"
        case _:
            return str(operation)


def _payload(payload: Payload) -> str:
    size = "x".join(map(str, payload.shape)) or "0-dim"
    layout = "" if payload.layout == "contiguous" else f", {payload.layout}"
    return f"{payload.dtype} {size}{layout}"


def _groups(groups: Groups) -> str:
    return ", groups " + " ".join("+".join(map(str, group)) for group in groups) if groups else ""
