"""Dead letters that a stranger has written: a replay publishes them with the permissions of its caller."""

from __future__ import annotations

import json
from collections.abc import AsyncIterator

import pytest

import natsproto
from natsproto.errors import StreamNotFound
from natsproto.jetstream import JetStream, StreamSource
from natsproto.retry import DEAD_LETTER_ADVISORIES, DeadLetter, DeadLetterLeft, replay
from natsproto.testing import Server
from tests.hostile.helpers import publish_literally
from tests.kit.watch import Watch


@pytest.fixture
def watch() -> Watch:
    return Watch()


@pytest.fixture
async def js(nats_server: Server, watch: Watch) -> AsyncIterator[JetStream]:
    """The JetStream of the operator, with three streams and a bucket."""
    async with natsproto.connect(nats_server.url, on_event=watch) as nc:
        made = nc.jetstream()
        for name in ("ORDERS", "PAYMENTS", "DEAD"):
            await made.create_stream(name, subjects=[f"{name.lower()}.>"])
        await (await made.create_key_value("cfg")).put("admin", b"alice")
        yield made


async def bury(js: JetStream, subject: str, stream: str = "ORDERS", payload: bytes = b"x", **said: str) -> int:
    """Store a dead letter with these headers, and return its sequence."""
    headers = {"Subject": subject, "Stream": stream, "Sequence": "1", "Consumer": "C", "Attempts": "3", **said}
    named = {f"Dead-Letter-{name}": value for name, value in headers.items()}
    return (await js.publish("dead.orders", payload, headers=named)).seq


async def stored_subjects(js: JetStream, stream: str) -> list[str]:
    """The subjects of its messages."""
    return [message.subject async for message in (await js.stream(stream)).get_batch()]


FORGED = [
    ("$JS.API.STREAM.DELETE.ORDERS", "ORDERS"),
    ("$JS.API.STREAM.PURGE.ORDERS", "KV_cfg"),
    ("$JS.hub.API.STREAM.DELETE.ORDERS", "ORDERS"),
    ("$KV.cfg.admin", "ORDERS"),
    ("$KV.cfg.admin", "KV_cfg"),
    ("$O.files.M.x", "ORDERS"),
    ("$SYS.REQ.SERVER.PING", "ORDERS"),
    ("payments.1", "ORDERS"),
    ("orders.1", "PAYMENTS"),
    ("orders.1", "NONE"),
    ("orders.1", ""),
    ("orders.1", "a.b"),
    ("orders.*", "ORDERS"),
    ("orders.>", "ORDERS"),
    ("orders..1", "ORDERS"),
    ("orders", "ORDERS"),
    ("", "ORDERS"),
]


@pytest.mark.parametrize(("subject", "stream"), FORGED)
async def test_a_replay_lends_no_rights(js: JetStream, watch: Watch, subject: str, stream: str) -> None:
    await bury(js, "orders.first")
    forged = await bury(js, subject, stream, b"mallory")
    await bury(js, "orders.last")
    assert await replay(js, "DEAD") == 2
    assert await stored_subjects(js, "ORDERS") == ["orders.first", "orders.last"]
    assert await stored_subjects(js, "PAYMENTS") == []
    assert (await (await js.key_value("cfg")).get("admin")).value == b"alice"
    assert await stored_subjects(js, "DEAD") == ["dead.orders"]
    assert [(event.stream, event.seq) for event in watch.all(DeadLetterLeft)] == [("DEAD", forged)]


async def test_streams_limit_a_replay(js: JetStream, watch: Watch) -> None:
    for subject, stream in (("orders.1", "ORDERS"), ("payments.1", "PAYMENTS"), ("orders.2", "PAYMENTS")):
        await bury(js, subject, stream)
    await bury(js, "$KV.cfg.admin", "KV_cfg", b"bob")
    await bury(js, "$JS.API.STREAM.DELETE.ORDERS")
    assert await replay(js, "DEAD", streams=["ORDERS"]) == 2
    assert await stored_subjects(js, "ORDERS") == ["orders.1", "orders.2"]
    assert [event.seq for event in watch.all(DeadLetterLeft)] == [2, 4, 5]
    assert await replay(js, "DEAD", streams=["PAYMENTS", "KV_cfg"]) == 2
    assert (await (await js.key_value("cfg")).get("admin")).value == b"bob"
    assert await replay(js, "DEAD", to="orders.all") == 1
    with pytest.raises(StreamNotFound):
        await replay(js, "DEAD", streams=["NONE"])
    with pytest.raises(TypeError, match="names of streams"):
        await replay(js, "DEAD", streams="ORDERS")


