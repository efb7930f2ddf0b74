"""Where a secret could show, and does not: what is printed, raised, logged, told by events, or open to look at."""

from __future__ import annotations

import asyncio
import logging
import ssl
import traceback
from collections.abc import AsyncIterator, Awaitable, Callable, Iterator, Mapping, Sequence
from contextlib import asynccontextmanager
from pathlib import Path
from typing import TypeAlias
from urllib.parse import quote

import pytest

import natsproto
from natsproto._core.events import Closed, Event, Reconnected, ServersDiscovered
from natsproto._options.options import AuthChallenge, Options
from natsproto.auth import KeyPair, XKey, decode_jwt
from natsproto.errors import ConfigError, NatsError
from natsproto.protocol.addresses import ServerAddress
from natsproto.protocol.auth import Credentials, connect_fields, parse_creds, parse_seed
from natsproto.protocol.frames import ServerInfo
from natsproto.protocol.pool import ServerState
from natsproto.testing import ServerTls, run_cluster, run_server
from tests.kit.identity import Key, Operator
from tests.kit.pki import Authority
from tests.kit.scripted import Behaviour, ScriptedServer
from tests.kit.watch import Watch

PASSWORD = "hunter2:/@%-verysecret"
TOKEN = "t0k3n/of@trust"
USER = Operator().account.user()
SEED, JWT = USER.key.seed, USER.jwt
HEADER = "Bearer h34d3r"

SECRETS = {
    "password": (PASSWORD, quote(PASSWORD, safe=""), "hunter2", "verysecret"),
    "token": (TOKEN, quote(TOKEN, safe=""), "t0k3n"),
    "seed": (SEED, SEED[:20], SEED[-20:]),
    "JWT": (JWT, JWT[:40], JWT[-40:]),
    "header": (HEADER, "h34d3r"),
}

URL = f"nats://ann:{quote(PASSWORD, safe='')}@127.0.0.1:1"
TOKEN_URL = f"nats://{quote(TOKEN, safe='')}@127.0.0.1:1"

PACKAGE = str(Path(natsproto.__file__).parent)


def leaks(text: str) -> list[str]:
    return [kind for kind, forms in SECRETS.items() if any(form in text for form in forms)]


# ---------------------------------------------------------------- looking


def looks(thing: object, depth: int = 5) -> Iterator[str]:
    """Every text a curious program can make of a thing without touching anything private."""
    yield repr(thing)
    yield str(thing)
    if isinstance(thing, BaseException):
        yield "".join(traceback.format_exception(thing))
        yield from map(repr, own_locals(thing))
        for link in (thing.__cause__, thing.__context__, *getattr(thing, "exceptions", ())):
            if link is not None:
                yield from looks(link, depth - 1) if depth else ()
    if not depth or isinstance(thing, (str, bytes, int, float, ssl.SSLContext)):
        return
    if isinstance(thing, Mapping):
        for key, value in thing.items():
            yield from looks(key, depth - 1)
            yield from looks(value, depth - 1)
    elif isinstance(thing, (Sequence, set, frozenset)):
        for value in thing:
            yield from looks(value, depth - 1)
    elif type(thing).__module__.startswith("natsproto"):
        for name in dir(thing):
            if not name.startswith("_"):
                value = getattr(thing, name, None)
                if not callable(value):
                    yield from looks(value, depth - 1)


def own_locals(error: BaseException) -> Iterator[object]:
    """The local variables in natsproto's frames, which tools for error reports send; a repr must not crash either."""
    for frame, _ in traceback.walk_tb(error.__traceback__):
        if frame.f_code.co_filename.startswith(PACKAGE):
            yield from frame.f_locals.values()


async def failure(connecting: Awaitable[object]) -> NatsError:
    with pytest.raises(NatsError) as caught:
        await connecting
    return caught.value


def connect_with(url: str, **options: object) -> natsproto._client.Connecting:
    """natsproto.connect with options that are made at run time."""
    return natsproto.connect(url, **options)  # type: ignore[arg-type]


def error_from(make: Callable[..., object], *args: object, **options: object) -> NatsError:
    with pytest.raises(NatsError) as caught:
        make(*args, **options)
    return caught.value


Things: TypeAlias = AsyncIterator[object]
Situation: TypeAlias = Callable[[Path], Things]
SITUATIONS: dict[str, Situation] = {}


