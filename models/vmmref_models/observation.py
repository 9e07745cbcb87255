"""What can be seen of a pool from outside: the model projects its state onto it, a pool under test fills it in."""

from __future__ import annotations

from dataclasses import dataclass

from vmmref_models.operations import LeaseView

ALIGNMENT = 256
"""Bytes; every lease starts and ends on a multiple (RNG-2). 256 is the alignment of CUDA allocations."""


@dataclass(frozen=True, slots=True)
class Shape:
    """The size of a pool: what is fixed when it is made.

    All sizes in bytes. `data_size` is a multiple of ALIGNMENT; leases lie in [data_start, data_start + data_size).
    """

    slots: int
    consumers: int
    data_size: int
    word_bytes: int = 4
    generation_limit: int = 2**31 - 1
    issued: tuple[int, ...] = ()
    """Generations used up per slot before the first operation (a preset, to test near the limit); () = all 0."""
    apart: bool = False
    """Each rank has a process of its own, which can be killed; else all share one, and so one import of the pool."""

    @property
    def control_bytes(self) -> int:
        """Bytes of all control words: slots x (1 + consumers) x word_bytes."""
        return self.slots * (1 + self.consumers) * self.word_bytes

    @property
    def data_start(self) -> int:
        """First byte that a lease may hold: the control words rounded up to ALIGNMENT (CTL-1)."""
        return (self.control_bytes + ALIGNMENT - 1) // ALIGNMENT * ALIGNMENT

    @property
    def data_end(self) -> int:
        """One past the last byte that a lease may hold."""
        return self.data_start + self.data_size


@dataclass(frozen=True, slots=True)
class Observation:
    """One look at a pool. None = this pool cannot show that; rules that need it are then not supported.

    Looking has no side effect. Ranges are (start, end) with end exclusive, sorted by start. `leases` are all leases
    that hold a range and a slot (active and retiring), sorted by slot. `free_slots` is in the order of reuse.
    """

    life: str
    """"open", "closed" or "failed"."""
    free_ranges: tuple[tuple[int, int], ...] | None = None
    leases: tuple[LeaseView, ...] | None = None
    retiring: tuple[int, ...] | None = None
    """Slots among `leases` that have been claimed and wait for their retire store, sorted."""
    free_slots: tuple[int, ...] | None = None
    retired_slots: tuple[int, ...] | None = None
    """Slots that have used their last generation, sorted."""
    generations: tuple[int, ...] | None = None
    """Last generation issued per slot, 0 = none."""
    words: tuple[tuple[int, ...], ...] | None = None
    """Per slot (R, A[0], ..., A[C-1]), raw unsigned; None once the memory is gone."""
    set_aside: tuple[int, ...] | None = None
    """Slots among `leases` that are reported as held back, sorted: past their deadline (REAP-2), or retired while ranks
    may be looking at their bytes in place (CON-6)."""
    imports: tuple[int, ...] | None = None
    """How many imports of the pool each consumer process holds (HND-4): one number a rank with `Shape.apart`, 0 for a
    dead one; else one number."""
    generations_left: int | None = None
    """The smallest number of generations that a slot still in use has left, as the pool tells it (GEN-6)."""
