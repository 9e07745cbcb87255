"""Every family of proofs."""

from __future__ import annotations

from typing import Any

from vmmref_models.proofs.layout import LAYOUT
from vmmref_models.proofs.protocol import PROTOCOL
from vmmref_models.proofs.ranges import RANGES
from vmmref_models.proofs.system import System
from vmmref_models.proofs.words import WORDS_32, WORDS_64

SYSTEMS: tuple[System[Any], ...] = (LAYOUT, RANGES, WORDS_32, WORDS_64, PROTOCOL)
"""In the order in which they are proved, the quickest first."""
