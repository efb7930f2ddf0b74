"""URLs, the order of servers, and the waits between attempts."""

from __future__ import annotations

import time
import traceback
from collections.abc import Sequence
from datetime import timedelta

import pytest
from hypothesis import given
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, initialize, invariant, precondition, rule

from natsproto._durations import seconds
from natsproto.errors import ConfigError, NotAuthorized
from natsproto.protocol.addresses import ServerAddress, parse_servers
from natsproto.protocol.frames import ServerInfo
from natsproto.protocol.pool import (
    MAX_DISCOVERED,
    MAX_SHORT_CONNECTIONS,
    REFUSAL_CONFIRM_S,
    Attempt,
    Discovery,
    ServerPool,
    ServerState,
)
from tests.kit.examples import examples

SECRET = "hunter2"


def one(url: str) -> ServerAddress:
    (address,) = parse_servers(url)
    return address


def pool_of(urls: str | Sequence[str] = "a,b,c", **options: object) -> ServerPool:
    return ServerPool(parse_servers(urls), **options)  # type: ignore[arg-type]


def step(pool: ServerPool, fraction: float = 0.0, now: float = 0.0) -> tuple[str, float]:
    attempt = pool.next(now, fraction)
    assert attempt is not None
    assert attempt.fault is None
    return attempt.address.host, round(attempt.delay, 9)


def hosts(addresses: Sequence[ServerAddress]) -> list[str]:
    return [address.host for address in addresses]


def verdict(pool: ServerPool) -> NotAuthorized | None:
    return pool.final_reason


# ---------------------------------------------------------------- URLs


@pytest.mark.parametrize(
    ("text", "url", "shown"),
    [
        ("nats://127.0.0.1:4333", "nats://127.0.0.1:4333", "127.0.0.1:4333"),
        ("localhost", "nats://localhost:4222", "localhost:4222"),
        ("Example.COM:1", "nats://example.com:1", "example.com:1"),
        ("TLS://example.com", "tls://example.com:4222", "example.com:4222"),
        ("ws://example.com", "ws://example.com:80", "example.com:80"),
        ("wss://example.com/nats/in", "wss://example.com:443/nats/in", "example.com:443"),
        ("wss://example.com/", "wss://example.com:443", "example.com:443"),
        ("nats://h:4222/", "nats://h:4222", "h:4222"),
        ("[::1]:4333", "nats://[::1]:4333", "[::1]:4333"),
        ("nats://[2001:DB8:0:0::1]", "nats://[2001:db8::1]:4222", "[2001:db8::1]:4222"),
        ("[fe80::1%25eth0]:1", "nats://[fe80::1%eth0]:1", "[fe80::1%eth0]:1"),
        ("nats://nats_1.svc-a.local.:4222", "nats://nats_1.svc-a.local.:4222", "nats_1.svc-a.local.:4222"),
        ("nats://bücher.example", "nats://xn--bcher-kva.example:4222", "xn--bcher-kva.example:4222"),
        ("nats://me:pw@h:65535", "nats://h:65535", "h:65535"),
    ],
)
def test_urls_of_every_form_are_read(text: str, url: str, shown: str) -> None:
    address = one(text)
    assert (address.url, str(address)) == (url, shown)
    assert repr(address) == f"ServerAddress({url!r})"


@pytest.mark.parametrize(
    ("text", "user", "password", "token"),
    [
        ("h", None, None, None),
        ("nats://me:pw@h", "me", "pw", None),
        ("me:@h", "me", "", None),
        ("nats://t0ken@h", None, None, "t0ken"),
        ("nats://m%40e:p%3Aw%2f%25%C3%A4%00@h", "m@e", "p:w/%ä\0", None),
        ("nats://me:p@w@h", "me", "p@w", None),
        ("nats://me:p:w@h", "me", "p:w", None),
        ("nats://tökeñ@h", None, None, "tökeñ"),
    ],
)
def test_user_info_is_read_and_decoded(text: str, user: str | None, password: str | None, token: str | None) -> None:
    address = one(text)
    assert (address.user, address.password, address.token) == (user, password, token)
    bare = address.public()
    assert (bare.user, bare.password, bare.token, bare.url) == (None, None, None, address.url)


