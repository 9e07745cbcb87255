"""Thin typed calls over `cuda.bindings.driver`: every result is checked, every error names its call.

The only place of the project that speaks to CUDA. Which libcuda answers, a real one or the simulated one, is decided
once a process, by the first device that is opened (`vmmref.driver.device`).
"""
