"""The harness on a right model: silent, repeatable, and every rule exercised."""

from __future__ import annotations

import random

import pytest

from tests.machine.model_subject import ModelSubject, make
from tests.machine.mutants import make as make_mutant
from vmmref.conformance import payloads
from vmmref.conformance.draw import Drawer
from vmmref.conformance.failure import Failure
from vmmref.conformance.flavours import FLAVOURS, draw_shape, usable
from vmmref.conformance.kinds import UNRULY_ATTEMPTS, drawable
from vmmref.conformance.machine import Findings, machine_for
from vmmref.conformance.machine import search as search_machine
from vmmref.conformance.report import unsupported
from vmmref.conformance.run import Episode, Rig, replay
from vmmref.conformance.search import Found, Plan, Search
from vmmref.conformance.shrink import Budget, cost, shrink
from vmmref.conformance.simpler import renumbered
from vmmref.conformance.walk import COSTLY_EVERY, Schedule, picker
from vmmref_models import RULES, Operation, Shape
from vmmref_models.operations import (
    Attempt,
    Borrow,
    Cancel,
    CancelProxy,
    Claim,
    Confirm,
    Crash,
    Deliver,
    Dispatch,
    DropImport,
    Expire,
    Faulty,
    Fetch,
    Join,
    Look,
    Payload,
    Publish,
    Read,
    Recycle,
    Release,
    ReleaseAs,
    ReleaseLease,
    Revoke,
    Tamper,
    Wrap,
)

ALWAYS = 10.0**9
"""Seconds: these searches are bounded by numbers, so that they do the same on every machine."""


def _walked(subject: ModelSubject, episodes: int, seed: int = 0, client: str = "any") -> Search:
    search = Search(Rig(subject), Plan(seed, client, ALWAYS, episodes))
    search.walk()
    return search


def test_right_model_breaks_nothing_and_exercises_every_rule() -> None:
    search = _walked(make(), 700)
    assert search.failures == {}
    described = make().describe()
    judged = {rule.id for rule in RULES.values() if not unsupported(rule, described)}
    assert judged == set(search.rig.monitor.exercised)
    assert {rule for rule, count in search.rig.monitor.exercised.items() if count < 10} == set()
    assert all(search.rig.monitor.reached.values())


@pytest.mark.parametrize(
    "without",
    [
        {"stepping"},
        {"stepping", "split"},
        {"stepping", "split", "faults", "revoke", "release-lease", "tamper", "preset"},
    ],
)
def test_subject_with_fewer_capabilities_breaks_nothing(without: set[str]) -> None:
    search = _walked(ModelSubject(frozenset(without)), 60)
    assert search.failures == {}
    assert search.rig.operations > 1000


def test_state_machine_on_right_model_finds_nothing() -> None:
    rig = Rig(make())
    found = search_machine(machine_for(rig, usable(rig.description, "any")), seed=1, examples=15)
    assert found.failures == {}
    assert found.examples >= 15
    assert rig.operations > 200


def test_state_machine_finds_and_shrinks_and_the_walk_shows_it_as_short() -> None:
    lengths = {}
    for name, rule in (("slot lost", "SLOT-1"), ("empty tensor accepted", "PUB-4")):
        rig = Rig(make_mutant(name))
        others = frozenset(RULES) - {rule}
        machine = machine_for(rig, usable(rig.description, "any"), findings=Findings(others))
        found = search_machine(machine, seed=3, examples=15).failures[rule]
        walked = _walked(make_mutant(name), 60).failures[rule]
        lengths[name] = (len(walked.operations), len(found.operations))
        assert walked.rule == found.rule == rule
    assert all(ours <= theirs for ours, theirs in lengths.values()), lengths


def test_same_seed_does_the_same() -> None:
    def told(seed: int) -> list[Operation | Shape]:
        seen: list[Operation | Shape] = []
        Search(Rig(make(), seen.append), Plan(seed, "any", ALWAYS, 30)).walk()
        return seen

    assert told(5) == told(5)
    assert told(5) != told(6)


def test_same_seed_finds_the_same_shortest_sequences() -> None:
    def failures() -> dict[str, Failure]:
        return _walked(make_mutant("cancel by slot"), 40, seed=11).failures

    assert failures() == failures() != {}


