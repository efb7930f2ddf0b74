"""Frames: what a message says on demand, and what INFO may say."""

from __future__ import annotations

import json
from collections.abc import Awaitable

import pytest
from hypothesis import given
from hypothesis import strategies as st

from natsproto import codecs
from natsproto.codecs import TypedCodec
from natsproto.errors import InvalidPayload, LocalProtocolError, RemoteProtocolError
from natsproto.protocol.frames import Err, Message, Payload, Route, ServerInfo, parse_info
from natsproto.protocol.headers import NO_HEADERS, HeadersLike


class Origin:
    """Keeps the answers."""

    def __init__(self) -> None:
        self.answers: list[tuple[str, bytes, HeadersLike | None]] = []

    def _send_reply(self, reply: str, payload: Payload, headers: HeadersLike | None) -> Awaitable[None]:
        self.answers.append((reply, bytes(payload), headers))
        return self._done()

    async def _done(self) -> None:
        pass


# ---------------------------------------------------------------- Message


def test_a_message_without_reply_and_headers() -> None:
    message = Message("a", None, b"x", None)
    assert (message.subject, message.reply, message.data) == ("a", None, b"x")
    assert message.headers is NO_HEADERS
    assert not message.is_no_responders


def test_reply_and_headers_are_read_once_and_kept() -> None:
    message = Message("a", "ż".encode(), b"x", b"NATS/1.0\r\nA: b\r\n\r\n")
    assert message.reply == "ż"
    assert message.reply is message.reply
    assert message.headers["A"] == "b"
    assert message.headers is message.headers


def test_a_reply_that_is_not_utf_8_survives() -> None:
    reply = Message("a", b"\xff", b"", None).reply
    assert reply is not None
    assert reply.encode("utf-8", "surrogateescape") == b"\xff"


texts = st.binary(min_size=1, max_size=8)


@given(texts, st.none() | texts, st.binary(max_size=9), st.none() | st.binary(max_size=30))
def test_message_size_is_wire_size(subject: bytes, reply: bytes | None, data: bytes, head: bytes | None) -> None:
    message = Message(subject.decode("utf-8", "surrogateescape"), reply, data, head)
    expected = len(subject) + len(reply or b"") + len(data) + len(head or b"")
    assert message.size == expected
    assert message.reply is not None or reply is None
    assert message.headers is not None
    assert message.size == expected


@pytest.mark.parametrize(
    ("head", "data", "expected"),
    [
        (b"NATS/1.0 503\r\n\r\n", b"", True),
        (b"NATS/1.0 503\r\nNats-Subject: a\r\n\r\n", b"", True),
        (b"NATS/1.0 503 Foo\r\n\r\n", b"from a user", False),
        (b"NATS/1.0  503\r\n\r\n", b"", True),
        (b"NATS/1.0 5033\r\n\r\n", b"", False),
        (b"NATS/1.0\r\nCode: 503\r\n\r\n", b"", False),
        (b"NATS/1.0 404\r\n\r\n", b"", False),
        (b"NATS/1.0\r\n\r\n", b"", False),
        (None, b"", False),
    ],
)
def test_no_responders_is_status_503_and_nothing_in_it(head: bytes | None, data: bytes, expected: bool) -> None:
    message = Message("a", None, data, head)
    assert message.is_no_responders is expected
    assert message.headers is not None
    assert message.is_no_responders is expected, "the same after a look at the headers"


def test_has_headers_and_has_reply_do_not_parse() -> None:
    bare, full = Message("a", None, b"", None), Message("a", b"r", b"", b"NATS/1.0\r\n\r\n")
    assert (bare.has_headers, bare.has_reply) == (False, False)
    assert (full.has_headers, full.has_reply) == (True, True)


async def test_respond_goes_to_reply_through_origin() -> None:
    origin = Origin()
    message = Message("a", b"r", b"", None, origin)
    await message.respond(b"x", headers={"A": "b"})
    await message.respond()
    assert origin.answers == [("r", b"x", {"A": "b"}), ("r", b"", None)]


