"""Ordered consumers: every message once and in order, by a new consumer after each gap."""
