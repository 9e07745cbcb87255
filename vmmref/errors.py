"""Every error of vmmref: a reason for machines, the rule that was kept, and a message with the values for people.

Programs match on `.reason`; operators match on the start of the text, which stays word for word what the pools in
production print. The built-in base types are the ones those pools raise.
"""

from __future__ import annotations

from vmmref_models.reasons import Reason


class VmmRefError(Exception):
    """Base of every error here: `reason` and `rule` are fixed for one kind of refusal, the text carries the values."""

    def __init__(self, reason: Reason, rule: str, message: str) -> None:
        super().__init__(f"{message} [{rule}]")
        self.reason = reason
        self.rule = rule


class ArgumentError(VmmRefError, ValueError):
    """A size, count, interval, rank or piece of memory that cannot be used. Nothing was taken."""


class TensorError(VmmRefError, ValueError):
    """A tensor that cannot be published. Nothing was taken."""


class FieldError(VmmRefError, TypeError):
    """A field of a request that holds what cannot travel as one tensor. Nothing was taken."""


class MissingProcessor(ArgumentError, RuntimeError):
    """A feature transport without a processor; RuntimeError too, since pools in production raise that."""


class WireFormError(VmmRefError, ValueError):
    """Bytes that are not a proxy of a version known here."""


class LeaseError(VmmRefError, RuntimeError):
    """A lease that is not, or not any more, what the caller holds it for. Nothing was changed."""


class AlreadyReleased(LeaseError):
    """This rank has read or released the lease (or a newer one of its slot) before; no byte was read."""


class StaleLease(LeaseError):
    """The lease was retired before the copy-out had ended; the copy was thrown away."""


class PoolError(VmmRefError, RuntimeError):
    """The pool as a whole cannot serve the call."""


class PoolClosing(PoolError):
    """The pool is shutting down or has shut down."""


class PoolFailed(PoolError):
    """An earlier failure left the device state unknown; its cause is chained."""


class GenerationExhausted(PoolError):
    """Every slot has used its last generation; restart the pool."""


class ProducerGone(PoolError):
    """The producer's pool does not exist any more and this process holds no import of it."""


class BrokerError(PoolError):
    """No descriptor could be had from the producer's broker."""


class ReservationError(VmmRefError, RuntimeError):
    """An address reservation that was closed already."""


class ForkError(VmmRefError, RuntimeError):
    """A pool, proxy or stream that was made before fork() was used in the child."""


class WaitTimeout(VmmRefError, TimeoutError):
    """A wait reached its end; the text lists what is outstanding."""


class DriverError(VmmRefError, RuntimeError):
    """A CUDA driver call failed. `call` is its name, `result` the CUresult as a number."""

    def __init__(self, call: str, result: int, name: str, rule: str = "ERR-2") -> None:
        super().__init__(Reason.DRIVER_CALL_FAILED, rule, f"{call} failed with {name} ({result})")
        self.call = call
        self.result = result


class UnsupportedError(VmmRefError, RuntimeError):
    """The device or driver lacks something that was asked for; the text names it."""