@pytest.mark.parametrize(
    ("url", "tls", "websocket"),
    [("nats://h", False, False), ("tls://h", True, False), ("ws://h", False, True), ("wss://h", True, True)],
)
def test_url_scheme_selects_tls_and_websocket(url: str, tls: bool, websocket: bool) -> None:
    assert (one(url).tls, one(url).websocket) == (tls, websocket)


@pytest.mark.parametrize(
    ("url", "is_ip"), [("10.0.0.1", True), ("[::1]", True), ("localhost", False), ("a.example", False)]
)
def test_an_address_needs_no_look_up(url: str, is_ip: bool) -> None:
    assert one(url).is_ip is is_ip


@pytest.mark.parametrize(
    ("url", "name"), [("Example.com.", "example.com"), ("[fe80::1%25eth0]", "fe80::1"), ("10.0.0.1", "10.0.0.1")]
)
def test_certificates_are_verified_against_the_host(url: str, name: str) -> None:
    assert one(url).tls_name == name


def test_server_lists_keep_order_without_repeats() -> None:
    assert [str(a) for a in parse_servers("a, b:1,nats://c , A:4222")] == ["a:4222", "b:1", "c:4222"]
    assert [str(a) for a in parse_servers(["a,b", "tls://c"])] == ["a:4222", "b:4222", "c:4222"]
    assert [a.url for a in parse_servers(("ws://a/x", "ws://a/y"))] == ["ws://a:80/x", "ws://a:80/y"]


BAD = [
    ("", "is empty"),
    ("a,,b", "is empty"),
    ("nats://", "host is missing"),
    ("nats://:4222", "host is missing"),
    ("http://h", "scheme must be"),
    ("://h", "scheme must be"),
    ("nats://h:0", "from 1 to 65535"),
    ("nats://h:65536", "from 1 to 65535"),
    ("nats://h:", "from 1 to 65535"),
    ("nats://h:12x", "from 1 to 65535"),
    ("nats://h:-1", "from 1 to 65535"),
    ("nats://h:١٢", "from 1 to 65535"),
    ("nats://::1:4222", "more than one colon"),
    ("nats://[::1", r"\[address\]:port"),
    ("nats://[::1]4222", r"\[address\]:port"),
    ("nats://[::zz]:1", "not an IPv6 address"),
    ("nats://[]", "not an IPv6 address"),
    ("nats://a b", "spaces or control"),
    ("nats://a\r\nPUB x 0", "spaces or control"),
    ("nats://a\0", "spaces or control"),
    ("nats://a\u2003b", "spaces or control"),
    ("nats://a..b", "host name is not valid"),
    ("nats://-a", "host name is not valid"),
    ("nats://a*b", "host name is not valid"),
    ("nats://" + "a" * 64, "host name is not valid"),
    ("nats://" + "a." * 127, "host name is not valid"),
    ("nats://ä..b", "host name is not valid"),
    ("nats://256.1.1.1", "not an IPv4 address"),
    ("4222", "not an IPv4 address"),
    ("127.1", "not an IPv4 address"),
    ("nats://h?tls=1", "a query only with ws"),
    ("nats://h#x", "no fragment"),
    ("nats://h/path", "only ws and wss"),
    ("ws://h/pä", "percent-encoded"),
    ("nats://@h", "before @"),
    (f"nats://:{SECRET}@h", "before @"),
    (f"nats://me:{SECRET}@", "host is missing"),
    (f"nats://me:{SECRET}%zz@h", "is not part of a percent escape"),
    (f"nats://me:{SECRET}%ff@h", "not UTF-8"),
    (f"nats://\ud800{SECRET}@h", "not UTF-8"),
    (f"nats://me:{SECRET}", "from 1 to 65535"),
    (f"nats://me:{SECRET}/x@h", "from 1 to 65535"),
    (f"nats://me:x,{SECRET}@h", "from 1 to 65535"),
    (f"{SECRET}://me:pw@h", "scheme must be"),
    (f"http://{SECRET}@h", "scheme must be"),
    (f"nats://{SECRET}@h:x", "from 1 to 65535"),
    (f"nats://me:{SECRET}?@h", "%3F"),
    (f"a,nats://me:{SECRET} x@h", "spaces or control"),
    (f"nats://h?token={SECRET}", "a query only with ws"),
]


