"""The auth callout, on real servers that ask it: with and without encryption, with and without an operator."""

from __future__ import annotations

import json
import time
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager

import pytest

import natsproto
from natsproto import Event, HandlerFailed
from natsproto.auth import AuthCallout, AuthRequest, KeyPair, Permission, Refused, UserClaims, XKey
from natsproto.auth._callout import AUTH_SUBJECT, Decide
from natsproto.auth._claims import _HEADER, _decode_base64, _encode_base64, _json, decode_jwt, encode_jwt
from natsproto.errors import ConnectFailed, InvalidCredentials, LoginRefused
from natsproto.testing import Server, run_server
from tests.kit.identity import Account, Operator

CONFIG = """
accounts {{ AUTH {{ users: [{{ user: auth, password: pass }}] }}, APP {{}}, SYS {{}} }}
system_account: SYS
authorization {{
  timeout: 20
  auth_callout {{ issuer: {issuer}, account: AUTH, auth_users: [ auth ] {xkey} }}
}}
"""


@asynccontextmanager
async def asking(decide: Decide, xkey: XKey | None = None) -> AsyncIterator[tuple[Server, list[Event]]]:
    """A server that asks ``decide``, and the events of the service's client."""
    events: list[Event] = []
    issuer = KeyPair.generate("account")
    line = "" if xkey is None else f", xkey: {xkey.public_key}"
    async with (
        run_server(config=CONFIG.format(issuer=issuer.public_key, xkey=line)) as server,
        natsproto.connect(server.url, user="auth", password="pass", on_event=events.append) as nc,
        await AuthCallout(decide, issuer=issuer, xkey=xkey).start(nc),
    ):
        await nc.flush()
        yield server, events


@pytest.mark.parametrize("xkey", [None, XKey.generate()], ids=["clear", "sealed"])
async def test_callout_places_and_limits_users(xkey: XKey | None) -> None:
    seen: list[AuthRequest] = []

    def decide(request: AuthRequest) -> UserClaims | Refused:
        seen.append(request)
        if request.connect.password != "s3cret":
            return Refused(reason="a wrong password")
        subject = f"of.{request.connect.user}"
        return UserClaims(
            name=request.connect.user,
            account="APP",
            publish=Permission(allow=[subject]),
            subscribe=Permission(allow=[subject]),
        )

    async with asking(decide, xkey) as (server, _):
        async with (
            natsproto.connect(server.url, user="ana", password="s3cret", name="shop") as ana,
            natsproto.connect(server.url, user="ana", password="s3cret") as other,
        ):
            assert ana.server_info is not None
            inbox = await other.subscribe("of.ana")
            await other.flush()
            await ana.publish("of.ana", b"hello")
            assert (await inbox.next(timeout=20)).data == b"hello"
        with pytest.raises(LoginRefused):
            await natsproto.connect(server.url, user="ana", password="guess")
    assert (seen[0].connect.user, seen[0].client.name, seen[0].client.kind) == ("ana", "shop", "Client")
    assert seen[0].server.id.startswith("N")
    assert "s3cret" not in repr(seen[0])


async def test_callout_refuses_when_it_fails() -> None:
    async def decide(request: AuthRequest) -> UserClaims:
        raise LookupError("the directory is down")

    async with asking(decide) as (server, events):
        with pytest.raises(ConnectFailed):
            await natsproto.connect(server.url, user="ana", password="x")
        assert [type(event.error) for event in events if isinstance(event, HandlerFailed)] == [LookupError]


