"""Real nats-servers for tests, examples and benchmarks. The pytest fixtures are in ``pytest_natsproto``."""

from natsproto.testing._cluster import Cluster, run_cluster
from natsproto.testing._config import ServerTls
from natsproto.testing._process import ServerFailed, ServerNotFound, find_binary
from natsproto.testing._proxy import Direction, End, FaultProxy, ProxyLink
from natsproto.testing._recorder import Recorder
from natsproto.testing._server import Server, run_server

__all__ = [
    "Cluster",
    "Direction",
    "End",
    "FaultProxy",
    "ProxyLink",
    "Recorder",
    "Server",
    "ServerFailed",
    "ServerNotFound",
    "ServerTls",
    "find_binary",
    "run_cluster",
    "run_server",
]