@pytest.mark.parametrize(("text", "rule"), BAD)
def test_malformed_url_errors_hide_secrets(text: str, rule: str) -> None:
    with pytest.raises(ConfigError, match=rule) as caught:
        parse_servers(text)
    reported = str(caught.value) + "".join(traceback.format_exception(caught.value)[-1:]) + repr(caught.value)
    assert SECRET not in reported
    assert caught.value.__context__ is None


def test_url_error_names_server() -> None:
    with pytest.raises(ConfigError, match=r"server 2 of 2 'http': the scheme"):
        parse_servers("a,http://b")
    with pytest.raises(ConfigError, match=r"server \(hidden\): the scheme"):
        parse_servers("a?b://c")
    with pytest.raises(ConfigError, match=r"server 'h': the port"):
        parse_servers("h:x")


@pytest.mark.parametrize("wrong", [None, 4222, b"nats://h", bytearray(b"h"), ["h", None], [b"h"], {"h"}])
def test_servers_of_wrong_types_are_type_errors(wrong: object) -> None:
    with pytest.raises(TypeError, match="must be a str or a sequence of str"):
        parse_servers(wrong)  # type: ignore[arg-type]


def test_empty_lists_and_mixed_transports_are_refused() -> None:
    with pytest.raises(ConfigError, match="at least one"):
        parse_servers([])
    with pytest.raises(ConfigError, match="must not mix WebSocket and plain NATS URLs"):
        parse_servers("ws://a,nats://b")
    with pytest.raises(ConfigError, match="at least one"):
        ServerPool([])


@given(st.text())
def test_any_text_is_servers_or_a_config_error(text: str) -> None:
    try:
        addresses = parse_servers(text)
    except ConfigError:
        return
    for address in addresses:
        assert one(address.url).url == address.url


# ---------------------------------------------------------------- durations


@pytest.mark.parametrize(("value", "kept"), [(0, 0.0), (1.5, 1.5), (timedelta(milliseconds=20), 0.02)])
def test_durations_are_seconds_or_timedelta(value: float | timedelta, kept: float) -> None:
    assert seconds("wait", value) == kept


@pytest.mark.parametrize("value", [True, -1, float("nan"), float("inf"), 10**400, timedelta(seconds=-1)])
def test_invalid_durations_name_the_option(value: float) -> None:
    with pytest.raises(ConfigError, match="wait"):
        seconds("wait", value)


def test_durations_of_wrong_types_are_type_errors() -> None:
    with pytest.raises(TypeError, match="wait must be a number of seconds or a timedelta, not str"):
        seconds("wait", "5")


# ---------------------------------------------------------------- rounds and back-off


def test_first_connect_tries_every_server_once() -> None:
    pool = pool_of("a,b,c")
    assert hosts(list(pool.one_pass())) == ["a", "b", "c"]


def test_first_connect_includes_discovered_servers() -> None:
    pool = pool_of("a,b")
    tried = []
    for address in pool.one_pass():
        tried.append(address.host)
        pool.discovered(["c:1"], address)
    assert tried == ["a", "b", "c"]


def test_failed_first_connect_backs_off() -> None:
    pool = pool_of("a,b")
    list(pool.one_pass())
    assert [step(pool) for _ in range(4)] == [("a", 0.05), ("b", 0), ("a", 0.1), ("b", 0)]


def test_first_retry_is_at_once_and_to_another_server() -> None:
    pool = pool_of("a,b,c")
    first = next(pool.one_pass())
    pool.succeeded(first, now=0)
    assert [step(pool, now=100) for _ in range(3)] == [("b", 0), ("c", 0), ("a", 0)]


def test_only_server_is_retried_at_once_too() -> None:
    pool = pool_of("a")
    pool.succeeded(next(pool.one_pass()), now=0)
    assert [step(pool, now=100) for _ in range(3)] == [("a", 0), ("a", 0.05), ("a", 0.1)]


def test_first_retry_uses_discovered_server() -> None:
    pool = pool_of("a")
    first = next(pool.one_pass())
    pool.succeeded(first, now=0)
    pool.discovered(["b:1", "c:1"], first)
    assert [step(pool, now=100) for _ in range(4)] == [("b", 0), ("c", 0), ("a", 0), ("b", 0.05)]


