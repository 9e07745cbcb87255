"""`vmmref explore --compare`: do Spin and Rumur count and judge what the search counts and judges?"""

from __future__ import annotations

import time
from collections.abc import Callable, Iterator
from typing import TYPE_CHECKING, Any, Final, NamedTuple, TypeVar

from vmmref.conformance import checkers
from vmmref.conformance.checkers import CouldNotRun, Counts
from vmmref_models.explore import Search
from vmmref_models.protocols import DEVICE_WAIT_FORM, KNOWN_WRONG, RETIRE_VALIDATE_MAX
from vmmref_models.small_pool.pool import SmallPool
from vmmref_models.small_pool.protocol import Protocol
from vmmref_models.small_pool.scope import Scope, faults_from

if TYPE_CHECKING:
    from rich.console import Console

T = TypeVar("T")

ENDLESS: Final = ("LIV-1", "LIV-2")
"""The rules that a run breaks by how it ends."""


class Compared(NamedTuple):
    """A protocol and a scope in which all must agree."""

    protocol: Protocol
    scope: Scope

    @property
    def words(self) -> str:
        """Slots, units (ranges), leases and halves; there are two ranks always."""
        sizes = f"S{self.scope.slots} U{self.scope.units} L{self.scope.leases} H{self.scope.halves}"
        faults = (name if count == 1 else f"{name}:{count}" for name, count in self.scope.faults.items() if count)
        return f"{self.protocol.name}, {sizes}, {','.join(faults) or 'no fault'}"


def _right(scope: Scope, faults: str = "") -> Compared:
    return Compared(RETIRE_VALIDATE_MAX, _with(scope, faults))


def _with(scope: Scope, faults: str) -> Scope:
    return Scope(scope.slots, scope.units, scope.consumers, scope.leases, scope.halves, faults=faults_from(faults))


def _wrong(name: str) -> Compared:
    return Compared(KNOWN_WRONG[name].protocol, KNOWN_WRONG[name].scope)


COUNTED: Final = (
    _right(Scope(leases=1)),
    _right(Scope(leases=2)),
    _right(Scope(leases=3)),
    _right(Scope(leases=2, halves=1)),
    _right(Scope(leases=3, halves=1)),
    _right(Scope(leases=3, slots=1, units=1)),
    _right(Scope(leases=3, units=1)),
    Compared(DEVICE_WAIT_FORM, Scope(leases=3)),
    _right(Scope(), "revoke"),
    _right(Scope(leases=3), "cancel:2"),
    _right(Scope(), "reader-fail:2"),
    _right(Scope(halves=1), "dup,revoke"),
    _wrong("fail-no-ack"),
)
"""Where states and transitions are compared."""

ALIKE: Final = (_right(Scope(leases=3)), _right(Scope(), "revoke"))
"""Where they are compared with ranks that may be exchanged; Spin has no such reduction."""

JUDGED: Final = (
    _right(Scope(leases=1), "reader-fail,revoke"),
    _right(Scope(halves=1)),
    _right(Scope(leases=1), "producer-crash"),
    _wrong("fail-no-ack"),
    Compared(DEVICE_WAIT_FORM, _with(Scope(leases=1, halves=1), "producer-crash")),
)
"""Where the ends of runs are compared."""


class Opinion(NamedTuple):
    """What one checker says."""

    text: str
    agrees: bool | None
    """None: it could not run."""


class Row(NamedTuple):
    """One comparison."""

    kind: str
    compared: Compared
    search: str
    spin: Opinion | None
    """None: it is not asked."""
    rumur: Opinion

    @property
    def opinions(self) -> tuple[Opinion, ...]:
        """Of those that were asked."""
        return (self.rumur,) if self.spin is None else (self.spin, self.rumur)

    @property
    def text(self) -> str:
        """The row as it is printed."""
        spin = "" if self.spin is None else f"; spin: {self.spin.text}"
        return f"{self.kind}: {self.compared.words}: {self.search}{spin}; rumur: {self.rumur.text}"

    def as_json(self) -> dict[str, Any]:
        """The row in the report."""
        asked = {"spin": self.spin, "rumur": self.rumur}
        opinions = {name: opinion._asdict() for name, opinion in asked.items() if opinion is not None}
        return {"kind": self.kind, "scope": self.compared.words, "search": self.search, **opinions}


def compare(console: Console) -> tuple[int, dict[str, Any], float]:
    """Print every row; exit status, report and seconds.

    The status is 1 when somebody disagrees with the search, else 2 when a checker could not run, else 0.
    """
    started, rows = time.monotonic(), []
    for row in _rows():
        console.print(row.text, soft_wrap=True, highlight=False, markup=False)
        rows.append(row)
    opinions = [opinion.agrees for row in rows for opinion in row.opinions]
    agreeing, missing = opinions.count(True), opinions.count(None)
    status = 1 if False in opinions else 2 if missing else 0
    console.print(f"{agreeing} of {len(opinions)} answers agree, {missing} could not be had", highlight=False)
    return status, {"comparisons": [row.as_json() for row in rows]}, time.monotonic() - started


def _rows() -> Iterator[Row]:
    for compared in COUNTED:
        yield counted(compared)
    for compared in ALIKE:
        yield counted_alike(compared)
    for compared in JUDGED:
        yield judged(compared)


def counted(compared: Compared) -> Row:
    """States and transitions of all three."""
    constants = checkers.constants_of(*compared)
    found = Counts(*Search(SmallPool(*compared), symmetry=False).run(to_the_end=True).counts[:2])
    spin = _opinion(lambda: checkers.spin_counts(constants), found, _in_words)
    rumur = _opinion(lambda: checkers.rumur_counts(constants), found, _in_words)
    return Row("counts", compared, _in_words(found), spin, rumur)


def counted_alike(compared: Compared) -> Row:
    """States and transitions where a state stands for those with other rank numbers."""
    constants = checkers.constants_of(*compared)
    found = Counts(*Search(SmallPool(*compared), symmetry=True).run(to_the_end=True).counts[:2])
    rumur = _opinion(lambda: checkers.rumur_counts(constants, symmetry=True), found, _in_words)
    return Row("counts, ranks alike", compared, _in_words(found), None, rumur)


def _in_words(counts: Counts) -> str:
    return f"{counts.states:,} states, {counts.transitions:,} transitions"


def judged(compared: Compared) -> Row:
    """Which of LIV-1 and LIV-2 the ends of runs break; Rumur knows only whether there is a dead end."""
    constants = checkers.constants_of(*compared)
    broken = Search(SmallPool(*compared)).run(to_the_end=True).broken
    found = tuple(rule for rule in ENDLESS if rule in broken)
    spin = _opinion(lambda: tuple(rule for rule in ENDLESS if not checkers.spin_keeps(constants, rule)), found, _broken)
    rumur = _opinion(lambda: checkers.rumur_ends_well(constants), not found, _dead_end)
    return Row("ends", compared, _broken(found), spin, rumur)


def _broken(rules: tuple[str, ...]) -> str:
    return f"{' and '.join(rules)} broken" if rules else "every run ends well"


def _dead_end(ends_well: bool) -> str:
    return "no dead end" if ends_well else "a dead end"


def _opinion(ask: Callable[[], T], expected: T, words: Callable[[T], str]) -> Opinion:
    try:
        got = ask()
    except CouldNotRun as reason:
        return Opinion(f"could not run: {reason}", None)
    return Opinion(words(got) if got == expected else f"DISAGREES: {words(got)}", got == expected)