def situation(function: Situation) -> Situation:
    SITUATIONS[function.__name__] = function
    return function


# ---------------------------------------------------------------- values


@situation
async def options_of_every_kind(tmp_path: Path) -> Things:
    # Their own fields hold what was given: only what they print is looked at.
    for options in (
        Options(URL), Options(TOKEN_URL), Options(user="ann", password=PASSWORD), Options(token=TOKEN),
        Options(nkey_seed=SEED), Options(jwt=JWT, nkey_seed=SEED), Options(creds=USER.creds),
        Options("ws://127.0.0.1", websocket_headers={"Authorization": HEADER}),
    ):  # fmt: skip
        yield repr(options)
        yield str(options)
        yield f"{options}"
        yield repr(options.replace(name="x"))
        yield repr(options.addresses)


@situation
async def connect_that_was_not_awaited(tmp_path: Path) -> Things:
    for connecting in (natsproto.connect(URL), natsproto.connect("nats://127.0.0.1:1", creds=USER.creds)):
        yield connecting
        connecting.__await__().close()  # begun, so that it does not warn


@situation
async def credentials_printed(tmp_path: Path) -> Things:
    yield repr(Credentials(user="ann", password=PASSWORD, token=TOKEN))
    yield repr(Credentials(jwt=JWT, seed=SEED.encode()))


@situation
async def addresses_printed(tmp_path: Path) -> Things:
    for url in (URL, TOKEN_URL):
        (address,) = Options(url).addresses
        yield from_texts(repr(address), str(address), address.url)
        yield address.public()


def from_texts(*texts: str) -> str:
    return "\n".join(texts)


# ---------------------------------------------------------------- refused before anything is dialled


@situation
async def malformed_urls(tmp_path: Path) -> Things:
    given = f"ann:{PASSWORD}"
    for url in (
        f"nats://{given}@127.0.0.1:99999", f"nats://{given} @127.0.0.1", f"http://{given}@127.0.0.1",
        f"nats://{given}@[::1", f"nats://{given}@", "nats://ann:hunter2%zz@127.0.0.1", f"nats://{given}@host/path",
        f"nats://{given}@127.0.0.1?tls=true", "nats://ann:hunter2#verysecret@127.0.0.1",
        "nats://ann:hunter2,verysecret@127.0.0.1", f"nats://{given}@a_b..c", "hunter2 verysecret",
        f"nats://{given}@127.0.0.1,ws://{given}@127.0.0.1", f"nats://:{given}@127.0.0.1", f"{given}@host:port",
    ):  # fmt: skip
        yield error_from(natsproto.connect, url)
        yield error_from(Options, [url, "nats://127.0.0.1"])


@situation
async def damaged_credentials(tmp_path: Path) -> Things:
    wrong = SEED[:30] + ("A" if SEED[30] != "A" else "B") + SEED[31:]
    for given in (
        {"nkey_seed": wrong}, {"nkey_seed": SEED[:30]}, {"nkey_seed": SEED + "\n" + SEED}, {"jwt": JWT + "!"},
        {"jwt": JWT.replace(".", "")}, {"creds": USER.creds.replace(SEED, wrong)},
        {"creds": USER.creds.replace("------END NATS USER JWT------", "")}, {"creds": USER.creds[:200]},
        {"token": TOKEN, "user": "ann", "password": PASSWORD}, {"password": PASSWORD},
        {"creds": USER.creds, "jwt": JWT}, {"token": TOKEN, "auth": print},
    ):  # fmt: skip
        yield error_from(natsproto.connect, "nats://127.0.0.1:1", **given)


@situation
async def keys_and_tokens_that_are_damaged(tmp_path: Path) -> Things:
    for make in (KeyPair.from_seed, XKey.from_seed, parse_seed, parse_creds, decode_jwt):
        yield error_from(make, f"{SEED[:-1]}!")
        yield error_from(make, JWT[:-4])
    yield error_from(Credentials, jwt=JWT, seed=SEED.encode(), signer=bytes)
    yield error_from(connect_fields, Credentials(jwt=JWT, seed=SEED.encode()), "")


@situation
async def secrets_of_the_wrong_type(tmp_path: Path) -> Things:
    for name, value in {"password": PASSWORD, "token": TOKEN, "nkey_seed": SEED, "creds": USER.creds}.items():
        with pytest.raises(TypeError) as caught:
            Options(**{name: value.encode()})  # type: ignore[arg-type]
        yield caught.value