@pytest.mark.parametrize(
    ("url", "tls", "most"), [("a", False, 0.1), ("tls://a", False, 1.0), ("a", True, 1.0), ("wss://a", False, 1.0)]
)
def test_jitter_is_larger_with_tls(url: str, tls: bool, most: float) -> None:
    for fraction in (0.0, 0.5, 0.999):
        pool = pool_of(url, tls=tls)
        list(pool.one_pass())
        assert step(pool, fraction)[1] == pytest.approx(0.05 + fraction * most)


def test_success_resets_the_back_off() -> None:
    pool = pool_of("a")
    list(pool.one_pass())
    for _ in range(5):
        step(pool)
    pool.succeeded(one("a"), now=0)
    assert [step(pool, now=60)[1] for _ in range(3)] == [0, 0.05, 0.1]


def test_dropping_server_does_not_make_client_spin() -> None:
    pool = pool_of("a")
    waits = []
    for now in range(MAX_SHORT_CONNECTIONS + 6):
        pool.succeeded(one("a"), now=now)
        waits.append(step(pool, now=now + 0.001)[1])
    assert waits == [0] * MAX_SHORT_CONNECTIONS + [0.05, 0.1, 0.2, 0.4, 0.8, 1.0]
    pool.succeeded(one("a"), now=1000)
    assert step(pool, now=1010)[1] == 0


def test_order_is_shuffled_only_when_asked() -> None:
    assert hosts(pool_of("a,b,c").servers) == ["a", "b", "c"]
    pool = pool_of("a,b,c", shuffle=lambda servers: servers.reverse())
    assert hosts(pool.servers) == ["c", "b", "a"]
    pool.discovered(["d:1", "e:1"], one("c"))
    assert hosts(pool.servers) == ["b", "a", "e", "d", "c"]
    pool.set_servers(parse_servers("x,y"))
    assert hosts(pool.servers) == ["y", "x"]


# ---------------------------------------------------------------- when to stop


def test_attempts_per_server_end_the_pool() -> None:
    pool = pool_of("a,b", max_attempts_per_server=2)
    list(pool.one_pass())
    assert [step(pool)[0] for _ in range(4)] == ["a", "b", "a", "b"]
    assert pool.exhausted
    assert pool.next(0, 0) is None
    assert pool.final_reason is None


def test_no_attempts_means_no_reconnect() -> None:
    pool = pool_of("a", max_attempts_per_server=0)
    assert hosts(list(pool.one_pass())) == ["a"]
    assert pool.next(0, 0) is None


def test_success_gives_every_server_its_attempts_back() -> None:
    pool = pool_of("a,b", max_attempts_per_server=1)
    assert (step(pool)[0], step(pool)[0]) == ("a", "b")
    pool.succeeded(one("b"), now=0)
    assert (step(pool, now=9)[0], step(pool, now=9)[0]) == ("a", "b")


def test_refusal_repeated_for_two_seconds_ends_server() -> None:
    pool = pool_of("a,b")
    pool.failed(one("a"), 5.0, "Authorization Violation")
    pool.failed(one("a"), 6.9, "Authorization Violation")
    assert {step(pool)[0] for _ in range(2)} == {"a", "b"}
    pool.failed(one("a"), 7.0, "Authorization Violation")
    assert [step(pool)[0] for _ in range(3)] == ["b", "b", "b"]
    assert verdict(pool) is None
    pool.failed(one("b"), 5.0, "Authorization Violation")
    pool.failed(one("b"), 8.0, "Authorization Violation")
    assert pool.next(0, 0) is None
    reason = verdict(pool)
    assert isinstance(reason, NotAuthorized)
    assert (reason.reason, reason.server) == ("Authorization Violation", "b:4222")


@pytest.mark.parametrize(
    "between", [None, "User Authentication Expired"], ids=["a failure of another kind", "another refusal"]
)
def test_refusals_that_do_not_repeat_rule_nobody_out(between: str | None) -> None:
    pool = pool_of("a")
    for now, refusal in enumerate(("Authorization Violation", between, "Authorization Violation", between)):
        pool.failed(one("a"), 9.0 * now, refusal)
    assert not pool.exhausted


def test_success_between_refusals_forgets_them() -> None:
    pool = pool_of("a")
    pool.failed(one("a"), 0, "Authorization Violation")
    pool.succeeded(one("a"), now=1)
    pool.failed(one("a"), 9, "Authorization Violation")
    assert not pool.exhausted


