"""Generations and control words of 32 and 64 bits: their state and actions, what holds, what must not be done."""

# In this order the parts enter the system.
# isort: off
from vmmref_models.proofs.words.book import WORDS_32, WORDS_64, Book
from vmmref_models.proofs.words import properties as properties
from vmmref_models.proofs.words import wrong as wrong
# isort: on

__all__ = ["WORDS_32", "WORDS_64", "Book"]
