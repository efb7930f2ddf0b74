"""Services on a real server: found, asked, measured, stopped."""

from __future__ import annotations

import asyncio
import json
from collections import Counter
from collections.abc import Awaitable, Callable
from contextvars import ContextVar
from datetime import UTC, datetime, timedelta

import pytest

from natsproto._client import Client
from natsproto._core.events import HandlerFailed
from natsproto.errors import (
    ConfigError,
    ConnectionClosed,
    DrainTimeout,
    InvalidSubject,
    LocalProtocolError,
    NatsError,
    NoResponders,
    PermissionDenied,
    RequestTimeout,
    ServiceError,
)
from natsproto.protocol.frames import Message
from natsproto.service import INHERITED, Endpoint, Request, error_of
from natsproto.service._responses import cut_description, error_headers
from natsproto.testing import Server, run_server
from tests.kit.waiting import until
from tests.kit.watch import Watch
from tests.server.helpers import answered, both_loops, client


async def add(request: Request) -> None:
    await request.respond(b"%d" % sum(map(int, request.data.split())))


# ---------------------------------------------------------------- being found


@both_loops
async def test_instances_answer_each_control_subject_once(nats_server: Server) -> None:
    async with client(nats_server.url) as one, client(nats_server.url) as two:
        instances = [await nc.add_service(name, "1.0.0") for nc in (one, two) for name in ("calc", "calc", "echo")]
        await asyncio.gather(one.flush(), two.flush())
        calc = [service.id for service in instances if service.name == "calc"]
        for verb in ("PING", "INFO", "STATS"):
            for subject, wanted in (
                (f"$SRV.{verb}", [service.id for service in instances]),
                (f"$SRV.{verb}.calc", calc),
                (f"$SRV.{verb}.calc.{calc[0]}", calc[:1]),
            ):
                async with one.subscribe(one.new_inbox()) as replies:
                    await one.publish(subject, reply=replies.subject)
                    said = [json.loads((await replies.next(timeout=5)).data) for _ in wanted]
                    for nc in (one, two, one):  # who was asked has answered, and the answers are here
                        await nc.flush()
                    assert replies.pending_msgs == 0
                assert sorted(reply["id"] for reply in said) == sorted(wanted)
                assert {reply["type"] for reply in said} == {f"io.nats.micro.v1.{verb.lower()}_response"}
        with pytest.raises(NoResponders):
            await one.request("$SRV.PING.calc.nobody", timeout=5)


@both_loops
async def test_the_client_side_finds_describes_and_measures(nats_server: Server) -> None:
    async with client(nats_server.url) as nc, client(nats_server.url) as other:
        before = datetime.now(UTC)
        service = await nc.add_service(
            "calc", "1.2.3-rc.1+build.5", description="adds", metadata={"zone": "eu"}, stats_handler=lambda e: [e.name]
        )
        service.add_endpoint("add", add, metadata={"unit": "none"})
        await nc.add_service("echo", "0.1.0", queue_group=None)
        await nc.flush()

        found = await answered(lambda: other.discover_services(stall=0.1), 2)
        assert sorted(info.name for info in found) == ["calc", "echo"]
        assert await answered(lambda: other.discover_services("calc", stall=0.1)) == [service.info()]
        assert await answered(lambda: other.discover_services("calc", service.id, stall=0.1)) == [service.info()]
        assert [info async for info in other.discover_services("nobody", stall=0.1)] == []
        info = service.info()
        assert (info.version, info.description, info.metadata) == ("1.2.3-rc.1+build.5", "adds", {"zone": "eu"})
        assert [(e.name, e.subject, e.queue_group, e.metadata) for e in info.endpoints] == [
            ("add", "add", "q", {"unit": "none"})
        ]

        pings = await answered(lambda: other.ping_services(timeout=timedelta(seconds=5), stall=0.2), 2)
        assert sorted(ping.name for ping in pings) == ["calc", "echo"]
        assert all(0 < ping.rtt < 5 for ping in pings)

        assert (await other.call("add", b"1 2")).data == b"3"
        (stats,) = await answered(lambda: other.service_stats("calc", stall=0.1))
        assert stats == service.stats()
        assert before <= stats.started <= datetime.now(UTC)
        (endpoint,) = stats.endpoints
        assert (endpoint.num_requests, endpoint.num_errors, endpoint.last_error) == (1, 0, "")
        assert endpoint.data == ["add"]
        assert 0 < endpoint.processing_time < 5
        assert endpoint.average_processing_time == endpoint.processing_time
        with pytest.raises(ConfigError, match="name of the service"):
            other.discover_services(id="x")


