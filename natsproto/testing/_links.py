"""The proxies between the nodes of a cluster.

Owns one FaultProxy for each pair of nodes, and the settings that keep the servers from connecting around it. Each node
dials the earlier ones. Servers also send each other the route addresses of those that they know, and dial these; so
every node advertises a port on which nobody listens.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Coroutine, Sequence
from contextlib import ExitStack

from natsproto import errors
from natsproto.testing._config import HOST, ClusterSettings
from natsproto.testing._ports import ReservedPort
from natsproto.testing._proxy import FaultProxy
from natsproto.testing._steps import Steps, wait_until

_TIMEOUT_S = 10.0


class ClusterLinks:
    """The proxies of a cluster whose nodes listen for routes on ``ports``."""

    def __init__(self, ports: Sequence[int]) -> None:
        self._ports = tuple(ports)
        with ExitStack() as stack:
            self._nobody = stack.enter_context(ReservedPort())
            self._reserved = {
                (one, other): stack.enter_context(ReservedPort()) for other in range(len(ports)) for one in range(other)
            }
            self._resources = stack.pop_all()
        self._proxies = {
            pair: FaultProxy(HOST, ports[pair[0]], port=port.number) for pair, port in self._reserved.items()
        }

    @property
    def every(self) -> list[FaultProxy]:
        """All proxies."""
        return list(self._proxies.values())

    def of(self, index: int) -> list[FaultProxy]:
        """Return the proxies between one node and all others."""
        return [proxy for pair, proxy in self._proxies.items() if index in pair]

    def between(self, one: int, other: int) -> FaultProxy:
        """Return the proxy between two nodes. ConfigError when they are the same."""
        if one == other:
            raise errors.ConfigError("other", other, "a link needs two different nodes")
        return self._proxies[min(one, other), max(one, other)]

    def routes_of(self, name: str, index: int) -> ClusterSettings:
        """Return the cluster settings of a node: it dials itself, and the earlier nodes through the proxies."""
        routes = (self._ports[index], *(self._reserved[one, index].number for one in range(index)))
        return ClusterSettings(name=name, port=self._ports[index], routes=routes, advertise=self._nobody.number)

    def _start_steps(self) -> Steps:
        """Start the proxies. ConfigError when no event loop is running."""
        for pair, proxy in self._proxies.items():
            self._reserved[pair].release()
            yield from _finish(proxy.allow)

    def _close_steps(self) -> Steps:
        """Close the proxies and all connections through them."""
        for proxy in self._proxies.values():
            yield from _finish(proxy.aclose)

    def _discard(self) -> None:
        """Release the ports."""
        self._resources.close()


def _finish(call: Callable[[], Coroutine[object, None, None]]) -> Steps:
    """Run a coroutine on the running event loop, in steps."""
    try:
        loop = asyncio.get_running_loop()
    except RuntimeError:
        raise errors.ConfigError("link_faults", True, "the proxies need an event loop: use async with") from None
    task = loop.create_task(call())
    try:
        yield from wait_until(task.done, _TIMEOUT_S)
    finally:
        task.cancel()
    task.result()
