"""A flood of refused reply subjects: one event and one line a second, and no count is lost."""

from __future__ import annotations

import pytest

from natsproto import Event, ReplyRefused
from tests.core.helpers import scripted_network
from tests.kit.clock import advance, virtual_clock


@virtual_clock
async def test_refused_replies_are_told_once_a_second(caplog: pytest.LogCaptureFixture) -> None:
    events: list[Event] = []
    async with scripted_network() as net:
        nc = await net.connect(on_event=events.append)
        inbox = nc.subscribe("svc")
        await nc.flush()
        for second in range(3):
            for number in range(100):
                net.server.deliver(1, "svc", b"x", reply=f"$KV.cfg.{second}-{number}")
            for _ in range(100):
                await (await inbox.next(5)).respond(b"written")
            await advance(1.001)
        net.server.deliver(1, "svc", b"x", reply="_INBOX.good")
        await (await inbox.next(5)).respond(b"answer")
        await nc.flush()
        published = [op.args[0] for op in net.server.ops if op.name in ("PUB", "HPUB")]
        assert published == ["_INBOX.good"]
    refused = [event for event in events if isinstance(event, ReplyRefused)]
    assert [(event.reply, event.count) for event in refused] == [
        ("$KV.cfg.0-0", 1),
        ("$KV.cfg.1-0", 100),
        ("$KV.cfg.2-0", 100),
    ]
    lines = [record.getMessage() for record in caplog.records if "not sent" in record.getMessage()]
    assert len(lines) == 3
    assert "allow_api_replies=True" in lines[0]


@virtual_clock
async def test_reply_subject_is_escaped_in_the_log(caplog: pytest.LogCaptureFixture) -> None:
    async with scripted_network() as net:
        nc = await net.connect()
        inbox = nc.subscribe("svc")
        await nc.flush()
        net.server.send(b"MSG svc 1 $KV.\x1b[2J.a 0\r\n\r\n")
        await (await inbox.next(5)).respond(b"written")
    lines = [record.getMessage() for record in caplog.records if "not sent" in record.getMessage()]
    assert len(lines) == 1
    assert lines[0].isprintable()
