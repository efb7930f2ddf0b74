"""Single control lines: words after a bare operation, and the texts of errors."""

from __future__ import annotations

import pytest

from natsproto.errors import RemoteProtocolError
from natsproto.protocol.frames import Err, Ok, Ping, Pong
from natsproto.protocol.line_parser import Limits, check_open_line, read_line

LIMITS = Limits(line=200, info=400, message=1000)


@pytest.mark.parametrize(("word", "kind"), [(b"PING", Ping), (b"pong", Pong), (b"+OK", Ok)])
def test_bare_operation_has_no_arguments(word: bytes, kind: type[object]) -> None:
    for end in (b"", b" ", b"   "):
        assert isinstance(read_line(word + end, 0, LIMITS), kind)
    for argument in (b" X", b" XX ", b" 1"):
        with pytest.raises(RemoteProtocolError, match="unknown operation"):
            read_line(word + argument, 0, LIMITS)


@pytest.mark.parametrize(
    ("line", "text"),
    [
        (b"-ERR 'Unknown Protocol Operation'", "Unknown Protocol Operation"),
        (b"-ERR Unknown Protocol Operation", "Unknown Protocol Operation"),
        (b"-ERR   'X is not XX'  ", "X is not XX"),
        (b"-ERR 'caf\xe9'", "caf\ufffd"),
        (b"-ERR", ""),
    ],
)
def test_text_of_an_error_line(line: bytes, text: str) -> None:
    frame = read_line(line, 0, LIMITS)
    assert isinstance(frame, Err)
    assert frame.text == text


@pytest.mark.parametrize(("begun", "limit"), [(b"MSG ", 200), (b"info ", 400)])
def test_open_line_may_have_one_byte_more(begun: bytes, limit: int) -> None:
    check_open_line(bytearray(begun.ljust(limit + 1, b"x")), 7, LIMITS)
    with pytest.raises(RemoteProtocolError, match=f"line longer than {limit} bytes") as caught:
        check_open_line(bytearray(begun.ljust(limit + 2, b"x")), 7, LIMITS)
    assert caught.value.excerpt == begun.ljust(64, b"x")
