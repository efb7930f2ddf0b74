"""What servers tell of clients: connecting, leaving, being refused, and the latency of services."""

from __future__ import annotations

import asyncio
from collections.abc import Iterator

import pytest

import natsproto
from natsproto import Message
from natsproto.account_events import (
    AccountEvents,
    AuthenticationFailed,
    ClientConnected,
    ClientDisconnected,
    ServiceLatency,
    read_event,
)
from natsproto.errors import InvalidSubject, LoginRefused, SubscriptionClosed
from natsproto.jetstream.advisories import Advisory
from natsproto.testing import Server, run_server

CONFIG = """
system_account: SYS
accounts {
  SYS { users: [ { user: sys, password: x } ] }
  A {
    users: [ { user: ana, password: x } ]
    exports: [ { service: price, latency: { sampling: 100%, subject: latency.price } } ]
  }
  B { users: [ { user: ben, password: x } ], imports: [ { service: { account: A, subject: price } } ] }
}
"""


@pytest.fixture
def server() -> Iterator[Server]:
    with run_server(config=CONFIG) as server:
        yield server


def connect_as(server: Server, user: str, password: str = "x") -> natsproto.Connecting:
    return natsproto.connect(server.url, user=user, password=password, name=f"{user}'s")


async def test_account_events_tell_who_comes_and_goes(server: Server) -> None:
    async with connect_as(server, "sys") as nc, nc.system().events("A") as events:
        async with connect_as(server, "ben"), connect_as(server, "ana") as ana:
            await ana.publish("x", b"12345")
            await ana.flush()
        came, gone = await events.next(60), await events.next(60)
        assert type(came) is ClientConnected
        assert came.client is not None
        assert (came.client.user, came.client.name, came.client.account) == ("ana", "ana's", "A")
        assert came.server is not None
        assert came.server.version == ana.server_info.version
        assert type(gone) is ClientDisconnected
        assert gone.client is not None
        assert (gone.client.user, gone.reason) == ("ana", "Client Closed")
        assert gone.sent is not None
        assert (gone.sent.messages, gone.sent.bytes) == (1, 5)


async def test_account_events_tell_who_is_refused(server: Server) -> None:
    async with connect_as(server, "sys") as nc, nc.system().events() as events:
        with pytest.raises(LoginRefused):
            await connect_as(server, "eve")
        async for event in events:
            if isinstance(event, AuthenticationFailed):
                assert event.client is not None
                assert (event.client.user, event.reason) == ("eve", "Authentication Failure")
                break


async def test_latency_of_services_is_typed(server: Server) -> None:
    async with connect_as(server, "ana") as ana, connect_as(server, "ben") as ben:
        latencies = await ana.subscribe("latency.>")
        await ana.subscribe("price", cb=lambda request: request.respond(b"5"))
        await ana.flush()
        await ben.request("price", timeout=60)
        latency = read_event(await latencies.next(timeout=60))
        assert isinstance(latency, ServiceLatency)
        assert latency.status == 200
        assert 0 <= latency.service_time <= latency.total > 0  # round trips are taken off the service's


async def test_account_events_end_with_stop(server: Server) -> None:
    async with connect_as(server, "sys") as nc:
        async with nc.system().events() as events:
            asyncio.get_running_loop().call_soon(asyncio.ensure_future, events.stop())
            others = [event async for event in events if "user='sys'" not in str(event)]  # its own may come late
            assert others == []
            with pytest.raises(SubscriptionClosed):
                await events.next(60)
        with pytest.raises(InvalidSubject):
            nc.system().events("a b")
        assert isinstance(nc.system().events(), AccountEvents)


def test_event_that_is_not_known_is_kept_as_it_is() -> None:
    other = read_event(Message("s", None, b'{"type":"io.nats.x","answer":42}', None, None))
    assert (type(other), other.type, dict(other.extra)) == (Advisory, "io.nats.x", {"answer": 42})
    assert "data" in read_event(Message("s", None, b"?", None, None)).extra
