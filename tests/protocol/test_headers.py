"""Headers: lenient when read, strict when written, inverse where both apply."""

from __future__ import annotations

import pickle
import sys
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from enum import Enum

import pytest
from hypothesis import given
from hypothesis import strategies as st

from natsproto.errors import InvalidHeader
from natsproto.protocol.headers import NO_HEADERS, Headers, HeadersLike, block_of, encode_headers, parse_headers

names = st.text(st.characters(min_codepoint=33, max_codepoint=126, exclude_characters=":"), min_size=1, max_size=12)
values = st.text(st.characters(exclude_categories=["Cs"], exclude_characters="\r\n\0"), max_size=20).map(
    lambda value: value.strip(" \t")
)
pairs = st.lists(st.tuples(names, values), max_size=6)


def grouped(source: list[tuple[str, str]]) -> dict[str, list[str]]:
    """Values by name, both in order of first appearance: what a reader of ADR-4 keeps."""
    found: dict[str, list[str]] = {}
    for name, value in source:
        found.setdefault(name, []).append(value)
    return found


def read_block(block: bytes) -> list[tuple[str, str]]:
    """What any other client reads from a block we wrote."""
    assert block.startswith(b"NATS/1.0\r\n")
    assert block.endswith(b"\r\n\r\n")
    lines = block[:-4].decode().split("\r\n")[1:]
    return [(name, value) for name, _, value in (line.partition(": ") for line in lines)]


# ---------------------------------------------------------------- writing and reading are inverse


@given(pairs)
def test_what_is_written_is_read_back_in_order(source: list[tuple[str, str]]) -> None:
    block = encode_headers(source)
    assert read_block(block) == source
    headers = parse_headers(block)
    assert {name: headers.get_all(name) for name in headers} == grouped(source)
    assert list(headers) == list(grouped(source))
    assert (headers._status, headers._description, headers._wire_size) == (0, "", len(block))


@given(pairs)
def test_every_form_of_headers_encodes_alike(source: list[tuple[str, str]]) -> None:
    by_name = grouped(source)
    forms: list[HeadersLike] = [
        Headers(source),
        parse_headers(encode_headers(source)),
        by_name,
        {name: tuple(several) for name, several in by_name.items()},
        iter([(name, value) for name, several in by_name.items() for value in several]),
    ]
    assert len({encode_headers(form) for form in forms}) == 1


@given(pairs)
def test_what_was_read_can_be_written_again(source: list[tuple[str, str]]) -> None:
    headers = parse_headers(encode_headers(source))
    assert parse_headers(encode_headers(headers)) == headers == Headers(source)


@given(st.binary(max_size=80))
def test_any_bytes_at_all_can_be_read(block: bytes) -> None:
    headers = parse_headers(block)
    assert headers._wire_size == len(block)
    assert 0 <= headers._status <= 999
    for name in headers:
        assert ":" not in name
        assert headers[name] == headers.get_all(name)[0]


@given(st.binary(max_size=60).filter(lambda block: not block.startswith(b"NATS/1.0")))
def test_headers_without_version_keep_first_line(block: bytes) -> None:
    headers = parse_headers(block)
    assert headers._status == 0
    assert parse_headers(b"NATS/1.0\r\n" + block) == headers


# ---------------------------------------------------------------- reading


@pytest.mark.parametrize(
    ("line", "status", "description"),
    [
        (b"NATS/1.0", 0, ""),
        (b"NATS/1.0 ", 0, ""),
        (b"NATS/1.0 503", 503, ""),
        (b"NATS/1.0 100 Idle Heartbeat", 100, "Idle Heartbeat"),
        (b"NATS/1.0 408  Request Timeout ", 408, "Request Timeout"),
        (b"NATS/1.0 409 Consumer is push based", 409, "Consumer is push based"),
        (b"NATS/1.0 50", 0, ""),
        (b"NATS/1.0 5033", 0, ""),
        (b"NATS/1.0 abc", 0, ""),
        (b"NATS/1.0 -12", 0, ""),
        ("NATS/1.0 ²²²".encode(), 0, ""),
        ("NATS/1.0 ٣٣٣".encode(), 0, ""),
    ],
)
def test_header_status_has_three_digits(line: bytes, status: int, description: str) -> None:
    headers = parse_headers(line + b"\r\n\r\n")
    assert (headers._status, headers._description, list(headers)) == (status, description, [])


