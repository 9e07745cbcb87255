"""What several operations answer: refusals with their rule, and the leases and proxies that tokens name."""

from __future__ import annotations

from vmmref_models.operations import Outcome, refused
from vmmref_models.reasons import Reason
from vmmref_models.state import Lease, Proxy, State


def not_open(state: State) -> Outcome | None:
    """The refusal of a closed (LIFE-2) or failed (LIFE-3) pool; closed wins."""
    if state.closed:
        return refused(Reason.POOL_CLOSING, "CUDA VMM multimodal pool is closing [LIFE-2]")
    if state.failed:
        return refused(Reason.POOL_FAILED, "CUDA VMM multimodal pool failed [LIFE-3]")
    return None


def inactive(lease: Lease) -> Outcome:
    """The refusal of a handle whose lease is not the active one of its slot."""
    view = lease.view
    message = f"Cannot release inactive pool lease (slot={view.slot}, generation={view.generation}) [REC-6]"
    return refused(Reason.INACTIVE_LEASE, message)


def producer_gone() -> Outcome:
    """The refusal of a consumer that comes to a pool too late."""
    return refused(Reason.PRODUCER_GONE, "the pool is gone and was never imported here [REAP-3]")


def granted(state: State, token: int) -> Lease:
    """The lease of this token; raises ValueError when it is unknown."""
    lease = state.lease(token)
    if lease is None:
        raise ValueError(f"lease {token} is unknown")
    return lease


def delivered(state: State, token: int) -> Proxy:
    """The proxy of this token; raises ValueError when it is unknown."""
    proxy = state.proxy(token)
    if proxy is None:
        raise ValueError(f"proxy {token} is unknown")
    return proxy