@both_loops
async def test_service_prefix_replaces_srv(nats_server: Server) -> None:
    async with client(nats_server.url) as nc:
        await nc.add_service("calc", "1.0.0", prefix="acc.Srv")
        found = await answered(lambda: nc.discover_services(prefix="acc.Srv", stall=0.1))
        assert [info.name for info in found] == ["calc"]
        assert [info.name async for info in nc.discover_services(stall=0.1)] == []
        assert [info.name async for info in nc.ping_services(prefix="acc.srv", stall=0.1)] == []


@both_loops
async def test_an_answer_that_cannot_be_read_is_skipped(nats_server: Server) -> None:
    async with client(nats_server.url) as nc:
        answers = [b"", b"nonsense", b"[]", b'{"type":"io.nats.micro.v1.info_response"}', b"\xff", b"[" * 5000]
        answers += [
            b'{"type":"io.nats.micro.v1.info_response","name":"a","id":"b","metadata":["c"]}',
            b'{"type":"io.nats.micro.v1.ping_response"}',
        ]

        async def lies(message: Message) -> None:
            for answer in answers:
                nc.publish_nowait(message.reply or "", answer, headers={"A": "b"})
            await message.respond(b"", headers=error_headers(500, "no"))

        await nc.subscribe("$SRV.INFO", cb=lies)
        await nc.add_service("calc", "1.0.0")
        assert [info.name for info in await answered(lambda: nc.discover_services(stall=0.1))] == ["calc"]


# ---------------------------------------------------------------- groups and queue groups


@both_loops
async def test_groups_prefix_subjects_and_share_queue_group(nats_server: Server) -> None:
    async with client(nats_server.url) as nc:
        service = await nc.add_service("calc", "1.0.0", queue_group="svc")
        v1 = service.group("v1")
        admin = v1.group("admin", queue_group="adm")
        loud = admin.group("", queue_group=None)

        @service.endpoint()
        def plain(request: Request) -> None: ...

        @v1.endpoint("named", subject="other.*.>")
        def whatever(request: Request) -> None: ...

        admin.add_endpoint("reset", whatever)
        admin.add_endpoint("own", whatever, queue_group="mine", metadata={"a": "b"})
        loud.add_endpoint("all", whatever)
        loud.add_endpoint("again", whatever, queue_group=INHERITED)
        service.add_endpoint("none", whatever, queue_group=None)
        service.add_endpoint("none", whatever, subject="twice.the.same.name")
        assert [(e.name, e.subject, e.queue_group) for e in service.info().endpoints] == [
            ("plain", "plain", "svc"),
            ("named", "v1.other.*.>", "svc"),
            ("reset", "v1.admin.reset", "adm"),
            ("own", "v1.admin.own", "mine"),
            ("all", "v1.admin.all", ""),
            ("again", "v1.admin.again", ""),
            ("none", "none", ""),
            ("none", "twice.the.same.name", "svc"),
        ]
        assert [(e.name, e.queue_group) for e in service.endpoints][-2:] == [("none", None), ("none", "svc")]


@both_loops
async def test_endpoint_with_and_without_queue_group(nats_server: Server) -> None:
    async with client(nats_server.url) as nc, client(nats_server.url) as other:
        got: Counter[str] = Counter()
        for name, connection in (("one", nc), ("two", other)):
            service = await connection.add_service("calc", "1.0.0")

            async def shared(request: Request, name: str = name) -> None:
                got[f"shared {name}"] += 1
                await request.respond(name.encode())

            async def every(request: Request, name: str = name) -> None:
                got[f"every {name}"] += 1
                await request.respond(name.encode())

            service.add_endpoint("shared", shared)
            service.add_endpoint("every", every, queue_group=None)
        await asyncio.gather(nc.flush(), other.flush())
        await asyncio.gather(*(nc.call("shared", timeout=10) for _ in range(200)))
        assert got["shared one"] + got["shared two"] == 200
        assert min(got["shared one"], got["shared two"]) > 0
        for _ in range(10):
            assert {m.data async for m in nc.request_many("every", timeout=5, max_messages=2)} == {b"one", b"two"}
        assert got["every one"] == got["every two"] == 10


# ---------------------------------------------------------------- answering


