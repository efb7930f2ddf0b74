"""Who we are: every way to prove it to a real nats-server, at every attempt anew, and what a refusal comes to."""

from __future__ import annotations

import asyncio
import base64
import json
from collections.abc import AsyncIterator, Callable, Mapping, Sequence
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Literal, TypeAlias, TypedDict
from urllib.parse import quote

import pytest

import natsproto
from natsproto._core.events import (
    AttemptFailed,
    Closed,
    Connected,
    Disconnected,
    Event,
    Reconnected,
    ServerErrorEvent,
)
from natsproto._options.options import AuthChallenge, Options
from natsproto.errors import ConnectFailed, InvalidCredentials, NotAuthorized, RequestTimeout, ServerError
from natsproto.protocol.auth import Credentials
from natsproto.testing import Server, run_server
from tests.core.helpers import scripted_network
from tests.kit.clock import virtual_clock
from tests.kit.failures import cause_of
from tests.kit.identity import Key, Operator, User
from tests.kit.scripted import Behaviour, ScriptedServer
from tests.kit.watch import Watch

PASSWORD = "pa ss:w@rd/%"
BCRYPT = "$2a$04$thQ7npTb25T06M2Kk.WsBuMqllFc7YxhmAbvcI78IjWNbODgR5Pom"
"""PASSWORD as nats-server's configuration holds it when it is not to be read there."""

Way: TypeAlias = Literal["value", "path", "callable", "async callable", "callable that names a path"]
WAYS: Sequence[Way] = ("value", "path", "callable", "async callable", "callable that names a path")

Given: TypeAlias = "str | Path | Callable[[], object]"


def given(way: Way, text: str, path: Path) -> Given:
    """A secret as the user of an option may give it."""
    path.write_text(text)

    async def later() -> str:
        await asyncio.sleep(0)
        return text

    ways: Mapping[Way, Given] = {
        "value": text,
        "path": path,
        "callable": lambda: text,
        "async callable": later,
        "callable that names a path": lambda: path,
    }
    return ways[way]


def connect_to(server: Server | str, **options: object) -> natsproto._client.Connecting:
    """natsproto.connect with options that are made at run time."""
    url = server if isinstance(server, str) else server.url
    return natsproto.connect(url, **options)  # type: ignore[arg-type]


async def accepts(server: Server, **options: object) -> bool:
    """Whether the server lets a client with these options in, and serves it."""
    async with connect_to(server, **options) as nc:
        await nc.flush()
        return nc.is_connected


async def refuses(server: Server, **options: object) -> bool:
    with pytest.raises(ConnectFailed) as caught:
        await connect_to(server, **options)
    ((_, cause),) = caught.value.attempts
    return isinstance(cause, NotAuthorized) and cause.reason == "Authorization Violation"


# ---------------------------------------------------------------- every kind, given in every way


@pytest.mark.parametrize("way", WAYS)
async def test_user_and_password(way: Way, tmp_path: Path) -> None:
    async with run_server(user="ann", password=PASSWORD) as server:
        user, password = given(way, "ann", tmp_path / "user"), given(way, PASSWORD, tmp_path / "password")
        assert await accepts(server, user=user, password=password)
        assert await refuses(server, user=user, password="wrong")


async def test_password_the_server_keeps_as_a_bcrypt_hash() -> None:
    async with run_server(config=f'authorization {{ user: ann, password: "{BCRYPT}" }}') as server:
        assert await accepts(server, user="ann", password=PASSWORD)
        assert await refuses(server, user="ann", password=BCRYPT)


@pytest.mark.parametrize("way", WAYS)
async def test_token(way: Way, tmp_path: Path) -> None:
    async with run_server(token="s3cr3t/tok:en") as server:
        assert await accepts(server, token=given(way, "s3cr3t/tok:en", tmp_path / "token"))
        assert await refuses(server, token="wrong")


