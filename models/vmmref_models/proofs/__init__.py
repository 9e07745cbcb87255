"""Proofs of the rules: inductive invariants, decided by the solver Z3 for any number of slots, ranks and ranges.

An encoding of its own: it shares the identifiers of the rules with the executable model and nothing else. Importing a
module of this package needs the package z3 (extra "prove"). specs/proofs.md says what is proved, and what is not.
"""