@both_loops
async def test_errors_are_answered_counted_and_reported(nats_server: Server) -> None:
    watch = Watch()
    async with client(nats_server.url, on_event=watch) as nc:
        service = await nc.add_service("calc", "1.0.0")

        @service.endpoint("refuse")
        def refuse(request: Request) -> None:
            raise ServiceError(400, "bad\r\ninput: ü")

        @service.endpoint("explain")
        async def explain(request: Request) -> None:
            await request.respond_error(418, "teapot", b"details", headers={"Tag": ["a", "b"]})

        @service.endpoint("fail")
        async def fail(request: Request) -> None:
            raise ValueError("secret \n of the house")

        @service.endpoint("huge")
        async def huge(request: Request) -> None:
            await request.respond(bytes(nc.max_payload + 1))

        @service.endpoint("cancelled")
        async def cancelled(request: Request) -> None:
            raise asyncio.CancelledError

        expected = {
            "refuse": (400, "bad input: ü"),
            "explain": (418, "teapot"),
            "fail": (500, "ValueError: secret of the house"),
            "cancelled": (500, "CancelledError: "),
        }
        for subject, (code, description) in expected.items():
            reply = await nc.request(subject, timeout=5)
            error = error_of(reply)
            assert error is not None
            assert (error.code, error.description) == (code, description.strip())
            with pytest.raises(ServiceError, match=description.strip()) as raised:
                await nc.call(subject, timeout=5)
            assert raised.value.code == code
        with pytest.raises(ServiceError, match="PayloadTooLarge"):
            await nc.call("huge", timeout=5)
        reply = await nc.request("explain", timeout=5)
        assert (reply.data, reply.headers.get_all("Tag")) == (b"details", ["a", "b"])
        assert reply.headers["Nats-Service-Error-Code"] == "418"
        assert reply.headers["Nats-Service-Error"] == "teapot"
        stats = {endpoint.name: endpoint for endpoint in service.stats().endpoints}
        assert {name: (s.num_requests, s.num_errors) for name, s in stats.items()} == {
            "refuse": (2, 2),
            "explain": (3, 3),
            "fail": (2, 2),
            "huge": (1, 1),
            "cancelled": (2, 2),
        }
        assert stats["explain"].last_error == "418:teapot"
        assert {event.handler for event in watch.all(HandlerFailed)} == {
            "endpoint 'fail'",
            "endpoint 'huge'",
            "endpoint 'cancelled'",
        }
        service.reset()
        assert {(e.num_requests, e.num_errors, e.last_error, e.processing_time) for e in service.stats().endpoints} == {
            (0, 0, "", 0.0)
        }


@both_loops
async def test_endpoint_handles_message_without_reply(nats_server: Server) -> None:
    async with client(nats_server.url) as nc:
        raised: list[Exception] = []
        service = await nc.add_service("log", "1.0.0")

        @service.endpoint("log")
        async def log(request: Request) -> None:
            try:
                await request.respond(b"x")
            except LocalProtocolError as exc:
                raised.append(exc)
            raise ServiceError(400, "no")

        await nc.publish("log", b"x")
        await until(lambda: service.stats().endpoints[0].num_errors)
        assert len(raised) == 1


@both_loops
async def test_failing_stats_handler_costs_only_its_data(nats_server: Server) -> None:
    def broken(endpoint: Endpoint) -> object:
        if endpoint.name == "a":
            raise ValueError
        return object() if endpoint.name == "b" else {"fine": True}

    async with client(nats_server.url) as nc:
        service = await nc.add_service("calc", "1.0.0", stats_handler=broken)
        for name in "abc":
            service.add_endpoint(name, add)
        (stats,) = await answered(lambda: nc.service_stats("calc", stall=0.1))
        assert [endpoint.data for endpoint in stats.endpoints] == [None, None, {"fine": True}]


