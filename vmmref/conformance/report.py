"""What a check found, rule by rule: pass, fail, not-supported, could-not-run; as rows, JSON, JUnit XML and a table."""

from __future__ import annotations

import xml.etree.ElementTree as ElementTree
from collections.abc import Iterable, Mapping
from dataclasses import asdict, dataclass
from typing import TYPE_CHECKING, Any

from vmmref.conformance.failure import Failure
from vmmref.conformance.loading import LEVELS
from vmmref.conformance.subject import CAPABILITIES, Description
from vmmref.conformance.timeline import failure_lines
from vmmref_models import REACHABLE, RULES, Rule

if TYPE_CHECKING:
    from rich.console import Console

STATES: tuple[str, ...] = ("pass", "fail", "not-supported", "waived", "could-not-run")
LEADS_THERE: Mapping[str, str] = {"CAN-1": "split", "REC-3": "split"}
"""Capability without which nothing that the rule speaks of may ever come up, though the rule could be judged."""
EXIT_PASS, EXIT_BROKEN, EXIT_COULD_NOT_RUN = 0, 1, 2


@dataclass(frozen=True, slots=True)
class Row:
    """The result of one rule."""

    id: str
    title: str
    level: str
    state: str
    exercised: int
    """How many steps or runs had what the rule speaks of; 0 is never a pass."""
    reason: str
    trace: str | None = None
    """File of the shortest sequence that breaks the rule."""
    replay: str | None = None
    """The command that breaks it again."""


def rows(
    selected: Iterable[Rule],
    description: Description,
    exercised: Mapping[str, int],
    failures: Mapping[str, Failure],
    traces: Mapping[str, tuple[str, str]],
    client: str = "any",
) -> list[Row]:
    """One row a selected rule. `traces` gives, by rule, the trace file and the command that replays it."""
    return [_row(rule, description, client, exercised, failures.get(rule.id), traces.get(rule.id)) for rule in selected]


def _row(
    rule: Rule,
    description: Description,
    client: str,
    counts: Mapping[str, int],
    failure: Failure | None,
    trace: tuple[str, str] | None,
) -> Row:
    exercised = counts.get(rule.id, 0)
    file, replay = trace or (None, None)
    if failure is not None:
        reason = f"expected {failure.expected}, got {failure.got}"
        return Row(rule.id, rule.title, rule.level, "fail", max(1, exercised), reason, file, replay)
    missing = unsupported(rule, description)
    if missing:
        return Row(rule.id, rule.title, rule.level, "not-supported", exercised, missing)
    if not exercised and rule.id in LEADS_THERE and LEADS_THERE[rule.id] not in description.capabilities:
        missing = LEADS_THERE[rule.id]
        reason = f'it takes "{missing}" to get to what the rule speaks of: {CAPABILITIES[missing]}'
        return Row(rule.id, rule.title, rule.level, "not-supported", 0, reason)
    if not exercised and client == "well-behaved":
        reason = "a well-behaved client is not led to what the rule speaks of"
        return Row(rule.id, rule.title, rule.level, "not-supported", 0, reason)
    if not exercised:
        reason = "nothing that the rule speaks of happened in this run"
        return Row(rule.id, rule.title, rule.level, "could-not-run", 0, reason)
    missed = [name for name in REACHABLE if name.startswith(f"{rule.id}/") and counts.get(name) == 0]
    reason = "; ".join(f"not seen in this run: {_clause(REACHABLE[name].sentence)}" for name in missed)
    return Row(rule.id, rule.title, rule.level, "pass", exercised, reason)


def unsupported(rule: Rule, description: Description) -> str:
    """Why a subject cannot be asked about a rule, as a sentence; "" where it can."""
    if rule.predicate is None and rule.run_predicate is None:
        return "this check does not drive what the rule speaks of"
    if rule.protocols and description.protocol not in rule.protocols:
        return f"the rule speaks of the protocol {' or '.join(rule.protocols)}, the subject uses {description.protocol}"
    if LEVELS.index(rule.level) > LEVELS.index(description.level):
        return f"the rule is of level {rule.level}, the subject declares level {description.level}"
    for capability in rule.needs:
        if capability not in description.capabilities:
            return f'the subject lacks "{capability}": {CAPABILITIES[capability]}'
    if rule.id == "RNG-3" and description.fit != "best":
        return "the subject declares a fit of its own"
    if rule.id == "SLOT-3" and description.slot_order != "fifo":
        return "the subject declares an order of slots of its own"
    names = {operation.__name__ for operation in rule.on} - {"Advance", "Faulty"}
    if names and not names & description.operations:
        return f"the subject does not understand {' or '.join(sorted(names))}"
    for operation in rule.requires:
        if operation.__name__ not in description.operations:
            return f"the subject does not understand {operation.__name__}"
    return ""


