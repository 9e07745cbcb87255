"""One monitor holds the rules: whatever drives a pool hands its steps here."""

from __future__ import annotations

from collections.abc import Collection
from dataclasses import dataclass, replace
from typing import TypeAlias, get_args

from vmmref_models.attempts import ATTEMPTS
from vmmref_models.observation import Observation
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
    Dispatch,
    DropImport,
    Expire,
    Faulty,
    Fetch,
    Import,
    Join,
    Look,
    Operation,
    Outcome,
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
from vmmref_models.reasons import Reason
from vmmref_models.rules import (
    BOOKS,
    EVERY_SIGN,
    HELD,
    REACHABLE,
    RULES,
    Broken,
    Kind,
    Rule,
    Run,
    Step,
    StepPredicate,
    glance,
)
from vmmref_models.state import Policies

_Judge: TypeAlias = tuple[StepPredicate, Rule]


class Monitor:
    """Judges steps and runs by every rule that a pool with these policies can keep, and counts the exercises.

    One monitor may serve many pools in turn; call `start` when a new one begins.
    """

    def __init__(self, policies: Policies, rules: Collection[str] | None = None) -> None:
        """`rules` narrows the rules to these identifiers; None = all."""
        chosen = [rule for name, rule in RULES.items() if rules is None or name in rules]
        self.rules = tuple(rule for rule in chosen if judges(rule, policies))
        self.exercised: dict[str, int] = {rule.id: 0 for rule in self.rules}
        """How often each rule applied, by identifier."""
        self.reached: dict[str, int] = {
            name: 0 for name, rule in REACHABLE.items() if set(rule.needs) <= policies.capabilities
        }
        """How often each thing that some run must reach was reached."""
        self._always = [(r.predicate, r) for r in self.rules if r.kind is Kind.ALWAYS and r.predicate is not None]
        self._steps = {operation: self._by_signs(operation) for operation in get_args(Operation)}
        self._targets: dict[type[Operation], list[Rule]] = {
            operation: [r for name, r in REACHABLE.items() if name in self.reached and _applies(r, operation)]
            for operation in get_args(Operation)
        }
        self._is_new = True

    def _by_signs(self, operation: type[Operation]) -> list[list[_Judge]]:
        """For every combination of signs the rules that may apply to this operation."""
        judges = [
            (rule.predicate, rule)
            for rule in self.rules
            if rule.kind is Kind.STEP and rule.predicate is not None and _applies(rule, operation)
        ]
        combinations = range(EVERY_SIGN + 1)
        return [[judge for judge in judges if not judge[1].signs or judge[1].signs & found] for found in combinations]

    def start(self) -> None:
        """A new pool begins: judge its first state even if nothing changes."""
        self._is_new = True

    def judge(self, step: Step) -> list[tuple[Rule, Broken]]:
        """The rules that this step breaks, in the order of the specification."""
        if isinstance(step.operation, Faulty) and step.outcome.kind != "failed":
            step = replace(step, operation=step.operation.operation)  # The fault came after the operation's last call.
        broken: list[tuple[Rule, Broken]] = []
        found, operation = glance(step), type(step.operation)
        if found & BOOKS or self._is_new:
            self._judge_by(self._always, step, broken)
            self._is_new = False
        self._judge_by(self._steps[operation][found], step, broken)
        for target in self._targets[operation]:
            if target.predicate is not None and target.predicate(step) is not None:
                self.reached[target.id] += 1
        if len(broken) > 1:
            order = list(RULES)
            broken.sort(key=lambda found: order.index(found[0].id))
        return broken

    def _judge_by(self, judges: list[_Judge], step: Step, broken: list[tuple[Rule, Broken]]) -> None:
        exercised = self.exercised
        for predicate, rule in judges:
            verdict = predicate(step)
            if verdict is None:
                continue
            exercised[rule.id] += 1
            if verdict is not HELD and isinstance(verdict, Broken):
                broken.append((rule, verdict))

    def finish(self, run: Run) -> list[tuple[Rule, Broken]]:
        """The whole-run rules that this run breaks."""
        broken: list[tuple[Rule, Broken]] = []
        for rule in self.rules:
            verdict = rule.run_predicate(run) if rule.run_predicate is not None else None
            if verdict is None:
                continue
            self.exercised[rule.id] += 1
            if isinstance(verdict, Broken):
                broken.append((rule, verdict))
        return broken


