"""Options: what is accepted, what is refused and how, and what is read anew at every attempt."""

from __future__ import annotations

import copy
import json
import os
import pickle
import ssl
import sys
from collections.abc import Mapping
from datetime import timedelta
from pathlib import Path

import nkeys  # type: ignore[import-untyped]
import pytest

from natsproto._options.options import AuthChallenge, OptionArgs, Options
from natsproto.errors import ConfigError, InvalidCredentials, InvalidSubject, NotAuthorized
from natsproto.protocol.addresses import ServerAddress, parse_servers
from natsproto.protocol.auth import Credentials
from natsproto.protocol.frames import ServerInfo

SECRET = "hunter2"
SEED = nkeys.encode_seed(bytes(range(32)), nkeys.PREFIX_BYTE_USER).decode()
OTHER_SEED = nkeys.encode_seed(bytes(range(1, 33)), nkeys.PREFIX_BYTE_USER).decode()
JWT = "eyJ0eXAi.eyJqdGki.c2lnbmF0dXJl"
CREDS = f"""-----BEGIN NATS USER JWT-----
{JWT}
------END NATS USER JWT------
-----BEGIN USER NKEY SEED-----
{SEED}
------END USER NKEY SEED------
"""
INFO = ServerInfo({"server_id": "x", "nonce": "n0nce"})


def one(url: str) -> ServerAddress:
    (address,) = parse_servers(url)
    return address


def options_of(**given: object) -> Options:
    return Options(**given)  # type: ignore[arg-type]


async def credentials(options: Options, url: str = "nats://h", nonce: str = "n0nce") -> Credentials:
    return await options._credentials_for(one(url), nonce, INFO)


# ---------------------------------------------------------------- the value


def test_defaults_are_those_of_the_documentation() -> None:
    o = Options()
    assert [a.url for a in o.addresses] == ["nats://127.0.0.1:4222"]
    assert (o.connect_timeout, o.request_timeout, o.drain_timeout, o.ping_interval) == (5, 5, 25, 120)
    assert (o.max_reconnect_attempts, o.max_outstanding_pings) == (-1, 2)
    assert (o.reconnect_wait, o.reconnect_wait_max, o.jitter, o.jitter_tls) == (0.05, 4, 0.1, 1)
    assert (o.outbox_limit, o.pending_msgs_limit) == (8 * 1024**2, 65536)
    assert (o.pending_bytes_limit, o.max_message_size) == (64 * 1024**2, 64 * 1024**2)
    assert (o.randomize, o.allow_reconnect, o.ignore_auth_error_abort) == (True, True, False)
    assert o.inbox_prefix == "_INBOX"


def test_argument_names_and_attributes_are_the_same() -> None:
    assert set(OptionArgs.__annotations__) == set(Options._fields) - {"servers"}


def test_durations_become_float_seconds() -> None:
    o = Options(ping_interval=timedelta(milliseconds=1500), jitter=0, connect_timeout=2)
    assert (o.ping_interval, o.jitter, o.connect_timeout) == (1.5, 0.0, 2.0)
    assert isinstance(o.connect_timeout, float)


def test_options_are_frozen_copies() -> None:
    headers = {"X-Team": "a"}
    servers = ["a", "b"]
    o = Options(servers, websocket_headers=headers)
    headers["X-Team"], servers[0] = "b", "c"
    assert o.websocket_headers == {"X-Team": "a"}
    assert o.servers == ("a", "b")
    with pytest.raises(AttributeError, match="frozen"):
        o.name = "x"  # type: ignore[misc]


def test_replace_changes_a_copy_and_checks_it() -> None:
    o = Options("a,b", name="x", ping_interval=9)
    changed = o.replace(name="y", connect_timeout=1)
    assert (changed.name, changed.connect_timeout, changed.ping_interval) == ("y", 1, 9)
    assert changed.addresses == o.addresses
    assert o.name == "x"
    with pytest.raises(ConfigError, match="connect_timeout"):
        o.replace(connect_timeout=-1)


def test_options_survive_copying_and_pickling() -> None:
    o = Options("tls://a", user="me", password=SECRET)
    for again in (copy.copy(o), copy.deepcopy(o), pickle.loads(pickle.dumps(o))):
        assert again == o
        assert again.addresses == o.addresses


