"""What a careless or hostile caller may pass to the core API: a corpus, as data.

Owns the arguments and, for each, the exceptions that are right; the promise behind all of them is that a bad
argument is refused in words before a byte is written, and the connection goes on. Knows the API by its
documented names only, not by its code.

Values are wrong on purpose, types included: that is why the client is ``Any`` here and nowhere else.
"""

from __future__ import annotations

import math
from collections.abc import Awaitable, Callable, Iterable, Iterator, Mapping
from dataclasses import dataclass
from functools import partial
from typing import Any

import natsproto
from natsproto.errors import InvalidCredentials, InvalidHeader, InvalidSubject, PayloadTooLarge
from tests.misuse.wrong import Ground, Wrong

__all__ = ["ACCEPTED", "REFUSED", "Argument", "Target", "of_arguments"]

Errors = tuple[type[Exception], ...]

SUBJECT: Errors = (InvalidSubject,)
HEADER: Errors = (InvalidHeader,)
TYPE: Errors = (TypeError,)
VALUE: Errors = (ValueError,)
SIZE: Errors = (PayloadTooLarge,)
EITHER: Errors = (TypeError, ValueError)


@dataclass(frozen=True, slots=True)
class Target:
    """What is called: a connected client, the connect function, and the URL of a server that works."""

    nc: Any
    connect: Callable[..., Any]
    url: str


@dataclass(frozen=True, slots=True)
class Argument:
    """One call. ``expected`` are the right exceptions; none means that the call must succeed.

    ``fresh`` says that a successful call returns a new client, which the caller has to close.
    """

    name: str
    call: Callable[[Target], Awaitable[object]]
    expected: Errors
    fresh: bool = False

    def __str__(self) -> str:
        return self.name


# ---------------------------------------------------------------- the values

BROKEN_NAMES: Mapping[str, str] = {
    "empty": "",
    "a space": "a b",
    "only a space": " ",
    "a space in front": " a",
    "a space behind": "a ",
    "a tab": "a\tb",
    "CR": "a\rb",
    "LF": "a\nb",
    "LF behind": "a\n",
    "CRLF and a command": "a 0\r\n\r\nPUB stolen 1\r\nx",
    "CRLF behind": "a\r\n",
    "NUL": "a\x00b",
    "ESC": "a\x1bb",
    "DEL": "a\x7fb",
    "a lone surrogate": "a\ud800b",
    "70,000 characters": "a" * 70_000,
    "70,000 bytes of UTF-8": "\u00e9" * 35_000,
}
BROKEN_TOKENS: Mapping[str, str] = {
    "a dot in front": ".a",
    "a dot behind": "a.",
    "two dots": "a..b",
    "only a dot": ".",
}
WILDCARDS: Mapping[str, str] = {"*": "*", ">": ">", "a.*": "a.*", "a.>": "a.>", "*.a": "*.a", "a.*.b": "a.*.b"}
MISPLACED_WILDCARDS: Mapping[str, str] = {">.a": ">.a", "a.>.b": "a.>.b", ">.>": ">.>"}
NO_TEXT: Mapping[str, object] = {"bytes": b"a", "int": 5, "list": ["a"], "float": 1.5, "object": object()}