async def test_letters_of_a_mirror_need_the_origin(js: JetStream) -> None:
    await js.create_stream("COPY", mirror=StreamSource(name="ORDERS"))
    await bury(js, "orders.1", "COPY")
    assert await replay(js, "DEAD") == 0
    assert await replay(js, "DEAD", streams=["ORDERS"]) == 1


async def test_odd_letters_are_left_and_told(nats_server: Server, js: JetStream, watch: Watch) -> None:
    await js.create_stream("SMALL", subjects=["small.>"], max_msg_size=100)
    odd = [
        await bury(js, "orders.1", Sequence="x"),
        await bury(js, "orders.1", Attempts="1.5"),
        await bury(js, "orders.1", Sequence="9" * 5000),
        await bury(js, "small.1", "SMALL", b"x" * 200),
    ]
    for block in (
        b"Dead-Letter-Subject: a\xffb\r\n",
        b"Dead-Letter-Subject:\r\n",
        b"dead-letter-subject: orders.1\r\n",
    ):
        await publish_literally(nats_server, "dead.x", headers=block)
    await bury(js, "orders.last")
    assert await replay(js, "DEAD") == 1
    assert await stored_subjects(js, "ORDERS") == ["orders.last"]
    assert [event.seq for event in watch.all(DeadLetterLeft)][: len(odd)] == odd
    assert await replay(js, "DEAD") == 0


REPORT = {"type": "io.nats.jetstream.advisory.v1.max_deliver", "stream": "ORDERS", "consumer": "C", "stream_seq": 1}


@pytest.mark.parametrize(
    ("subject", "report"),
    [
        ("MAX_DELIVERIES.OTHER.C", REPORT),
        ("MAX_DELIVERIES.ORDERS.D", REPORT),
        ("MSG_TERMINATED.ORDERS.C", REPORT),
        ("MAX_DELIVERIES.ORDERS.C", {**REPORT, "type": "io.nats.jetstream.advisory.v1.terminated"}),
        ("MAX_DELIVERIES.ORDERS.C", {**REPORT, "type": "io.nats.jetstream.advisory.v1.nak"}),
        ("MAX_DELIVERIES.ORDERS.C", {**REPORT, "stream_seq": "1"}),
        ("MAX_DELIVERIES.ORDERS.C", {**REPORT, "stream_seq": 0}),
        ("MAX_DELIVERIES.ORDERS.C", {**REPORT, "stream_seq": 2**70}),
        ("MAX_DELIVERIES.ORDERS.C", {**REPORT, "stream_seq": 77}),
        ("MAX_DELIVERIES.a.b.C", {**REPORT, "stream": "a.b"}),
        ("MAX_DELIVERIES.NONE.C", {**REPORT, "stream": "NONE"}),
        ("MAX_DELIVERIES.KV_cfg.C", {**REPORT, "stream": "KV_cfg", "timestamp": "2099-01-01T00:00:00Z"}),
        ("MAX_DELIVERIES.ORDERS.C", []),
    ],
)
async def test_forged_reports_replay_nothing(js: JetStream, subject: str, report: object) -> None:
    await js.publish("orders.1", b"x")
    await js.update_stream("DEAD", subjects=["dead.>", *DEAD_LETTER_ADVISORIES])
    await js.publish(f"$JS.EVENT.ADVISORY.CONSUMER.{subject}", json.dumps(report).encode())
    assert await replay(js, "DEAD") == 0
    assert await stored_subjects(js, "ORDERS") == ["orders.1"]
    assert len(await stored_subjects(js, "DEAD")) == 1
    assert await stored_subjects(js, "KV_cfg") == ["$KV.cfg.admin"]


async def test_select_sees_only_letters_that_can_be_read(js: JetStream, watch: Watch) -> None:
    await bury(js, "orders.1", Sequence="x")
    await bury(js, "orders.2")
    seen: list[str] = []

    def note(letter: DeadLetter) -> bool:
        seen.append(letter.subject)
        return False

    assert await replay(js, "DEAD", select=note) == 0
    assert seen == ["orders.2"]
    assert len(watch.all(DeadLetterLeft)) == 1