def judges(rule: Rule, policies: Policies) -> bool:
    """Whether a pool with these policies can be judged by this rule, as far as capabilities and protocol go."""
    has_predicate = rule.predicate is not None or rule.run_predicate is not None
    speaks = not rule.protocols or policies.protocol in rule.protocols
    return has_predicate and speaks and set(rule.needs) <= policies.capabilities


def _applies(rule: Rule, operation: type[Operation]) -> bool:
    return not rule.on or operation in rule.on


@dataclass(frozen=True, slots=True)
class Difference:
    """Model and pool disagree though no predicate spoke: `rule` is the one that it most likely breaks."""

    rule: str
    what: str
    """The field of the observation or outcome, for people."""
    expected: str
    got: str


TAKES_BACK = (Reclaim, Recycle, Cancel, Revoke, CancelProxy, ReleaseLease, Shutdown)

_RULE_OF_OUTCOME: dict[type[Operation], str] = {
    Publish: "RNG-5",
    Wrap: "RNG-5",
    Dispatch: "PUB-2",
    Read: "CON-3",
    Collect: "CON-5",
    Fetch: "CON-5",
    Release: "ACK-3",
    Advance: "LIV-2",
    Look: "REC-4",
    Claim: "REC-3",
    Reclaim: "REC-5",
    Recycle: "REC-5",
    Cancel: "CAN-2",
    Revoke: "CAN-3",
    ReleaseLease: "REC-6",
    Tamper: "CAN-2",
    PublishUnusable: "PUB-4",
    Shutdown: "LIFE-2",
    Construct: "LIFE-1",
    WrapPack: "PACK-1",
    Confirm: "PACK-3",
    CancelProxy: "PACK-4",
    ReleaseAs: "ACK-4",
    Borrow: "CON-6",
    Peek: "CON-6",
    Return: "CON-6",
    Expire: "REAP-2",
    Crash: "REAP-1",
    Reap: "REAP-1",
    Join: "REAP-1",
    Import: "HND-4",
    DropImport: "HND-4",
}

_RULE_OF_REASON: dict[Reason, str] = {
    Reason.POOL_CLOSING: "LIFE-2",
    Reason.POOL_FAILED: "LIFE-3",
    Reason.GENERATION_EXHAUSTED: "GEN-3",
    Reason.ALREADY_RELEASED: "CON-3",
    Reason.STALE_LEASE: "CON-5",
    Reason.FOREIGN_POOL: "GEN-5",
    Reason.UNUSABLE_TENSOR: "PUB-4",
    Reason.UNUSABLE_BACKING: "PUB-5",
    Reason.POOL_TOO_SMALL: "CTL-5",
    Reason.BAD_ARGUMENT: "LIFE-1",
    Reason.TIMED_OUT: "LIFE-5",
    Reason.PRODUCER_GONE: "REAP-3",
    Reason.BAD_RANK: "ACK-4",
    Reason.NOT_BORROWABLE: "CON-6",
    Reason.STILL_BORROWED: "CON-6",
    Reason.NOT_RECONSTRUCTED: "PACK-3",
}


def difference(
    expected: Observation,
    got: Observation,
    operation: Operation,
    expected_outcome: Outcome,
    got_outcome: Outcome,
    policies: Policies | None = None,
) -> Difference | None:
    """The first disagreement between model and pool; fields that are None on either side are skipped.

    A last resort: a predicate that speaks names the rule better.
    """
    inner = operation.operation if isinstance(operation, Faulty) else operation
    return _outcome_difference(inner, expected_outcome, got_outcome) or _observation_difference(
        inner, expected, got, policies or Policies()
    )


def _outcome_difference(operation: Operation, expected: Outcome, got: Outcome) -> Difference | None:
    if (expected.kind, expected.reason) != (got.kind, got.reason):
        if expected.reason is Reason.POOL_CLOSING and got.kind == "refused":
            return None  # LIFE-2 has judged it: some refusals have a second reason.
        if isinstance(operation, Advance):
            return Difference("LIV-2", "answer", _answer(expected), _answer(got))
        return Difference(_rule_of_answer(operation, expected, got), "answer", _answer(expected), _answer(got))
    if expected.cached != got.cached:
        return Difference("CON-2", "cached", str(expected.cached), str(got.cached))
    for name, rule in _RULE_OF_FIELD.items():
        one, other = getattr(expected, name), getattr(got, name)
        if one is not None and other is not None and one != other:
            if isinstance(operation, _SPEAKS_OF_ITS_OWN_RULE):
                return Difference(_rule_of_answer(operation, expected, got), name, str(one), str(other))
            return Difference(_sharper(name, rule, expected, got), name, str(one), str(other))
    return None