@pytest.mark.parametrize("way", WAYS)
async def test_nkey_seed(way: Way, tmp_path: Path) -> None:
    key = Key.user()
    async with run_server(config=f"authorization {{ users: [{{ nkey: {key.public} }}] }}") as server:
        assert await accepts(server, nkey_seed=given(way, key.seed, tmp_path / "seed"))
        assert await refuses(server, nkey_seed=Key.user().seed)


@pytest.mark.parametrize("way", WAYS)
async def test_jwt_with_its_seed(way: Way, tmp_path: Path) -> None:
    operator = Operator()
    user = operator.account.user()
    jwt, seed = given(way, user.jwt, tmp_path / "jwt"), given(way, user.key.seed, tmp_path / "seed")
    async with run_server(config=operator.config()) as server:
        assert await accepts(server, jwt=jwt, nkey_seed=seed)
        assert await refuses(server, jwt=jwt, nkey_seed=Key.user().seed)
        assert await refuses(server, jwt=Operator().account.user(key=user.key).jwt, nkey_seed=seed)


@pytest.mark.parametrize("way", WAYS)
async def test_creds(way: Way, tmp_path: Path) -> None:
    operator = Operator()
    async with run_server(config=operator.config()) as server:
        assert await accepts(server, creds=given(way, operator.account.user().creds, tmp_path / "user.creds"))
        assert await refuses(server, creds=Operator().account.user().creds)


async def test_creds_named_by_a_str_are_a_path(tmp_path: Path) -> None:
    operator = Operator()
    (tmp_path / "user.creds").write_text(operator.account.user().creds)
    async with run_server(config=operator.config()) as server:
        assert await accepts(server, creds=str(tmp_path / "user.creds"))


async def test_bearer_jwt_needs_no_seed() -> None:
    operator = Operator()
    user = operator.account.user(claims={"bearer_token": True})
    async with run_server(config=operator.config()) as server:
        assert await accepts(server, jwt=user.jwt)


async def test_signer_keeps_the_seed_to_itself() -> None:
    """A hardware module, say: natsproto sees the signature only."""
    operator, key = Operator(), Key.user()
    user = operator.account.user()

    def by_jwt(challenge: AuthChallenge) -> Credentials:
        return Credentials(jwt=user.jwt, signer=user.key.sign)

    def by_nkey(challenge: AuthChallenge) -> Credentials:
        return Credentials(nkey=key.public, signer=key.sign)

    async with run_server(config=operator.config()) as server:
        assert await accepts(server, auth=by_jwt)
    async with run_server(config=f"authorization {{ users: [{{ nkey: {key.public} }}] }}") as server:
        assert await accepts(server, auth=by_nkey)


@pytest.mark.parametrize("sort", ["sync", "async"])
async def test_auth_callable_sees_the_server_and_its_nonce(sort: str) -> None:
    key, seen = Key.user(), list[AuthChallenge]()

    def make(challenge: AuthChallenge) -> Credentials:
        seen.append(challenge)
        return Credentials(seed=key.seed.encode())

    async def make_later(challenge: AuthChallenge) -> Credentials:
        await asyncio.sleep(0)
        return make(challenge)

    async with run_server(config=f"authorization {{ users: [{{ nkey: {key.public} }}] }}") as server:
        assert await accepts(server, auth=make if sort == "sync" else make_later)
        (challenge,) = seen
        assert challenge.server.port == server.port
        assert len(challenge.nonce) > 10
        assert challenge.info.auth_required


# ---------------------------------------------------------------- in the URL


async def test_user_info_in_the_url_is_unescaped() -> None:
    async with run_server(user="a@b:c", password=PASSWORD) as server:
        url = f"nats://{quote('a@b:c', safe='')}:{quote(PASSWORD, safe='')}@127.0.0.1:{server.port}"
        async with natsproto.connect(url) as nc:
            await nc.flush()
            assert nc.connected_url == server.url


async def test_token_in_the_url_is_unescaped() -> None:
    async with run_server(token="t/o@k:n") as server, connect_to(f"t%2Fo%40k%3An@127.0.0.1:{server.port}") as nc:
        await nc.flush()


