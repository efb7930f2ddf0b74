"""``nats.aio``: the client."""