_RULE_OF_FIELD = {"lease": "RNG-3", "places": "PACK-2", "digest": "CON-1", "count": "REC-5", "leftovers": "HND-1"}
_SPEAKS_OF_ITS_OWN_RULE = (Peek, Reap, DropImport, Attempt)
"""Operations whose digest, count or leftovers are about the rule of their answer."""


def _rule_of_answer(operation: Operation, expected: Outcome, got: Outcome) -> str:
    """The rule of an answer that was not due: of the reason that was, of the one that came, or of the operation."""
    rule = _RULE_OF_OUTCOME.get(type(operation), "ERR-2")
    if isinstance(operation, Attempt):
        return ATTEMPTS[operation.what].rule
    if isinstance(operation, Join) and Reason.BAD_RANK in (got.reason, expected.reason):
        return rule
    for reason in (got.reason, expected.reason):  # The answer that was due decides, if it has a rule of its own.
        rule = _RULE_OF_REASON.get(reason, rule) if reason is not None else rule
    return rule


def _sharper(name: str, rule: str, expected: Outcome, got: Outcome) -> str:
    """Which rule a wrong lease breaks, by its first wrong field; a lease that was not taken back: LIV-1."""
    if name == "count" and (expected.count or 0) > (got.count or 0):
        return "LIV-1"
    if name != "lease" or expected.lease is None or got.lease is None:
        return rule
    for field, broken in (("slot", "SLOT-3"), ("generation", "GEN-1"), ("start", "RNG-3"), ("end", "RNG-2")):
        if getattr(expected.lease, field) != getattr(got.lease, field):
            return broken
    return "RNG-2"


def _answer(outcome: Outcome) -> str:
    return outcome.kind if outcome.reason is None else f"{outcome.kind} {outcome.reason}"


def _observation_difference(
    operation: Operation, expected: Observation, got: Observation, policies: Policies
) -> Difference | None:
    takes_back = isinstance(operation, TAKES_BACK)
    fields = (
        ("life", "LIFE-2"),
        ("generations", "GEN-1"),
        ("leases", "REC-1" if takes_back else "SLOT-2"),
        ("retiring", "REC-3"),
        ("free_ranges", "RNG-4" if takes_back else "RNG-3"),
        ("free_slots", "SLOT-3"),
        ("retired_slots", "GEN-3"),
        ("generations_left", "GEN-6"),
        ("set_aside", _rule_of_set_aside(expected, got)),
        ("imports", "HND-4"),
    )
    for name, rule in fields:
        one, other = getattr(expected, name), getattr(got, name)
        if one is None or other is None or one == other:
            continue
        if name == "free_slots" and policies.slot_order == "any" and sorted(one) == sorted(other):
            continue
        return Difference(rule, name.replace("_", " "), str(one), str(other))
    if expected.words is None or got.words is None or expected.words == got.words:
        return None
    return _word_difference(operation, expected.words, got.words)


def _rule_of_set_aside(expected: Observation, got: Observation) -> str:
    """Whether a retired lease or a late one is set aside in one of two looks and not in the other."""
    differ = set(expected.set_aside or ()) ^ set(got.set_aside or ())
    return "CON-6" if differ & set(got.retiring or ()) else "REAP-2"


def _word_difference(
    operation: Operation, expected: tuple[tuple[int, ...], ...], got: tuple[tuple[int, ...], ...]
) -> Difference:
    """The first word that differs, and the rule for the way in which it does."""
    for slot, (one, other) in enumerate(zip(expected, got, strict=False)):
        for column, (word, seen) in enumerate(zip(one, other, strict=False)):
            if word == seen:
                continue
            name = "R" if column == 0 else f"A[{column - 1}]"
            if column:
                rule = "ACK-2" if seen < word else "ACK-1"
            elif isinstance(operation, TAKES_BACK):
                rule = "REC-2"
            else:
                rule = "PUB-2" if isinstance(operation, Dispatch | Wrap) else "PUB-1"
            return Difference(rule, f"{name} of slot {slot}", str(word), str(seen))
    return Difference("CTL-2", "words", str(expected), str(got))