def test_search_goes_on_for_other_rules_and_tells_each() -> None:
    told: list[Failure] = []
    plan = Plan(1, "any", ALWAYS, 80)
    search = Search(
        Rig(make_mutant("R falls")), plan, lambda e: told.append(e.failure) if isinstance(e, Found) else None
    )
    search.walk()
    assert {"CTL-3", "CTL-6", "REC-2"} <= set(search.failures)
    assert {failure.rule for failure in told} == set(search.failures)
    assert search.rig.operations > 1000


def test_costly_flavours_come_seldom_and_in_turn() -> None:
    flavours = usable(make().describe(), "any")
    schedule = Schedule(flavours, least=1)
    chosen = [schedule.choose(index, {"RNG-1": 1}) for index in range(2 * COSTLY_EVERY * len(flavours))]
    costly = [flavour.name for flavour in chosen if flavour.costly]
    assert len(costly) == len(chosen) // COSTLY_EVERY
    assert {flavour.name for flavour in flavours} == {flavour.name for flavour in chosen}


def test_schedule_is_content_with_fewer_exercises_where_they_cost_processes() -> None:
    flavours = usable(make().describe(), "any")
    schedule = Schedule(flavours, least=100)
    deaths = next(flavour for flavour in flavours if flavour.name == "deaths")
    schedule.learn(deaths, 100, {"REAP-1": 0, "RNG-1": 90}, {"REAP-1": 15, "RNG-1": 90})
    assert schedule.choose(1, {"REAP-1": 15, "RNG-1": 90}) is deaths
    assert not schedule.choose(1, {"REAP-1": 25, "RNG-1": 190}).costly


def test_drawn_operations_are_enabled_and_spread() -> None:
    kinds: dict[str, int] = {}
    rig = Rig(make(), lambda done: None)
    for index, flavour in enumerate(usable(rig.description, "any")):
        pick = picker(f"spread/{index}")
        episode = Episode(rig, draw_shape(flavour, rig.description, pick))
        drawer = Drawer(rig.description, episode.shape, flavour, episode.tokens)
        for _ in range(300):
            operation = drawer.next(pick, episode.state)
            kinds[type(operation).__name__] = kinds.get(type(operation).__name__, 0) + 1
            assert episode.do(operation), episode.failures
        episode.close(judge=False)
    assert set(kinds) == drawable(rig.description, "any")


def test_well_behaved_client_keeps_the_obligations() -> None:
    done: list[Shape | Operation] = []
    search = Search(Rig(make(), done.append), Plan(4, "well-behaved", ALWAYS, 60))
    search.walk()
    assert search.failures == {}
    pools: list[list[Operation]] = []
    for event in done:
        if isinstance(event, Shape):
            pools.append([])
        else:
            pools[-1].append(event)
    for operations in pools:
        _check_obligations(operations)
    assert sum(isinstance(event, Deliver) for event in done) > 100


def _check_obligations(operations: list[Operation]) -> None:
    delivered: set[tuple[int, int]] = set()
    used: set[int] = set()
    cancelled: set[int] = set()
    for operation in operations:
        assert not isinstance(operation, Faulty | Tamper | ReleaseLease | Revoke | ReleaseAs | DropImport)
        assert not isinstance(operation, Crash | Join | Expire)
        if isinstance(operation, Attempt):
            assert operation.what not in UNRULY_ATTEMPTS
        if isinstance(operation, Deliver):
            assert (operation.lease, operation.rank) not in delivered, "two copies for one rank"
            assert operation.lease not in cancelled, "delivered after a cancel"
            delivered.add((operation.lease, operation.rank))
        if isinstance(operation, Read | Fetch | Release | Confirm | Borrow):
            assert operation.proxy not in used, "a proxy used twice"
            used.add(operation.proxy)
        if isinstance(operation, Cancel | CancelProxy):
            assert all(lease != operation.lease for lease, _ in delivered), "cancelled after a delivery"
            cancelled.add(operation.lease)