BROKEN_HEADER_NAMES: Mapping[str, str] = {
    "empty": "",
    "a space": "a b",
    "a space in front": " a",
    "a space behind": "a ",
    "a colon": "a:b",
    "a colon behind": "a:",
    "CR": "a\rb",
    "LF": "a\nb",
    "CRLF and a header": "a: b\r\nc",
    "NUL": "a\x00",
    "a tab": "a\tb",
    "DEL": "a\x7f",
    "a letter beyond ASCII": "h\u00e9",
}
BROKEN_HEADER_VALUES: Mapping[str, str] = {
    "CR": "a\rb",
    "LF": "a\nb",
    "LF behind": "a\n",
    "CRLF and a header": "a\r\nNats-Msg-Id: 1",
    "CRLF CRLF": "a\r\n\r\nstolen",
    "NUL": "a\x00b",
    "a lone surrogate": "\ud800",
}
NO_HEADERS: Mapping[str, object] = {
    "a text": "a: b",
    "bytes": b"a: b",
    "a number": 5,
    "a list of texts": ["a: b"],
    "pairs of one": [("a",)],
    "pairs of three": [("a", "b", "c")],
    "a name of bytes": {b"a": "b"},
    "a name of int": {1: "b"},
    "a name of None": {None: "b"},
    "a value of bytes": {"a": b"b"},
    "a value of int": {"a": 1},
    "a value of None": {"a": None},
    "a value of bool": {"a": True},
    "a value of mapping": {"a": {"b": "c"}},
    "values with an int": {"a": ["b", 1]},
    "values with None": {"a": [None]},
}
NO_PAYLOAD: Mapping[str, object] = {
    "text": "text",
    "None": None,
    "int": 5,
    "float": 1.5,
    "bool": True,
    "list of int": [1, 2],
    "dict": {"a": 1},
    "list of bytes": [b"a"],
    "object": object(),
}
BROKEN_SECONDS: Mapping[str, tuple[object, Errors]] = {
    "nan": (math.nan, VALUE),
    "inf": (math.inf, VALUE),
    "-inf": (-math.inf, VALUE),
    "-1": (-1, VALUE),
    "-0.001": (-0.001, VALUE),
    "10**400": (10**400, VALUE),
    "text": ("1", TYPE),
    "bool": (True, EITHER),
    "bytes": (b"1", TYPE),
    "complex": (1j, TYPE),
    "list": ([1], TYPE),
}
BROKEN_COUNTS: Mapping[str, tuple[object, Errors]] = {
    "0": (0, VALUE),
    "-1": (-1, VALUE),
    "text": ("5", EITHER),
    "1.5": (1.5, EITHER),
    "nan": (math.nan, EITHER),
    "bool": (True, EITHER),
}
BROKEN_URLS: Mapping[str, tuple[object, Errors]] = {
    "empty": ("", VALUE),
    "a space": (" ", VALUE),
    "no host": ("nats://", VALUE),
    "no host but a port": ("nats://:4222", VALUE),
    "HTTP": ("http://127.0.0.1:4222", VALUE),
    "an unknown scheme": ("natz://127.0.0.1", VALUE),
    "port 0": ("nats://127.0.0.1:0", VALUE),
    "port 65536": ("nats://127.0.0.1:65536", VALUE),
    "a port of letters": ("nats://127.0.0.1:abc", VALUE),
    "a negative port": ("nats://127.0.0.1:-1", VALUE),
    "a signed port": ("nats://127.0.0.1:+4222", VALUE),
    "other digits": ("nats://127.0.0.1:\u0664\u0662\u0662\u0662", VALUE),
    "an open bracket": ("nats://[::1", VALUE),
    "a space in the host": ("nats://a b:4222", VALUE),
    "CRLF in the host": ("nats://a\r\nb:4222", VALUE),
    "NUL in the host": ("nats://a\x00b:4222", VALUE),
    "CRLF in the user": ("nats://u\r\n:p@127.0.0.1:4222", VALUE),
    "a path": ("nats://127.0.0.1:4222/a", VALUE),
    "a query": ("nats://127.0.0.1:4222?x=1", VALUE),
    "a trailing comma": ("nats://127.0.0.1:4222,", VALUE),
    "an empty list": ([], VALUE),
    "a list of an empty text": ([""], VALUE),
    "a list of int": ([5], TYPE),
    "None in a list": (["nats://127.0.0.1:4222", None], TYPE),
    "int": (5, TYPE),
    "bytes": (b"nats://127.0.0.1:4222", TYPE),
    "WebSocket and TCP": ("nats://127.0.0.1:4222,ws://127.0.0.1:8080", VALUE),
}


# ---------------------------------------------------------------- the calls