async def test_each_url_has_its_own_user_info() -> None:
    async with run_server(user="ann", password="1") as first, run_server(user="ben", password="2") as second:
        urls = [f"nats://ann:1@127.0.0.1:{first.port}", f"nats://ben:2@127.0.0.1:{second.port}"]
        watch = Watch()
        async with natsproto.connect(urls, randomize=False, on_event=watch) as nc:
            await nc.reconnect()
            assert (await watch.until(Reconnected)).server == f"127.0.0.1:{second.port}"


async def test_options_come_before_the_user_info_of_the_url() -> None:
    async with run_server(user="ann", password="1") as server:
        assert await accepts_url(f"nats://ben:2@127.0.0.1:{server.port}", user="ann", password="1")


async def accepts_url(url: str, **options: object) -> bool:
    async with connect_to(url, **options) as nc:
        return nc.is_connected


# ---------------------------------------------------------------- asked anew at every attempt


async def test_every_attempt_asks_anew() -> None:
    asked: list[str] = []

    def password() -> str:
        asked.append("password")
        return "1"

    async with run_server(user="ann", password="1") as server:
        watch = Watch()
        async with connect_to(server, user="ann", password=password, on_event=watch) as nc:
            for number in (1, 2):
                await nc.reconnect()
                await watch.until(Reconnected, number)
    assert len(asked) == 3


async def test_creds_file_is_read_again_at_every_attempt(tmp_path: Path) -> None:
    operator = Operator()
    first, second = operator.account.user("first"), operator.account.user("second")
    path = tmp_path / "user.creds"
    path.write_text(first.creds)
    async with run_server(config=operator.config()) as server:
        watch = Watch()
        async with connect_to(server, creds=path, on_event=watch) as nc:
            path.write_text(second.creds)
            operator.account.revoke(first)
            await server.reconfigure(operator.config())
            lost = (await watch.until(Disconnected)).cause
            await watch.until(Reconnected)
            await nc.flush()
    assert isinstance(lost, NotAuthorized)
    assert lost.reason == "User Authentication Revoked"


async def test_password_changed_on_the_server_is_followed(tmp_path: Path) -> None:
    path = tmp_path / "password"
    path.write_text("old")
    users = 'authorization {{ users: [{{ user: ann, password: "{}" }}] }}'
    async with run_server(config=users.format("old")) as server:
        watch = Watch()
        async with connect_to(server, user="ann", password=path, on_event=watch) as nc, nc.subscribe("news") as news:
            path.write_text("new")
            await server.reconfigure(users.format("new"))
            await watch.until(Reconnected)
            await nc.publish("news", b"still here")
            assert (await news.next(timeout=5)).data == b"still here"
    assert watch.all(AttemptFailed) == []
    assert [str(event.cause) for event in watch.all(Disconnected)] == [
        f"127.0.0.1:{server.port} rejected the credentials: Authorization Violation"
    ]


# ---------------------------------------------------------------- expiry


class Renewed(TypedDict, total=False):
    creds: Path | Callable[[], str]
    auth: Callable[[AuthChallenge], Credentials]


def renewal(how: str, operator: Operator, path: Path) -> tuple[Renewed, Callable[[], None]]:
    """Options with credentials of 2 seconds, and what to call to have them renewed."""
    current = operator.account.user(lives=2)
    path.write_text(current.creds)

    def renew() -> None:
        nonlocal current
        current = operator.account.user()
        path.write_text(current.creds)

    ways: Mapping[str, Renewed] = {
        "file": {"creds": path},
        "callable": {"creds": lambda: current.creds},
        "auth": {"auth": lambda challenge: Credentials(jwt=current.jwt, seed=current.key.seed.encode())},
    }
    return ways[how], renew


