"""The options of a connection: their rules, NATS contexts and credentials, proxies."""