def _subjects() -> Iterator[Argument]:
    async def publish(t: Target, value: Any) -> object:
        return await t.nc.publish(value, b"x")

    async def publish_nowait(t: Target, value: Any) -> object:
        return t.nc.publish_nowait(value, b"x")

    async def reply(t: Target, value: Any) -> object:
        return await t.nc.publish("a", b"x", reply=value)

    async def reply_nowait(t: Target, value: Any) -> object:
        return t.nc.publish_nowait("a", b"x", reply=value)

    async def request(t: Target, value: Any) -> object:
        return await t.nc.request(value, b"x", timeout=0.5)

    async def request_many(t: Target, value: Any) -> object:
        return [message async for message in t.nc.request_many(value, b"x", timeout=0.5)]

    async def subscribe(t: Target, value: Any) -> object:
        return await t.nc.subscribe(value)

    async def queue(t: Target, value: Any) -> object:
        return await t.nc.subscribe("a", queue=value)

    none_is_absent = {reply, reply_nowait, queue}
    for call in (publish, reply, request, subscribe):
        yield from _each(call, {**BROKEN_NAMES, **BROKEN_TOKENS}, SUBJECT)
    for call in (publish, publish_nowait, reply, request, request_many):
        yield from _each(call, WILDCARDS, SUBJECT)
    some = {name: BROKEN_NAMES[name] for name in ("empty", "a space", "CRLF and a command", "NUL", "LF behind")}
    for call in (publish_nowait, reply_nowait, request_many):
        yield from _each(call, {**some, **BROKEN_TOKENS}, SUBJECT)
    yield from _each(queue, BROKEN_NAMES, SUBJECT)
    yield from _each(subscribe, MISPLACED_WILDCARDS, SUBJECT)
    for call in (publish, publish_nowait, reply, reply_nowait, request, subscribe, queue):
        yield from _each(call, NO_TEXT, TYPE)
        if call not in none_is_absent:
            yield from _each(call, {"None": None}, TYPE)


def _headers() -> Iterator[Argument]:
    async def header_name(t: Target, value: Any) -> object:
        return await t.nc.publish("a", b"x", headers={value: "b"})

    async def header_value(t: Target, value: Any) -> object:
        return await t.nc.publish("a", b"x", headers={"a": value})

    async def second_value(t: Target, value: Any) -> object:
        return await t.nc.publish("a", b"x", headers={"a": ["good", value]})

    async def header_value_nowait(t: Target, value: Any) -> object:
        return t.nc.publish_nowait("a", b"x", headers={"a": value})

    async def request_header_name(t: Target, value: Any) -> object:
        return await t.nc.request("a", b"x", headers={value: "b"}, timeout=0.5)

    async def request_header_value(t: Target, value: Any) -> object:
        return await t.nc.request("a", b"x", headers={"a": value}, timeout=0.5)

    async def headers(t: Target, value: Any) -> object:
        return await t.nc.publish("a", b"x", headers=value)

    for call in (header_name, request_header_name):
        yield from _each(call, BROKEN_HEADER_NAMES, HEADER)
    for call in (header_value, second_value, header_value_nowait, request_header_value):
        yield from _each(call, BROKEN_HEADER_VALUES, HEADER)
    yield from _each(headers, NO_HEADERS, TYPE)


def _payloads() -> Iterator[Argument]:
    async def payload(t: Target, value: Any) -> object:
        return await t.nc.publish("a", value)

    async def payload_nowait(t: Target, value: Any) -> object:
        return t.nc.publish_nowait("a", value)

    async def request_payload(t: Target, value: Any) -> object:
        return await t.nc.request("a", value, timeout=0.5)

    for call in (payload, payload_nowait, request_payload):
        yield from _each(call, NO_PAYLOAD, TYPE)

    async def too_large(t: Target, over: Any) -> object:
        return await t.nc.publish("a", bytes(t.nc.max_payload + over))

    async def too_large_nowait(t: Target, over: Any) -> object:
        return t.nc.publish_nowait("a", bytes(t.nc.max_payload + over))

    async def too_large_request(t: Target, over: Any) -> object:
        return await t.nc.request("a", bytes(t.nc.max_payload + over), timeout=0.5)

    async def too_large_with_headers(t: Target, over: Any) -> object:
        head = len(b"NATS/1.0\r\nk: v\r\n\r\n")
        return await t.nc.publish("a", bytes(t.nc.max_payload - head + over), headers={"k": "v"})

    async def too_large_headers(t: Target, over: Any) -> object:
        return await t.nc.publish("a", b"", headers={"k": "v" * (t.nc.max_payload + over)})

    for large in (too_large, too_large_nowait, too_large_request, too_large_with_headers, too_large_headers):
        yield from _each(large, {"by a byte": 1, "by a megabyte": 1 << 20}, SIZE)