@pytest.mark.slow
@pytest.mark.parametrize("how", ["file", "callable", "auth"])
async def test_expired_jwt_is_renewed(how: str, tmp_path: Path, caplog: pytest.LogCaptureFixture) -> None:
    operator = Operator()
    options, renew = renewal(how, operator, tmp_path / "user.creds")
    async with run_server(config=operator.config()) as server:
        watch = Watch()
        async with natsproto.connect(server.url, on_event=watch, **options) as nc, nc.subscribe("news") as news:
            renew()
            await watch.until(Reconnected)
            await nc.publish("news", b"still here")
            assert (await news.next(timeout=5)).data == b"still here"
            assert (await watch.until(Disconnected)).in_flight == 0
    assert watch.all(AttemptFailed) == []
    assert [str(event.cause).partition(": ")[2] for event in watch.all(Disconnected)] == ["User Authentication Expired"]
    assert watch.all(ServerErrorEvent) == []
    assert sum("Expired" in record.getMessage() for record in caplog.records) == 1


@pytest.mark.slow
async def test_renewal_that_waits_for_the_report_is_in_time(tmp_path: Path) -> None:
    """Nobody renewed before the expiry: the application does when it hears of it."""
    operator = Operator()
    options, renew = renewal("file", operator, tmp_path / "user.creds")
    watch = Watch()

    def hear(event: Event) -> None:
        if isinstance(event, Disconnected):
            renew()
        watch(event)

    async with (
        run_server(config=operator.config()) as server,
        natsproto.connect(server.url, on_event=hear, **options) as nc,
    ):
        await watch.until(Reconnected)
        await nc.flush()
        assert watch.all(AttemptFailed) == []


@pytest.mark.slow
async def test_expired_jwt_not_renewed_ends_the_client(tmp_path: Path) -> None:
    operator = Operator()
    user = operator.account.user(lives=3)
    async with run_server(config=operator.config()) as server:
        watch = Watch()
        nc = await connect_to(server, creds=user.creds, on_event=watch)
        async with asyncio.timeout(20):
            reason = await nc.wait_closed()
        assert isinstance(reason, NotAuthorized)
        assert reason.server == f"127.0.0.1:{server.port}"
        first = watch.all(Disconnected)[0].cause
        assert isinstance(first, NotAuthorized)
        assert first.reason == "User Authentication Expired"
        assert watch.all(Closed)[0].reason is reason
        refusals = [event.cause for event in watch.all(AttemptFailed)]
        assert refusals[-1].args[0] == refusals[-2].args[0] == str(reason)


async def test_expiry_right_after_the_handshake() -> None:
    """What nats-server does in the second in which a JWT expires: PONG, and the expiry behind it."""
    breath = b"PONG\r\n-ERR 'User Authentication Expired'\r\n"
    refusing = Behaviour(first_ping=breath, hang_up=True)
    async with ScriptedServer(Behaviour(), refusing, refusing, Behaviour()) as server:
        watch = Watch()
        async with connect_to(server.url, on_event=watch, ignore_auth_error_abort=True):
            server.current.reset()
            await watch.until(Reconnected)
    assert len(watch.all(Disconnected)) == len(watch.all(Reconnected)) == 1
    assert [type(event.cause) for event in watch.all(AttemptFailed)] == [NotAuthorized] * 2


# ---------------------------------------------------------------- refusals


@pytest.mark.parametrize("number", [1, 3])
async def test_refused_first_connect_fails_after_one_pass(number: int) -> None:
    async with two_or_more(number) as servers:
        with pytest.raises(ConnectFailed) as caught:
            await natsproto.connect([server.url for server in servers], user="ann", password="wrong")
        tried = [address for address, _ in caught.value.attempts]
        assert sorted(tried) == sorted(f"127.0.0.1:{server.port}" for server in servers), "each of them once"
        assert {str(cause).partition(" rejected ")[2] for _, cause in caught.value.attempts} == {
            "the credentials: Authorization Violation"
        }


@asynccontextmanager
async def two_or_more(number: int) -> AsyncIterator[list[Server]]:
    if number == 0:
        yield []
        return
    async with run_server(user="ann", password="right") as server, two_or_more(number - 1) as others:
        yield [server, *others]


