"""The texts of -ERR: every one a nats-server is known to send, however it is quoted and spelled."""

from __future__ import annotations

from collections.abc import Callable

import pytest
from hypothesis import example, given
from hypothesis import strategies as st

from natsproto.errors import NatsError, NotAuthorized, PermissionDenied, ServerError, TooManySubscriptions
from natsproto.protocol.frames import Err
from natsproto.protocol.parser import Parser
from natsproto.protocol.server_errors import (
    MAX_ERROR_TEXT_LENGTH,
    SubscriptionDenied,
    ends_connection,
    parse_server_error,
)

REFUSED = (
    "Authorization Violation",
    "User Authentication Expired",
    "User Authentication Revoked",
    "Account Authentication Expired",
)
CUT = (
    "Authentication Timeout",
    "Unknown Protocol Operation",
    "Maximum Payload Violation",
    "maximum control line exceeded",
    "invalid client protocol",
    "no responders requires headers support",
    "maximum connections exceeded",
    "maximum account active connections exceeded",
    "Connection throttling is active. Please try again later.",
    "Secure Connection - TLS Required",
    "Stale Connection",
    "Slow Consumer",
    "Failed Account Registration",
    "Server Shutdown",
)
HARMLESS = (
    "Invalid Subject",
    "Invalid Publish Subject",
    "something no server has said so far",
    "",
)
PERMISSIONS = (
    ('Permissions Violation for Publish to "x.Y"', PermissionDenied, "publish to", "", ""),
    ('Permissions Violation for Publish with Reply of "x.Y"', PermissionDenied, "publish with reply", "", ""),
    ('Permissions Violation for Subscription to "x.Y"', SubscriptionDenied, "subscribe to", "", ""),
    (
        'Permissions Violation for Subscription to "x.Y" using queue "q.Q"',
        SubscriptionDenied,
        "subscribe to",
        "q.Q",
        "",
    ),
    ('Permissions Violation for Subscription to "x.Y" (sid "17")', SubscriptionDenied, "subscribe to", "", "17"),
    (
        'Permissions Violation for Subscription to "x.Y" using queue "q.Q" (sid "17")',
        SubscriptionDenied,
        "subscribe to",
        "q.Q",
        "17",
    ),
    ('Permissions Violation for Subscription to "x.Y", too many tokens', SubscriptionDenied, "subscribe to", "", ""),
)

SPELLINGS: tuple[Callable[[str], str], ...] = (str, str.lower, str.upper, str.title)


def error_of_line(said: str) -> NatsError:
    """The error behind the line a server writes."""
    parser = Parser({})
    parser.feed(b"-ERR " + said.encode() + b"\r\n")
    (frame,) = parser.events
    assert isinstance(frame, Err)
    return parse_server_error(frame.text)


def spelled(text: str, spelling: Callable[[str], str]) -> str:
    """Another spelling of the server's own words; what it quotes stays as it is."""
    return '"'.join(part if quoted % 2 else spelling(part) for quoted, part in enumerate(text.split('"')))


@pytest.mark.parametrize("spelling", SPELLINGS)
@pytest.mark.parametrize("quotes", ["'{}'", "{}", " '{}' "])
@pytest.mark.parametrize("text", REFUSED)
def test_refused_credentials_are_not_authorized(text: str, quotes: str, spelling: Callable[[str], str]) -> None:
    error = error_of_line(quotes.format(spelling(text)))
    assert type(error) is NotAuthorized
    assert error.reason == spelling(text)
    assert ends_connection(error.reason)


@pytest.mark.parametrize("spelling", SPELLINGS)
@pytest.mark.parametrize("quotes", ["'{}'", "{}"])
@pytest.mark.parametrize("text", [*CUT, *HARMLESS])
def test_unknown_text_is_a_server_error(text: str, quotes: str, spelling: Callable[[str], str]) -> None:
    error = error_of_line(quotes.format(spelling(text)))
    assert type(error) is ServerError
    assert error.text == spelling(text)
    assert ends_connection(error.text) is (text in CUT)


@pytest.mark.parametrize("spelling", SPELLINGS)
@pytest.mark.parametrize("quotes", ["'{}'", "{}"])
@pytest.mark.parametrize(("text", "kind", "operation", "queue", "sid"), PERMISSIONS)
def test_a_missing_permission_names_what_was_denied(
    text: str,
    kind: type[PermissionDenied],
    operation: str,
    queue: str,
    sid: str,
    quotes: str,
    spelling: Callable[[str], str],
) -> None:
    text = spelled(text, spelling)
    error = error_of_line(quotes.format(text))
    assert type(error) is kind
    assert isinstance(error, PermissionDenied)
    assert (error.text, error.operation, error.subject, error.queue) == (text, operation, "x.Y", queue)
    assert getattr(error, "sid", "") == sid
    assert not ends_connection(text)