@situation
async def headers_that_cannot_be_sent(tmp_path: Path) -> Things:
    for headers in ({"Authorization": HEADER + "\r\n"}, {"Authorization": HEADER + "\0"}, {"X": HEADER + "€"}):
        yield error_from(Options, "ws://127.0.0.1", websocket_headers=headers)


@situation
async def contexts_and_variables_that_cannot_be_used(tmp_path: Path) -> Things:
    environ = {"XDG_CONFIG_HOME": str(tmp_path), "HOME": str(tmp_path)}
    folder = tmp_path / "nats" / "context"
    folder.mkdir(parents=True)
    for text in (
        f'{{"password": "{PASSWORD}",', f'{{"user": "ann", "password": ["{PASSWORD}"]}}', f'["{TOKEN}"]',
        f'{{"token": "{TOKEN}", "nsc": "{TOKEN}"}}', f'{{"nkey": "op:{SEED}"}}', f'{{"url": "nats://a:{PASSWORD} @b"}}',
        f'{{"user_jwt": "{JWT}!"}}', f'{{"socks_proxy": "socks5://ann:{PASSWORD}@proxy"}}',
    ):  # fmt: skip
        (folder / "shop.json").write_text(text)
        yield error_from(Options.from_context, "shop", environ)
    for variables in (
        {"NATS_URL": f"nats://ann:{PASSWORD} @b"}, {"NATS_TOKEN": TOKEN, "NATS_TIMEOUT": "soon"},
        {"NATS_SOCKS_PROXY": f"socks5://ann:{PASSWORD}@proxy"}, {"NATS_TOKEN": TOKEN, "NATS_CREDS": SEED},
    ):  # fmt: skip
        try:
            yield repr(Options.from_env({**environ, **variables}))
        except NatsError as refused:
            yield refused


# ---------------------------------------------------------------- failing attempts


@situation
async def nobody_there(tmp_path: Path) -> Things:
    yield await failure(natsproto.connect(URL, connect_timeout=1))
    yield await failure(natsproto.connect("nats://127.0.0.1:1", creds=USER.creds, connect_timeout=1))


@situation
async def refused_by_the_server(tmp_path: Path) -> Things:
    async with run_server(user="ann", password="another") as server:
        yield await failure(natsproto.connect(server.url, user="ann", password=PASSWORD))
        yield await failure(natsproto.connect(server.url, token=TOKEN))
        yield await failure(natsproto.connect(URL.replace(":1", f":{server.port}")))
    async with run_server(config=Operator().config()) as server:
        yield await failure(natsproto.connect(server.url, creds=USER.creds))


@situation
async def paths_that_are_secrets_and_files_that_are_broken(tmp_path: Path) -> Things:
    (tmp_path / "damaged").write_text(USER.creds.replace("BEGIN USER", "BEGIN\0USER").replace(SEED, SEED[:-3]))
    (tmp_path / "binary").write_bytes(SEED.encode() + b"\xff\xfe" + PASSWORD.encode())
    (tmp_path / "folder").mkdir()
    async with ScriptedServer(Behaviour(greeting={"nonce": "abc"})) as server:
        for given in (
            {"creds": SEED}, {"creds": JWT}, {"creds": f"no/file/{SEED}"}, {"creds": lambda: SEED},
            {"creds": tmp_path / "missing"}, {"creds": tmp_path / "damaged"}, {"creds": tmp_path / "binary"},
            {"creds": tmp_path / "folder"}, {"nkey_seed": tmp_path / "damaged"}, {"nkey_seed": lambda: SEED[:-4]},
            {"token": tmp_path / "binary"}, {"jwt": lambda: JWT + "!"}, {"creds": lambda: USER.creds[:-200]},
        ):  # fmt: skip
            yield await failure(connect_with(server.url, **given))


@situation
async def callables_that_fail(tmp_path: Path) -> Things:
    async def returns(value: object) -> object:
        return value

    async with ScriptedServer() as server:
        for name, value in {"token": [TOKEN], "creds": {"creds": USER.creds}, "auth": PASSWORD, "password": 7}.items():
            user: dict[str, object] = {"user": "ann"} if name == "password" else {}
            given = {name: lambda *_, value=value: value, **user}
            yield await failure(connect_with(server.url, **given))
            given = {name: lambda *_, value=value: returns(value), **user}
            yield await failure(connect_with(server.url, **given))
        yield await failure(natsproto.connect(server.url, nkey_seed=SEED))  # no nonce