async def test_one_server_that_accepts_is_enough() -> None:
    async with run_server(user="ann", password="other") as first, run_server(user="ann", password="right") as second:
        urls = [first.url, second.url]
        async with natsproto.connect(urls, user="ann", password="right", randomize=False) as nc:
            assert nc.connected_url == second.url


@pytest.mark.slow
async def test_first_connect_ends_after_repeated_refusals() -> None:
    async with run_server(user="ann", password="right") as server:
        nc = await connect_to(server, user="ann", password="wrong", retry_on_failed_connect=True)
        async with asyncio.timeout(15):
            assert isinstance(await nc.wait_closed(), NotAuthorized)


@pytest.mark.slow
async def test_refusals_are_counted_for_each_server() -> None:
    refusing = Behaviour(refuse="Authorization Violation")
    async with ScriptedServer(Behaviour(), refusing) as first, ScriptedServer(refusing) as second:
        watch = Watch()
        nc = await natsproto.connect(
            [first.url, second.url], user="ann", password="1", randomize=False, on_event=watch, reconnect_wait=0.01
        )
        first.current.reset()
        async with asyncio.timeout(15):
            reason = await nc.wait_closed()
        assert isinstance(reason, NotAuthorized)
        assert len(second.connections) > 2
        assert len(first.connections) > 1 + 2


async def test_refusals_with_auth_abort_switched_off() -> None:
    refusing = Behaviour(refuse="Authorization Violation")
    async with ScriptedServer(Behaviour(), *[refusing] * 4, Behaviour()) as server:
        watch = Watch()
        async with connect_to(
            server.url, token="t", ignore_auth_error_abort=True, on_event=watch, reconnect_wait=0.01, jitter=0
        ):
            server.current.reset()
            await watch.until(Reconnected)
        assert len(watch.all(AttemptFailed)) == 4


@pytest.mark.slow
async def test_revoked_user_is_reported_and_turned_away() -> None:
    operator = Operator()
    user = operator.account.user()
    async with run_server(config=operator.config()) as server:
        watch = Watch()
        nc = await connect_to(server, creds=user.creds, on_event=watch)
        operator.account.revoke(user)
        await server.reconfigure(operator.config())
        async with asyncio.timeout(15):
            reason = await nc.wait_closed()
        assert isinstance(reason, NotAuthorized)
        assert [str(event.cause) for event in watch.all(Disconnected)] == [
            f"127.0.0.1:{server.port} rejected the credentials: User Authentication Revoked"
        ]


@pytest.mark.slow
async def test_removed_user_is_turned_away() -> None:
    users = "authorization {{ users: [{{ user: {}, password: '1' }}] }}"
    async with run_server(config=users.format("ann")) as server:
        nc = await connect_to(server, user="ann", password="1")
        await server.reconfigure(users.format("ben"))
        async with asyncio.timeout(15):
            assert isinstance(await nc.wait_closed(), NotAuthorized)


async def test_authentication_timeout_is_tried_again() -> None:
    async def slow(challenge: AuthChallenge) -> Credentials:
        await asyncio.Event().wait()
        raise AssertionError

    async with run_server(config="authorization { user: ann, password: '1', timeout: 0.3 }") as server:
        cause = await cause_of(server.url, auth=slow, connect_timeout=3)
    assert isinstance(cause, ServerError)  # and not NotAuthorized, which would end the client when it comes again
    assert cause.text == "Authentication Timeout"


# ---------------------------------------------------------------- callables that fail


@pytest.mark.parametrize("name", ["token", "user", "jwt", "nkey_seed", "creds", "auth"])
async def test_callable_that_raises_fails_the_attempt(name: str) -> None:
    def fails(*challenge: object) -> str:
        raise RuntimeError("the vault is closed")

    async with run_server() as server:
        cause = await cause_of(server.url, **{name: fails})
    assert isinstance(cause, InvalidCredentials)
    assert str(cause) == f"{name} (hidden): the callable failed with RuntimeError"
    assert isinstance(cause.__cause__, RuntimeError)


