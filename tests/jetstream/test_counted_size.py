"""The size of messages as the server counts it for max_bytes."""

from __future__ import annotations

from hypothesis import given
from hypothesis import strategies as st

from natsproto.jetstream._consumer.message import JsMessage, counted_size

SUBJECTS = st.sampled_from(["orders.eu", "orders.größe", "o"])
REPLIES = st.sampled_from([None, b"$JS.ACK.S.d.1.1.1.1795300000000000000.0", b"r"])
HEADS = st.sampled_from(
    [None, b"NATS/1.0\r\n\r\n", b"NATS/1.0\r\na: b\r\n\r\n", b"NATS/1.0\r\nNats-Pin-Id: abc\r\n\r\n"]
)
MESSAGES = st.tuples(SUBJECTS, REPLIES, HEADS, st.binary(max_size=9), st.booleans())


@given(st.lists(MESSAGES))
def test_size_of_many_messages_is_the_sum_of_theirs(
    given_messages: list[tuple[str, bytes | None, bytes | None, bytes, bool]],
) -> None:
    expected = 0
    messages = []
    for subject, reply, head, data, is_read in given_messages:
        message = JsMessage(subject, reply, data, head)
        if is_read:
            assert message.headers is not None
            assert message.reply is not None or reply is None
        pin = len("Nats-Pin-Id: abc\r\n") if head is not None and b"Pin" in head else 0
        expected += len(subject.encode()) + len(reply or b"") + len(data) + len(head or b"") - pin
        messages.append(message)
    assert counted_size(messages) == expected
