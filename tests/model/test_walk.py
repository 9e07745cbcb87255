"""A seeded walk of the model under its own predicates: none is broken, each is exercised, every target is reached."""

from __future__ import annotations

from tests.model.free_pool import Walk
from vmmref_models import REACHABLE, RULES, Policies

EPISODES = 720
STEPS = 75


def test_the_model_keeps_every_rule_that_it_can_judge() -> None:
    walk = Walk(Policies(), seed=20413)
    for _ in range(EPISODES):
        walk.episode(STEPS)
    assert walk.steps >= 50_000
    rare = {name: count for name, count in walk.monitor.exercised.items() if count < 20}
    assert rare == {}
    assert {name: count for name, count in walk.monitor.reached.items() if not count} == {}


def test_every_predicate_is_judged_by_a_pool_that_can_do_everything() -> None:
    judged = {name for name, rule in RULES.items() if rule.predicate or rule.run_predicate}
    assert {rule.id for rule in Walk(Policies(), seed=1).monitor.rules} == judged
    assert len(judged) >= 48
    assert all(rule.sentence and rule.title for rule in RULES.values())
    assert all(name.split("/")[0] in RULES for name in REACHABLE)
