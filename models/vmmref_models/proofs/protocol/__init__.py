"""The protocol retire, validate, max: its state, its actions, and what holds of it."""

# In this order the parts enter the system: how it starts, what it does, what holds, what must not be done.
# isort: off
from vmmref_models.proofs.protocol.state import PROTOCOL, State
from vmmref_models.proofs.protocol import start as start
from vmmref_models.proofs.protocol import producer as producer, consumer as consumer
from vmmref_models.proofs.protocol import book as book, readings as readings, copies as copies
from vmmref_models.proofs.protocol import wrong_producer as wrong_producer, wrong_consumer as wrong_consumer
# isort: on

__all__ = ["PROTOCOL", "State"]
