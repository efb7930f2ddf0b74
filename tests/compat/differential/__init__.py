"""The same calls with nats-py and with natsproto.compat.nats, drawn at random, against one server, and compared."""
