"""The first bytes of a peer that is no NATS server, and messages that are read into their own buffer."""

from __future__ import annotations

import pytest

from natsproto.protocol.frames import Message
from natsproto.protocol.link import Link, LinkEvent, LinkFailed, describe_peer
from tests.protocol.test_link import ready_link


@pytest.mark.parametrize(
    ("begun", "hint"),
    [
        (b"HTTP/1.1 400 Bad Request", "HTTP server: is this the monitoring port"),
        (b"SSH-2.0-OpenSSH_9.6", "SSH server"),
        (b"\x15\x03\x01\x00\x02", "with TLS: then use tls_first=True"),
        (b"220 mail.example.com", "mail or FTP server"),
        (b"+PONG", "Redis server"),
        (b"hello", "is it a NATS server at all"),
    ],
)
def test_peer_that_is_no_nats_server_is_described(begun: bytes, hint: str) -> None:
    assert hint in describe_peer(begun)


def test_link_delivers_a_message_from_its_room() -> None:
    delivered: list[Message] = []
    link = ready_link(delivered)
    link.parser.max_payload = 200_000
    assert link.receive(b"MSG a 1 200000\r\n") == []
    rest = b"x" * 200_000 + b"\r\n"
    events: list[LinkEvent] = []
    while rest:
        room = link.parser.large.room
        count = min(len(room), len(rest))
        room[:count] = rest[:count]
        rest = rest[count:]
        events += link.receive_into_room(count)
    assert (events, [len(message.data) for message in delivered]) == ([], [200_000])


def test_message_of_an_ended_subscription_is_forgotten() -> None:
    delivered: list[Message] = []
    link = ready_link(delivered)
    assert link.receive(b"MSG a 99 1\r\nx\r\nPING\r\n") == []
    assert (link.pending_pongs, delivered) == (1, [])


@pytest.mark.parametrize(
    ("begun", "hint"), [(b"INFO {]\r\n", ""), (b"SSH-2.0-OpenSSH_9.6\r\n", "SSH server"), (b"?\r\n", "at all?")]
)
def test_only_a_peer_without_info_is_described(begun: bytes, hint: str) -> None:
    (failed,) = Link({}).receive(begun)
    assert isinstance(failed, LinkFailed)
    if hint:
        assert f"{hint})" in str(failed.error)
    else:
        assert "NATS server" not in str(failed.error)