@both_loops
async def test_at_most_so_many_requests_are_handled_at_once(nats_server: Server) -> None:
    async with client(nats_server.url) as nc:
        service = await nc.add_service("calc", "1.0.0")
        most: Counter[str] = Counter()
        now: Counter[str] = Counter()
        order: list[bytes] = []
        go_on = asyncio.Event()

        async def slow(request: Request) -> None:
            now[request.subject] += 1
            most[request.subject] = max(most[request.subject], now[request.subject])
            await go_on.wait()
            now[request.subject] -= 1
            if request.subject == "one":
                order.append(request.data)
            await request.respond(request.data)

        one = service.add_endpoint("one", slow, concurrency=1)
        service.add_endpoint("five", slow, concurrency=5)
        many = service.add_endpoint("many", slow)
        sent = [b"%d" % number for number in range(100)]
        tasks = [asyncio.create_task(nc.request(s, p, timeout=10)) for p in sent for s in ("one", "five", "many")]
        await until(lambda: now == {"one": 1, "five": 5, "many": 64})
        await until(lambda: (one.pending, many.in_progress, many.pending) == (99, 64, 36))
        assert one.in_progress == 1
        go_on.set()
        await asyncio.gather(*tasks)
        assert most == {"one": 1, "five": 5, "many": 64}
        assert order == sent
        assert (one.in_progress, one.pending) == (0, 0)


@both_loops
async def test_context_variables_of_handlers_are_separate(nats_server: Server) -> None:
    user: ContextVar[str] = ContextVar("user", default="nobody")
    async with client(nats_server.url) as nc:
        user.set("the one who made the service")
        service = await nc.add_service("who", "1.0.0")

        @service.endpoint("who", concurrency=1)
        async def who(request: Request) -> None:
            seen = user.get()
            user.set(request.data.decode())
            await request.respond(seen.encode())

        for name in (b"ada", b"ben"):
            assert (await nc.request("who", name, timeout=5)).data == b"the one who made the service"


# ---------------------------------------------------------------- ending


@both_loops
async def test_stop_handles_received_requests(nats_server: Server) -> None:
    async with client(nats_server.url) as nc, client(nats_server.url) as other:
        service = await nc.add_service("calc", "1.0.0")
        go_on = asyncio.Event()

        async def slow(request: Request) -> None:
            await go_on.wait()
            await request.respond(request.data)

        endpoint = service.add_endpoint("slow", slow, concurrency=3)
        await nc.flush()
        tasks = [asyncio.create_task(other.request("slow", b"%d" % n, timeout=10)) for n in range(10)]
        await until(lambda: endpoint.pending == 7)
        stopping = asyncio.create_task(service.stop(ValueError("enough")))
        second = asyncio.create_task(service.stop())
        while True:  # the server forgets the endpoint in its own time
            try:
                await other.request("slow", b"late", timeout=0.05)
            except NoResponders:
                break
            except RequestTimeout:
                continue
        assert [ping.id for ping in await answered(lambda: other.ping_services("calc", stall=0.1))] == [service.id]
        assert not stopping.done()
        go_on.set()
        assert sorted(int(reply.data) for reply in await asyncio.gather(*tasks)) == list(range(10))
        await asyncio.gather(stopping, second)
        assert str(await service.wait_stopped()) == "enough"
        await service.stop()
        await nc.flush()
        assert [ping.id async for ping in other.ping_services("calc", stall=0.1)] == []
        assert nc._engine.registry.subscriptions == []
        assert nc._engine.event_bus._listeners == []
        with pytest.raises(ConfigError, match="has stopped"):
            service.add_endpoint("late", slow)


def hanging(cancelled: asyncio.Event) -> Callable[[Request], Awaitable[None]]:
    """A handler that never returns, and sets the event when it is cancelled."""

    async def hangs(_: Request) -> None:
        try:
            await asyncio.get_running_loop().create_future()
        finally:
            cancelled.set()

    return hangs


@both_loops
async def test_stop_gives_up_on_time_and_says_what_it_left(nats_server: Server) -> None:
    async with client(nats_server.url) as nc:
        cancelled = asyncio.Event()

        service = await nc.add_service("calc", "1.0.0")
        endpoint = service.add_endpoint("hangs", hanging(cancelled), concurrency=1)
        for _ in range(3):
            await nc.publish("hangs", reply="nobody")
        await until(lambda: endpoint.pending == 2)
        with pytest.raises(DrainTimeout, match="3 unfinished requests of endpoint 'hangs'"):
            await service.stop(timeout=0.4)
        await cancelled.wait()
        assert await service.wait_stopped() is None
        assert nc._engine.registry.subscriptions == []


