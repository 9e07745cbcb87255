"""Runs CrossHair on contracts and on pairs of functions, and reads its answers."""

from __future__ import annotations

import time
from collections import Counter
from collections.abc import Callable
from dataclasses import replace
from typing import Any

from crosshair.core_and_libs import AnalysisMessage, MessageType, analyze_function, run_checkables
from crosshair.diff_behavior import BehaviorDiff, diff_behavior
from crosshair.fnutil import FunctionInfo
from crosshair.options import DEFAULT_OPTIONS, AnalysisKind, AnalysisOptionSet

from vmmref.conformance.symbolic.findings import CONFIRMED, REFUTED, UNKNOWN, Answer


def check_contract(contract: Callable[..., None], timeout_seconds: float) -> Answer:
    """Whether a contract's asserts hold on every path that its first asserts allow."""
    started = time.monotonic()
    stats: Counter[str] = Counter()
    options = AnalysisOptionSet(
        analysis_kind=(AnalysisKind.asserts,),
        per_condition_timeout=timeout_seconds,
        per_path_timeout=timeout_seconds,
        report_all=True,
        stats=stats,
    )
    messages = run_checkables(analyze_function(contract, options))
    state = _state_of(messages)
    text = "; ".join(message.message.removeprefix("AssertionError:  when calling ") for message in messages)
    return Answer(state, text if state == REFUTED else "", stats["num_paths"], time.monotonic() - started)


def _state_of(messages: list[AnalysisMessage]) -> str:
    """No message at all means that there was nothing to check: unknown, like everything that is not said."""
    found = {message.state for message in messages}
    if found == {MessageType.CONFIRMED}:
        return CONFIRMED
    return REFUTED if found & {MessageType.EXEC_ERR, MessageType.POST_ERR, MessageType.POST_FAIL} else UNKNOWN


def compare(one: Callable[..., Any], other: Callable[..., Any], timeout_seconds: float) -> Answer:
    """Whether two functions answer the same on every path; confirmed only when both orders ran out of paths."""
    started = time.monotonic()
    stats: Counter[str] = Counter()
    # Half of the time goes to each order.
    options = replace(
        DEFAULT_OPTIONS,
        per_condition_timeout=2 * timeout_seconds,
        per_path_timeout=2 * timeout_seconds,
        stats=stats,
    )
    differences = diff_behavior(FunctionInfo.from_fn(one), FunctionInfo.from_fn(other), options)
    state, text = UNKNOWN, ""
    if isinstance(differences, list) and differences:
        state, text = REFUTED, _difference(differences[0])
    elif isinstance(differences, list) and stats["exhaustion"] == 2:
        state = CONFIRMED
    return Answer(state, text, stats["num_paths"], time.monotonic() - started)


def _difference(difference: BehaviorDiff) -> str:
    """The arguments, and what each of the two answered."""
    arguments = ", ".join(f"{name}={value}" for name, value in difference.args.items())
    return f"({arguments}): {difference.result1.describe(set())}, the other {difference.result2.describe(set())}"
