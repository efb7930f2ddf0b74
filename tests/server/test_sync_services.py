"""The blocking client's services: plain functions answer, each request on a thread of its own."""

from __future__ import annotations

import threading

import pytest

from natsproto import sync
from natsproto.errors import ConfigError, InvalidSubject, NatsError, RequestTimeout, ServiceError
from natsproto.testing import Server
from tests.server.helpers import loops


def test_returned_data_is_told(nc: sync.Client, caplog: pytest.LogCaptureFixture) -> None:
    with nc.add_service("calc", "1.0.0") as service:
        service.add_endpoint("returns", lambda request: b"42")
        for _ in range(2):
            with pytest.raises(RequestTimeout):
                nc.call("returns", b"", timeout=0.2)
    assert [line for line in caplog.messages if "endpoint 'returns' returned bytes, which is not sent" in line]


def test_handlers_may_block_and_use_the_client(nc: sync.Client) -> None:
    with nc.add_service("calc", "1.0.0", description="adds", metadata={"a": "b"}) as service:

        @service.endpoint("double")
        def double(request: sync.Request) -> None:
            request.respond(request.data * 2, headers={"By": threading.current_thread().name})

        @service.group("v1").group("deep").endpoint(metadata={"c": "d"})
        def twice(request: sync.Request) -> None:
            request.respond(nc.request("double", nc.call("double", request.data, timeout=5).data, timeout=5).data)

        reply = nc.call("double", b"ab", timeout=5)
        assert (reply.data, reply.headers["By"]) == (b"abab", "natsproto double 1")
        assert nc.call("v1.deep.twice", b"x", timeout=5).data == b"xxxx"
        (info,) = nc.discover_services("calc", timeout=30)
        assert info == service.info()
        assert (service.id, service.name, service.version) == (info.id, "calc", "1.0.0")
        assert [endpoint.subject for endpoint in service.endpoints] == ["double", "v1.deep.twice"]
        assert service.endpoints[1].info().metadata == {"c": "d"}
        assert [endpoint.num_requests for endpoint in service.stats().endpoints] == [3, 1]
        service.endpoints[0].reset()
        assert service.endpoints[0].stats(lambda endpoint: endpoint.name).data == "double"
        service.reset()
        assert [endpoint.num_requests for endpoint in service.stats().endpoints] == [0, 0]
    assert list(nc.discover_services("calc", stall=0.1)) == []
    assert service.wait_stopped() is None


def test_what_a_handler_raises_is_the_answer(nc: sync.Client) -> None:
    with nc.add_service("shop", "1.0.0", stats_handler=lambda endpoint: {"of": endpoint.name}) as service:

        def refuse(request: sync.Request) -> None:
            raise ServiceError(400, "no")

        def fail(request: sync.Request) -> None:
            raise ZeroDivisionError

        def leave(request: sync.Request) -> None:
            raise SystemExit("the end")

        def explain(request: sync.Request) -> None:
            if request.data == b"again":
                request.respond()
                return
            request.respond_error(404, "nothing there", b"at all")
            assert request.error is not None

        for handler in (refuse, fail, leave, explain):
            service.add_endpoint(handler.__name__, handler, concurrency=1)
        for name, code in (("refuse", 400), ("fail", 500), ("leave", 500), ("explain", 404)):
            with pytest.raises(ServiceError) as refused:
                nc.call(name, timeout=5)
            assert refused.value.code == code
        nc.call("explain", b"again", timeout=5)  # is handled when the first one is counted
        (stats,) = nc.service_stats("shop", timeout=30)
        assert [(endpoint.name, endpoint.num_errors, endpoint.data) for endpoint in stats.endpoints] == [
            (name, 1, {"of": name}) for name in ("refuse", "fail", "leave", "explain")
        ]

        async def handler_of_the_other_client(request: sync.Request) -> None: ...

        with pytest.raises(TypeError, match=r"needs parentheses: @service\.endpoint\(\)"):
            service.endpoint(refuse)  # type: ignore[call-overload,arg-type,unused-ignore]
        with pytest.raises(TypeError, match="plain function"):
            service.add_endpoint("a", handler_of_the_other_client)
        with pytest.raises(ConfigError):
            service.add_endpoint("a b", refuse)
        with pytest.raises(InvalidSubject):
            service.add_endpoint("a", refuse, subject="a..b")
        with pytest.raises(ConfigError):
            service.group(">")


def test_concurrency_limits_handler_threads(nc: sync.Client) -> None:
    three = threading.Barrier(3)
    inside: set[str] = set()
    most = 0
    lock = threading.Lock()

    def handle(request: sync.Request) -> None:
        nonlocal most
        with lock:
            inside.add(request.data.decode())
            most = max(most, len(inside))
        three.wait(10)  # nobody goes on alone
        with lock:
            inside.discard(request.data.decode())
        request.respond(request.data)

    with nc.add_service("slow", "1.0.0") as service:
        service.add_endpoint("slow", handle, concurrency=3)
        replies: list[bytes] = []
        threads = [
            threading.Thread(target=lambda n=n: replies.append(nc.call("slow", b"%d" % n, timeout=20).data))
            for n in range(9)
        ]
        for thread in threads:
            thread.start()
        for thread in threads:
            thread.join(20)
            assert not thread.is_alive()
    assert (sorted(replies), most) == ([b"%d" % number for number in range(9)], 3)


def test_stop_in_handler_finishes_requests(nc: sync.Client) -> None:
    service = nc.add_service("shop", "1.0.0")
    begun, go_on, stopped = threading.Event(), threading.Event(), threading.Event()

    @service.endpoint("slow")
    def slow(request: sync.Request) -> None:
        begun.set()
        assert go_on.wait(10)
        request.respond(b"done")

    @service.endpoint("stop")
    def stop(request: sync.Request) -> None:
        request.respond(b"stopping")
        service.stop()  # waits for the other endpoint
        stopped.set()

    replies: list[bytes] = []
    thread = threading.Thread(target=lambda: replies.append(nc.request("slow", timeout=20).data))
    thread.start()
    assert begun.wait(10)
    assert nc.request("stop", timeout=5).data == b"stopping"
    go_on.set()
    assert stopped.wait(10)
    thread.join(10)
    assert (replies, service.wait_stopped()) == ([b"done"], None)
    service.stop()


def test_client_close_stops_service_not_handlers(nats_server: Server) -> None:
    nc = sync.connect(nats_server.url)
    service = nc.add_service("shop", "1.0.0")
    begun, go_on, ended = threading.Event(), threading.Event(), threading.Event()

    @service.endpoint("slow")
    def slow(request: sync.Request) -> None:
        begun.set()
        assert go_on.wait(10)
        ended.set()

    nc.flush()
    with sync.connect(nats_server.url) as other:
        other.publish("slow")
        assert begun.wait(10)
        nc.close()
        go_on.set()
        assert ended.wait(10)
    assert loops() == []


def test_handler_may_drain_the_client(nats_server: Server) -> None:
    ended: list[BaseException | None] = []
    over = threading.Event()
    with sync.connect(nats_server.url) as asking:
        serving = sync.connect(nats_server.url)

        def leave(request: sync.Request) -> None:
            request.respond(b"bye")
            try:
                serving.drain(20)
                ended.append(None)
            except NatsError as exc:
                ended.append(exc)
            over.set()

        serving.add_service("once", "1.0.0").add_endpoint("leave", leave)
        serving.flush()
        assert asking.call("leave", timeout=5).data == b"bye"
        assert over.wait(40)
    assert ended == [None]
