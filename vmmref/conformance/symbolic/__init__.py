"""The pool's own pure functions, executed with symbols in place of numbers: true for all numbers, or a counterexample.

A contract is a function that calls the pool's code. The asserts that it begins with say which numbers it speaks of; the
others are what must hold. CrossHair runs it once for each path that some numbers can take and asks the solver Z3, at
each assert, for numbers that fail. "Confirmed" means that there are none on any path.

The pool's objects are real: the contracts build one with symbols in it and call its methods. Only dictionaries that
have symbols as keys are replaced, by a mapping that compares.
"""
