"""The asyncio side of the core protocol: the only package that touches sockets."""