def _durations_and_counts() -> Iterator[Argument]:
    async def request_timeout(t: Target, value: Any) -> object:
        return await t.nc.request("a", b"x", timeout=value)

    async def flush_timeout(t: Target, value: Any) -> object:
        return await t.nc.flush(timeout=value)

    async def next_timeout(t: Target, value: Any) -> object:
        async with t.nc.subscribe("silent.next") as sub:
            return await sub.next(timeout=value)

    async def request_many_timeout(t: Target, value: Any) -> object:
        return [message async for message in t.nc.request_many("a", b"", timeout=value)]

    async def stall(t: Target, value: Any) -> object:
        return [message async for message in t.nc.request_many("a", b"", timeout=0.5, stall=value)]

    for call in (request_timeout, flush_timeout, next_timeout, request_many_timeout, stall):
        yield from _pairs(call, BROKEN_SECONDS)

    async def request_many_max_messages(t: Target, value: Any) -> object:
        return [message async for message in t.nc.request_many("a", b"", timeout=0.5, max_messages=value)]

    async def unsubscribe_max_messages(t: Target, value: Any) -> object:
        async with t.nc.subscribe("silent.count") as sub:
            return await sub.unsubscribe(max_messages=value)

    async def pending_msgs_limit(t: Target, value: Any) -> object:
        return await t.nc.subscribe("silent.msgs", pending_msgs_limit=value)

    async def pending_bytes_limit(t: Target, value: Any) -> object:
        return await t.nc.subscribe("silent.bytes", pending_bytes_limit=value)

    for call in (request_many_max_messages, unsubscribe_max_messages):
        yield from _pairs(call, BROKEN_COUNTS)
    for call in (pending_msgs_limit, pending_bytes_limit):  # 0 is no limit
        yield from _pairs(call, {shown: pair for shown, pair in BROKEN_COUNTS.items() if shown != "0"})

    async def callback(t: Target, value: Any) -> object:
        return await t.nc.subscribe("silent.callback", cb=value)

    async def set_servers(t: Target, value: Any) -> object:
        return await _settled(t.nc.set_servers(value))

    async def listen(t: Target, value: Any) -> object:
        return await _settled(t.nc.add_listener(value))

    yield from _each(callback, {"int": 5, "text": "print", "list": [print]}, TYPE)
    yield from _each(listen, {"int": 5, "text": "print", "None": None}, TYPE)
    yield from _pairs(set_servers, BROKEN_URLS)


async def _settled(result: Any) -> object:
    """Await what is awaitable: whether this verb waits is not the point here."""
    return await result if isinstance(result, Awaitable) else result


def _options() -> Iterator[Argument]:
    async def connect(t: Target, value: Any) -> object:
        return await t.connect(value)

    for shown, (value, expected) in BROKEN_URLS.items():
        yield _argument(connect, shown, value, expected, fresh=True)

    def option(name: str, values: Iterable[tuple[str, tuple[object, Errors]]]) -> Iterator[Argument]:
        async def connect_with(t: Target, value: Any) -> object:
            return await t.connect(t.url, **{name: value})

        connect_with.__name__ = f"connect {name}"
        for shown, (value, expected) in values:
            yield _argument(connect_with, shown, value, expected, fresh=True)

    zero: Mapping[str, tuple[object, Errors]] = {"0": (0, VALUE)}
    for name in ("ping_interval", "connect_timeout", "drain_timeout", "request_timeout"):
        yield from option(name, {**BROKEN_SECONDS, **zero}.items())
    for name in ("reconnect_wait", "jitter"):
        yield from option(name, BROKEN_SECONDS.items())
    yield from option("max_outstanding_pings", BROKEN_COUNTS.items())
    below = {shown: pair for shown, pair in BROKEN_COUNTS.items() if shown != "0"}
    for name in ("outbox_limit", "pending_msgs_limit", "pending_bytes_limit"):
        yield from option(name, below.items())
    attempts = {shown: pair for shown, pair in below.items() if shown != "-1"}
    yield from option("max_reconnect_attempts", {**attempts, "-2": (-2, VALUE)}.items())
    prefixes = {**BROKEN_NAMES, **BROKEN_TOKENS, **WILDCARDS}
    yield from option("inbox_prefix", [(shown, (value, VALUE)) for shown, value in prefixes.items()])
    yield from option("inbox_prefix", [(shown, (value, TYPE)) for shown, value in NO_TEXT.items()])
    for name in ("user", "password", "token", "creds", "nkey_seed", "name"):
        yield from option(name, [("int", (5, TYPE)), ("list", (["a"], TYPE))])
    for name in ("verbose", "pedantic", "no_echo", "allow_api_replies", "allow_reconnect", "tls_first"):
        yield from option(name, [("text", ("yes", TYPE)), ("int", (1, TYPE))])
    for name in ("reconnect_delay", "on_event", "auth", "dialer"):
        yield from option(name, [("int", (5, TYPE)), ("text", ("print", TYPE))])
    yield from option("tls", [("empty", ("", VALUE)), ("bytes", (b"ca.pem", TYPE)), ("int", (1, TYPE))])
    hosts = [("int", (5, TYPE)), ("empty", ("", VALUE)), ("CRLF", ("a\r\nb", VALUE)), ("a URL", ("nats://a:1", VALUE))]
    yield from option("tls_hostname", hosts)
    yield from option("name", [("CRLF", ("a\r\nb", VALUE)), ("NUL", ("a\x00", VALUE))])
    yield from option("nkey_seed", [("not a seed", ("SUnonsense", (InvalidCredentials,)))])
    yield from option("an_option_that_does_not_exist", [("5", (5, TYPE))])


