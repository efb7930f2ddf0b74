"""The NATS wire protocol without I/O: bytes in, events out; commands in, bytes out.

Nothing in this package knows sockets, clocks, tasks or randomness; what it needs of them is passed in.
"""
