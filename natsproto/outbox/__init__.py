"""A transactional outbox: messages that are stored with the rows of a transaction, and published once.

``Outbox.add`` inserts a message in the caller's own transaction; ``Outbox.relay`` publishes the rows in order into a
stream, with a cursor (``js.cursor``) that says how far it has come. Works with SQLite and PostgreSQL. A ``Journal`` is
an outbox with a file of its own.
"""

from natsproto.outbox._journal import Journal
from natsproto.outbox._outbox import Outbox
from natsproto.outbox._relay import Relay
from natsproto.outbox._sql import DatabaseConnection, DatabaseCursor

__all__ = ["DatabaseConnection", "DatabaseCursor", "Journal", "Outbox", "Relay"]
