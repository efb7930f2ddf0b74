"""Peers in the account with fewer rights than the client: what they cannot make it believe, do or tell."""
