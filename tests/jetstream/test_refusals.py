"""Refusals that are not certain: a deposed leader refuses what the stream has stored."""

from __future__ import annotations

from collections.abc import AsyncIterator

import pytest

import natsproto
from natsproto import Client
from natsproto.errors import PublishUncertain, WrongLastSequence
from natsproto.jetstream import JetStream, Stream
from natsproto.jetstream._publish import outcome
from natsproto.jetstream._publish.outcome import LOOKUP_WAITS_S, UncertainRefusal
from natsproto.testing import Server
from tests.kit.contents import payloads
from tests.kit.second_responder import deposed_leader


@pytest.fixture
async def other(nats_server: Server) -> AsyncIterator[Client]:
    """The client that plays the deposed leader."""
    async with natsproto.connect(nats_server.url) as nc:
        yield nc


@pytest.fixture
async def stream(jetstream: JetStream) -> Stream:
    return await jetstream.create_stream(
        name="S", subjects=["s.>"], storage="memory", allow_direct=True, allow_atomic=True
    )


@pytest.mark.parametrize("truth", [0.02, None])
async def test_refused_batch_that_is_stored_is_a_success(
    jetstream: JetStream, stream: Stream, other: Client, truth: float | None
) -> None:
    wanted = []
    async with deposed_leader(other, stream) as leader:
        leader.truth = truth
        for number in range(5):
            leader.refusals.append((10176, 0))
            wanted += [b"%d.%d" % (number, part) for part in range(3)]
            async with jetstream.atomic_batch() as batch:
                for part in range(3):
                    await batch.publish("s.a", b"%d.%d" % (number, part))
            assert batch.ack is not None
            assert (batch.ack.seq, batch.ack.count) == (len(wanted), 3)
    assert await payloads(stream) == wanted


async def test_unanswered_commit_that_is_stored_is_a_success(
    jetstream: JetStream, stream: Stream, other: Client
) -> None:
    async with deposed_leader(other, stream) as leader:
        leader.is_silent = True
        async with jetstream.atomic_batch(timeout=0.3) as batch:
            for part in range(3):
                await batch.publish("s.a", b"%d" % part)
    assert batch.ack is not None
    assert (batch.ack.seq, batch.ack.count) == (3, 3)
    assert await payloads(stream) == [b"0", b"1", b"2"]


@pytest.mark.parametrize("code", [10071, 10164])
async def test_refused_publish_that_is_stored(
    jetstream: JetStream, stream: Stream, other: Client, monkeypatch: pytest.MonkeyPatch, code: int
) -> None:
    """A second reply decides. Without it nothing identifies the message, unless it has an id."""
    last = (await jetstream.publish("s.a", b"0")).seq
    async with deposed_leader(other, stream) as leader:
        leader.refusals.append((code, last - 1))
        with monkeypatch.context() as patch:  # a busy machine's server may need more than a second for its reply
            slow = {UncertainRefusal.STALE: (0.0, 3.0), UncertainRefusal.IN_PROCESS: (0.0, 3.0)}
            patch.setattr(outcome, "LOOKUP_WAITS_S", {**LOOKUP_WAITS_S, **slow})
            last = (await jetstream.publish("s.a", b"1", expected_last_subject_seq=last, retry_wait=3)).seq
        leader.truth = None
        leader.refusals.append((code, last - 1))
        with pytest.raises(PublishUncertain):
            await jetstream.publish("s.a", b"2", expected_last_subject_seq=last)
        last = (await stream.get_last_message("s.a")).seq
        leader.refusals.append((code, last - 1))
        ack = await jetstream.publish("s.a", b"3", expected_last_subject_seq=last, msg_id="three")
    assert await payloads(stream) == [b"0", b"1", b"2", b"3"]
    assert ack.seq == 4


@pytest.mark.parametrize("msg_id", [None, "x"])
@pytest.mark.parametrize("code", [10071, 10164])
async def test_refused_message_of_a_window_that_is_stored(
    jetstream: JetStream, stream: Stream, other: Client, code: int, msg_id: str | None
) -> None:
    last = (await jetstream.publish("s.a", b"0")).seq
    async with deposed_leader(other, stream) as leader, jetstream.publisher() as pub:
        leader.refusals.append((code, last - 1))
        future = await pub.publish("s.a", b"1", expected_last_subject_seq=last, msg_id=msg_id)
        assert (await future).seq == last + 1
        leader.truth = None
        leader.refusals.append((code, last))
        future = await pub.publish("s.a", b"2", expected_last_subject_seq=last + 1, msg_id=msg_id and msg_id * 2)
        if msg_id is None:
            with pytest.raises(PublishUncertain):
                await future
        else:
            assert (await future).seq == last + 2
    assert await payloads(stream) == [b"0", b"1", b"2"]


@pytest.mark.parametrize("msg_id", [None, "x"])
async def test_refused_expectation_of_a_window(jetstream: JetStream, stream: Stream, msg_id: str | None) -> None:
    await jetstream.publish("s.a", b"0")
    other = (await jetstream.publish("s.b", b"0")).seq
    async with jetstream.publisher() as pub:
        for expected in (other, 999):
            with pytest.raises(WrongLastSequence):
                await (await pub.publish("s.a", b"1", expected_last_subject_seq=expected, msg_id=msg_id))


@pytest.mark.parametrize("msg_id", [None, "x"])
async def test_expectation_that_never_held_is_refused(jetstream: JetStream, stream: Stream, msg_id: str | None) -> None:
    first = (await jetstream.publish("s.a", b"0")).seq
    second = (await jetstream.publish("s.b", b"0")).seq
    for expected in (second, 999):
        with pytest.raises(WrongLastSequence):
            await jetstream.publish("s.a", b"1", expected_last_subject_seq=expected, msg_id=msg_id)
    with pytest.raises(WrongLastSequence):
        await jetstream.publish("s.b", b"1", expected_last_subject_seq=first, msg_id=msg_id)
    with pytest.raises(WrongLastSequence):
        await jetstream.publish("s.b", b"1", expected_last_seq=999, msg_id=msg_id)
    assert await payloads(stream) == [b"0", b"0"]
