"""Executable model of a bounded pool of leases: its state, its steps, its rules. Standard library only."""

from vmmref_models import families as families
from vmmref_models.monitor import Difference, Monitor, difference, judges
from vmmref_models.observation import ALIGNMENT, Observation, Shape
from vmmref_models.operations import LeaseView, Operation, Outcome, Payload
from vmmref_models.reasons import Reason
from vmmref_models.rules import HELD, REACHABLE, RULES, Broken, Kind, Rule, Run, Step
from vmmref_models.showing import shows_the_same
from vmmref_models.state import EVERY_CAPABILITY, Impossible, Policies, State, initial
from vmmref_models.step import enabled, observe, runnable, settle, step
from vmmref_models.titles import RULE_TITLES

__all__ = [
    "ALIGNMENT",
    "EVERY_CAPABILITY",
    "HELD",
    "REACHABLE",
    "RULES",
    "RULE_TITLES",
    "Broken",
    "Difference",
    "Impossible",
    "Kind",
    "LeaseView",
    "Monitor",
    "Observation",
    "Operation",
    "Outcome",
    "Payload",
    "Policies",
    "Reason",
    "Rule",
    "Run",
    "Shape",
    "State",
    "Step",
    "difference",
    "enabled",
    "initial",
    "judges",
    "observe",
    "runnable",
    "settle",
    "shows_the_same",
    "step",
]