def test_no_responders_has_status_and_header() -> None:
    headers = parse_headers(b"NATS/1.0 503\r\nNats-Subject: orders.eu\r\n\r\n")
    assert (headers._status, headers["Nats-Subject"]) == (503, "orders.eu")


@pytest.mark.parametrize(
    ("block", "pairs", "invalid"),
    [
        (b"NATS/1.0\r\nA: 1\r\nB: 2\r\n\r\n", [("A", "1"), ("B", "2")], ()),
        (b"NATS/1.0 503 No Responders\r\n\r\n", [], ()),
        (b"NATS/1.0 \r\n\r\n", [], ()),
        (b"garbage", [], ("garbage",)),
        (b"A: 1\r\nbad line", [("A", "1")], ("bad line",)),
        (b"NATS/1.0\r\none\r\nA: 1\r\n\xff\r\n\r\n", [("A", "1")], ("one", "\udcff")),
        (b"NATS/1.0 abc\r\nA: 1\r\n\r\n", [("A", "1")], ("NATS/1.0 abc",)),
        (b"NATS/1.05\r\n\r\n", [], ("NATS/1.05",)),
    ],
)
def test_invalid_header_lines(block: bytes, pairs: list[tuple[str, str]], invalid: tuple[str, ...]) -> None:
    headers = parse_headers(block)
    assert list(headers.pairs()) == pairs
    assert headers.invalid_lines == invalid
    assert ("invalid_lines" in repr(headers)) is bool(invalid)
    assert pickle.loads(pickle.dumps(headers)).invalid_lines == invalid


@given(st.binary(max_size=80))
def test_no_header_line_is_lost_unseen(block: bytes) -> None:
    headers = parse_headers(block)
    lines = [line for line in block.decode("utf-8", "surrogateescape").split("\r\n") if line]
    status = bool(lines) and block.startswith(b"NATS/1.0") and lines[0] not in headers.invalid_lines
    assert len(list(headers.pairs())) + len(headers.invalid_lines) + status == len(lines)


def test_header_values_are_trimmed_names_are_not() -> None:
    headers = parse_headers(b"NATS/1.0\r\nkey:val\r\n Key : \t two words\t \r\nempty:\r\nkey:again: x\r\n\r\n")
    assert list(headers.pairs()) == [("key", "val"), ("key", "again: x"), (" Key ", "two words"), ("empty", "")]


def test_lines_without_a_colon_are_left_out() -> None:
    assert list(parse_headers(b"NATS/1.0\r\nbroken\r\na: 1\r\n\r\n").pairs()) == [("a", "1")]


def test_header_bytes_survive_surrogate_escapes() -> None:
    assert parse_headers(b"NATS/1.0\r\na: \xff\r\n\r\n")["a"].encode("utf-8", "surrogateescape") == b"\xff"


# ---------------------------------------------------------------- the mapping


@given(
    st.lists(st.text(alphabet="aAb:\r\n \t", max_size=8), max_size=6), st.sampled_from(["NATS/1.0", "NATS/1.0 503", ""])
)
def test_single_header_is_found_as_in_all(lines: list[str], first: str) -> None:
    block = "\r\n".join([first, *lines, "", ""]).encode()
    read = parse_headers(block)
    names = ["a", "b", ":", "", "a:", "\r", "\r\n", "aA", *list(read), *(line.partition(":")[0] for line in lines)]
    for name in names:
        assert parse_headers(block).get(name) == next(iter(read.get_all(name)), None)
        untouched = parse_headers(block)
        untouched.get(name)
        assert (untouched, untouched.invalid_lines) == (read, read.invalid_lines)