def signed_with(answer: object) -> Credentials:
    return Credentials(jwt=JWT, signer=lambda nonce: answer)  # type: ignore[arg-type, return-value]


@situation
async def signer_that_fails(tmp_path: Path) -> Things:
    answers: tuple[object, ...] = (SEED.encode(), SEED)
    for answer in answers:
        yield error_from(connect_fields, signed_with(answer), "abc")
    yield error_from(connect_fields, Credentials(seed=SEED.encode(), nkey=Key.user().public), "abc")


@situation
async def tls_that_fails(tmp_path: Path) -> Things:
    ours, theirs = Authority(tmp_path), Authority(tmp_path, "other")
    cert, key = theirs.issue("127.0.0.1")
    async with run_server(tls=ServerTls(cert=cert, key=key)) as server, run_server() as plain:
        for port in (server.port, plain.port):
            url = URL.replace("nats:", "tls:").replace(":1", f":{port}")
            yield await failure(natsproto.connect(url, tls=ours.client()))
            yield await failure(natsproto.connect(url, tls=ours.client(), tls_first=True))


@situation
async def websocket_that_fails(tmp_path: Path) -> Things:
    async with run_server() as server:
        url = URL.replace("nats:", "ws:").replace(":1", f":{server.port}")
        yield await failure(natsproto.connect(url, websocket_headers={"Authorization": HEADER}))
        yield await failure(natsproto.connect(url, websocket_headers=lambda: {"Authorization": HEADER + "\n"}))
        yield await failure(connect_with(url, websocket_headers=lambda: [HEADER]))


@situation
async def server_that_stalls_or_lies(tmp_path: Path) -> Things:
    for behaviour in (
        Behaviour(answer_ping=False), Behaviour(first_ping=b"GARBAGE\r\n"), Behaviour(hang_up=True),
        Behaviour(first_ping=b"-ERR 'Unknown Protocol Operation'\r\n", hang_up=True),
        Behaviour(greeting=b"nonsense\r\n"), Behaviour(greeting={"headers": False}),
    ):  # fmt: skip
        async with ScriptedServer(behaviour) as server:
            url = URL.replace(":1", f":{server.port}")
            yield await failure(natsproto.connect(url, token=TOKEN, connect_timeout=0.2))


# ---------------------------------------------------------------- a life


@asynccontextmanager
async def living(**options: object) -> AsyncIterator[tuple[natsproto.Client, Watch]]:
    async with run_server(user="ann", password=PASSWORD, websocket=True) as server:
        watch = Watch()
        url = server.websocket_url if options.pop("websocket", False) else server.url
        url = url.replace("://", f"://ann:{quote(PASSWORD, safe='')}@")
        async with natsproto.connect(url, on_event=watch, **options) as nc:  # type: ignore[arg-type]
            yield nc, watch


@situation
async def client_and_its_attributes(tmp_path: Path) -> Things:
    async with living(name="shop") as (nc, _):
        yield nc
        yield nc.connected_url
        yield nc.server_info
        yield nc.stats
        yield nc.servers
        yield {name: value for name, value in vars(nc).items() if not name.startswith("_")}
    yield nc


@situation
async def subscriptions_and_messages(tmp_path: Path) -> Things:
    async with living() as (nc, _), nc.subscribe("a") as messages:
        await nc.publish("a", b"x", reply="b")
        yield await messages.next(timeout=5)
        yield repr(messages)


@situation
async def reconnects_and_their_events(tmp_path: Path) -> Things:
    async with living() as (nc, watch):
        await nc.reconnect()
        await watch.until(Reconnected)
        yield nc
    yield watch.seen


@situation
async def expiry_and_the_end(tmp_path: Path) -> Things:
    refusing = Behaviour(greeting={"nonce": "abc"}, refuse="Authorization Violation")
    async with ScriptedServer(Behaviour(greeting={"nonce": "abc"}), refusing) as server:
        watch = Watch()
        nc = await natsproto.connect(server.url, creds=USER.creds, token=TOKEN, on_event=watch, reconnect_wait=0)
        server.current.err("User Authentication Expired")
        server.current.reset()
        await watch.until(Closed)
        yield await nc.wait_closed()
        yield watch.seen
        yield await failure(nc.flush())