def test_refusals_end_nothing_when_reported_so() -> None:
    pool = pool_of("a", ignore_auth_error_abort=True)
    for now in range(5):
        pool.failed(one("a"), 9.0 * now, "Authorization Violation")
    assert not pool.exhausted


def test_failure_of_an_unknown_server_is_nothing() -> None:
    pool = pool_of("a")
    pool.failed(one("b"), 0, "Authorization Violation")
    pool.succeeded(one("b"), now=0)
    assert step(pool, now=9) == ("a", 0)


# ---------------------------------------------------------------- discovery


def test_new_servers_inherit_scheme_and_user_info() -> None:
    current = one("tls://me:pw@seed.example")
    pool = ServerPool([current])
    found = pool.discovered(["10.0.0.2:4222", "other.example:4333", "[::1]:4222"], current)
    assert [a.url for a in found.added] == [
        "tls://10.0.0.2:4222",
        "tls://other.example:4333",
        "tls://[::1]:4222",
    ]
    assert [a.tls_name for a in found.added] == ["seed.example", "other.example", "seed.example"]
    assert all(a.user is None for a in (*found.added, *pool.servers, *pool.discovered_servers))
    dialled = [attempt.address for attempt in (pool.next(0, 0), pool.next(0, 0)) if attempt]
    assert [(a.user, a.password) for a in dialled] == [("me", "pw")] * 2


def test_name_to_verify_is_handed_on_from_ip_to_ip() -> None:
    pool = pool_of("tls://seed.example")
    (first,) = pool.discovered(["10.0.0.2:4222"], one("tls://seed.example")).added
    (second,) = pool.discovered(["10.0.0.2:4222", "10.0.0.3:4222"], first).added
    assert second.tls_name == "seed.example"


def test_vanished_discovered_servers_are_dropped() -> None:
    pool = pool_of("a")
    b, _c = pool.discovered(["b:1", "c:1"], one("a")).added
    found = pool.discovered(["d:1"], b)
    assert (hosts(found.added), hosts(found.dropped)) == (["d"], ["c"])
    assert sorted(hosts(pool.servers)) == ["a", "b", "d"]
    found = pool.discovered(["d:1"], one("a"))
    assert hosts(found.dropped) == ["b"]


@pytest.mark.parametrize("urls", [(), ("",), ("nonsense", "h", "h:0", "me:pw@h:1", "nats://h:1", "h:1/x")])
def test_info_without_usable_urls_changes_nothing(urls: tuple[str, ...]) -> None:
    pool = pool_of("a")
    pool.discovered(["b:1"], one("a"))
    assert pool.discovered(urls, one("a")) == Discovery(rejected=len(urls))
    assert hosts(pool.discovered_servers) == ["b"]


def test_malformed_urls_are_counted_and_the_rest_taken() -> None:
    found = pool_of("a").discovered(["b:1", "b:1", "a:4222", "c d:1", "c:99999"], one("a"))
    assert (hosts(found.added), found.rejected) == (["b"], 2)


def test_discovered_servers_can_be_ignored() -> None:
    pool = pool_of("a", ignore_discovered=True)
    assert pool.discovered(["b:1"], one("a")) == Discovery()
    assert hosts(pool.servers) == ["a"]


def test_thousands_of_urls_are_cut_and_take_no_time() -> None:
    pool = pool_of("a")
    urls = [f"10.{n // 65536}.{n // 256 % 256}.{n % 256}:4222" for n in range(8000)]
    best = min(_timed(lambda: pool.discovered(urls, one("a"))) for _ in range(3))
    assert best < 0.05
    assert len(pool.discovered_servers) == MAX_DISCOVERED
    assert pool.discovered(urls, one("a")).rejected == 7000


def _timed(work: object) -> float:
    assert callable(work)
    start = time.process_time()
    work()
    return time.process_time() - start


# ---------------------------------------------------------------- set_servers


def test_set_servers_replaces_everything() -> None:
    pool = pool_of("a,b", max_attempts_per_server=1)
    pool.discovered(["c:1"], one("a"))
    while pool.next(0, 0):
        pass
    pool.set_servers(parse_servers("x,y,x"))
    assert hosts(pool.servers) == ["x", "y"]
    assert pool.discovered_servers == ()
    assert not pool.exhausted


