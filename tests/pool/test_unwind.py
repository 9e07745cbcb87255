"""Clean-up steps: each once, last in, first out, and the first error is the one that is reported."""

from __future__ import annotations

import functools

import pytest

from vmmref.unwind import Unwind


def failing(text: str) -> object:
    raise RuntimeError(text)


def test_last_in_first_out_and_once() -> None:
    done: list[int] = []
    unwind = Unwind()
    for number in range(3):
        unwind.push(functools.partial(done.append, number))
    unwind.run()
    unwind.run()
    assert done == [2, 1, 0]


def test_a_failing_step_does_not_keep_the_others() -> None:
    done: list[str] = []
    unwind = Unwind()
    unwind.push(lambda: done.append("first in"))
    unwind.push(lambda: failing("second"))
    unwind.push(lambda: failing("third"))
    with pytest.raises(RuntimeError, match="third") as failure:
        unwind.run()
    assert done == ["first in"]
    assert failure.value.__notes__ == ["clean-up failed too: RuntimeError: second"]


def test_with_a_cause_failures_are_its_notes() -> None:
    cause = ValueError("the original")
    unwind = Unwind()
    unwind.push(lambda: failing("on the way back"))
    unwind.run(cause=cause)
    assert cause.__notes__ == ["clean-up failed too: RuntimeError: on the way back"]
