"""What is fuzzed: one function each that takes any bytes and fails when a promise is broken.

Owns the promises; who makes up the bytes (atheris, or the tests with a fixed corpus) is not known here.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator

from natsproto.errors import ConfigError, RemoteProtocolError
from natsproto.protocol.addresses import parse_servers
from natsproto.protocol.frames import Message, Route, ServerInfo, parse_info
from natsproto.protocol.headers import parse_headers
from natsproto.protocol.link import (
    MAX_PENDING_PONGS,
    InfoChanged,
    Link,
    LinkFailed,
    LinkState,
    NeedCredentials,
    PongFor,
    Ready,
    ServerErr,
    UpgradeTls,
)
from natsproto.protocol.parser import MAX_INFO, MAX_LINE
from natsproto.protocol.server_errors import ends_connection, parse_server_error
from tests.kit.hostile import HOSTILE
from tests.protocol.test_parser import Limits, Rig, read_slowly

MAX_MESSAGE = 1 << 20


def _cut(data: bytes) -> tuple[int, list[bytes]]:
    """A number and chunks: the first byte, and pieces whose sizes the second byte decides."""
    if len(data) < 2:
        return 0, [data]
    size = data[1] or len(data)
    return data[0], [data[at : at + size] for at in range(2, len(data), size)]


def parser(data: bytes) -> None:
    """Any bytes in any pieces: the outcome of the slow reader, or its error, and never another exception."""
    choice, chunks = _cut(data)
    limits = Limits(line=64, info=256, message=1024) if choice & 1 else Limits()
    assert Rig(limits).feed(chunks) == read_slowly(b"".join(chunks), limits)


def link(data: bytes) -> None:
    """A server that says anything at any moment of a connection's life."""
    choice, chunks = _cut(data)
    got: list[Message] = []
    one = Link(
        {b"1": Route(got.append)}, tls_required=bool(choice & 1), secured=bool(choice & 2), max_message=MAX_MESSAGE
    )
    tokens, answered = 0, list[object]()
    for number, chunk in enumerate(chunks):
        before = one.state
        for event in one.receive(chunk):
            assert one.state is LinkState.FAILED or not isinstance(event, LinkFailed)
            if isinstance(event, UpgradeTls) and one.state is LinkState.UPGRADING:
                assert isinstance(one.secured(), NeedCredentials)
                one.authenticate({})
            elif isinstance(event, NeedCredentials) and one.state is LinkState.AWAIT_CREDENTIALS:
                one.authenticate({})
            elif isinstance(event, PongFor):
                answered.append(event.token)
            elif isinstance(event, LinkFailed | ServerErr):
                assert str(event.error)
            else:
                assert isinstance(event, Ready | InfoChanged | NeedCredentials | UpgradeTls)
        if before is not LinkState.READY and one.state is not LinkState.READY:
            assert not got, "a message before the handshake"
        owed = one.pending_pongs
        assert owed <= MAX_PENDING_PONGS
        assert one.take_output() == b"PONG\r\n" * owed
        assert one.parser.waiting <= MAX_MESSAGE + MAX_LINE + MAX_INFO
        if one.state is LinkState.READY and number % 3 == 0:
            one.ping(tokens)
            tokens += 1
        for message in got:
            assert message.size >= len(message.data)
            assert message.headers._status is None or message.headers._status >= 0
        got.clear()
    assert answered == list(range(len(answered))), "pongs are matched in order"
    assert [*answered, *one.take_pending_pings()] == list(range(tokens))
    assert one.receive(b"PING\r\n") == []


def headers(data: bytes) -> None:
    """Any block of headers: something to read, and what it says can be read again."""
    block = parse_headers(data)
    assert block._status is None or 0 <= block._status <= 999
    for name in block:
        assert block[name] == block.get(name)
    repr(block)


def info(data: bytes) -> None:
    """Any text behind INFO: fields of the right types, or a RemoteProtocolError."""
    found = _outcome(lambda: parse_info(data))
    if isinstance(found, ServerInfo):
        assert type(found.max_payload) is int
        assert 0 <= found.max_payload < 2**63
        assert all(type(url) is str for url in found.connect_urls)


def refusal(data: bytes) -> None:
    """Any text of -ERR has a name and a sentence."""
    text = data.decode("utf-8", "replace")
    assert str(parse_server_error(text))
    ends_connection(text)


def servers(data: bytes) -> None:
    """Any text for a URL: servers, or a ConfigError."""
    _outcome(lambda: parse_servers(data.decode("utf-8", "replace")))


def _outcome(call: Callable[[], object]) -> object:
    try:
        found: object = call()
    except (ConfigError, RemoteProtocolError) as exc:
        found = exc
    assert not isinstance(found, Exception) or str(found)
    return found


TARGETS: dict[str, Callable[[bytes], None]] = {
    target.__name__: target for target in (parser, link, headers, info, refusal, servers)
}


def seeds(name: str) -> Iterator[bytes]:
    """Where mutation begins for a target: what the corpus of hostile servers says, the short ones, whole or cut up."""
    for entry in HOSTILE:
        if callable(entry.source) or len(entry.source) > 4096:
            continue
        said = b"".join(entry.chunks(b"1"))
        if name in ("parser", "link"):
            yield b"\x00\x00" + said
            yield b"\x01\x07" + b"INFO {}\r\nPONG\r\n" + said
            yield b"\x04\x07" + said
            continue
        yield said.strip()
        for word in (b"INFO ", b"-ERR ", b"NATS/1.0"):
            if word in said:
                yield (word if word == b"NATS/1.0" else b"") + said.partition(word)[2].strip(b" '")
    if name == "servers":
        yield from (b"nats://a:1,tls://u:p%40@[::1]:2", b"wss://t@h.example/p", b"1.2.3.4", b"ws://\xc3\xa9.example:80")
