"""Where the messages of a stream with sources come from."""

from __future__ import annotations

import pytest

from natsproto.jetstream import JetStream, JsMessage, MessageSource, StreamSource, SubjectTransform
from natsproto.jetstream._values.source import read_source
from natsproto.protocol.headers import Headers

SOON = 20


def source_of(text: str) -> MessageSource | None:
    return read_source(Headers([("Nats-Stream-Source", text)]))


async def copies(js: JetStream, name: str, count: int) -> list[JsMessage]:
    consumer = await (await js.stream(name)).create_consumer()
    async with consumer.messages() as messages:
        return [await messages.next(timeout=SOON) for _ in range(count)]


async def test_sourced_messages_name_their_origin(jetstream: JetStream) -> None:
    for name in ("A", "B"):
        await jetstream.create_stream(name, subjects=[f"{name}.>"])
    transforms = [
        SubjectTransform(src="B.x.*", dest="to.{{wildcard(1)}}"),
        SubjectTransform(src="B.y.>", dest="other.>"),
    ]
    sources = [StreamSource(name="A", filter_subject="A.one"), StreamSource(name="B", subject_transforms=transforms)]
    stream = await jetstream.create_stream("S", subjects=["s"], sources=sources)
    await jetstream.create_stream("M", mirror=StreamSource(name="A"))
    await jetstream.publish("s", b"own")
    await jetstream.publish("A.two", b"not wanted")
    await jetstream.publish("A.one", b"1")
    await jetstream.publish("B.x.1", b"2")
    found = {message.data: message for message in await copies(jetstream, "S", 3)}
    assert found[b"own"].source is None
    one, two = found[b"1"].source, found[b"2"].source
    assert one is not None
    assert two is not None
    assert (one.stream, one.seq, one.filters, one.destinations, one.subject) == ("A", 2, ("A.one",), (">",), "A.one")
    assert (two.stream, two.seq, two.subject, found[b"2"].subject) == ("B", 1, "B.x.1", "to.1")
    assert (two.filters, two.destinations) == (("B.x.*", "B.y.>"), ("to.{{wildcard(1)}}", "other.>"))
    for message in found.values():
        assert (await stream.get_message(message.seq)).source == message.source
    assert [message.source for message in await copies(jetstream, "M", 2)] == [None, None]


async def test_recreated_origin_has_another_identity(jetstream: JetStream) -> None:
    stream = await jetstream.create_stream("S", sources=[StreamSource(name="A")], subjects=["s"])
    seen: list[MessageSource | None] = []
    for _ in range(2):
        origin = await jetstream.create_stream("A", subjects=["a"])
        await jetstream.publish("a", b"1")
        consumer = await stream.create_consumer()
        async with consumer.messages() as messages:
            for _ in range(len(seen) + 1):
                message = await messages.next(timeout=SOON)
        seen.append(message.source)
        await origin.delete()
    first, second = seen
    assert first is not None
    assert second is not None
    assert (first.seq, second.seq) == (1, 1)
    assert first.identity != second.identity


@pytest.mark.parametrize(
    ("text", "wanted"),
    [
        ("A 7", MessageSource(stream="A", seq=7)),
        ("A:hash 7 a >", MessageSource(stream="A:hash", seq=7, filters=("a",), destinations=(">",))),
        ("A 7 a\fb x\fy c", MessageSource(stream="A", seq=7, filters=("a", "b"), destinations=("x", "y"), subject="c")),
        ("A 1 > > a id later", source_of("A 1 > > a id")),
        *((text, None) for text in ("", "A", "A x", "A -1", "A ٣", "A " + "9" * 21, "$JS.ACK.A.c.1.1.1.1.0")),
    ],
)
def test_what_is_read(text: str, wanted: MessageSource | None) -> None:
    assert source_of(text) == wanted


def test_identity_is_the_last_word() -> None:
    source = source_of("A 1 > > a NP1dXByt")
    assert source is not None
    assert (source.subject, source.identity) == ("a", "NP1dXByt")