def test_repr_shows_what_differs_and_no_secret() -> None:
    o = Options(
        f"nats://me:{SECRET}@a,b", name="x", ping_interval=9, user="me", password=SECRET,
        websocket_headers={"Cookie": SECRET},
    )  # fmt: skip
    for text in (repr(o), str(o), f"{o}"):
        assert text == (
            "Options(servers='a:4222, b:4222', name='x', user=(hidden), password=(hidden), ping_interval=9.0, "
            "websocket_headers=(hidden))"
        )
    for given in ({"token": SECRET}, {"nkey_seed": SEED}, {"creds": CREDS}, {"jwt": JWT}):
        text = repr(options_of(**given))
        assert not any(secret in text for secret in (SECRET, SEED, JWT))


# ---------------------------------------------------------------- what is refused

DURATIONS = [
    "connect_timeout", "reconnect_wait", "reconnect_wait_max", "jitter", "jitter_tls", "ping_interval",
    "drain_timeout", "request_timeout",
]  # fmt: skip
COUNTS = ["max_outstanding_pings", "outbox_limit", "pending_msgs_limit", "pending_bytes_limit", "max_message_size"]
FLAGS = [
    "ignore_auth_error_abort", "tls_first", "allow_reconnect", "retry_on_failed_connect", "randomize",
    "ignore_discovered_servers", "fail_requests_on_disconnect", "no_echo", "verbose", "pedantic",
    "allow_api_replies", "websocket_compression",
]  # fmt: skip
CALLABLES = ["auth", "reconnect_delay", "reconnect_to_server", "on_event"]
SECRETS = ["user", "password", "token", "jwt", "nkey_seed", "creds"]


@pytest.mark.parametrize("name", DURATIONS)
@pytest.mark.parametrize("value", [True, -0.1, float("nan"), float("inf"), timedelta(days=-1)])
def test_duration_out_of_range_names_the_option(name: str, value: object) -> None:
    with pytest.raises(ConfigError, match=rf"^{name} "):
        options_of(**{name: value})


@pytest.mark.parametrize("name", ["connect_timeout", "ping_interval", "drain_timeout", "request_timeout"])
def test_duration_of_zero_is_refused(name: str) -> None:
    with pytest.raises(ConfigError, match=f"^{name} .*more than 0"):
        options_of(**{name: 0})


@pytest.mark.parametrize("name", COUNTS)
@pytest.mark.parametrize("value", [-1, 2**63])
def test_count_out_of_range_names_the_option(name: str, value: int) -> None:
    with pytest.raises(ConfigError, match=f"^{name} "):
        options_of(**{name: value})
    with pytest.raises(ConfigError, match="max_reconnect_attempts -2"):
        Options(max_reconnect_attempts=-2)


@pytest.mark.parametrize("value", ["5", None, [], b"5"])
@pytest.mark.parametrize("name", [*DURATIONS, *COUNTS, *FLAGS, "max_reconnect_attempts"])
def test_wrong_types_are_type_errors_naming_the_option(name: str, value: object) -> None:
    with pytest.raises(TypeError, match=f"^{name} must be"):
        options_of(**{name: value})


@pytest.mark.parametrize(("name", "value"), [(n, v) for n in COUNTS for v in (1.5, True)] + [(n, 1) for n in FLAGS])
def test_numbers_and_flags_are_not_mixed_up(name: str, value: object) -> None:
    with pytest.raises(TypeError, match=f"^{name} must be"):
        options_of(**{name: value})


@pytest.mark.parametrize("name", [*CALLABLES, *SECRETS, "name", "tls", "tls_hostname", "websocket_headers",
                                  "websocket_path", "inbox_prefix", "jetstream_domain"])  # fmt: skip
def test_type_error_names_the_option(name: str) -> None:
    with pytest.raises(TypeError, match=f"^{name} must be"):
        options_of(**{name: 5})


@pytest.mark.parametrize("name", SECRETS)
def test_secret_as_bytes_is_refused_and_hidden(name: str) -> None:
    with pytest.raises(TypeError) as caught:
        options_of(**{name: SECRET.encode()})
    assert SECRET not in str(caught.value)


