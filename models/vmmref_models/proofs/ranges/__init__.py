"""Cutting and merging of the data area: its state and actions, what holds of it, what must not be done."""

# In this order the parts enter the system.
# isort: off
from vmmref_models.proofs.ranges.area import RANGES, Area
from vmmref_models.proofs.ranges import properties as properties
from vmmref_models.proofs.ranges import wrong as wrong
# isort: on

__all__ = ["RANGES", "Area"]