@pytest.mark.parametrize("message", [Message("a", None, b"", None, Origin()), Message("a", b"r", b"", None)])
async def test_a_message_that_asks_for_no_answer_takes_none(message: Message) -> None:
    with pytest.raises(LocalProtocolError, match="cannot respond to message on 'a'"):
        await message.respond(b"x")


def test_message_repr_shows_the_beginning() -> None:
    assert repr(Message("a", None, b"parcel\n", None)) == "Message(subject='a', data=b'parcel\\n')"
    assert repr(Message("a", b"r", b"", None)) == "Message(subject='a', reply='r', data=b'')"
    assert repr(Message("a", None, b"x" * 60, None)) == f"Message(subject='a', data=b'{'x' * 60}')"
    assert repr(Message("a", None, b"x" * 1000, None)) == f"Message(subject='a', data=b'{'x' * 60}'... of 1000 bytes)"


def test_a_sink_starts_with_a_clean_account() -> None:
    route = Route(lambda message: None)
    assert (route.arrived, route.nbytes, route.message_class, route.origin, route.note) == (0, 0, Message, None, None)


def test_err_keeps_its_text() -> None:
    assert Err("Stale Connection").text == "Stale Connection"


# ---------------------------------------------------------------- INFO

TEXTS = (
    "server_id", "server_name", "version", "git_commit", "go", "host", "ip", "client_ip", "nonce", "cluster", "domain",
    "remote_account", "xkey",
)  # fmt: skip
NUMBERS = ("proto", "port", "max_payload", "client_id", "api_lvl")
FLAGS = (
    "headers", "auth_required", "tls_required", "tls_verify", "tls_available", "jetstream", "ldm", "connect_info",
    "acc_is_sys", "cluster_dynamic",
)  # fmt: skip
LISTS = ("connect_urls", "ws_connect_urls")
EMPTY: dict[str, object] = {
    **dict.fromkeys(TEXTS, ""),
    **dict.fromkeys(NUMBERS, 0),
    **dict.fromkeys(FLAGS, False),
    **dict.fromkeys(LISTS, ()),
}

good: dict[str, st.SearchStrategy[object]] = {
    **dict.fromkeys(TEXTS, st.text(max_size=5)),
    **dict.fromkeys(NUMBERS, st.integers(0, 2**63 - 1)),
    **dict.fromkeys(FLAGS, st.booleans()),
    **dict.fromkeys(LISTS, st.lists(st.text(max_size=5), max_size=3)),
}


@given(st.fixed_dictionaries({}, optional=good))
def test_info_fields_and_defaults(fields: dict[str, object]) -> None:
    info = parse_info(json.dumps(fields).encode() + b" ")  # the server's INFO ends with a space
    for name, empty in EMPTY.items():
        value = fields.get(name, empty)
        assert getattr(info, name) == (tuple(value) if isinstance(value, list) else value)
        assert type(getattr(info, name)) is type(empty)
    assert info.raw == fields


def test_fields_of_newer_servers_are_kept_in_raw() -> None:
    info = parse_info(b'{"server_name":"n","brand_new":{"x":[1]}}')
    assert info.raw == {"server_name": "n", "brand_new": {"x": [1]}}


@pytest.mark.parametrize("name", EMPTY)
def test_null_is_as_good_as_absent(name: str) -> None:
    assert getattr(ServerInfo({name: None}), name) == EMPTY[name]


@pytest.mark.parametrize("name", NUMBERS)
def test_a_number_has_63_bits_and_no_sign(name: str) -> None:
    for good in (0, 2**63 - 1):
        assert getattr(ServerInfo({name: good}), name) == good
    for wrong in (-1, 2**63):
        with pytest.raises(ValueError, match=f"field {name} is not a valid int"):
            ServerInfo({name: wrong})