@pytest.mark.parametrize(
    ("name", "value", "rule"),
    [
        ("name", "a\r\nb", "printable"),
        ("name", "x" * 1025, "printable"),
        ("tls_hostname", "https://h", "without scheme"),
        ("tls_hostname", "h:4222", "without scheme"),
        ("tls_hostname", "me@h", "without scheme"),
        ("tls_hostname", "", "host name"),
        ("websocket_path", "nats", "start with /"),
        ("websocket_path", "/a b", "start with /"),
        ("websocket_path", "/a#b", "start with /"),
        ("websocket_headers", {"a b": "c"}, "header name"),
        ("websocket_headers", {"": "c"}, "header name"),
        ("websocket_headers", {"Cookie": f"{SECRET}\r\nX: y"}, "control characters"),
        ("websocket_headers", {"Cookie": f"{SECRET}€"}, "Latin-1"),
        ("jetstream_domain", "a.b", "one token"),
        ("inbox_prefix", "i" * 1025, "at most 1024 bytes"),
        ("servers", "http://h", "scheme"),
        ("servers", f"nats://me:{SECRET}@h:x", "port"),
    ],
)
def test_config_error_names_the_option(name: str, value: object, rule: str) -> None:
    with pytest.raises(ConfigError, match=rule) as caught:
        options_of(**{name: value})
    assert str(caught.value).startswith(name.rstrip("s"))
    assert SECRET not in str(caught.value)


@pytest.mark.parametrize("name", ["inbox_prefix", "jetstream_api_prefix", "jetstream_domain"])
@pytest.mark.parametrize("value", ["", "a b", "a\r\nPUB", "a.", ".a", "a..b", "a.*", "a.>", ">"])
def test_prefixes_must_be_subjects_without_wildcards(name: str, value: str) -> None:
    with pytest.raises(InvalidSubject, match=f"^{name} "):
        options_of(**{name: value})


def test_header_maps_of_other_things_are_type_errors() -> None:
    with pytest.raises(TypeError, match="map str to str, not str to int"):
        options_of(websocket_headers={"a": 1})


@pytest.mark.parametrize(
    ("given", "rule"),
    [
        ({"token": SECRET, "user": "me"}, "token .*together with user"),
        ({"creds": CREDS, "nkey_seed": SEED}, "creds .*together with nkey_seed"),
        ({"creds": CREDS, "jwt": JWT}, "creds .*together with jwt"),
        ({"auth": lambda challenge: Credentials(), "token": SECRET}, "token .*together with auth"),
        ({"password": SECRET}, "password .*needs a user"),
        ({"token": ""}, "token .*is empty"),
        ({"jwt": SECRET}, "jwt .*three base64url"),
        ({"nkey_seed": SECRET}, r"nkey_seed .*pathlib\.Path"),
        ({"nkey_seed": f"SU{SECRET}"}, "nkey seed .*58 characters"),
        ({"creds": CREDS.replace(SEED, SECRET)}, "nkey seed .*58 characters"),
    ],
)
def test_credentials_error_hides_the_secrets(given: dict[str, object], rule: str) -> None:
    with pytest.raises(InvalidCredentials, match=rule) as caught:
        options_of(**given)
    assert SECRET not in str(caught.value)


@pytest.mark.parametrize("given", [{"tls": True}, {"tls_first": True}])
def test_demanding_tls_of_a_ws_url_is_refused(given: dict[str, object]) -> None:
    with pytest.raises(ConfigError, match="must be a wss:// URL"):
        options_of(servers="ws://h", **given)


def test_unknown_options_are_type_errors_with_a_guess() -> None:
    with pytest.raises(TypeError, match="no option 'ping_intervall'; did you mean 'ping_interval'"):
        options_of(ping_intervall=3)
    with pytest.raises(TypeError, match=r"no option 'zzz'$"):
        options_of(zzz=3)
    with pytest.raises(TypeError):
        options_of(addresses=())


# ---------------------------------------------------------------- credentials of one attempt


async def test_no_credentials_are_none() -> None:
    assert await credentials(Options()) == Credentials()


async def test_values_are_taken_as_they_are() -> None:
    assert await credentials(Options(user="me", password="")) == Credentials(user="me", password="")
    assert await credentials(Options(token="t", jwt=JWT)) == Credentials(token="t", jwt=JWT)
    assert await credentials(Options(nkey_seed=SEED)) == Credentials(seed=SEED.encode())
    both = await credentials(Options(creds=CREDS, token="t"))
    assert both == Credentials(jwt=JWT, seed=SEED.encode(), token="t")


async def test_user_info_of_the_url_is_the_fallback() -> None:
    url = "nats://url:pw@h"
    assert await credentials(Options(), url) == Credentials(user="url", password="pw")
    assert await credentials(Options(), "nats://tok@h") == Credentials(token="tok")
    assert await credentials(Options(user="me"), url) == Credentials(user="me")
    assert await credentials(Options(token="t"), url) == Credentials(token="t")
    assert (await credentials(Options(nkey_seed=SEED), url)).user == "url"