def summary(table: Iterable[Row]) -> dict[str, int]:
    """How many rules are in each state."""
    states = [row.state for row in table]
    return {state: states.count(state) for state in STATES}


def exit_status(table: Iterable[Row]) -> int:
    """0: every rule that the subject supports was exercised and holds; 1: one is broken; 2: one could not run."""
    counted = summary(table)
    if counted["fail"]:
        return EXIT_BROKEN
    return EXIT_COULD_NOT_RUN if counted["could-not-run"] or not counted["pass"] else EXIT_PASS


def as_json(table: Iterable[Row]) -> dict[str, Any]:
    """The part of the JSON report that is about rules."""
    listed = list(table)
    return {"summary": summary(listed), "rules": [asdict(row) for row in listed]}


def as_junit(table: Iterable[Row], name: str, seconds: float, details: Mapping[str, str]) -> str:
    """JUnit XML: one test case a rule; `details` holds the text of each failure by rule."""
    listed = list(table)
    counted = summary(listed)
    suite = ElementTree.Element(
        "testsuite",
        name=name,
        tests=str(len(listed)),
        failures=str(counted["fail"]),
        errors=str(counted["could-not-run"]),
        skipped=str(counted["not-supported"] + counted["waived"]),
        time=f"{seconds:.3f}",
    )
    for row in listed:
        case = ElementTree.SubElement(
            suite, "testcase", classname=f"vmmref.{row.id.split('-')[0]}", name=f"{row.id} {row.title}", time="0"
        )
        tag = {"fail": "failure", "could-not-run": "error", "not-supported": "skipped", "waived": "skipped"}.get(
            row.state
        )
        if tag is not None:
            ElementTree.SubElement(case, tag, message=_printable(row.reason)).text = _printable(details.get(row.id, ""))
    suites = ElementTree.Element("testsuites")
    suites.append(suite)
    ElementTree.indent(suites)
    return ElementTree.tostring(suites, encoding="unicode", xml_declaration=True) + "\n"


def _printable(text: str) -> str:
    """Text without the control characters that XML cannot carry: a pool's message may hold anything."""
    return "".join(character for character in text if character in "\n\t" or character.isprintable())


STYLES: Mapping[str, str] = {
    "pass": "green",
    "fail": "bold red",
    "not-supported": "dim",
    "waived": "yellow",
    "could-not-run": "yellow",
}


def show(console: Console, table: Iterable[Row], failures: Mapping[str, Failure]) -> None:
    """Print each failure in full, then one line a rule."""
    from rich.table import Table
    from rich.text import Text

    listed = list(table)
    # The shortest sequence first: it is the nearest to the cause where several rules break by one mistake.
    for row in sorted(listed, key=lambda row: len(failures[row.id].operations) if row.id in failures else 0):
        failure = failures.get(row.id)
        if row.state == "fail" and failure is not None:
            shown = failure_lines(failure, row.title, row.replay or "")
            console.print(Text(shown[0], style="bold red"), soft_wrap=True)
            console.print(Text("\n".join([*shown[1:], ""])), soft_wrap=True)
    grid = Table(box=None, pad_edge=False)
    grid.add_column("rule", no_wrap=True)
    grid.add_column("state", no_wrap=True)
    grid.add_column("exercised", justify="right")
    grid.add_column("title, and the reason where it did not pass", overflow="fold")
    for row in listed:
        if row.state == "not-supported":
            continue
        reason = f" ({row.reason})" if row.reason and row.state != "fail" else ""
        grid.add_row(row.id, Text(row.state, STYLES[row.state]), str(row.exercised), Text(row.title + reason))
    console.print(grid)
    for reason in dict.fromkeys(row.reason for row in listed if row.state == "not-supported"):
        names = " ".join(row.id for row in listed if row.state == "not-supported" and row.reason == reason)
        console.print(Text(f"not supported, {reason}: {names}", STYLES["not-supported"]))


def _clause(sentence: str) -> str:
    """A sentence as a part of another one."""
    return sentence[:1].lower() + sentence[1:].rstrip(".")


def select(wanted: str) -> list[Rule]:
    """Rules named by identifiers or families, "GEN,ACK-3", in the order of the specification; "" = all.

    Raises ValueError that names what is unknown.
    """
    names = [name.strip().upper() for name in wanted.split(",") if name.strip()]
    if wanted and not names:
        raise ValueError(f'"{wanted}" names no rule')
    families = {identifier.rsplit("-", 1)[0] for identifier in RULES}
    for name in names:
        if name not in RULES and name not in families:
            raise ValueError(
                f'"{name}" is neither a rule nor a family of rules; families are {", ".join(sorted(families))}'
            )
    return [rule for rule in RULES.values() if not names or rule.id in names or rule.id.rsplit("-", 1)[0] in names]
