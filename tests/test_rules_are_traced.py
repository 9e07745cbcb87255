"""One rule, one identifier: spec, model, guard, test and broken pool name the same rules."""

from __future__ import annotations

import ast
import re
from collections import Counter
from collections.abc import Iterator
from pathlib import Path

import pytest

from vmmref.conformance.faulty import CATALOGUE
from vmmref_models import RULE_TITLES, RULES
from vmmref_models.proofs.conditions import conditions
from vmmref_models.proofs.families import SYSTEMS

ROOT = Path(__file__).resolve().parent.parent
IDENTIFIER = re.compile(r"\b(?:CTL|RNG|SLOT|GEN|PUB|CON|PACK|ACK|REC|CAN|LIFE|HND|BRK|REAP|TRN|ERR|LIV)-[1-9][0-9]*\b")
HEADING = re.compile(r"^### (?P<id>[A-Z]+-[0-9]+) (?P<title>.+)$")


def _spec_entries() -> dict[str, tuple[str, str]]:
    """Identifier -> (title, text up to the next heading), over all specs; a heading that stands twice fails."""
    entries: dict[str, tuple[str, str]] = {}
    for path in sorted((ROOT / "specs").glob("*.md")):
        parts = re.split(r"^(?=#{1,3} )", path.read_text(encoding="utf-8"), flags=re.MULTILINE)
        for part in parts:
            heading, _, text = part.partition("\n")
            match = HEADING.match(heading)
            if match is None:
                continue
            assert match["id"] not in entries, f"{match['id']} has two headings, the second in {path.name}"
            entries[match["id"]] = (match["title"], text)
    return entries


SPEC = _spec_entries()
CHECKED = {identifier for identifier, rule in RULES.items() if rule.predicate or rule.run_predicate}
"""The rules that the model can judge; the others are specified, and their check comes later."""


def _python_files(folder: str) -> Iterator[Path]:
    yield from sorted((ROOT / folder).rglob("*.py"))


def _mentions(folder: str, without: tuple[str, ...] = ()) -> Counter[str]:
    """How often each identifier stands in the Python files of `folder`, leaving out the sub-folders `without`."""
    found: Counter[str] = Counter()
    for path in _python_files(folder):
        if path.relative_to(ROOT / folder).parts[0] not in without:
            found.update(IDENTIFIER.findall(path.read_text(encoding="utf-8")))
    return found


def _marked() -> set[str]:
    """Every identifier in a `rule("...")` mark under tests/, read from the source: nothing is imported."""
    found: set[str] = set()
    for path in _python_files("tests"):
        for node in ast.walk(ast.parse(path.read_text(encoding="utf-8"))):
            if isinstance(node, ast.Call) and ast.unparse(node.func) in {"pytest.mark.rule", "mark.rule"}:
                found.update(
                    item.value for item in node.args if isinstance(item, ast.Constant) and isinstance(item.value, str)
                )
    return found


def test_spec_and_registry_have_the_same_rules() -> None:
    assert set(SPEC) == set(RULE_TITLES)
    assert list(RULES) == list(RULE_TITLES)


def test_titles_are_equal_and_short() -> None:
    titles = {identifier: title for identifier, (title, _) in SPEC.items()}
    assert titles == dict(RULE_TITLES)
    assert [identifier for identifier, title in titles.items() if len(title.split()) > 8] == []


def test_families_are_numbered_without_gaps() -> None:
    """A number that is missing is a rule that was dropped without its heading."""
    families: dict[str, list[int]] = {}
    for identifier in SPEC:
        family, number = identifier.split("-")
        families.setdefault(family, []).append(int(number))
    assert {family: sorted(numbers) for family, numbers in families.items()} == {
        family: list(range(1, len(numbers) + 1)) for family, numbers in families.items()
    }


def test_levels_are_equal() -> None:
    levels = {}
    for identifier, (_, text) in SPEC.items():
        match = re.search(r"^Level: ([ABCD])\.", text, flags=re.MULTILINE)
        assert match is not None, f"{identifier} has no level"
        levels[identifier] = match[1]
    assert {identifier: RULES[identifier].level for identifier in CHECKED} == {
        identifier: levels[identifier] for identifier in CHECKED
    }


