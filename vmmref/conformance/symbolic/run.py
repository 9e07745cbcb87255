"""Everything of the catalogue, executed in turn."""

from __future__ import annotations

from collections.abc import Iterator
from unittest.mock import patch

from vmmref.conformance.symbolic.catalogue import CONTRACTS, PAIRS, WRONGS, Contract, Pair
from vmmref.conformance.symbolic.engine import check_contract, compare
from vmmref.conformance.symbolic.findings import Answer, Finding


def find_all(only: str, kind: str | None, timeout_seconds: float) -> Iterator[Finding]:
    """Each finding as soon as it is there, of what is of `kind` and has `only` in its name or is of that rule."""

    def is_wanted(of_kind: str, name: str, rules: tuple[str, ...]) -> bool:
        return kind in (None, of_kind) and (only in name or only.upper() in rules)

    for contract in CONTRACTS:
        if is_wanted("contract", contract.name, contract.rules):
            yield Finding("contract", contract.name, contract.rules, execute(contract, timeout_seconds))
    for pair in PAIRS:
        if is_wanted("pair", pair.name, pair.rules):
            yield Finding("pair", pair.name, pair.rules, execute(pair, timeout_seconds))
    for wrong in WRONGS:
        if is_wanted("wrong", wrong.name, wrong.subject.rules):
            with patch.object(wrong.module, wrong.attribute, wrong.version):
                yield Finding("wrong", wrong.name, wrong.subject.rules, execute(wrong.subject, timeout_seconds))


def execute(subject: Contract | Pair, timeout_seconds: float) -> Answer:
    """What symbolic execution says of it, as its module now is."""
    if isinstance(subject, Contract):
        return check_contract(subject.check, timeout_seconds)
    return compare(subject.model, subject.pool, timeout_seconds)
