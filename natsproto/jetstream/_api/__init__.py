"""Requests to the JetStream API ($JS.API): sending them again, listing, administration, traces."""
