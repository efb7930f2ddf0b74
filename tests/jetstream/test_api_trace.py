"""Whoever looks on is told of every request to the API, and of nothing that users have stored."""

from __future__ import annotations

import asyncio
import json
import logging

import pytest

from natsproto import Client
from natsproto.errors import (
    ConfigError,
    JetStreamNotEnabled,
    MessageNotFound,
    NoResponders,
    RequestTimeout,
    StreamNotFound,
)
from natsproto.jetstream._api.trace import ApiTrace, redacted
from tests.core.helpers import scripted_network
from tests.faults.helpers import EventRecorder
from tests.kit.scripted import Behaviour


async def test_trace_has_request_response_and_duration(nats_client: Client) -> None:
    seen: list[ApiTrace] = []
    js = nats_client.jetstream(trace=seen.append)
    stream = await js.create_stream(name="S", subjects=["s.>"], storage="memory")
    await stream.create_consumer(name="c", inactive_threshold=30, filter_subject="s.*")
    assert [name async for name in stream.consumer_names()] == ["c"]
    with pytest.raises(StreamNotFound):
        await js.stream("MISSING")
    assert [exchange.subject for exchange in seen] == [
        "$JS.API.STREAM.CREATE.S",
        "$JS.API.CONSUMER.CREATE.S.c.s.*",
        "$JS.API.CONSUMER.NAMES.S",
        "$JS.API.STREAM.INFO.MISSING",
    ]
    assert json.loads(seen[0].request)["name"] == "S"
    assert json.loads(seen[0].response)["type"] == "io.nats.jetstream.api.v1.stream_create_response"
    assert json.loads(seen[3].response)["error"]["err_code"] == 10059
    assert all(0 < exchange.duration < 5 and exchange.error is None for exchange in seen)


async def test_what_users_have_stored_is_not_reported(nats_client: Client) -> None:
    seen: list[ApiTrace] = []
    js = nats_client.jetstream(trace=seen.append)
    stream = await js.create_stream(name="S", subjects=["s"], storage="memory", allow_direct=True)
    await js.publish("s", b"hunter2" * 20, headers={"Authorization": "hunter2"})
    for direct in (True, False):
        message = await stream.get_message(1, direct=direct)
        assert (message.data, message.headers["Authorization"]) == (b"hunter2" * 20, "hunter2")
        assert (await stream.get_last_message("s", direct=direct)).seq == 1
    with pytest.raises(MessageNotFound):
        await stream.get_message(2)
    assert [exchange.subject.removeprefix("$JS.API.") for exchange in seen[1:]] == [
        "DIRECT.GET.S",
        "DIRECT.GET.S.s",
        "STREAM.MSG.GET.S",
        "STREAM.MSG.GET.S",
        "DIRECT.GET.S",
        "STREAM.MSG.GET.S",  # what one server does not find is confirmed by the leader
    ]
    assert seen[1].response == b"(140 bytes)"
    assert json.loads(seen[3].response)["message"]["seq"] == 1
    assert (seen[5].response, seen[5].status) == (b"", 404)
    whole = repr(seen)
    assert "hunter2" not in whole
    assert "aHVudGVy" not in whole, "the same in base64"


@pytest.mark.parametrize(
    "response", [b"", b"[]", b'"x"', b"{", b"\xff", b'{"message": 1}', b'{"message": {"data": 1}}']
)
def test_trace_of_an_unreadable_response_has_its_size(response: bytes) -> None:
    assert redacted("$JS.API.STREAM.MSG.GET.S", response) == b"(%d bytes)" % len(response)
    assert redacted("$JS.API.INFO", response) == response


async def test_what_came_instead_of_a_response_is_reported(nats_client: Client) -> None:
    seen: list[ApiTrace] = []
    elsewhere = nats_client.jetstream(domain="elsewhere", trace=seen.append)
    with pytest.raises(JetStreamNotEnabled):
        await elsewhere.account_info()
    async with scripted_network(Behaviour(route=False)) as net:
        js = (await net.connect()).jetstream(timeout=0.05, trace=seen.append)
        with pytest.raises(RequestTimeout):
            await js.account_info()
        waiting = asyncio.create_task(js.account_info(timeout=10))
        await asyncio.sleep(0)
        await asyncio.sleep(0)
        waiting.cancel()
        with pytest.raises(asyncio.CancelledError):
            await waiting
    assert [type(exchange.error) for exchange in seen] == [NoResponders, RequestTimeout, asyncio.CancelledError]
    assert [exchange.response for exchange in seen] == [b""] * 3


async def test_a_trace_that_raises_is_reported_and_harmless(
    nats_client: Client, caplog: pytest.LogCaptureFixture
) -> None:
    def fail(exchange: ApiTrace) -> None:
        raise ZeroDivisionError(exchange.subject)

    recorder = EventRecorder()
    silence = nats_client.add_listener(recorder)
    with caplog.at_level(logging.ERROR, "natsproto"):
        assert (await nats_client.jetstream(trace=fail).account_info()).streams == 0
    silence()
    assert [type(event).__name__ for event in recorder.events] == ["HandlerFailed"]
    assert "trace of $JS.API.INFO failed" in caplog.text
    with pytest.raises(ConfigError):
        nats_client.jetstream(trace="print")  # type: ignore[arg-type]
