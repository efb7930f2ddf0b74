"""Pending requests and their replies."""