def _argument(
    call: Callable[[Target, Any], Awaitable[object]],
    shown: str,
    value: object,
    expected: Errors,
    *,
    fresh: bool = False,
) -> Argument:
    return Argument(f"{call.__name__}: {shown}", lambda target: call(target, value), expected, fresh)


def _each(
    call: Callable[[Target, Any], Awaitable[object]], values: Mapping[str, object], expected: Errors
) -> Iterator[Argument]:
    for shown, value in values.items():
        yield _argument(call, shown, value, expected)


def _pairs(
    call: Callable[[Target, Any], Awaitable[object]], values: Mapping[str, tuple[object, Errors]]
) -> Iterator[Argument]:
    for shown, (value, expected) in values.items():
        yield _argument(call, shown, value, expected)


def _accepted() -> Iterator[Argument]:
    async def publish(t: Target, value: Any) -> object:
        return await t.nc.publish(value, b"")

    async def payload(t: Target, value: Any) -> object:
        return await t.nc.publish("good", bytes(t.nc.max_payload - value))

    async def headers(t: Target, value: Any) -> object:
        return await t.nc.publish("good", b"x", headers=value)

    async def subscribe(t: Target, value: Any) -> object:
        return await t.nc.subscribe(value, queue="group.with-dots_and/signs")

    async def inbox_prefix(t: Target, value: Any) -> object:
        return await t.connect(t.url, inbox_prefix=value)

    yield _argument(publish, "printable signs", "good/$a-b_c=d\\e'f\"g%h", ())
    yield _argument(publish, "UTF-8", "good.h\u00e9.\u6f22", ())
    yield _argument(payload, "exactly max_payload", 0, ())
    yield _argument(headers, "empty value, colon, many values", {"A": "", "B": "c: d", "E": ["f", "g"]}, ())
    yield _argument(headers, "UTF-8 value", {"Name": "h\u00e9llo \u6f22"}, ())
    yield _argument(subscribe, "wildcards and a queue group", "good.*.>", ())
    yield _argument(inbox_prefix, "two tokens", "_INBOX.mine", (), fresh=True)


REFUSED: list[Argument] = [*_subjects(), *_headers(), *_payloads(), *_durations_and_counts(), *_options()]
"""Calls that must raise one of their ``expected`` exceptions, with nothing written to the server."""

ACCEPTED: list[Argument] = [*_accepted()]
"""Calls that look odd and must succeed."""


async def of_arguments(on: Ground) -> list[Wrong]:
    """The calls, and the options with which nothing may be dialled."""
    target = Target(on.nc, natsproto.connect, on.proxy.url)
    return [Wrong(one.name, partial(one.call, target), one.expected) for one in REFUSED]
