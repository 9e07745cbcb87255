"""Scopes in which the right protocols were searched completely and keep every rule, with the counts of each search."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Final

from vmmref_models.protocols import DEVICE_WAIT_FORM, LATE_RETIRED, PLAIN_STORE, RETIRE_VALIDATE_MAX, SMALLEST_SAFE
from vmmref_models.small_pool.protocol import Protocol
from vmmref_models.small_pool.scope import Scope, faults_from


@dataclass(frozen=True)
class Clean:
    """A protocol and a scope in which it keeps every rule."""

    protocol: Protocol
    scope: Scope
    counts: tuple[int, int, int]
    """States, transitions and depth, ranks being exchangeable: a model that can do less, or more, does not pass."""


def _tiny(faults: str) -> Scope:
    """One slot and one range: every lease reuses both, which leaves room for more faults."""
    return Scope(slots=1, units=1, halves=1, faults=faults_from(faults))


EVERY_OBLIGATION_BROKEN: Final = "dup:2,foreign,revoke,cancel,late-delivery"

CLEAN: Final = (
    Clean(RETIRE_VALIDATE_MAX, Scope(leases=3), (5641, 14139, 60)),
    Clean(RETIRE_VALIDATE_MAX, Scope(leases=3, generations=1), (926, 2334, 40)),
    Clean(RETIRE_VALIDATE_MAX, Scope(leases=3, faults=faults_from("dup")), (351499, 1358986, 63)),
    Clean(RETIRE_VALIDATE_MAX, Scope(leases=3, faults=faults_from("revoke")), (145036, 477164, 60)),
    Clean(RETIRE_VALIDATE_MAX, Scope(faults=faults_from("dup,revoke")), (175383, 698460, 42)),
    Clean(RETIRE_VALIDATE_MAX, _tiny(EVERY_OBLIGATION_BROKEN), (993227, 4955734, 39)),
    Clean(RETIRE_VALIDATE_MAX, Scope(leases=3, faults=faults_from("cancel,copy-fail,deadline")), (53983, 177196, 61)),
    Clean(
        RETIRE_VALIDATE_MAX, Scope(halves=1, faults=faults_from("borrow,revoke,crash,shutdown")), (344154, 1855884, 41)
    ),
    Clean(RETIRE_VALIDATE_MAX, Scope(consumers=3), (5410, 20015, 50)),
    Clean(RETIRE_VALIDATE_MAX, Scope(consumers=3, faults=faults_from("revoke")), (75619, 321773, 50)),
    Clean(
        RETIRE_VALIDATE_MAX,
        Scope(leases=3, halves=1, faults=faults_from("group,revoke,crash,deadline")),
        (144403, 435582, 43),
    ),
    Clean(DEVICE_WAIT_FORM, Scope(leases=3), (10834, 33084, 60)),
    Clean(DEVICE_WAIT_FORM, Scope(faults=faults_from("revoke,copy-fail,shutdown")), (227074, 982704, 44)),
    Clean(DEVICE_WAIT_FORM, _tiny("dup,foreign,revoke,cancel,late-delivery"), (278771, 1200230, 37)),
    Clean(SMALLEST_SAFE, Scope(faults=faults_from("dup,revoke")), (465831, 1986345, 46)),
    Clean(SMALLEST_SAFE, _tiny("dup,revoke,crash,rejoin,reader-fail"), (248460, 950537, 44)),
    Clean(SMALLEST_SAFE, _tiny("dup,revoke,cancel,late-delivery,copy-fail,reader-fail"), (370705, 1694283, 40)),
    Clean(SMALLEST_SAFE, Scope(halves=1, faults=faults_from("borrow,revoke,shutdown")), (100411, 523595, 38)),
    Clean(LATE_RETIRED, Scope(halves=1, faults=faults_from("dup,revoke,deadline:2")), (372982, 1777874, 36)),
    Clean(PLAIN_STORE, _tiny("dup,revoke:2,cancel,copy-fail,crash"), (156919, 635624, 39)),
)
"""Small scopes in which the right protocols were searched completely and keep every rule."""

NIGHT: Final = (
    Clean(RETIRE_VALIDATE_MAX, Scope(leases=3, faults=faults_from("revoke:2,copy-fail")), (1633640, 6613191, 60)),
    Clean(RETIRE_VALIDATE_MAX, Scope(leases=3, halves=1, faults=faults_from("dup,revoke")), (4766560, 21318565, 54)),
    Clean(
        RETIRE_VALIDATE_MAX, Scope(halves=1, faults=faults_from("dup:2,revoke,crash,rejoin")), (4061393, 19467116, 42)
    ),
    Clean(RETIRE_VALIDATE_MAX, Scope(slots=3, units=3, leases=3, faults=faults_from("revoke")), (595358, 2214131, 60)),
    Clean(
        RETIRE_VALIDATE_MAX,
        Scope(consumers=3, leases=3, halves=1, faults=faults_from("revoke")),
        (1211845, 5731322, 63),
    ),
    Clean(DEVICE_WAIT_FORM, Scope(leases=3, halves=1, faults=faults_from("dup,revoke")), (8883808, 43860241, 54)),
    Clean(SMALLEST_SAFE, Scope(leases=3, halves=1, faults=faults_from("dup,revoke")), (20894966, 101631024, 60)),
    Clean(
        SMALLEST_SAFE,
        Scope(halves=1, faults=faults_from("dup,revoke,copy-fail,reader-fail,crash")),
        (2534647, 11965670, 43),
    ),
    Clean(
        PLAIN_STORE, Scope(halves=1, faults=faults_from("dup,revoke:2,cancel,copy-fail,crash")), (1540464, 7157373, 39)
    ),
)
"""Larger scopes, for a machine that has some minutes and 3 GB: 46 million states."""