@pytest.mark.slow
@pytest.mark.parametrize("name", ["token", "user", "jwt", "nkey_seed", "creds", "auth"])
@virtual_clock
async def test_auth_callable_that_hangs_ends_at_the_timeout(name: str) -> None:
    cancelled: list[str] = []

    async def hangs(*challenge: object) -> str:
        try:
            await asyncio.Event().wait()
        finally:
            cancelled.append(name)
        raise AssertionError

    async with scripted_network() as net:
        started = asyncio.get_running_loop().time()
        with pytest.raises(ConnectFailed) as caught:
            await net.connect(connect_timeout=5, **{name: hangs})  # type: ignore[arg-type]
        assert asyncio.get_running_loop().time() - started == pytest.approx(5)
    ((_, cause),) = caught.value.attempts
    assert isinstance(cause, RequestTimeout)
    assert "finding credentials" in str(cause)
    assert cancelled == [name]


@pytest.mark.parametrize("name", ["token", "user", "jwt", "nkey_seed", "creds", "auth"])
@pytest.mark.parametrize(
    "nonsense", [None, 42, b"bytes", object(), ["s3cr3t"]], ids=["None", "int", "bytes", "object", "list"]
)
async def test_auth_callable_with_a_wrong_result(name: str, nonsense: object) -> None:
    async with ScriptedServer() as server:
        cause = await cause_of(server.url, **{name: lambda *challenge: nonsense})
        assert isinstance(cause, InvalidCredentials)
        assert "must return" in str(cause)
        assert "s3cr3t" not in str(cause)
        assert server.count("CONNECT") == 0


async def test_auth_callable_that_fails_in_a_reconnect() -> None:
    answers: list[str | None] = ["right", None, None, "right"]

    def token() -> str:
        answer = answers.pop(0)
        if answer is None:
            raise OSError("the vault is closed")
        return answer

    async with run_server(token="right") as server:
        watch = Watch()
        async with connect_to(server, token=token, on_event=watch, reconnect_wait=0.01, jitter=0) as nc:
            await nc.reconnect()
            await watch.until(Reconnected)
    assert [type(event.cause) for event in watch.all(AttemptFailed)] == [InvalidCredentials] * 2


async def test_creds_file_missing_for_a_moment(tmp_path: Path) -> None:
    """Somebody who rotates by removing and writing must not end the client."""
    path = tmp_path / "token"
    path.write_text("right")
    async with run_server(token="right") as server:
        watch = Watch()

        def hear(event: Event) -> None:
            watch(event)
            if len(watch.all(AttemptFailed)) == 2:
                path.write_text("right")

        async with connect_to(server, token=path, on_event=hear, reconnect_wait=0.01, jitter=0) as nc:
            path.unlink()
            await nc.reconnect()
            await watch.until(Reconnected)
    assert {type(event.cause) for event in watch.all(AttemptFailed)} == {InvalidCredentials}
    assert str(path) in str(watch.all(AttemptFailed)[0].cause)


async def test_missing_creds_file_is_named(tmp_path: Path) -> None:
    async with run_server() as server:
        nope, secret = tmp_path / "a.creds", str(tmp_path / "no/user")  # a long str may be a secret, given as a path
        for path, text in {"/a.creds": "/a.creds", nope: str(nope), secret: secret[:16] + "…"}.items():
            cause = await cause_of(server.url, creds=path, retry_connect_for=0.001)
            assert isinstance(cause, InvalidCredentials)
            assert str(cause) == f"creds file {text!r}: cannot be read: No such file or directory"


@pytest.mark.parametrize("kind", ["nkey_seed", "creds"])
async def test_server_without_a_nonce_is_named(kind: str) -> None:
    user = Operator().account.user()
    options = {"creds": user.creds} if kind == "creds" else {"nkey_seed": user.key.seed}
    async with run_server() as server:
        cause = await cause_of(server.url, **options)
    assert isinstance(cause, InvalidCredentials)
    assert "the server sent no nonce to sign" in str(cause)


