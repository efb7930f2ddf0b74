"""Delivered messages until they are settled: waiting, lent, still this client's, acknowledged."""