async def test_callout_works_in_operator_mode() -> None:
    operator = Operator()
    auth, app = operator.account, Account(operator.key, "target")
    operator.accounts.append(app)
    xkey = XKey.generate()
    service, guest = auth.user("service"), auth.user("guest", claims={"pub": {"deny": [">"]}, "sub": {"deny": [">"]}})
    auth.authorization = {
        "auth_users": [service.key.public],
        "allowed_accounts": [app.key.public],
        "xkey": xkey.public_key,
    }
    signing = KeyPair.generate("account")
    app.signing_keys.append(signing.public_key)
    callout = AuthCallout(
        lambda request: UserClaims(name=request.connect.token) if request.connect.token == "key" else Refused(),
        issuer=signing,
        issuer_account=app.key.public,
        signer=KeyPair.from_seed(auth.key.seed),
        xkey=xkey,
    )
    async with (
        run_server(config=operator.config() + "authorization { timeout: 20 }\n") as server,
        natsproto.connect(server.url, creds=service.creds) as nc,
        await callout.start(nc),
        natsproto.connect(server.url, creds=app.user().creds) as resident,
    ):
        await nc.flush()
        inbox = await resident.subscribe("news")
        await resident.flush()
        async with natsproto.connect(server.url, creds=guest.creds, token="key") as ana:
            await ana.publish("news", b"hi")
            assert (await inbox.next(timeout=20)).data == b"hi"
        with pytest.raises(ConnectFailed):
            await natsproto.connect(server.url, creds=guest.creds, token="no")


def signed(issuer: KeyPair, body: dict[str, object]) -> str:
    """A JWT with any content."""
    text = f"{_encode_base64(_json(_HEADER))}.{_encode_base64(_json(body))}"
    return f"{text}.{_encode_base64(issuer.sign(text.encode()))}"


def test_jwt_says_from_when_it_is_valid() -> None:
    server, user = KeyPair.generate("server"), KeyPair.generate("user").public_key
    good = encode_jwt("user", user, server, {})
    body = json.loads(_decode_base64(good.split(".")[1]))
    assert decode_jwt(good).not_before is None
    later = decode_jwt(signed(server, {**body, "nbf": 1800000000})).not_before
    assert later is not None
    assert later.timestamp() == 1800000000


async def test_request_not_of_a_server_is_not_answered(nats_server: Server) -> None:
    account, server = KeyPair.generate("account"), KeyPair.generate("server")
    user, stranger = KeyPair.generate("user").public_key, KeyPair.generate("operator")
    nats = {"user_nkey": user, "server_id": {"id": server.public_key}}
    kind, audience = "authorization_request", "nats-authorization-request"
    good = encode_jwt(kind, account.public_key, server, nats, audience=audience)
    bad = [
        encode_jwt(kind, account.public_key, stranger, nats, audience=audience),
        encode_jwt(kind, account.public_key, server, nats, audience="else"),
        encode_jwt(kind, account.public_key, server, nats, audience=audience, expires_in=-60),
        encode_jwt("user", account.public_key, server, nats, audience=audience),
        encode_jwt(kind, account.public_key, server, {}, audience=audience),
        signed(server, {**json.loads(_decode_base64(good.split(".")[1])), "nbf": int(time.time()) + 600}),
        "nonsense",
    ]
    async with natsproto.connect(nats_server.url) as nc:
        async with await AuthCallout(lambda request: UserClaims(), issuer=account).start(nc):
            assert (await nc.call(AUTH_SUBJECT, good.encode(), timeout=20)).data.startswith(b"eyJ")
            for request in bad:
                with pytest.raises(natsproto.errors.ServiceError, match="not a valid authorization request"):
                    await nc.call(AUTH_SUBJECT, request.encode(), timeout=20)
            with pytest.raises(natsproto.errors.ServiceError):  # sealed, for a service without a key
                await nc.call(AUTH_SUBJECT, b"x", headers={"Nats-Server-Xkey": "X"}, timeout=20)
        async with await AuthCallout(lambda request: UserClaims(), issuer=account, xkey=XKey.generate()).start(nc):
            with pytest.raises(natsproto.errors.ServiceError):  # in clear, for one that wants it sealed
                await nc.call(AUTH_SUBJECT, good.encode(), timeout=20)


def test_callout_signs_with_account_keys_alone() -> None:
    with pytest.raises(InvalidCredentials, match="of an account"):
        AuthCallout(lambda request: UserClaims(), issuer=KeyPair.generate("user"))