def test_first_last_all_and_folded_values() -> None:
    headers = Headers([("Tag", "1"), ("tag", "2"), ("Tag", "3")])
    assert headers["Tag"] == "1"
    assert headers.get("Tag") == "1"
    assert headers.last("Tag") == "3"
    assert headers.get_all("Tag") == ["1", "3"]
    assert headers.get_folded("TAG") == ["1", "3", "2"]
    assert "tag" in headers
    assert "TAG" not in headers
    assert len(headers) == 2


def test_a_missing_name_has_no_values() -> None:
    headers = Headers({"a": "1"})
    with pytest.raises(KeyError, match="b"):
        headers["b"]
    assert headers.get("b") is None
    assert headers.last("b") == ""
    assert headers.last("b", "none") == "none"
    assert headers.get_all("b") == headers.get_folded("b") == []


def test_get_all_returns_a_copy() -> None:
    headers = Headers({"a": ["1", "2"]})
    headers.get_all("a").append("3")
    assert headers.get_all("a") == ["1", "2"]


def test_the_source_is_copied_and_not_changed() -> None:
    source = {"a": ["1"]}
    headers = Headers(source)
    source["a"].append("2")
    assert headers.get_all("a") == ["1"]


def test_equal_headers_have_equal_hashes() -> None:
    one, two = Headers([("a", "1"), ("b", "2")]), Headers([("b", "2"), ("a", "1")])
    assert one == two
    assert hash(one) == hash(two)
    assert one != Headers([("a", "1")])
    assert Headers([("a", "1"), ("a", "2")]) != Headers([("a", "2"), ("a", "1")])
    assert parse_headers(b"NATS/1.0 503\r\n\r\n") != Headers()
    assert one != {"a": "1", "b": "2"}


def test_repr_shows_pairs_and_status() -> None:
    assert repr(Headers({"a": ["1", "2"]})) == "Headers([('a', '1'), ('a', '2')])"
    assert repr(parse_headers(b"NATS/1.0 503\r\n\r\n")) == "Headers([], status=503)"
    assert repr(NO_HEADERS) == "Headers([])"


# ---------------------------------------------------------------- writing


def test_a_block_is_exactly_as_adr_4_says() -> None:
    assert encode_headers({}) == b"NATS/1.0\r\n\r\n"
    assert encode_headers({"a": "1", "b": ["2", "ż"]}) == "NATS/1.0\r\na: 1\r\nb: 2\r\nb: ż\r\n\r\n".encode()
    assert encode_headers({"a": []}) == b"NATS/1.0\r\n\r\n"


def test_a_str_enum_is_written_as_its_value() -> None:
    class Operation(str, Enum):  # noqa: UP042  # the kind that formats as its name
        DELETE = "DEL"
        NAME = "KV-Operation"

    assert encode_headers([(Operation.NAME, Operation.DELETE)]) == b"NATS/1.0\r\nKV-Operation: DEL\r\n\r\n"


BAD_NAMES = ("", " ", "a b", "a:", ":", "a\r\nb", "a\n", "\ta", "ż", "\x7f", "\0", "a\ud800")


@pytest.mark.parametrize("name", BAD_NAMES)
def test_a_name_that_is_not_printable_ascii_is_refused(name: str) -> None:
    with pytest.raises(InvalidHeader, match="header name") as refused:
        encode_headers({name: "x"})
    assert refused.value.value == name


@pytest.mark.parametrize("value", ["\r", "\n", "\0", "x\r\nInjected: y", "x\n\n", "\r\n\r\nPUB a 0"])
@pytest.mark.parametrize("form", ["mapping", "list", "pairs", "headers"])
def test_header_value_with_line_end_is_rejected(value: str, form: str) -> None:
    forms: dict[str, HeadersLike] = {
        "mapping": {"good": "1", "bad": value},
        "list": {"good": "1", "bad": ["1", value]},
        "pairs": [("good", "1"), ("bad", value)],
        "headers": Headers([("good", "1"), ("bad", value)]),
    }
    with pytest.raises(InvalidHeader, match="header 'bad' with value") as refused:
        encode_headers(forms[form])
    assert refused.value.value == value


def test_header_iterator_cannot_inject() -> None:
    def once() -> Iterator[tuple[str, str]]:
        yield "good", "1"
        yield "bad", "x\r\nInjected: y"

    with pytest.raises(InvalidHeader, match="must not contain CR, LF or NUL") as refused:
        encode_headers(once())
    assert "Injected" in str(refused.value)


