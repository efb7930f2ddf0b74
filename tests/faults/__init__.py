"""What breaks, on purpose: networks, servers, peers and callers, against the real client."""