@pytest.mark.parametrize("identifier", sorted(SPEC))
def test_every_rule_says_why_and_how_it_is_checked(identifier: str) -> None:
    text = SPEC[identifier][1]
    assert re.search(r"^Why: \S", text, flags=re.MULTILINE), f"{identifier} does not say why"
    assert re.search(r"^How checked: \S", text, flags=re.MULTILINE), f"{identifier} does not say how it is checked"


@pytest.mark.parametrize("folder", ["vmmref", "models", "specs"])
def test_no_identifier_is_made_up(folder: str) -> None:
    used = set(_mentions(folder))
    for path in (ROOT / folder).rglob("*.md"):
        used.update(IDENTIFIER.findall(path.read_text(encoding="utf-8")))
    assert used <= set(SPEC), f"not in the specs: {sorted(used - set(SPEC))}"


def test_checked_rules_have_a_guard_in_the_pool() -> None:
    """The harness and the simulator judge and run; a guard stands in the pool's own modules."""
    guards = _mentions("vmmref", without=("conformance", "cli", "simcuda"))
    # Whole-run rules over everything: no single line keeps them.
    everywhere = {"ERR-1", "LIV-1", "LIV-2"}
    assert sorted(CHECKED - everywhere - set(guards)) == []


def test_checked_rules_have_a_marked_test() -> None:
    assert sorted(CHECKED - _marked()) == []


def test_the_spec_says_truly_what_is_not_checked() -> None:
    """ "How checked: not yet" exactly where nothing checks; "unit tests only" exactly where only marked tests do."""
    said = {"not yet": set[str](), "unit tests only": set[str]()}
    for identifier, (_, text) in SPEC.items():
        for words, rules in said.items():
            if f"How checked: {words}" in text:
                rules.add(identifier)
    tested = _marked()
    assert sorted(said["not yet"]) == sorted(set(SPEC) - CHECKED - tested)
    assert sorted(said["unit tests only"]) == sorted(tested - CHECKED)


def test_unit_tests_have_the_names_that_the_spec_gives() -> None:
    functions = {
        node.name
        for path in _python_files("tests")
        for node in ast.walk(ast.parse(path.read_text(encoding="utf-8")))
        if isinstance(node, ast.FunctionDef)
    }
    patterns = {name for _, text in SPEC.values() for name in re.findall(r"`(test_[a-z]+_[0-9]+_)\*`", text)}
    assert sorted(name for name in patterns if not any(function.startswith(name) for function in functions)) == []


def test_marks_name_rules() -> None:
    assert sorted(_marked() - set(SPEC)) == []


def test_checked_rules_have_a_broken_pool() -> None:
    """Each rule has a pool broken on purpose that must be caught by its name, and the spec names exactly these."""
    said = {
        (identifier, name)
        for identifier, (_, text) in SPEC.items()
        for names in re.findall(r"Broken pools?: ([^.]*)\.", " ".join(text.split()))
        for name in re.findall(r"`([^`]+)`", names)
    }
    assert said == {(pool.rule, name) for name, pool in CATALOGUE.items()}
    assert sorted(CHECKED - {pool.rule for pool in CATALOGUE.values()}) == []


def test_mistakes_of_broken_pools_are_told_in_the_spec() -> None:
    told = (ROOT / "specs" / "protocols-that-fail.md").read_text(encoding="utf-8")
    mistakes = {mistake for pool in CATALOGUE.values() for mistake in pool.seen.split(", ") if mistake}
    assert sorted(mistake for mistake in mistakes if f"| {mistake} |" not in told) == []


def test_the_readme_counts_truly() -> None:
    """Its table has a row a family: rules, driven by the check, named by proofs, and pools broken on purpose."""
    readme = (ROOT / "README.md").read_text(encoding="utf-8")
    rows = re.findall(r"^\| ([A-Z]+) \| [^|]+ \| (\d+) \| (\d+) \| (\d+) \| (\d+) \|$", readme, flags=re.MULTILINE)
    proved = {rule for system in SYSTEMS for condition in conditions(system) for rule in condition.rules}
    broken = Counter(pool.rule for pool in CATALOGUE.values())
    due = {}
    for family in dict.fromkeys(identifier.split("-")[0] for identifier in SPEC):
        rules = {identifier for identifier in SPEC if identifier.split("-")[0] == family}
        due[family] = (len(rules), len(rules & CHECKED), len(rules & proved), sum(broken[rule] for rule in rules))
    assert {family: tuple(map(int, numbers)) for family, *numbers in rows} == due
