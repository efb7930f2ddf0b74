"""The life of a client: connecting and reconnecting, subscriptions on the server, draining and closing."""
