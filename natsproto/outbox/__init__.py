"""A transactional outbox: messages that are stored with the rows of a transaction, and published once.

``Outbox.add`` inserts a message in the caller's own transaction; ``Outbox.relay`` publishes the rows in order into a
stream, with a cursor (``js.cursor``) that says how far it has come. Works with SQLite and PostgreSQL.
"""

from natsproto.outbox._outbox import Outbox
from natsproto.outbox._relay import Relay
from natsproto.outbox._sql import DatabaseConnection, DatabaseCursor

__all__ = ["DatabaseConnection", "DatabaseCursor", "Outbox", "Relay"]