async def test_files_are_read_again_at_every_attempt(tmp_path: Path) -> None:
    for name, first, second in (
        ("password", "one", "two\n"),
        ("nkey_seed", SEED, OTHER_SEED + "\r\n"),
        ("creds", CREDS, CREDS.replace(SEED, OTHER_SEED)),
        ("jwt", f" {JWT}\n", JWT + "xx"),
        ("token", "\ufefft1", "t2"),
    ):
        file = tmp_path / name
        options = options_of(**{name: file}, **({"user": "me"} if name == "password" else {}))
        file.write_text(first, encoding="utf-8")
        before = await credentials(options)
        file.write_text(second, encoding="utf-8")
        after = await credentials(options)
        assert before != after, name
        if name == "password":
            assert (before.password, after.password) == ("one", "two")
        if name == "token":
            assert before.token == "t1"


async def test_str_creds_without_a_begin_line_are_a_path(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    (tmp_path / "my.creds").write_text(CREDS)
    monkeypatch.setenv("HOME", str(tmp_path))
    for path in (str(tmp_path / "my.creds"), "~/my.creds"):
        assert (await credentials(Options(creds=path))).jwt == JWT


async def test_callables_are_asked_at_every_attempt(tmp_path: Path) -> None:
    file = tmp_path / "token"
    file.write_text("from a file")
    answers: list[str | Path] = ["first", "second", file]

    async def later() -> str | Path:
        return answers.pop(0)

    options = Options(token=later)
    assert [(await credentials(options)).token for _ in range(3)] == ["first", "second", "from a file"]
    assert (await credentials(Options(creds=lambda: CREDS))).jwt == JWT


async def test_auth_callable_sees_the_challenge() -> None:
    seen: list[AuthChallenge] = []

    async def auth(challenge: AuthChallenge) -> Credentials:
        seen.append(challenge)
        return Credentials(token="made")

    assert await credentials(Options(auth=auth), f"nats://me:{SECRET}@h") == Credentials(token="made")
    assert await credentials(Options(auth=lambda challenge: Credentials()), "nats://me:pw@h", "") == Credentials()
    assert (seen[0].server, seen[0].nonce, seen[0].info) == (one("h"), b"n0nce", INFO)
    assert SECRET not in repr(seen[0])


@pytest.mark.parametrize("name", [*SECRETS, "auth"])
async def test_callable_error_hides_its_text(name: str) -> None:
    def fails(*args: object) -> str:
        raise RuntimeError(SECRET)

    user = {"user": "me"} if name == "password" else {}
    with pytest.raises(InvalidCredentials, match=f"^{name} .*failed with RuntimeError") as caught:
        await credentials(options_of(**{name: fails}, **user))
    assert SECRET not in str(caught.value)
    assert isinstance(caught.value.__cause__, RuntimeError)


async def test_callable_error_of_natsproto_is_unchanged() -> None:
    def fails(challenge: AuthChallenge) -> Credentials:
        raise NotAuthorized("no more")

    with pytest.raises(NotAuthorized, match="no more"):
        await credentials(Options(auth=fails))


async def test_callable_with_a_wrong_result_is_refused() -> None:
    with pytest.raises(InvalidCredentials, match=r"token .*must return a str or a path, not NoneType"):
        await credentials(options_of(token=lambda: None))
    with pytest.raises(InvalidCredentials, match=r"auth .*must return Credentials, not dict"):
        await credentials(options_of(auth=lambda challenge: {}))


async def test_unreadable_file_is_named_when_given_as_a_path(tmp_path: Path) -> None:
    with pytest.raises(InvalidCredentials, match=r"creds file .*gone\.creds.*No such file"):
        await credentials(Options(creds=tmp_path / "gone.creds"))
    with pytest.raises(InvalidCredentials, match=r"'\./gone\.creds'.*No such file"):
        await credentials(Options(creds="./gone.creds"))
    (tmp_path / "big").write_bytes(b"x" * (2 << 20))
    with pytest.raises(InvalidCredentials, match="larger than"):
        await credentials(Options(token=tmp_path / "big"))
    (tmp_path / "binary").write_bytes(b"\xff\xfe\xfd")
    with pytest.raises(InvalidCredentials, match="not UTF-8"):
        await credentials(Options(token=tmp_path / "binary"))
    with pytest.raises(InvalidCredentials, match="not a path"):
        await credentials(Options(creds="a\0b"))


@pytest.mark.parametrize("text", [SEED, JWT, CREDS.replace("BEGIN", "START"), f"./{'a' * 20}{SECRET}", SECRET * 1000])
async def test_secret_given_as_a_path_is_hidden(text: str) -> None:
    with pytest.raises(InvalidCredentials) as caught:
        await credentials(Options(creds=text))
    assert caught.value.__context__ is None
    assert not any(secret in str(caught.value) for secret in (text[:17], SEED[:8], JWT[:8]))


# ---------------------------------------------------------------- TLS


@pytest.mark.parametrize(
    ("url", "given", "required"),
    [
        ("nats://h", {}, False),
        ("nats://h", {"tls": False}, False),
        ("tls://h", {}, True),
        ("wss://h", {}, True),
        ("nats://h,tls://i", {}, True),
        ("tls://h,nats://i", {}, True),
        ("ws://h", {}, False),
        ("nats://h", {"tls": True}, True),
        ("nats://h", {"tls_first": True}, True),
    ],
)
def test_tls_required_by_scheme_context_or_tls_first(url: str, given: dict[str, object], required: bool) -> None:
    options = options_of(servers=url, **given)
    assert options._tls_required is required
    context = options._tls_context()  # also for servers that demand what nobody asked for
    assert (context.check_hostname, context.verify_mode) == (True, ssl.CERT_REQUIRED)


def test_tls_callable_is_asked_at_every_attempt() -> None:
    mine = ssl.create_default_context()
    assert Options(tls=mine)._tls_context() is mine
    asked: list[ssl.SSLContext] = []

    def make() -> ssl.SSLContext:
        asked.append(ssl.create_default_context())
        return asked[-1]

    options = Options(tls=make)
    assert [options._tls_context() for _ in range(2)] == asked


def test_context_callable_that_fails_is_a_config_error() -> None:
    def fails() -> ssl.SSLContext:
        raise RuntimeError(SECRET)

    def missing() -> ssl.SSLContext:
        return ssl.create_default_context(cafile="/nowhere/ca.pem")

    def refuses() -> ssl.SSLContext:
        raise NotAuthorized("no more")

    with pytest.raises(ConfigError, match="failed with RuntimeError") as caught:
        Options(tls=fails)._tls_context()
    assert SECRET not in str(caught.value)
    with pytest.raises(ConfigError, match=r"failed with FileNotFoundError.*No such file"):
        Options(tls=missing)._tls_context()
    with pytest.raises(ConfigError, match=r"must return an ssl\.SSLContext, not NoneType"):
        options_of(tls=lambda: None)._tls_context()
    with pytest.raises(NotAuthorized):
        Options(tls=refuses)._tls_context()


@pytest.mark.parametrize(
    ("given", "kept"), [("Other.Example", "other.example"), ("::1", "::1"), ("10.0.0.1", "10.0.0.1")]
)
def test_tls_hostname_overrides_the_name_of_the_server(given: str, kept: str) -> None:
    assert Options()._tls_hostname_for(one("h.example")) == "h.example"
    assert Options(tls_hostname=given)._tls_hostname_for(one("h.example")) == kept


# ---------------------------------------------------------------- WebSocket


async def test_websocket_headers_callable_at_every_attempt() -> None:
    count = 0

    async def headers() -> Mapping[str, str]:
        nonlocal count
        count += 1
        return {"X-Count": str(count)}

    options = Options("ws://h", websocket_headers=headers)
    assert [await options._websocket_headers_for(one("ws://h")) for _ in range(2)] == [
        {"X-Count": "1"},
        {"X-Count": "2"},
    ]
    assert await Options(websocket_headers={"A": "b"})._websocket_headers_for(one("wss://h")) == {"A": "b"}
    assert await Options(websocket_headers={"A": "b"})._websocket_headers_for(one("nats://h")) == {}
    assert await Options()._websocket_headers_for(one("ws://h")) == {}


@pytest.mark.parametrize("answer", [None, {"a": 1}, {"a": f"{SECRET}\n"}, "text"])
async def test_headers_a_callable_returns_are_checked(answer: object) -> None:
    options = options_of(servers="ws://h", websocket_headers=lambda: answer)
    with pytest.raises(ConfigError, match="websocket_headers") as caught:
        await options._websocket_headers_for(one("ws://h"))
    assert SECRET not in str(caught.value)


def test_websocket_path_of_the_url_or_the_option() -> None:
    options = Options(websocket_path="/nats")
    assert options._websocket_path_for(one("ws://h/own")) == "/own"
    assert options._websocket_path_for(one("ws://h")) == "/nats"
    assert Options()._websocket_path_for(one("ws://h")) == "/"


# ---------------------------------------------------------------- the pool


def test_pool_is_made_of_the_options() -> None:
    options = Options(
        "a,b", randomize=False, max_reconnect_attempts=1, reconnect_wait=2, jitter=1, jitter_tls=3, tls=True,
        ignore_discovered_servers=True, ignore_auth_error_abort=True,
    )  # fmt: skip
    pool = options._server_pool(lambda servers: servers.reverse())
    assert [a.host for a in pool.servers] == ["a", "b"]
    assert pool.discovered(["c:1"], one("a")).added == ()
    list(pool.one_pass())
    attempt = pool.next(0, 0.5)
    assert attempt is not None
    assert attempt.delay == 3.5
    pool.next(0, 0)
    assert pool.exhausted
    shuffled = Options("a,b")._server_pool(lambda servers: servers.reverse())
    assert [a.host for a in shuffled.servers] == ["b", "a"]


# ---------------------------------------------------------------- environment


async def test_environment_of_the_command_line_tool_is_read(tmp_path: Path) -> None:
    (tmp_path / "u.creds").write_text(CREDS)
    (tmp_path / "u.nk").write_text(SEED)
    env = {"HOME": str(tmp_path), "NATS_URL": "a,b", "NATS_TIMEOUT": "1m30.5s", "NATS_CA": "", "PATH": "x"}
    o = Options.from_env(env)
    assert ([str(a) for a in o.addresses], o.connect_timeout, o.request_timeout) == (["a:4222", "b:4222"], 90.5, 90.5)
    assert o.tls is None
    assert await credentials(Options.from_env(env | {"NATS_USER": "me", "NATS_PASSWORD": "pw"})) == Credentials(
        user="me", password="pw"
    )
    assert await credentials(Options.from_env({"NATS_USER": "tok"})) == Credentials(token="tok")
    assert await credentials(Options.from_env({"NATS_TOKEN": "tok"})) == Credentials(token="tok")
    assert (await credentials(Options.from_env(env | {"NATS_CREDS": "$HOME/u.creds"}))).jwt == JWT
    assert (await credentials(Options.from_env(env | {"NATS_NKEY": "~/u.nk"}))).seed == SEED.encode()


def test_empty_environment_means_the_defaults() -> None:
    assert Options.from_env({}) == Options()


def test_environment_of_the_process_is_the_default(monkeypatch: pytest.MonkeyPatch) -> None:
    for name in [name for name in os.environ if name.startswith("NATS_")]:
        monkeypatch.delenv(name)
    monkeypatch.setenv("NATS_URL", "nats://from.env:1")
    assert str(Options.from_env().addresses[0]) == "from.env:1"


@pytest.mark.parametrize(
    ("text", "value"),
    [("5s", 5), ("500ms", 0.5), ("2h", 7200), ("1.5m", 90), (".5s", 0.5), ("3us", 3e-6), ("3µs", 3e-6)],
)
def test_timeouts_are_written_as_in_go(text: str, value: float) -> None:
    assert Options.from_env({"NATS_TIMEOUT": text}).connect_timeout == pytest.approx(value)


@pytest.mark.parametrize(
    ("env", "rule"),
    [
        ({"NATS_TIMEOUT": "soon"}, "duration like"),
        ({"NATS_TIMEOUT": "5"}, "duration like"),
        ({"NATS_TIMEOUT": "-5s"}, "duration like"),
        ({"NATS_TIMEOUT": "0"}, "more than 0"),
        ({"NATS_SOCKS_PROXY": f"socks5://me:{SECRET}@h"}, "like socks5://host:port"),
        ({"NATS_CERT": "/c.pem"}, "given together"),
        ({"NATS_KEY": "/k.pem"}, "given together"),
        ({"NATS_PASSWORD": SECRET}, "needs a user"),
        ({"NATS_USER": "me", "NATS_TOKEN": SECRET}, "together with user"),
        ({"NATS_CREDS": "/c", "NATS_NKEY": "/n"}, "together with nkey_seed"),
        ({"NATS_URL": f"nats://me:{SECRET}@"}, "host is missing"),
        ({"NATS_CONTEXT": "../x"}, "not the name of a context"),
    ],
)
def test_unusable_environment_is_a_config_error(env: dict[str, str], rule: str) -> None:
    with pytest.raises(ConfigError, match=rule) as caught:
        Options.from_env(env)
    assert SECRET not in str(caught.value)


def test_certificate_files_are_read_at_every_attempt(tmp_path: Path, certificate: tuple[Path, Path]) -> None:
    cert, key = certificate
    env = {"HOME": str(cert.parent), "NATS_CA": "~/cert.pem"}
    context = Options.from_env(env)._tls_context()
    assert context is not None
    assert [ca["subject"] for ca in context.get_ca_certs()] == [((("commonName", "test"),),)]
    options = Options.from_env(env | {"NATS_CERT": str(cert), "NATS_KEY": str(key)})
    assert options._tls_context() is not None
    key.write_text("no longer a key")
    with pytest.raises(ConfigError, match="failed with SSLError"):
        options._tls_context()
    assert pickle.loads(pickle.dumps(options)) == options


@pytest.fixture
def certificate(tmp_path: Path) -> tuple[Path, Path]:
    from datetime import UTC, datetime

    from cryptography import x509
    from cryptography.hazmat.primitives import hashes, serialization
    from cryptography.hazmat.primitives.asymmetric import ec

    key = ec.generate_private_key(ec.SECP256R1())
    name = x509.Name([x509.NameAttribute(x509.NameOID.COMMON_NAME, "test")])
    signed = (
        x509.CertificateBuilder()
        .subject_name(name)
        .issuer_name(name)
        .public_key(key.public_key())
        .serial_number(1)
        .not_valid_before(datetime(2020, 1, 1, tzinfo=UTC))
        .not_valid_after(datetime(2120, 1, 1, tzinfo=UTC))
        .add_extension(x509.BasicConstraints(ca=True, path_length=None), critical=True)
        .sign(key, hashes.SHA256())
    )
    (tmp_path / "cert.pem").write_bytes(signed.public_bytes(serialization.Encoding.PEM))
    (tmp_path / "key.pem").write_bytes(
        key.private_bytes(serialization.Encoding.PEM, serialization.PrivateFormat.PKCS8, serialization.NoEncryption())
    )
    return tmp_path / "cert.pem", tmp_path / "key.pem"


# ---------------------------------------------------------------- contexts


class Contexts:
    """A folder of contexts as the command line tool writes them."""

    def __init__(self, home: Path, config: Path) -> None:
        self.environ = {"HOME": str(home)}
        self.folder = config / "nats"
        (self.folder / "context").mkdir(parents=True)

    def write(self, name: str, **settings: object) -> Path:
        # The tool writes every field it knows, most of them empty.
        known = dict.fromkeys(("description", "url", "token", "user", "password", "creds", "nkey", "cert", "key", "ca",
                               "nsc", "jetstream_domain", "inbox_prefix", "user_jwt", "color_scheme"), "")  # fmt: skip
        path = self.folder / "context" / f"{name}.json"
        path.write_text(json.dumps({**known, "tls_first": False, "windows_ca_certs_match": None, **settings}))
        return path

    def read(self, name: str | None = "c") -> Options:
        return Options.from_context(name, self.environ)


@pytest.fixture
def contexts(tmp_path: Path) -> Contexts:
    return Contexts(tmp_path, tmp_path / ".config")


def test_context_gives_servers_and_settings(contexts: Contexts) -> None:
    contexts.write(
        "c", url="nats://a:1,nats://b:2", inbox_prefix="_ME", jetstream_domain="hub", jetstream_api_prefix="JS.API",
        tls_first=True,
    )  # fmt: skip
    o = contexts.read()
    assert [str(a) for a in o.addresses] == ["a:1", "b:2"]
    assert (o.inbox_prefix, o.jetstream_domain, o.jetstream_api_prefix, o.tls_first) == ("_ME", "hub", "JS.API", True)


def test_empty_context_means_the_defaults(contexts: Contexts) -> None:
    contexts.write("c")
    assert contexts.read() == Options()


def test_no_name_means_the_selected_context(contexts: Contexts) -> None:
    contexts.write("c", url="nats://selected")
    with pytest.raises(ConfigError, match="none selected"):
        contexts.read(None)
    (contexts.folder / "context.txt").write_text("c\n")
    assert contexts.read(None).addresses[0].host == "selected"
    (contexts.folder / "context.txt").write_text(" \n")
    with pytest.raises(ConfigError, match="none selected"):
        contexts.read(None)


def test_context_folder_is_in_xdg_config_home(tmp_path: Path) -> None:
    moved = Contexts(tmp_path, tmp_path / "moved")
    path = moved.write("c", url="nats://moved")
    moved.environ["XDG_CONFIG_HOME"] = str(tmp_path / "moved")
    assert moved.read().addresses[0].host == "moved"
    assert Options.from_context(str(path)).addresses[0].host == "moved"


async def test_context_uses_its_first_kind_of_credentials(contexts: Contexts, tmp_path: Path) -> None:
    (tmp_path / "u.creds").write_text(CREDS)
    (tmp_path / "u.nk").write_text(SEED)
    seed = SEED.encode()
    everything = {
        "user": "me", "password": "pw", "creds": "~/u.creds", "nkey": "${HOME}/u.nk", "user_jwt": JWT, "token": "t"
    }  # fmt: skip
    expected = [
        ((), Credentials(user="me", password="pw")),
        (("user", "password"), Credentials(jwt=JWT, seed=seed)),
        (("creds",), Credentials(jwt=JWT, seed=seed)),
        (("nkey",), Credentials(jwt=JWT)),
        (("user_jwt",), Credentials(token="t")),
        (("token",), Credentials()),
    ]
    for removed, wanted in expected:
        everything |= dict.fromkeys(removed, "")
        contexts.write("c", **everything)
        assert await credentials(contexts.read()) == wanted


def test_certificates_of_a_context_are_used(contexts: Contexts, certificate: tuple[Path, Path]) -> None:
    contexts.write("c", ca="~/cert.pem", cert="~/cert.pem", key=str(certificate[1]))
    assert contexts.read()._tls_context() is not None


async def test_environment_overrides_its_context(contexts: Contexts) -> None:
    contexts.write("c", url="nats://a", user="me", password="pw", inbox_prefix="_ME")
    env = contexts.environ | {"NATS_CONTEXT": "c"}
    assert await credentials(Options.from_env(env)) == Credentials(user="me", password="pw")
    contexts.write("c", socks_proxy="socks5://a:1080")
    assert Options.from_env(env).proxy == "socks5://a:1080"
    assert Options.from_env(env | {"NATS_SOCKS_PROXY": "socks5://b:1080"}).proxy == "socks5://b:1080"
    contexts.write("c", inbox_prefix="_ME")
    o = Options.from_env(env | {"NATS_TOKEN": "t", "NATS_URL": "nats://b"})
    assert await credentials(o) == Credentials(token="t")
    assert (o.addresses[0].host, o.inbox_prefix) == ("b", "_ME")


@pytest.mark.parametrize(
    ("settings", "rule"),
    [
        ({"nsc": "nsc://o/a/u"}, "field nsc .*not supported"),
        ({"socks_proxy": f"socks4://me:{SECRET}@h:1"}, "like socks5://host:port"),
        ({"windows_cert_store": "windowscurrentuser"}, "Windows certificate store"),
        ({"password": 5}, "field password .*must be a string, not int"),
        ({"tls_first": "yes"}, "field tls_first .*true or false"),
        ({"cert": "/c.pem"}, "given together"),
        ({"url": f"nats://me:{SECRET}@"}, "host is missing"),
    ],
)
def test_contexts_that_need_what_is_missing_say_so(contexts: Contexts, settings: dict[str, object], rule: str) -> None:
    contexts.write("c", **settings)
    with pytest.raises(ConfigError, match=rule) as caught:
        contexts.read()
    assert SECRET not in str(caught.value)


@pytest.mark.parametrize(
    ("text", "rule"),
    [
        ('{"password": "hunter2"', "is not JSON"),
        ('["hunter2"]', "not a JSON object"),
        ("[" * 100_000, "is not JSON"),
        ("\ud800", "is not JSON"),
    ],
)
def test_context_that_is_unreadable_is_a_config_error(contexts: Contexts, text: str, rule: str) -> None:
    path = contexts.write("c")
    path.write_bytes(text.encode("utf-8", "surrogatepass"))
    with pytest.raises(ConfigError, match=rule) as caught:
        contexts.read()
    assert SECRET not in str(caught.value)
    assert caught.value.__context__ is None


@pytest.mark.parametrize("name", ["", "..", "a/b", "../../etc/passwd", "a\0b"])
def test_names_that_leave_the_folder_are_refused(contexts: Contexts, name: str) -> None:
    with pytest.raises(ConfigError, match="not the name of a context"):
        contexts.read(name)


def test_missing_contexts_are_config_errors(contexts: Contexts) -> None:
    with pytest.raises(ConfigError, match=r"context 'gone': .*gone\.json cannot be read: No such file"):
        contexts.read("gone")
    with pytest.raises(TypeError, match="must be a str, not int"):
        contexts.read(5)  # type: ignore[arg-type]


def test_signing_library_is_imported_when_needed() -> None:
    import subprocess

    code = "import sys, natsproto._options.options; print(*sys.modules)"
    loaded = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True).stdout.split()
    assert not {"nkeys", "nacl"} & set(loaded)