@given(st.lists(st.tuples(st.text(max_size=4), st.text(max_size=6)), max_size=4))
def test_any_text_is_refused_or_makes_one_line_a_value(source: list[tuple[str, str]]) -> None:
    try:
        block = encode_headers(source)
    except InvalidHeader:
        return
    assert block.count(b"\r\n") == block.count(b"\r") == block.count(b"\n") == len(source) + 2
    assert [name for name, _ in read_block(block)] == [name for name, _ in source]


def test_a_value_that_is_not_unicode_is_refused() -> None:
    with pytest.raises(InvalidHeader, match="cannot be encoded as UTF-8"):
        encode_headers({"a": "\ud800"})


@pytest.mark.parametrize(
    ("source", "said"),
    [
        (5, "not iterable"),
        ("text", "must be a mapping or"),
        (["ab"], "must be a mapping or"),
        ([["a", "b"]], "must be a mapping or"),
        ([("a", "b", "c")], "must be a mapping or"),
        ({"a": 1}, "header 'a': the value must be a str or a list of str, not int"),
        ({"a": b"x"}, "not bytes"),
        ({"a": None}, "not NoneType"),
        ({"a": ["x", 1]}, "header 'a': values must be str, not int"),
        ({1: "x"}, "header names must be str, not int"),
        ({b"a": "x"}, "header names must be str, not bytes"),
    ],
)
def test_other_types_are_refused_in_words(source: HeadersLike, said: str) -> None:
    with pytest.raises(TypeError, match=said):
        encode_headers(source)


def test_headers_read_by_several_threads() -> None:
    """A received block is read when it is first needed, by whichever thread."""
    block = b"NATS/1.0\r\n" + b"".join(b"H%d: v\r\n" % number for number in range(30)) + b"\r\n"
    interval = sys.getswitchinterval()
    sys.setswitchinterval(1e-6)
    try:
        with ThreadPoolExecutor(4) as threads:
            for _ in range(500):
                headers = parse_headers(block)
                reads = [threads.submit(headers.get_all, "H29") for _ in range(4)]
                assert [read.result() for read in reads] == [["v"]] * 4
    finally:
        sys.setswitchinterval(interval)


def test_no_headers_make_no_block() -> None:
    nothings: tuple[HeadersLike, ...] = ({}, [], {"A": []})
    for nothing in nothings:
        assert block_of(nothing) is None
    assert block_of({"A": ""}) == encode_headers({"A": ""})


ODD_LINES = [
    b"A: caf\xe9",
    b"Sp ace: 1",
    b": no name",
    b"\xc5\xbc: 1",
    b"A: a\rb",
    b"A: a\nb",
    b"A: \0",
    b"A:\x7f",
    b"\x01: 2",
]


@given(st.lists(st.sampled_from([b"Plain: 1", *ODD_LINES]) | st.binary(max_size=8), max_size=6))
def test_what_was_received_can_be_sent_on(lines: list[bytes]) -> None:
    received = parse_headers(b"NATS/1.0\r\n" + b"\r\n".join(lines) + b"\r\n\r\n")
    pairs = list(received.pairs())
    forms: list[HeadersLike] = [received, pairs, iter(pairs), Headers(received), Headers([*pairs])]
    for form in forms:
        assert list(parse_headers(encode_headers(form)).pairs()) == pairs
    assert dict(parse_headers(encode_headers({**received, "More": "1"}))) == {**received, "More": "1"}


def test_a_single_received_value_can_be_sent_on() -> None:
    received = parse_headers(b"NATS/1.0\r\nA: caf\xe9\r\n\r\n")
    assert encode_headers({"B": received["A"]}) == b"NATS/1.0\r\nB: caf\xe9\r\n\r\n"
    with pytest.raises(InvalidHeader, match="cannot be encoded"):
        encode_headers([("B", received["A"]), ("C", "\udce9")])
    with pytest.raises(InvalidHeader, match="header name"):
        encode_headers({"Sp ace": "1"})
