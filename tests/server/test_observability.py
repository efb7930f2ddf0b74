"""Health, message traces, the system account and contexts, on real servers."""

from __future__ import annotations

import asyncio
import json
from collections.abc import Iterator
from datetime import UTC, datetime, timedelta
from pathlib import Path

import pytest

import natsproto
from natsproto import sync
from natsproto._core.engine.engine import State
from natsproto.errors import (
    ConfigError,
    InvalidSubject,
    NoResponders,
    PermissionDenied,
    RequestTimeout,
    ServerError,
)
from natsproto.system import ServerKind
from natsproto.testing import Server, run_cluster, run_server
from tests.kit.waiting import until
from tests.server.helpers import also_uvloop, client

ACCOUNTS = """
accounts {
  SYS: { users: [ { user: "sys", password: "p" } ] }
  A: { users: [ { user: "a", password: "p" } ], jetstream: enabled }
}
system_account: SYS
"""


# ---------------------------------------------------------------- health


@also_uvloop
async def test_health_of_working_clients(nats_server: Server) -> None:
    for no_echo in (False, True):
        async with client(nats_server.url, no_echo=no_echo) as nc:
            health = await nc.health(timeout=30)
            assert health
            assert (health.ok, health.alive, health.state, health.problem) == (True, True, State.OPEN, "")
            assert health.server == nats_server.url
            assert 0 < health.rtt < 5


@also_uvloop
async def test_what_must_be_there_is_looked_for(nats_server: Server) -> None:
    async with client(nats_server.url) as nc:
        js = nc.jetstream()
        assert await nc.health(jetstream=True, timeout=30)
        health = await nc.health(stream="S", timeout=30)
        assert (health.ok, health.alive) == (False, True)
        assert "stream not found" in health.problem
        stream = await js.create_stream(name="S", subjects=["s"])
        assert await nc.health(stream="S", timeout=30)
        assert "consumer not found" in (await nc.health(stream="S", consumer="c", timeout=30)).problem
        await stream.create_consumer(durable_name="c")
        assert await nc.health(stream="S", consumer="c", timeout=30)
        with pytest.raises(ConfigError, match="stream"):
            await nc.health(consumer="c")


@pytest.mark.slow
@also_uvloop
async def test_health_of_frozen_and_dead_server(nats_server: Server) -> None:
    async with client(nats_server.url, reconnect_wait=0.01) as nc:
        nats_server.freeze()
        began = asyncio.get_running_loop().time()
        health = await nc.health(timeout=0.2)
        assert (health.ok, health.alive, health.state) == (False, False, State.OPEN)
        assert "0.2 s" in health.problem
        assert asyncio.get_running_loop().time() - began < 10
        nats_server.thaw()
        assert await nc.health(timeout=10)
        nats_server.kill()
        await until(lambda: not nc.is_connected)
        health = await nc.health(timeout=60)
        assert (health.ok, health.alive) == (False, True)
        assert health.problem.startswith("not connected")
        await nats_server.restart()
        await until(lambda: nc.is_connected)
        assert await nc.health(timeout=10)
        await nc.close()
        health = await nc.health(timeout=30)
        assert (health.ok, health.alive, health.state) == (False, False, State.CLOSED)


@also_uvloop
async def test_an_account_that_may_not_ask_itself_is_pinged() -> None:
    config = """authorization { users = [ { user: "a", password: "b", permissions: { publish: { allow: "x" } } } ] }"""
    with run_server(config=config) as server:
        async with client(server.url, user="a", password="b") as nc:
            assert await nc.health(timeout=30)


# ---------------------------------------------------------------- traces


@also_uvloop
async def test_trace_without_delivery(nats_server: Server) -> None:
    async with client(nats_server.url, name="tracer") as nc, client(nats_server.url, name="reader") as other:
        await nc.jetstream().create_stream(name="S", subjects=["orders.>"])
        alone = await other.subscribe("orders.*")
        shared = await other.subscribe("orders.eu", queue="workers")
        await other.flush()
        trace = await nc.trace("orders.eu", b"42", headers={"Tag": ["a", "b"]}, timeout=30)
        assert (trace.subject, trace.complete, len(trace.servers)) == ("orders.eu", True, 1)
        (server,) = trace.servers
        assert (server.name, server.hop, server.hops) == (nats_server.name, "", 0)
        ingress = server.events[0]
        assert (ingress.type, ingress.kind, ingress.name) == ("ingress", "client", "tracer")
        assert ingress.connection_id == nc.client_id
        assert abs(ingress.at - datetime.now(UTC)) < timedelta(minutes=1)
        got = sorted((event.name, event.subscription, event.queue) for event in trace.deliveries)
        assert got == [("reader", "orders.*", ""), ("reader", "orders.eu", "workers")]
        assert [event.stream for event in trace.stored] == ["S"]
        assert trace.errors == ()
        await other.flush()
        assert (alone.pending_msgs, shared.pending_msgs) == (0, 0)
        assert (await (await nc.jetstream().stream("S")).info()).state.messages == 0
        drawn = str(trace).splitlines()
        assert drawn[0].startswith(nats_server.name)
        assert "  --> client 'reader', subscription 'orders.eu', queue 'workers'" in drawn
        assert len(nc._engine.registry.subscriptions) == 0

        delivered = await nc.trace("orders.eu", b"42", deliver=True, timeout=30)
        assert delivered.complete
        message = await alone.next(timeout=5)
        assert message.data == b"42"
        assert "Nats-Trace-Only" not in message.headers