def test_flavours_have_names_of_their_own_and_small_shapes() -> None:
    assert len({flavour.name for flavour in FLAVOURS}) == len(FLAVOURS)
    described = make().describe()
    for flavour in FLAVOURS:
        for seed in range(50):
            shape = draw_shape(flavour, described, picker(str(seed)))
            assert 1 <= shape.slots <= 6
            assert 1 <= shape.consumers <= 4
            assert 256 <= shape.data_size <= 4096
            assert bool(shape.issued) == flavour.near_limit
            assert shape.apart == flavour.apart


def test_shrinking_keeps_the_rule_and_never_grows() -> None:
    rig = Rig(make_mutant("old look"))
    search = Search(rig, Plan(2, "any", ALWAYS, 100))
    found: list[Failure] = []
    search.tell = lambda event: found.append(event.failure) if isinstance(event, Found) else None
    search.walk()
    firsts = {failure.rule: failure for failure in reversed(found)}
    for rule, shortest in search.failures.items():
        first = firsts[rule]
        assert cost(shortest.shape, shortest.operations) <= cost(first.shape, first.operations)
        again = replay(rig, shortest.shape, shortest.operations, home=shortest.at_end)
        assert rule in {failure.rule for failure in again}


def test_shrinking_stops_at_its_budget() -> None:
    replays = 0

    def again(shape: Shape, operations: object) -> Failure | None:
        nonlocal replays
        replays += 1
        return None

    operations = tuple(Look(token) for token in range(1, 65))
    failure = Failure("REC-5", Shape(2, 2, 512), operations, "", "")
    assert shrink(failure, again, Budget(replays=10, seconds=60.0)) == failure
    assert replays == 10


def test_tokens_are_renumbered_by_kind() -> None:
    from tests.machine.test_payloads import published

    operations = (
        published(7, seed=30),
        Dispatch(7),
        Deliver(7, 30, 1),
        Fetch(30, 9),
        Look(4),
        Claim(4),
        Cancel(7, wait=True),
    )
    expected = (
        published(1, seed=1),
        Dispatch(1),
        Deliver(1, 1, 1),
        Fetch(1, 1),
        Look(1),
        Claim(1),
        Cancel(1, wait=True),
    )
    assert renumbered(operations) == expected


def test_operations_that_are_not_enabled_any_more_are_skipped() -> None:
    operations: list[Operation] = [Deliver(1, 1, 0), Release(1), Recycle(), Cancel(3, wait=True)]
    assert replay(Rig(make()), Shape(1, 1, 256), operations) == []


def test_whole_run_failure_is_shown_at_the_end_of_the_pool() -> None:
    failure = _walked(make_mutant("descriptor left behind"), 5).failures["HND-1"]
    assert failure.at_end
    assert failure.before is None
    assert "descriptors" in failure.got


def test_broken_adapter_is_no_broken_rule() -> None:
    from tests.machine.bad_subjects import blind
    from vmmref.conformance.run import SubjectError

    with pytest.raises(SubjectError, match="observe"):
        Episode(Rig(blind()), Shape(1, 1, 256))


def test_every_choice_of_a_picker_is_possible() -> None:
    pick = picker("x")
    assert {pick(5) for _ in range(200)} == set(range(5))
    assert random.Random("x").random() == random.Random("x").random()


def test_every_publication_has_the_digest_of_its_payload() -> None:

    done: list[Shape | Operation] = []
    Search(Rig(make(), done.append), Plan(9, "any", ALWAYS, 30)).walk()
    published_all = [event for event in done if isinstance(event, Publish | Wrap)]
    assert len({operation.payload.dtype for operation in published_all}) == 7
    for operation in published_all:
        assert operation.nbytes == payloads.nbytes(operation.payload)
        assert operation.digest == payloads.expected_digest(operation.payload)


def test_a_replay_gives_no_name_that_the_sequence_gives() -> None:
    """The ending of a replay hands out proxies of its own; one that is in the sequence already would go missing."""
    payload = Payload("uint8", (8,), 1)
    size, digest = payloads.nbytes(payload), payloads.expected_digest(payload)
    sequence: list[Operation] = []
    # Proxy 1 belongs to a lease that is over; the lease that is left has owed its one rank a copy since.
    sequence += [Wrap(5, payload, size, digest), Deliver(5, 1, 0), Cancel(5, True), Wrap(6, payload, size, digest)]
    assert replay(Rig(make()), Shape(slots=1, consumers=1, data_size=256), sequence) == []
