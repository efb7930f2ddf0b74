"""The path and the query of WebSocket URLs; the query may be a secret and is shown nowhere."""

import pytest

from natsproto import Options
from natsproto.errors import ConfigError
from natsproto.protocol.addresses import parse_servers

SECRET = "hunter2"


@pytest.mark.parametrize(
    ("url", "option", "wanted"),
    [
        ("ws://h", "/nats?tenant=a", "/nats?tenant=a"),
        ("ws://h/own", "/nats?tenant=a", "/own"),
        ("ws://h?b=c&d", "/nats?tenant=a", "/nats?b=c&d"),
        ("ws://h?b", None, "/?b"),
        ("wss://me:pw@h/a?b=@c", None, "/a?b=@c"),
    ],
)
def test_path_and_query_of_the_request(url: str, option: str | None, wanted: str) -> None:
    assert Options(websocket_path=option)._websocket_path_for(parse_servers(url)[0]) == wanted


def test_the_query_is_shown_nowhere() -> None:
    (address,) = parse_servers(f"ws://h/p?key={SECRET}")
    assert address.query == f"key={SECRET}"
    options = Options(servers=f"ws://h/p?key={SECRET}", websocket_path=f"/nats?key={SECRET}")
    assert SECRET not in f"{address} {address!r} {address.url} {address.public()!r} {options!r}"


@pytest.mark.parametrize(
    ("text", "rule"),
    [
        (f"ws://h/p?key={SECRET}#x", "no fragment"),
        (f"wss://h/p?key={SECRET}\u00e4", "percent-encoded"),
        (f"wss://h:x/p?key={SECRET}", "from 1 to 65535"),
        (f"ws://h?key={SECRET},nats://a", "must not mix"),
        (f"wss://h/p?key={SECRET} x", "spaces or control"),
        (f"nats://h/p?key={SECRET}", "a query only with ws"),
    ],
)
def test_errors_hide_the_query(text: str, rule: str) -> None:
    with pytest.raises(ConfigError, match=rule) as caught:
        parse_servers(text)
    assert SECRET not in f"{caught.value} {caught.value!r}"


def test_errors_of_the_option_hide_the_query() -> None:
    with pytest.raises(ConfigError) as caught:
        Options(websocket_path=f"nats?key={SECRET}")
    assert SECRET not in str(caught.value)