json_values = st.recursive(
    st.none() | st.booleans() | st.integers() | st.floats() | st.text(max_size=3),
    lambda inner: st.lists(inner, max_size=2) | st.dictionaries(st.text(max_size=2), inner, max_size=2),
    max_leaves=4,
)


def fits(name: str, value: object) -> bool:
    if value is None:
        return True
    if name in NUMBERS:
        return type(value) is int and 0 <= value < 2**63
    if name in LISTS:
        return isinstance(value, list) and all(isinstance(url, str) for url in value)
    return type(value) is type(EMPTY[name])


@given(st.sampled_from(sorted(EMPTY)), json_values)
def test_info_field_of_wrong_type_is_named(name: str, value: object) -> None:
    text = json.dumps({name: value}).encode()
    if fits(name, value):
        assert parse_info(text).raw.keys() == {name}
        return
    with pytest.raises(RemoteProtocolError, match=f"INFO cannot be read \\(field {name} is not a"):
        parse_info(text)


@pytest.mark.parametrize(
    ("text", "reason"),
    [
        (b"", "Expecting value"),
        (b"[]", "not an object"),
        (b'"x"', "not an object"),
        (b"null", "not an object"),
        (b"{", "Expecting property name"),
        (b"{} x", "Extra data"),
        (b"\xff", "can't decode byte 0xff"),
        ('{"version":"1"}'.encode("utf-16"), "can't decode byte 0xff"),
        (b'{"x":' * 100_000, "nested too deeply"),
        (b"[" * 100_000, "nested too deeply"),
        (b'{"max_payload":' + b"9" * 5000 + b"}", "Exceeds the limit"),
    ],
)
def test_info_without_json_object_names_place(text: bytes, reason: str) -> None:
    with pytest.raises(RemoteProtocolError, match="INFO cannot be read") as refused:
        parse_info(text, 77)
    assert reason in refused.value.reason
    assert (refused.value.position, refused.value.excerpt) == (77, text[:64])
    assert len(refused.value.reason) < 160


@given(st.binary(max_size=40))
def test_any_bytes_are_info_or_protocol_error(text: bytes) -> None:
    try:
        info = parse_info(text)
    except RemoteProtocolError:
        return
    assert isinstance(info.raw, dict)


def test_an_info_has_a_short_repr() -> None:
    info = ServerInfo({"server_name": "n", "version": "2.15.1", "client_id": 7, "nonce": "secret"})
    assert repr(info) == "ServerInfo(server_name='n', version='2.15.1', client_id=7)"


def test_text_and_json_of_a_payload() -> None:
    assert Message("a", None, "é".encode(), None).text == "é"
    assert Message("a", None, b'[1, "a", null]', None).json() == [1, "a", None]
    with pytest.raises(InvalidPayload, match="utf-8"):
        Message("a", None, b"\xff", None).text  # noqa: B018
    for payload in (b"", b"{", b"\xff", b"[" * 100_000, *NOT_JSON):
        with pytest.raises(InvalidPayload, match="JSON"):
            Message("a", None, payload, None).json()


NOT_JSON = [b"NaN", b"[Infinity]", b'{"a": -Infinity}', b"1e999", b"[-1e999]"]


@pytest.mark.parametrize("payload", NOT_JSON)
def test_json_of_messages_and_codecs_is_the_same(payload: bytes) -> None:
    with pytest.raises(InvalidPayload, match=r"is not valid JSON|is too large for a float"):
        Message("a", None, payload, None).json()
    with pytest.raises(InvalidPayload, match=r"is not valid JSON|is too large for a float"):
        TypedCodec(object, codecs.JSON).decode(payload)


@pytest.mark.parametrize("encoding", ["utf-8", "utf-8-sig", "utf-16", "utf-16-le", "utf-32-be"])
def test_json_in_every_encoding(encoding: str) -> None:
    value = {"ż": [1.5, 1e308, -0.0, 10**400, None]}
    assert Message("a", None, json.dumps(value, ensure_ascii=False).encode(encoding), None).json() == value