@both_loops
async def test_stop_cancelled_is_a_stop_all_the_same(nats_server: Server) -> None:
    async with client(nats_server.url) as nc:
        service = await nc.add_service("calc", "1.0.0")
        endpoint = service.add_endpoint("hangs", lambda request: asyncio.get_running_loop().create_future())
        await nc.publish("hangs")
        await until(lambda: endpoint.in_progress)
        task = asyncio.create_task(service.stop())
        await nc.flush()
        task.cancel()
        await asyncio.wait([task])
        assert task.cancelled()
        assert await service.wait_stopped() is None
        await until(lambda: not endpoint.in_progress)
        assert nc._engine.registry.subscriptions == []


@both_loops
async def test_a_handler_may_stop_its_own_service(nats_server: Server) -> None:
    async with client(nats_server.url) as nc:
        service = await nc.add_service("calc", "1.0.0")

        @service.endpoint("stop", concurrency=1)
        async def stop(request: Request) -> None:
            await service.stop(timeout=5)
            await request.respond(b"stopped")

        replies = await asyncio.gather(*(nc.request("stop", timeout=5) for _ in range(3)))
        assert [reply.data for reply in replies] == [b"stopped"] * 3, "those that waited are answered too"
        assert await service.wait_stopped() is None


@both_loops
async def test_leaving_the_block_stops_it(nats_server: Server) -> None:
    async with client(nats_server.url) as nc:
        async with nc.add_service("calc", "1.0.0") as service:
            service.add_endpoint("add", add)
            assert (await nc.call("add", b"1 2", timeout=5)).data == b"3"
        with pytest.raises(NoResponders):
            await nc.call("add", b"1 2", timeout=5)


@both_loops
async def test_client_drain_handles_received_requests(nats_server: Server) -> None:
    async with client(nats_server.url) as nc, client(nats_server.url) as other:
        service = await nc.add_service("calc", "1.0.0")
        go_on = asyncio.Event()

        async def slow(request: Request) -> None:
            await go_on.wait()
            await request.respond(request.data)

        endpoint = service.add_endpoint("slow", slow, concurrency=2)
        single = service.add_endpoint("single", slow, concurrency=1)
        await nc.flush()
        tasks = [asyncio.create_task(other.request(s, b"x", timeout=10)) for s in ("slow", "single") for _ in range(8)]
        await until(lambda: (endpoint.pending, single.pending) == (6, 7))
        draining = asyncio.create_task(nc.drain())
        asyncio.get_running_loop().call_later(0.02, go_on.set)
        assert [reply.data for reply in await asyncio.gather(*tasks)] == [b"x"] * 16
        await draining
        assert await service.wait_stopped() is None


@both_loops
async def test_closing_the_client_cancels_what_is_in_hand(nats_server: Server) -> None:
    async with client(nats_server.url) as nc:
        service = await nc.add_service("calc", "1.0.0")
        cancelled = asyncio.Event()

        endpoint = service.add_endpoint("hangs", hanging(cancelled), concurrency=1)
        for _ in range(3):
            await nc.publish("hangs", reply="nobody")
        await until(lambda: endpoint.pending == 2)
        await nc.close()
        await cancelled.wait()
        assert await service.wait_stopped() is None
        await until(lambda: not endpoint.in_progress)
        await service.stop()
        with pytest.raises(ConnectionClosed):
            await nc.add_service("calc", "1.0.0")


@both_loops
async def test_refused_endpoint_stops_the_service() -> None:
    config = 'authorization { users = [ { user: "a", password: "b", permissions: { subscribe: { deny: "no" } } } ] }'
    with run_server(config=config) as server:
        async with client(server.url, user="a", password="b") as nc:
            service = await nc.add_service("calc", "1.0.0")
            service.add_endpoint("yes", add)
            service.add_endpoint("no", add)
            reason = await service.wait_stopped()
            assert isinstance(reason, PermissionDenied)
            assert reason.subject == "no"
            await nc.flush()
            assert nc._engine.registry.subscriptions == []


# ---------------------------------------------------------------- reconnects


@both_loops
async def test_a_service_goes_on_when_its_server_comes_back(nats_server: Server) -> None:
    async with (
        client(nats_server.url, reconnect_wait=0.01, fail_requests_on_disconnect=False) as nc,
        client(nats_server.url, reconnect_wait=0.01, fail_requests_on_disconnect=False) as other,
    ):
        service = await nc.add_service("calc", "1.0.0")
        go_on = asyncio.Event()

        async def slow(request: Request) -> None:
            await go_on.wait()
            await request.respond(request.data)

        service.add_endpoint("slow", slow)
        service.add_endpoint("add", add)
        await nc.flush()
        in_hand = asyncio.create_task(other.request("slow", b"before", timeout=10))
        await until(lambda: service.endpoints[0].in_progress)
        nats_server.kill()
        await until(lambda: not nc.is_connected and not other.is_connected)
        go_on.set()
        await nats_server.restart()
        await asyncio.gather(nc.flush(timeout=10), other.flush(timeout=10))
        assert (await other.call("add", b"1 2", timeout=5)).data == b"3"
        assert [info.id for info in await answered(lambda: other.discover_services("calc", stall=0.1))] == [service.id]
        in_hand.cancel()  # the answer may have come before the asker's interest was back