def test_a_text_goes_on_behind_what_is_known_of_it() -> None:
    assert ends_connection("Stale Connection, really")
    assert type(parse_server_error("Authorization Violation - account disabled")) is NotAuthorized
    assert type(parse_server_error("No Authorization Violation")) is ServerError


def test_error_text_is_cut_after_any_subject() -> None:
    error = parse_server_error("x" * (MAX_ERROR_TEXT_LENGTH + 1))
    assert isinstance(error, ServerError)
    assert error.text == "x" * MAX_ERROR_TEXT_LENGTH
    denied = parse_server_error('Permissions Violation for Publish to "' + "s" * 4096 + '"')
    assert isinstance(denied, PermissionDenied)
    assert denied.subject == "s" * 4096


# ---------------------------------------------------------------- what Go's %q does to subjects

_SHORT = {"\a": "\\a", "\b": "\\b", "\f": "\\f", "\n": "\\n", "\r": "\\r", "\t": "\\t", "\v": "\\v"}


def go_quoted(text: str) -> str:
    """strconv.Quote; bytes that are not UTF-8 stand as surrogate escapes in the text."""
    quoted = ""
    for char in text:
        code = ord(char)
        if char in '"\\':
            quoted += "\\" + char
        elif char in _SHORT:
            quoted += _SHORT[char]
        elif char.isprintable():
            quoted += char
        elif 0xDC80 <= code <= 0xDCFF:
            quoted += f"\\x{code - 0xDC00:02x}"
        elif code < 0x20 or code == 0x7F:
            quoted += f"\\x{code:02x}"
        else:
            quoted += f"\\u{code:04x}" if code < 0x10000 else f"\\U{code:08x}"
    return f'"{quoted}"'


names = st.binary(max_size=12).map(lambda data: data.decode("utf-8", "surrogateescape")) | st.text(
    st.characters(exclude_categories=["Cs"]), max_size=12
)


@given(names, names)
@example('say "hi"', "back\\slash")
@example("\udcff\x01\u200b\U000e0001", "\t")
def test_go_quoted_subjects_are_unquoted(subject: str, queue: str) -> None:
    denied = parse_server_error(
        f"Permissions Violation for Subscription to {go_quoted(subject)} using queue {go_quoted(queue)}"
    )
    assert isinstance(denied, SubscriptionDenied)
    assert (denied.subject, denied.queue) == (subject, queue)
    published = parse_server_error(f"permissions violation for publish to {go_quoted(subject)}")
    assert isinstance(published, PermissionDenied)
    assert published.subject == subject


@pytest.mark.parametrize(
    ("quoted", "subject"), [(r"\U00110000", "U00110000"), (r"\q", "q"), (r"\u12", "u12"), (r"\x4", "x4")]
)
def test_an_escape_go_does_not_write_is_left_readable(quoted: str, subject: str) -> None:
    error = parse_server_error(f'Permissions Violation for Publish to "{quoted}"')
    assert isinstance(error, PermissionDenied)
    assert error.subject == subject


@pytest.mark.parametrize("char", ["\n", "\t", "\r", "\a", "\b", "\f", "\v", '"', "\\", "\U0010ffff"])
def test_each_escape_of_go_is_unquoted(char: str) -> None:
    error = parse_server_error(f"Permissions Violation for Publish to {go_quoted(char)}")
    assert isinstance(error, PermissionDenied)
    assert error.subject == char


FRAGMENTS = (
    "permissions violation for ", "publish to ", "publ\u0131sh to ", "PUBL\u0130SH TO ", "\u017fubscription to ",
    "subscription to ", '"', '"a"', "\\", "\\x", "\\xff", "\\U00110000", "\\ud800", " using queue ", ' (sid "', '")',
    "authorization violation",
)  # fmt: skip


@pytest.mark.slow
@given(st.one_of(st.text(max_size=30), st.lists(st.sampled_from(FRAGMENTS), max_size=8).map("".join)))
@example('permissions violation for publ\u0131sh to "a"')
def test_every_text_has_an_error(text: str) -> None:
    assert isinstance(parse_server_error(text), (ServerError, NotAuthorized))
    assert ends_connection(text) in (True, False)


@given(st.binary(max_size=30).filter(lambda data: b"\r\n" not in data))
def test_every_err_line_has_an_error(data: bytes) -> None:
    parser = Parser({})
    parser.feed(b"-ERR " + data + b"\r\n")
    (frame,) = parser.events
    assert isinstance(frame, Err)
    assert str(parse_server_error(frame.text))


@pytest.mark.parametrize("spelling", SPELLINGS)
def test_too_many_subscriptions(spelling: Callable[[str], str]) -> None:
    error = error_of_line(f"'{spelling('maximum subscriptions exceeded')}'")
    assert isinstance(error, TooManySubscriptions)
    assert (error.text, error.subject) == (spelling("maximum subscriptions exceeded"), "")
    assert not ends_connection(error.text)
