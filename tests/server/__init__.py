"""Against a real nats-server."""
