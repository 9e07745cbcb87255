"""How each rule is known: by which layers, read from what the layers themselves declare.

    python -m vmmref.conformance.layers > specs/layers.md

A test compares the page with this. Needs z3, as the proofs do.
"""

from __future__ import annotations

import sys
from collections import Counter
from collections.abc import Iterator

from vmmref.conformance.faulty import CATALOGUE
from vmmref.conformance.symbolic.catalogue import CONTRACTS
from vmmref_models import RULES
from vmmref_models.proofs.conditions import conditions
from vmmref_models.proofs.families import SYSTEMS
from vmmref_models.small_pool.ending import MEANINGS

HEAD = """# How each rule is known

Made by `python -m vmmref.conformance.layers` from what the layers declare, never written by hand.

- **Proved** (`vmmref prove`): so many conditions that name the rule are proved in Z3, for any number of slots, ranks
  and ranges.
- **Searched** (`vmmref explore --catalogue`): every state of small scopes keeps it, and some wrong protocol breaks it.
- **Executed** (`python -m vmmref.conformance.symbolic`): so many contracts about the pool's own arithmetic are
  confirmed symbolically, over all paths.
- **Driven** (`vmmref check`): a predicate judges the reference pool in property runs.
- **Broken pools** (`vmmref faults`): so many pools that break it on purpose are caught by its name.
- **Hardware**: seen on a real device; not yet, for no rule.

Unit tests explain every rule besides (`pytest -k gen_3`). What the proofs and searches leave out is said in
[proofs.md](proofs.md) and [protocols-that-fail.md](protocols-that-fail.md): a rule of which a part is proved is not a
pool that is proved.

| Rule | Title | Proved | Searched | Executed | Driven | Broken pools | Hardware |
|---|---|---|---|---|---|---|---|
"""


def page() -> str:
    """The whole page, as Markdown."""
    return HEAD + "".join(f"{row}\n" for row in rows())


def rows() -> Iterator[str]:
    """One row a rule."""
    proved = Counter(rule for system in SYSTEMS for condition in conditions(system) for rule in condition.rules)
    executed = Counter(rule for contract in CONTRACTS for rule in contract.rules)
    broken = Counter(pool.rule for pool in CATALOGUE.values())
    for name, rule in RULES.items():
        driven = rule.predicate is not None or rule.run_predicate is not None
        cells = (
            proved[name] or "",
            "yes" if name in MEANINGS else "",
            executed[name] or "",
            "yes" if driven else "",
            broken[name] or "",
            "",
        )
        yield f"| {name} | {rule.title} | {' | '.join(map(str, cells))} |"


if __name__ == "__main__":
    sys.stdout.write(page())
