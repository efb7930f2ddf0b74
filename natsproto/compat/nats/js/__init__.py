"""``nats.js``: JetStream."""

from natsproto.compat.nats.js import api, errors
from natsproto.compat.nats.js.client import JetStreamContext
from natsproto.compat.nats.js.manager import JetStreamManager

__all__ = ["JetStreamContext", "JetStreamManager", "api", "errors"]