def test_current_server_comes_last_among_the_new_ones() -> None:
    pool = pool_of("a")
    pool.succeeded(one("a"), now=0)
    pool.set_servers(parse_servers("a,b,c"))
    assert [step(pool, now=9)[0] for _ in range(3)] == ["b", "c", "a"]


# ---------------------------------------------------------------- the user's callables


def test_delay_callable_gets_round_number() -> None:
    asked: list[int] = []

    def delay(rounds: int) -> float | timedelta:
        asked.append(rounds)
        return timedelta(seconds=7) if rounds == 2 else rounds

    pool = pool_of("a,b", delay=delay)
    assert [step(pool)[1] for _ in range(6)] == [0, 0, 1, 0, 7, 0]
    assert asked == [1, 2]
    pool.succeeded(one("a"), now=0)
    assert [step(pool, now=99)[1] for _ in range(3)] == [0, 0, 1]


@pytest.mark.parametrize("answer", [-1, "soon", None, float("nan")])
def test_bad_delay_callable_is_reported(answer: object) -> None:
    pool = pool_of("a", delay=lambda rounds: answer)
    step(pool)
    attempt = pool.next(0, 0)
    assert attempt is not None
    assert attempt.delay == 0.05
    assert isinstance(attempt.fault, (ConfigError, TypeError))
    assert "reconnect_delay" in str(attempt.fault)


def test_chooser_sees_the_pool_and_decides() -> None:
    seen: list[tuple[Sequence[ServerState], ServerInfo | None]] = []
    info = ServerInfo({"server_id": "x"})

    def choose(states: Sequence[ServerState], info: ServerInfo | None) -> tuple[ServerAddress, float]:
        seen.append((states, info))
        return states[-1].address, 3

    pool = pool_of("nats://me:pw@a,b")
    pool.discovered(["c:1"], one("b"))
    attempt = pool.next(0, 0, choose=choose, info=info)
    assert attempt == Attempt(address=one("b"), delay=3)
    states, reported = seen[0]
    assert reported is info
    assert [(s.address.host, s.attempts, s.discovered) for s in states] == [
        ("a", 0, False),
        ("c", 0, True),
        ("b", 0, False),
    ]
    assert states[0].address.password is None
    pool.next(0, 0, choose=choose)
    assert {s.address.host: s.attempts for s in seen[1][0]} == {"a": 0, "c": 0, "b": 1}


def test_chosen_server_is_dialled_with_its_user_info() -> None:
    pool = pool_of("nats://me:pw@a")
    attempt = pool.next(0, 0, choose=lambda states, info: (states[0].address, timedelta(seconds=1)))
    assert attempt is not None
    assert (attempt.address.password, attempt.delay) == ("pw", 1)


def test_chooser_may_leave_it_to_the_pool() -> None:
    attempt = pool_of("a").next(0, 0, choose=lambda states, info: None)
    assert attempt == Attempt(address=one("a"))


@pytest.mark.parametrize(
    "answer",
    ["a", (one("z"), 0), (one("b"), -1), (one("b"), "x"), ("b", 0), (one("b"),), ZeroDivisionError("oops")],
    ids=["a string", "a stranger", "negative", "no number", "no address", "no wait", "an exception"],
)
def test_bad_chooser_is_reported(answer: object) -> None:
    def choose(states: Sequence[ServerState], info: ServerInfo | None) -> object:
        if isinstance(answer, Exception):
            raise answer
        return answer

    attempt = pool_of("a,b").next(0, 0, choose=choose)  # type: ignore[arg-type]
    assert attempt is not None
    assert (attempt.address.host, attempt.delay) == ("a", 0)
    assert isinstance(attempt.fault, (TypeError, ConfigError, ZeroDivisionError))


def test_two_faults_at_once_tell_the_first() -> None:
    pool = pool_of("a", delay=lambda rounds: -1)
    step(pool)
    attempt = pool.next(0, 0, choose=lambda states, info: 1)  # type: ignore[arg-type, return-value]
    assert attempt is not None
    assert "reconnect_to_server" in str(attempt.fault)


# ---------------------------------------------------------------- any order of events


NAMES = st.sampled_from(["a", "b", "c", "d", "e", "f"])


