"""A process dies at every point of the protocol, and the others go on."""

from __future__ import annotations

import pytest

from vmmref.conformance.kills import matrix
from vmmref.conformance.kills.executioner import Point
from vmmref.conformance.kills.points import CONSUMER, PRODUCER
from vmmref.conformance.kills.stage import ROLES
from vmmref.conformance.kills.story import Story

LEAST_POINTS = 20
TABLE_ENTERED = next(point for point in CONSUMER if point.name == "the table is entered")


@pytest.mark.rule("REAP-1")
@pytest.mark.rule("HND-1")
@pytest.mark.slow
@pytest.mark.parametrize("role", ROLES[1:])
def test_reap_1_a_consumer_may_die_at_any_point(role: str) -> None:
    """
    Wherever a consumer dies, its leases come back, the others are undisturbed, and a new process takes its place.

    Given: a producer and three consumers that read, release, borrow and drop, each in a process of its own.
    When: this consumer is killed, once at every point.
    Then: every point is reached; no lease is lost, no word is written for the dead, every byte is right, nobody waits
        beyond a bound and nobody holds anything in the end.
    """
    killings = tuple(matrix.chosen([role]))
    result = matrix.run(killings)
    assert [one for one in result.killings if not one.passed] == []
    assert result.passed
    assert len(result.killings) == len(killings) >= LEAST_POINTS


@pytest.mark.rule("REAP-3")
@pytest.mark.rule("HND-5")
@pytest.mark.slow
def test_reap_3_the_producer_may_die_at_any_point() -> None:
    """
    Wherever the producer dies, every consumer ends in bounded time, and a new producer serves them.

    Given: the same story.
    When: the producer is killed, once at every point.
    Then: every point is reached; each consumer gets right bytes or a refusal that says why, can drop its import, and
        holds nothing then.
    """
    killings = tuple(matrix.chosen([ROLES[0]]))
    result = matrix.run(killings)
    assert [one for one in result.killings if not one.passed] == []
    assert result.passed
    assert len(result.killings) == len(killings) >= LEAST_POINTS


def test_some_points_where_pools_are_exported_as_fabric_handles() -> None:
    """All of them: `python -m vmmref.conformance.kills --handle-type fabric`."""
    killings = tuple(matrix.chosen(ROLES, every=9, handle_type="fabric"))
    assert {role for role, _ in killings} == set(ROLES)
    result = matrix.run(killings, handle_type="fabric")
    assert [one for one in result.killings if not one.passed] == []
    assert result.passed


def test_the_story_passes_when_nobody_dies() -> None:
    killing = Story(ROLES[0], None).tell()
    assert killing.passed, killing


@pytest.mark.parametrize("broken", ["NeverReaps", "ReapsTheLiving", "ForgesForTheDead"])
def test_the_matrix_sees_a_pool_that_is_wrong_about_the_dead(broken: str) -> None:
    """A check that cannot fail is worth nothing."""
    killing = Story(ROLES[1], TABLE_ENTERED, f"vmmref.conformance.faulty.deaths:{broken}").tell()
    assert killing.reached
    assert not killing.passed
    assert any('the step "reap"' in problem for problem in killing.problems), killing


def test_a_point_that_is_not_reached_is_no_pass() -> None:
    killing = Story(ROLES[1], TABLE_ENTERED._replace(occurrence=99)).tell()
    assert (killing.reached, killing.problems, killing.passed) == (False, (), False)


def test_every_point_has_a_name_of_its_own() -> None:
    for points in (CONSUMER, PRODUCER):
        assert len({point.name for point in points}) == len(points)


def test_points_are_chosen_by_role_and_text() -> None:
    found: list[tuple[str, Point]] = list(matrix.chosen(ROLES, "BORROW"))
    assert {role for role, _ in found} == set(ROLES[1:])
    assert all("borrow" in point.name or "borrow" in point.step for _, point in found)
    assert list(matrix.chosen(ROLES, "no such point")) == []
    assert not matrix.run(()).passed
    with pytest.raises(ValueError, match="no role"):
        matrix.points_of("bystander")
