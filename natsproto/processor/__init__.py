"""Processors: read a stream, keep state, and write into another stream, each message once (experimental).

The outputs of messages, the state that they changed, and the position in the source are stored in one atomic batch,
which a cursor (``js.cursor``) guards.
"""

from natsproto.processor._processor import Processor
from natsproto.processor._state import KeyedState, Outputs

__all__ = ["KeyedState", "Outputs", "Processor"]