class PoolLives(RuleBasedStateMachine):
    """Whatever happens: given servers stay, nobody is starved, waits are bounded and only between rounds."""

    @initialize(given=st.lists(NAMES, min_size=1, unique=True), most=st.sampled_from([-1, 1, 3]))
    def start(self, given: list[str], most: int) -> None:
        self.pool = ServerPool(
            parse_servers([f"nats://me:{SECRET}@{name}:1" for name in given]), max_attempts_per_server=most
        )
        self.most = most
        self.given = set(given)
        self.implicit: set[str] = set()
        self.attempts: dict[str, int] = {}
        self.refused: dict[str, tuple[str, float]] = {}
        self.out: set[str] = set()
        self.at_once: list[str] = []
        self.now = 0.0
        self.last: ServerAddress | None = None
        self.connected: ServerAddress | None = None

    def known(self) -> set[str]:
        return self.given | self.implicit

    def usable(self) -> set[str]:
        spent = {name for name, count in self.attempts.items() if 0 <= self.most <= count}
        return self.known() - self.out - spent

    @rule(fraction=st.floats(0, 1, exclude_max=True), lived=st.floats(0.001, 100))
    def lose_and_try(self, fraction: float, lived: float) -> None:
        self.now += lived
        usable = self.usable()
        if self.connected is not None:
            self.connected, self.at_once = None, []
        attempt = self.pool.next(self.now, fraction)
        if attempt is None:
            assert not usable
            assert (self.pool.final_reason is not None) == bool(self.out)
            return
        host = attempt.address.host
        assert host in usable
        assert 0 <= attempt.delay <= 4.1
        if attempt.delay:
            assert attempt.delay >= 0.05
            self.at_once = []
        assert host not in self.at_once, "a server was tried twice within a round"
        self.at_once.append(host)
        self.attempts[host] = self.attempts.get(host, 0) + 1
        self.last = attempt.address

    @precondition(lambda self: self.last is not None and self.connected is None)
    @rule(refusal=st.sampled_from([None, "Authorization Violation", "Account Authentication Expired"]))
    def dial_fails(self, refusal: str | None) -> None:
        assert self.last is not None
        host = self.last.host
        self.pool.failed(self.last, self.now, refusal)
        if host in self.known():
            words, since = self.refused.get(host, ("", 0.0))
            if refusal is None or words != refusal:
                self.refused[host] = (refusal or "", self.now)
            elif self.now - since >= REFUSAL_CONFIRM_S:
                self.out.add(host)

    @precondition(lambda self: self.last is not None and self.connected is None)
    @rule()
    def dial_succeeds(self) -> None:
        assert self.last is not None
        self.pool.succeeded(self.last, self.now)
        self.connected = self.last
        self.attempts, self.refused, self.out = {}, {}, set()

    @precondition(lambda self: self.connected is not None)
    @rule(named=st.lists(NAMES), junk=st.lists(st.sampled_from(["", "a", "x y:1", ":1", "a:b"]), max_size=2))
    def info(self, named: list[str], junk: list[str]) -> None:
        assert self.connected is not None
        found = self.pool.discovered([f"{name}:1" for name in named] + junk, self.connected)
        assert found.rejected == len(junk)
        if not named:
            assert not found.added
            assert not found.dropped
            return
        gone = self.implicit - set(named) - {self.connected.host}
        new = set(named) - self.known()
        assert set(hosts(found.dropped)) == gone
        assert set(hosts(found.added)) == new
        self.implicit = (self.implicit - gone) | new
        self._forget(gone)

    @rule(names=st.lists(NAMES, min_size=1, unique=True))
    def replace(self, names: list[str]) -> None:
        self.pool.set_servers(parse_servers([f"{name}:1" for name in names]))
        self.given, self.implicit = set(names), set()
        self.attempts, self.refused, self.out, self.at_once = {}, {}, set(), []

    def _forget(self, names: set[str]) -> None:
        for name in names:
            self.attempts.pop(name, None)
            self.refused.pop(name, None)
        self.out -= names
        self.at_once = [name for name in self.at_once if name not in names]

    @invariant()
    def nothing_is_lost_or_invented(self) -> None:
        if hasattr(self, "pool"):
            assert set(hosts(self.pool.servers)) == self.known()
            assert len(self.pool.servers) == len(self.known())
            assert set(hosts(self.pool.discovered_servers)) == self.implicit
            assert self.pool.exhausted == (not self.usable())
            assert SECRET not in repr(self.pool.servers)


TestPoolLives = PoolLives.TestCase
TestPoolLives.settings = examples(60, steps=30)