async def test_damaged_creds_are_refused_before_dialling() -> None:
    user = Operator().account.user()
    with pytest.raises(InvalidCredentials, match="checksum is wrong"):
        natsproto.connect("nats://127.0.0.1:1", creds=damaged(user))


def damaged(user: User) -> str:
    seed = user.key.seed
    return user.creds.replace(seed, seed[:30] + ("A" if seed[30] != "A" else "B") + seed[31:])


# ---------------------------------------------------------------- what CONNECT says


async def test_connect_carries_only_given_credentials() -> None:
    key = Key.user()
    greeting = {"nonce": "abc123"}
    async with (
        ScriptedServer(Behaviour(greeting=greeting)) as server,
        connect_to(server.url, nkey_seed=key.seed, token="t0k3n", name="me"),
    ):
        fields = server.current.connect
    sig = str(fields["sig"])
    assert (fields["nkey"], fields["auth_token"], fields["name"]) == (key.public, "t0k3n", "me")
    assert base64.urlsafe_b64decode(sig + "==") == key.sign(b"abc123")
    assert "=" not in sig
    assert not fields.keys() & {"user", "pass", "jwt"}
    assert key.seed not in json.dumps(fields)


async def test_empty_password_is_sent() -> None:
    async with ScriptedServer() as server, connect_to(server.url, user="ann", password=""):
        assert (server.current.connect["user"], server.current.connect["pass"]) == ("ann", "")


# ---------------------------------------------------------------- limits


async def test_full_server_takes_the_client_later() -> None:
    async with run_server(config="max_connections: 1") as server:
        first = await connect_to(server)
        cause = await cause_of(server.url)
        assert isinstance(cause, ServerError)
        assert cause.text == "maximum connections exceeded"
        watch = Watch()
        second = await connect_to(
            server, retry_on_failed_connect=True, on_event=watch, reconnect_wait=0.01, reconnect_wait_max=0.05, jitter=0
        )
        await watch.until(AttemptFailed)
        await first.close()
        async with asyncio.timeout(5):
            await second.flush()
        await second.close()


async def test_full_account_says_so() -> None:
    operator = Operator()
    operator.account.limits["conn"] = 1
    async with run_server(config=operator.config()) as server, connect_to(server, creds=operator.account.user().creds):
        cause = await cause_of(server.url, creds=operator.account.user().creds)
    assert isinstance(cause, ServerError)
    assert cause.text == "maximum account active connections exceeded"


# ---------------------------------------------------------------- auth callout


async def test_auth_callout_gets_the_token_and_decides() -> None:
    """A service on the server's side gives out the user JWTs (ADR-26)."""
    account = Operator().account
    config = f"""authorization {{
      users: [{{ user: callout, password: "1" }}]
      auth_callout {{ issuer: {account.key.public}, auth_users: [callout] }}
    }}"""

    def decide(request: natsproto.Message) -> bytes:
        claims = decoded(request.data.decode())
        asked = claims["nats"]
        assert isinstance(asked, dict)
        nats: dict[str, object] = {"error": "unknown token"}
        if asked["connect_opts"].get("auth_token") == "welcome":
            pub = {"allow": ["open.>"]}
            user = {"pub": pub, "sub": {}, "subs": -1, "data": -1, "payload": -1}
            nats = {"jwt": account.key.claim(asked["user_nkey"], "guest", "user", user, audience="$G")}
        answer = account.key.claim(
            asked["user_nkey"], "answer", "authorization_response", nats, audience=asked["server_id"]["id"]
        )
        return answer.encode()

    async def answer(request: natsproto.Message) -> None:
        await request.respond(decide(request))

    async with (
        run_server(config=config) as server,
        connect_to(server, user="callout", password="1") as service,
        service.subscribe("$SYS.REQ.USER.AUTH", cb=answer),
    ):
        await service.flush()
        async with connect_to(server, token="welcome") as guest:
            with pytest.raises(natsproto.errors.PermissionDenied):
                await guest.request("closed", timeout=5)
        assert await refuses(server, token="go away")