# ---------------------------------------------------------------- bad arguments


async def test_service_arguments_are_checked_first(nats_client: Client) -> None:
    nc = nats_client

    def refused(expected: type[Exception], *args: object, **kwargs: object) -> None:
        with pytest.raises(expected):
            nc.add_service(*args, **kwargs)  # type: ignore[arg-type]

    for name in ("", "a.b", "a b", "a>", "ü", "a\n"):
        refused(ConfigError, name, "1.0.0")
    for version in (
        "",
        "1",
        "1.0",
        "v1.0.0",
        "01.0.0",
        "1.0.0-",
        "1.0.0-01",
        "1.0.0+",
        "1.0.0\n",
        "1.0.0-a..b",
        "\u0661.0.0",
    ):
        refused(ConfigError, "a", version)
    for version in ("1.0.0", "1.0.0-0.3.7", "1.0.0-x.7.z.92", "1.0.0+001", "1.0.0-beta+exp.sha.5114f85", "1.0.0--"):
        await nc.add_service("a", version).stop()
    refused(TypeError, 5, "1.0.0")
    refused(TypeError, "a", 1)
    refused(TypeError, "a", "1.0.0", description=5)
    refused(TypeError, "a", "1.0.0", metadata={"a": 1})
    refused(TypeError, "a", "1.0.0", stats_handler=5)
    refused(NatsError, "a", "1.0.0", queue_group="a b")
    refused(InvalidSubject, "a", "1.0.0", prefix="a.>")
    assert nc._engine.registry.subscriptions == []
    assert nc._engine.event_bus._listeners == []

    service = await nc.add_service("a", "1.0.0")
    with pytest.raises(ConfigError):
        service.add_endpoint("a.b", add)
    with pytest.raises(InvalidSubject):
        service.add_endpoint("a", add, subject="a..b")
    with pytest.raises(TypeError):
        service.add_endpoint("a", "add")  # type: ignore[arg-type]
    with pytest.raises(TypeError):
        service.add_endpoint("a", add, metadata={1: "a"})  # type: ignore[dict-item]
    for concurrency in (0, -1, True, 1.5):
        with pytest.raises(ConfigError):
            service.add_endpoint("a", add, concurrency=concurrency)  # type: ignore[arg-type]
    for name in ("a.>", ">", "a b", "a..b", "."):
        with pytest.raises(ConfigError):
            service.group(name)
    with pytest.raises(AttributeError):
        service.info().name = "b"  # type: ignore[misc]
    with pytest.raises(TypeError):
        service.metadata["a"] = "b"  # type: ignore[index]
    assert service.endpoints == ()


def test_an_error_answer_is_known_by_its_headers() -> None:
    def reply(block: bytes) -> Message:
        return Message("a", None, b"", block)

    assert error_headers(404, "not\r\nfound\0!") == {
        "Nats-Service-Error": "not found !",
        "Nats-Service-Error-Code": "404",
    }
    assert [len(cut_description("x" * 5000, limit)) for limit in (0, 2**20, 4096)] == [1024, 1024, 256]
    assert cut_description("\ud800", 0) == "?"
    assert error_of(Message("a", None, b"", None)) is None
    assert error_of(reply(b"NATS/1.0\r\nA: b\r\n\r\n")) is None
    for block, code, description in (
        (b"Nats-Service-Error: no\r\nNats-Service-Error-Code: 404", 404, "no"),
        (b"Nats-Service-Error: no", 0, "no"),
        (b"Nats-Service-Error-Code: nonsense", 0, ""),
        (b"Nats-Service-Error-Code: 99999999999999999999", 0, ""),
    ):
        error = error_of(reply(b"NATS/1.0\r\n" + block + b"\r\n\r\n"))
        assert error is not None
        assert (error.code, error.description) == (code, description)