@pytest.mark.slow
@also_uvloop
async def test_a_trace_follows_a_message_through_a_cluster() -> None:
    async with run_cluster(3) as cluster:
        urls = cluster.urls
        async with client(urls[0]) as nc, client(urls[1], name="near") as near, client(urls[2], name="far") as far:
            await near.subscribe("a")
            await far.subscribe("a")
            await asyncio.gather(near.flush(), far.flush())
            trace = await nc.trace("a", timeout=0.5)
            while len(trace.deliveries) < 2 or not trace.complete:  # the servers tell each other in their own time
                trace = await nc.trace("a", timeout=0.5)
            assert [server.hop for server in trace.servers] == ["", "1", "2"]
            assert {event.name for event in trace.deliveries} == {"near", "far"}
            assert {event.kind for event in trace.servers[0].events if event.type == "egress"} == {"router"}
            assert {server.cluster for server in trace.servers} != {""}


@also_uvloop
async def test_trace_of_refused_message() -> None:
    config = """authorization { users = [ { user: "a", password: "b", permissions: { publish: { deny: "no" } } } ] }"""
    with run_server(config=config) as server:
        async with client(server.url, user="a", password="b") as nc:
            trace = await nc.trace("no", timeout=30)
            assert trace.complete
            assert "Permissions Violation" in trace.errors[0].error
            assert "ERROR" in str(trace)


@also_uvloop
async def test_bad_traces_are_refused(nats_server: Server) -> None:
    async with client(nats_server.url) as nc:
        with pytest.raises(ConfigError, match="Nats-Trace-Dest"):
            await nc.trace("a", headers={"Nats-Trace-Dest": "b"})
        with pytest.raises(InvalidSubject):
            await nc.trace("a.>")
        assert nc._engine.registry.subscriptions == []


# ---------------------------------------------------------------- the system account


@pytest.fixture
def accounts() -> Iterator[Server]:
    with run_server(jetstream=True, config=ACCOUNTS) as server:
        yield server


@also_uvloop
async def test_system_account_queries_servers(accounts: Server) -> None:
    async with (
        client(accounts.url, user="sys", password="p") as nc,
        client(accounts.url, user="a", password="p", name="mine") as other,
    ):
        system = nc.system()
        (reply,) = [reply async for reply in system.servers(timeout=30, stall=0.1)]
        assert (reply.server_name, reply.version) == (accounts.name, nc.server_info.version)
        assert reply.server_id == nc.server_info.server_id
        kinds: tuple[ServerKind, ...] = ("VARZ", "JSZ", "HEALTHZ", "IDZ", "SUBSZ")
        for kind in kinds:
            answered = await system.server(reply.server_id, kind)
            assert answered.server_id == reply.server_id
            assert answered.data
        (connz,) = [reply async for reply in system.servers("CONNZ", timeout=30, stall=0.1, acc="A", auth=True)]
        connections = connz.data["connections"]
        assert isinstance(connections, list)
        assert [connection["name"] for connection in connections] == ["mine"]
        (info,) = [reply async for reply in system.account("A", timeout=30, stall=0.1)]
        assert info.data["account_name"] == "A"
        (conns,) = [reply async for reply in system.account("A", "CONNS", timeout=30, stall=0.1)]
        assert conns.data["conns"] == 1
        with pytest.raises(ServerError, match="limit"):
            await system.server(reply.server_id, "CONNZ", limit="many")
        with pytest.raises(NoResponders):
            await system.server("nobody", timeout=5)
        assert (await other.system().user_info()).data["account"] == "A"
        with pytest.raises((NoResponders, PermissionDenied, RequestTimeout)):
            await other.system().server(reply.server_id, "VARZ", timeout=1)


# ---------------------------------------------------------------- contexts


@pytest.fixture
def contexts(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    folder = tmp_path / "nats" / "context"
    folder.mkdir(parents=True)
    monkeypatch.setenv("XDG_CONFIG_HOME", str(tmp_path))
    return folder


async def test_connect_with_nats_cli_context(accounts: Server, contexts: Path) -> None:
    settings = {"url": accounts.url, "user": "a", "password": "p", "inbox_prefix": "_MINE"}
    (contexts / "staging.json").write_text(json.dumps(settings))
    async with natsproto.connect(context="staging", name="shop") as nc:
        assert (await nc.system().user_info()).data["account"] == "A"
        assert nc.new_inbox().startswith("_MINE.")
    (contexts / "elsewhere.json").write_text(json.dumps({**settings, "url": "nats://127.0.0.1:1"}))
    async with natsproto.connect(accounts.url, context="elsewhere") as nc:
        assert nc.connected_url == accounts.url
    async with natsproto.connect(context="staging", user="sys") as nc:
        assert (await nc.system().user_info()).data["account"] == "SYS"
    with sync.connect(context="staging") as blocking:
        assert blocking.health(timeout=30)
        assert blocking.trace("a", timeout=30).complete
    with pytest.raises(ConfigError, match="nowhere"):
        natsproto.connect(context="nowhere")
    with pytest.raises(ConfigError, match="from_context"):
        natsproto.connect(natsproto.Options(), context="staging")
