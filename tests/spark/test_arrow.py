"""Columns made by Arrow's kernels hold what the client's own parsers read, message by message."""

from __future__ import annotations

from collections.abc import Sequence
from datetime import UTC, datetime

import pytest
from hypothesis import given
from hypothesis import strategies as st

from natsproto.errors import LocalProtocolError
from natsproto.jetstream._consumer.message import JsMessage
from natsproto.jetstream._stream.direct_get import RawMessage
from natsproto.jetstream._values.timestamp import Timestamp
from natsproto.protocol.headers import encode_headers, parse_headers
from natsproto.spark._arrow import arrow_schema, delivered_batch, stored_batch

NANOS = 1_795_000_000_123_456_789
WHEN = datetime.fromtimestamp(NANOS // 1_000_000_000, UTC).replace(microsecond=123_456)


def delivered(seq: int = 1, *, head: bytes | None = None, subject: str = "orders.eu", v2: bool = False) -> JsMessage:
    front = b"$JS.ACK._.szMpdrwD.ORDERS.C" if v2 else b"$JS.ACK.ORDERS.C"
    tail = b".extra" if v2 and seq % 2 else b""
    return JsMessage(subject, b"%b.1.%d.%d.%d.5%b" % (front, seq, seq + 7, NANOS, tail), b"42", head)


def headers_of(blocks: Sequence[bytes | None]) -> list[dict[str, list[str]] | None]:
    batch = delivered_batch("ORDERS", [delivered(seq, head=block) for seq, block in enumerate(blocks)])
    batch.validate(full=True)
    return [None if row is None else dict(row) for row in batch.column("headers").to_pylist()]


def as_read(block: bytes | None) -> dict[str, list[str]] | None:
    if block is None:
        return None
    headers = parse_headers(block)
    return {name: headers.get_all(name) for name in headers} or None


def test_a_row_says_what_the_message_says() -> None:
    block = b"NATS/1.0\r\nTrace: abc\r\n\r\n"
    batch = delivered_batch("ORDERS", [delivered(1, head=block), delivered(2, subject="ордер")])
    assert batch.schema == arrow_schema()
    assert batch.to_pylist() == [
        {
            "stream": "ORDERS",
            "subject": "orders.eu",
            "seq": 1,
            "timestamp": WHEN,
            "data": b"42",
            "headers": [("Trace", ["abc"])],
            "size": len("orders.eu") + len(block) + 2,
        },
        {
            "stream": "ORDERS",
            "subject": "ордер",
            "seq": 2,
            "timestamp": WHEN,
            "data": b"42",
            "headers": None,
            "size": 10 + 2,
        },
    ]


def test_headers_can_be_left_out() -> None:
    batch = delivered_batch("ORDERS", [delivered(1, head=b"NATS/1.0\r\nA: 1\r\n\r\n")], headers=False)
    assert batch.schema.names == ["stream", "subject", "seq", "timestamp", "data", "size"]
    assert batch.column("size").to_pylist() == [9 + 2 + 18]


def test_no_message_is_an_empty_batch() -> None:
    for batch in (delivered_batch("ORDERS", []), stored_batch("ORDERS", [])):
        assert batch.num_rows == 0
        assert batch.schema == arrow_schema()


def test_positions_come_from_both_ack_subjects() -> None:
    assert delivered_batch("S", [delivered(5, v2=True), delivered(6, v2=True)]).column("seq").to_pylist() == [5, 6]
    mixed = delivered_batch("S", [delivered(5), delivered(6, v2=True)])
    assert mixed.column("seq").to_pylist() == [5, 6]
    assert mixed.column("timestamp").to_pylist() == [WHEN, WHEN]


def test_message_without_ack_subject_is_refused() -> None:
    with pytest.raises(LocalProtocolError, match="not an ack subject"):
        delivered_batch("S", [delivered(5), JsMessage("a", b"_INBOX.x", b"", None)])
    with pytest.raises(LocalProtocolError, match="not an ack subject"):
        delivered_batch("S", [JsMessage("a", None, b"", None)])


def test_parsed_message_is_read_too() -> None:
    looked = delivered(1, head=b"NATS/1.0\r\nA: 1\r\n\r\n")
    assert looked.headers["A"] == "1"
    assert looked.reply
    assert delivered_batch("S", [looked]).column("headers").to_pylist() == [[("A", ["1"])]]


def test_bytes_that_are_no_utf8_are_replaced() -> None:
    odd = delivered(1, subject="a.\udcff", head=b"NATS/1.0\r\nA: \xff\r\n\r\n")
    row = delivered_batch("S", [odd]).to_pylist()[0]
    assert row["subject"] == "a.�"
    assert row["headers"] == [("A", ["�"])]


ODD_BLOCKS = [
    b"NATS/1.0\r\nA: 1\r\nA: 2\r\n\r\n",
    b"NATS/1.0\r\nA: 1\r\nB: 2\r\nA: 3\r\n\r\n",
    b"NATS/1.0 503 No\r\nA: 1\r\n\r\n",
    b"NATS/1.0\r\nno colon\r\n\r\n",
    b"NATS/1.0\r\nA: 1\r\n\r\nB: 2\r\n\r\n",
    b"NATS/1.0\r\nNATS/1.0\r\n\r\n",
    b"NATS/1.0\r\n\r\n",
    b"garbage",
    b"",
    b"NATS/1.0\r\n:\r\n\r\n",
    b"NATS/1.0\r\nA:b:c\r\nB:\t d \t\r\nC:\r\nD: \xc2\xa0e\r\n\r\n",
]


@pytest.mark.parametrize("block", ODD_BLOCKS)
def test_unusual_headers_are_read_by_the_client(block: bytes) -> None:
    plain = b"NATS/1.0\r\nX: 1\r\n\r\n"
    blocks = [None, plain, block, None, plain]
    assert headers_of(blocks) == [as_read(one) for one in blocks]


LINE = st.tuples(
    st.text(st.characters(min_codepoint=33, max_codepoint=126, exclude_characters=":"), min_size=1, max_size=3),
    st.text(st.characters(codec="utf-8", exclude_characters="\r\n\0"), max_size=5),
)


@given(st.lists(st.none() | st.lists(LINE, max_size=3).map(encode_headers) | st.binary(max_size=12), max_size=12))
def test_any_headers_are_read_as_the_client_reads_them(blocks: list[bytes | None]) -> None:
    expected = [as_read(block) for block in blocks]
    clean = [
        None
        if row is None
        else {
            name.encode("utf-8", "surrogateescape").decode("utf-8", "replace"): [
                value.encode("utf-8", "surrogateescape").decode("utf-8", "replace") for value in values
            ]
            for name, values in row.items()
        }
        for row in expected
    ]
    assert headers_of(blocks) == clean


@pytest.mark.parametrize(
    ("time", "micros"),
    [
        (b"2026-01-02T03:04:05.678901234Z", 678901),
        (b"2026-01-02T03:04:05Z", 0),
        (b"2026-01-02T03:04:05.5Z", 500000),
        (b"2026-01-02T04:04:05.5+01:00", 500000),
        (b"2026-01-02 03:04:05.5 +0000 UTC", 500000),
        (Timestamp.parse("2026-01-02T03:04:05.678901234Z"), 678901),
    ],
)
def test_times_of_stored_messages_are_read(time: bytes | Timestamp, micros: int) -> None:
    block = b"NATS/1.0\r\nNats-Sequence: 999\r\n\r\n"
    row = stored_batch("ORDERS", [RawMessage("ORDERS", "a", 9, time, b"x", block)]).to_pylist()[0]
    assert row["timestamp"] == datetime(2026, 1, 2, 3, 4, 5, micros, UTC)
    assert (row["seq"], row["headers"], row["size"]) == (9, [("Nats-Sequence", ["999"])], 1 + len(block) + 1)