@situation
async def announced_servers_that_inherit_the_login(tmp_path: Path) -> Things:
    async with run_cluster(2, jetstream=False, user="ann", password=PASSWORD) as cluster:
        first, second = cluster.servers
        watch, seen = Watch(), list[Sequence[ServerState]]()

        def choose(servers: Sequence[ServerState], info: ServerInfo | None) -> tuple[ServerAddress, float] | None:
            seen.append(servers)
            return None

        url = URL.replace(":1", f":{first.port}")
        async with natsproto.connect(url, on_event=watch, reconnect_to_server=choose) as nc:
            await watch.until(ServersDiscovered)
            yield nc
            first.kill()
            await watch.until(Reconnected)
            assert nc.connected_url == second.url
            yield nc
        yield watch.seen
        yield seen


@situation
async def servers_set_later(tmp_path: Path) -> Things:
    async with living() as (nc, _):
        yield error_from(nc.set_servers, f"nats://ann:{PASSWORD} @127.0.0.1")
        nc.set_servers([URL, TOKEN_URL.replace(":1", ":2")])
        yield nc


@situation
async def challenge_of_an_auth_callable(tmp_path: Path) -> Things:
    seen: list[AuthChallenge] = []

    def make(challenge: AuthChallenge) -> Credentials:
        seen.append(challenge)
        return Credentials(user="ann", password=PASSWORD)

    async with run_server(user="ann", password=PASSWORD) as server:
        url = TOKEN_URL.replace(":1", f":{server.port}")
        async with natsproto.connect(url, auth=make) as nc:
            yield nc
    yield seen


@situation
async def callback_that_fails_on_every_event(tmp_path: Path) -> Things:
    def fail(event: Event) -> None:
        raise RuntimeError("not now")

    async with living() as (nc, _):
        yield nc
    async with (
        run_server(user="ann", password=PASSWORD) as server,
        natsproto.connect(URL.replace(":1", f":{server.port}"), on_event=fail) as nc,
    ):
        yield nc


@situation
async def life_over_websocket(tmp_path: Path) -> Things:
    """The websockets package logs headers and frames when it is let."""
    async with living(websocket=True, websocket_headers={"Authorization": HEADER}) as (nc, watch):
        await nc.flush()
        await nc.reconnect()
        await watch.until(Reconnected)
        yield nc
    yield watch.seen


@situation
async def tasks_and_the_loop_in_debug_mode(tmp_path: Path) -> Things:
    loop = asyncio.get_running_loop()
    loop.set_debug(True)
    loop.slow_callback_duration = 0.0  # every callback is logged, with its arguments
    try:
        async with living() as (nc, _):
            await nc.flush()
            yield [repr(task) for task in asyncio.all_tasks()]
    finally:
        loop.set_debug(False)


# ---------------------------------------------------------------- the test


@pytest.mark.parametrize("name", SITUATIONS)
async def test_secret_does_not_show(name: str, tmp_path: Path, caplog: pytest.LogCaptureFixture) -> None:
    caplog.set_level(logging.DEBUG)
    for logger in ("natsproto", "natsproto.websocket", "websockets", "websockets.client", "asyncio"):
        caplog.set_level(logging.DEBUG, logger)
    number = 0
    async for thing in SITUATIONS[name](tmp_path):
        for text in looks(thing):
            number += 1
            assert not leaks(text), text
    assert number > 0
    logged = caplog.text + "".join(repr(record.__dict__) for record in caplog.records)
    assert not leaks(logged), [line for line in caplog.text.splitlines() if leaks(line)]


def test_there_are_enough_situations() -> None:
    assert len(SITUATIONS) >= 23


def test_the_test_would_notice() -> None:
    assert leaks("".join(looks(ValueError(PASSWORD)))) == ["password"]
    assert leaks("".join(looks({"a": [SEED]}))) == ["seed"]


def test_half_built_options_can_be_printed() -> None:
    """As by a tool for error reports that prints the ``self`` of every frame."""
    for given in ({"ping_interval": -1}, {"token": TOKEN}, {"nonsense": 1}):
        made = Options.__new__(Options)
        with pytest.raises((ConfigError, TypeError)):
            made.__init__(URL, user="ann", password=PASSWORD, **given)  # type: ignore[misc]
        assert not leaks(repr(made))