def decoded(jwt: str) -> dict[str, object]:
    body = jwt.split(".")[1]
    claims: dict[str, object] = json.loads(base64.urlsafe_b64decode(body + "=" * (-len(body) % 4)))
    return claims


# ---------------------------------------------------------------- contexts and environment


def context_folder(tmp_path: Path, **contexts: Mapping[str, object]) -> dict[str, str]:
    """A folder of contexts as the command line tool writes them, and the environment that points there."""
    folder = tmp_path / "nats" / "context"
    folder.mkdir(parents=True)
    for name, settings in contexts.items():
        (folder / f"{name}.json").write_text(json.dumps({"description": "", "nsc": "", **settings}))
    return {"XDG_CONFIG_HOME": str(tmp_path), "HOME": str(tmp_path)}


async def test_context_with_user_and_password_connects(tmp_path: Path) -> None:
    async with run_server(user="ann", password=PASSWORD) as server:
        environ = context_folder(tmp_path, shop={"url": server.url, "user": "ann", "password": PASSWORD})
        async with natsproto.connect(Options.from_context("shop", environ), name="orders") as nc:
            await nc.flush()
            assert nc.connected_url == server.url


async def test_selected_context_with_creds_connects(tmp_path: Path) -> None:
    operator = Operator()
    (tmp_path / "user.creds").write_text(operator.account.user().creds)
    async with run_server(config=operator.config()) as server:
        environ = context_folder(tmp_path, shop={"url": server.url, "creds": "~/user.creds"})
        (tmp_path / "nats" / "context.txt").write_text("shop\n")
        async with natsproto.connect(Options.from_context(environ=environ)) as nc:
            await nc.flush()


async def test_context_with_jwt_and_nkey_connects(tmp_path: Path) -> None:
    operator = Operator()
    user = operator.account.user()
    (tmp_path / "user.nk").write_text(user.key.seed)
    async with run_server(config=operator.config()) as server:
        settings = {"url": server.url, "user_jwt": user.jwt, "nkey": "$HOME/user.nk"}
        async with natsproto.connect(Options.from_context("shop", context_folder(tmp_path, shop=settings))) as nc:
            await nc.flush()


@pytest.mark.parametrize("kind", ["user", "token alone as user", "token", "creds", "nkey", "context"])
async def test_environment_connects(kind: str, tmp_path: Path) -> None:
    operator, key = Operator(), Key.user()
    (tmp_path / "user.creds").write_text(operator.account.user().creds)
    (tmp_path / "user.nk").write_text(key.seed)
    configs = {
        "user": "authorization { user: ann, password: p4ss }",
        "creds": operator.config(),
        "nkey": f"authorization {{ users: [{{ nkey: {key.public} }}] }}",
    }
    variables: dict[str, dict[str, str]] = {
        "user": {"NATS_USER": "ann", "NATS_PASSWORD": "p4ss"},
        "token alone as user": {"NATS_USER": "t0k3n"},
        "token": {"NATS_TOKEN": "t0k3n"},
        "creds": {"NATS_CREDS": str(tmp_path / "user.creds")},
        "nkey": {"NATS_NKEY": str(tmp_path / "user.nk")},
        "context": {"NATS_CONTEXT": "shop"},
    }
    async with run_server(config=configs.get(kind, "authorization { token: t0k3n }")) as server:
        contexts = context_folder(tmp_path, shop={"url": "nats://127.0.0.1:1", "token": "t0k3n"})
        environ = {**contexts, "NATS_URL": server.url, "NATS_TIMEOUT": "3s", **variables[kind]}
        options = Options.from_env(environ)
        assert options.connect_timeout == 3.0
        async with natsproto.connect(options) as nc:
            await nc.flush()
            assert nc.connected_url == server.url


def test_the_events_of_a_login_are_public() -> None:
    assert all(issubclass(kind, Event) for kind in (Connected, Closed, Reconnected, ServerErrorEvent))
