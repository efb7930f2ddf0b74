"""Several nats-servers that form one cluster.

Owns the route ports and the question whether the cluster is complete; each node is a Server of its own.
"""

from __future__ import annotations

import json
import os
import socket
from collections import Counter
from collections.abc import Callable, Sequence
from contextlib import ExitStack
from dataclasses import replace
from functools import partial
from typing import Any

from natsproto.errors import ConfigError
from natsproto.testing._config import HOST, ClusterPart, ServerSettings, ServerTls, StrPath
from natsproto.testing._ports import HeldPort
from natsproto.testing._process import ServerFailed
from natsproto.testing._server import Server
from natsproto.testing._steps import Scope, Steps, drive, until

_MONITOR_TIMEOUT = 0.25


def run_cluster(
    size: int = 3,
    *,
    jetstream: bool = True,
    config: str = "",
    user: str | None = None,
    password: str | None = None,
    token: str | None = None,
    tls: ServerTls | None = None,
    websocket: bool = False,
    name: str = "natsproto",
    store_dir: StrPath | None = None,
    args: Sequence[str] = (),
    binary: StrPath | None = None,
    start_timeout: float = 30.0,
) -> Scope[Cluster]:
    """A cluster of ``size`` real nats-servers on 127.0.0.1, complete when the block is entered.

    Complete means that every node has a route to every other and, with ``jetstream``, that the metadata group
    has a leader who has heard of all others, and every node says it is healthy; it takes half a second, at times two.
    ``name`` is the cluster's name, the nodes are called ``name-1`` and so on, and keep their stores in directories of
    that name below ``store_dir``. ``config`` goes to every node; a ``cluster {}`` in it would replace the routes. The
    other arguments, errors and guarantees are those of ``run_server``.
    """
    if size < 2:
        raise ConfigError("size", size, "a cluster has at least two servers; run_server() starts one")
    settings = ServerSettings(
        jetstream=jetstream,
        config=config,
        user=user,
        password=password,
        token=token,
        tls=tls,
        websocket=websocket,
        store_dir=store_dir,
        args=tuple(args),
        binary=binary,
        start_timeout=start_timeout,
    )
    return Scope(lambda: Cluster(name, size, settings))


class Cluster:
    """The nodes of a running cluster; kill, freeze or restart each through ``servers``."""

    def __init__(self, name: str, size: int, settings: ServerSettings) -> None:
        self.name = name
        self._settings = settings
        with ExitStack() as stack:
            self._ports = tuple(stack.enter_context(HeldPort()) for _ in range(size))
            routes = tuple(port.number for port in self._ports)
            servers = []
            for index, route in enumerate(routes, 1):
                node = f"{name}-{index}"
                store = settings.store_dir
                server = Server(
                    replace(
                        settings,
                        name=node,
                        cluster=ClusterPart(name=name, port=route, routes=routes[:index]),
                        store_dir=os.path.join(store, node) if store is not None else None,
                    )
                )
                stack.callback(server.discard)
                servers.append(server)
            self.servers: tuple[Server, ...] = tuple(servers)
            self._resources = stack.pop_all()

    @property
    def urls(self) -> list[str]:
        """The URL of every node, running or not, without credentials."""
        return [server.url for server in self.servers]

    async def ready(self) -> None:
        """Waits until the running nodes form a complete cluster again, after a restart for instance.

        ServerFailed when that takes longer than ``start_timeout``. Cancelling is harmless.
        """
        await drive(self._complete())

    async def meta_leader(self) -> Server:
        """The node that leads the JetStream metadata group, once most nodes agree on one that is running.

        ServerFailed when that takes longer than ``start_timeout``. Cancelling is harmless.
        """
        found: list[Server] = []

        def look() -> bool:
            if (leader := self._leader()) is not None:
                found.append(leader)
            return bool(found)

        await drive(self._wait("meta leader", look))
        return found[0]

    def start_steps(self) -> Steps:
        """The first start, for a Scope; left early or failing, everything is undone."""
        try:
            for port in self._ports:
                port.lend()
            # One after the other, each with routes to the earlier ones and itself. All at once, every pair dials
            # both ways; the votes of the first election then die with the duplicate routes, and one start in
            # twenty waited for the next election: 7 s, on nats-server 2.10 more than 30 s.
            for server in self.servers:
                yield from server.start_steps()
            yield from self._complete()
        except BaseException:
            self._resources.close()
            raise

    def close_steps(self) -> Steps:
        """The end, for a Scope: all processes are gone, the files are removed, the ports given back."""
        try:
            for server in self.servers:
                yield from server.close_steps()
        finally:
            self._resources.close()

    def _complete(self) -> Steps:
        yield from self._wait("routes of the cluster", self._routed)
        if self._settings.jetstream:
            yield from self._wait("meta leader", lambda: self._leader() is not None)
            yield from self._wait("health of the cluster", self._healthy)
            yield from self._wait("meta leader to know its peers", self._known)

    def _wait(self, what: str, check: Callable[[], bool]) -> Steps:
        timeout = self._settings.start_timeout
        if not (yield from until(check, timeout)):
            logs = "\n".join(f"{server.name}:\n{server.log()[-1000:]}" for server in self.servers)
            raise ServerFailed(f"wait for the {what}", f"not there within {timeout:g} s", logs)

    def _running(self) -> list[Server]:
        return [server for server in self.servers if server.running]

    def _routed(self) -> bool:
        """Return True when every running node has a route to each of the other running ones."""
        names = {server.name for server in self._running()}
        return all(
            names - {server.name} <= {route.get("remote_name") for route in _ask(server, "/routez").get("routes", ())}
            for server in self._running()
        )

    def _leader(self) -> Server | None:
        """The running node that more than half of all nodes call the leader."""
        answers = (_ask(server, "/jsz").get("meta_cluster", {}) for server in self._running())
        votes = Counter(answer.get("leader") for answer in answers)
        return next((server for server in self._running() if votes[server.name] * 2 > len(self.servers)), None)

    def _known(self) -> bool:
        """Return True when the leader has heard of every other running node: replicas are placed nowhere else."""
        leader = self._leader()
        if leader is None:
            return False
        peers = _ask(leader, "/jsz").get("meta_cluster", {}).get("replicas", ())
        heard = {peer.get("name") for peer in peers if peer.get("current") and not peer.get("offline")}
        return {server.name for server in self._running()} - {leader.name} <= heard

    def _healthy(self) -> bool:
        return all(_ask(server, "/healthz").get("status") == "ok" for server in self._running())


def _ask(server: Server, path: str) -> dict[str, Any]:
    """One answer of the server's monitoring; empty when it gives none.

    A few lines of HTTP/1.0, since the standard library's client takes longer to import than a server to start.
    """
    port = int(server.monitoring_url.rpartition(":")[2])
    try:
        with socket.create_connection((HOST, port), _MONITOR_TIMEOUT) as link:
            link.settimeout(_MONITOR_TIMEOUT)
            link.sendall(f"GET {path} HTTP/1.0\r\n\r\n".encode())
            answer = b"".join(iter(partial(link.recv, 65536), b""))
        found: dict[str, Any] = json.loads(answer.partition(b"\r\n\r\n")[2])
    except (OSError, ValueError):
        return {}
    return found
