"""Real nats-servers for tests, examples and benchmarks; the pytest fixtures are in ``natsproto.testing.plugin``."""

from natsproto.testing.cluster import Cluster, run_cluster
from natsproto.testing.config import ServerTls
from natsproto.testing.process import ServerFailed, ServerNotFound, find_binary
from natsproto.testing.server import Server, run_server

__all__ = [
    "Cluster",
    "Server",
    "ServerFailed",
    "ServerNotFound",
    "ServerTls",
    "find_binary",
    "run_cluster",
    "run_server",
]
