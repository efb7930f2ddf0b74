"""JetStream: streams, consumers and what is built on them. Uses only the public verbs of a connection."""
