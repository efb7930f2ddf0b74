"""User JWTs: what a server with an operator allows is what the claims say."""

from __future__ import annotations

import base64
import json

import pytest

import natsproto
from natsproto.auth import Claims, KeyPair, Permission, ResponsePermission, UserClaims, creds_text, decode_jwt
from natsproto.errors import ConfigError, ConnectFailed, InvalidCredentials, PermissionDenied
from natsproto.testing import run_server
from tests.kit.identity import Operator


async def permission_error(nc: natsproto.Client, subject: str) -> str:
    """What comes of a request there."""
    try:
        await nc.request(subject, b"", timeout=20)
    except PermissionDenied as exc:
        return str(exc)
    return ""


async def test_user_jwt_allows_what_its_claims_say() -> None:
    operator = Operator()
    account = KeyPair.from_seed(operator.account.key.seed)
    user, helper = KeyPair.generate("user"), KeyPair.generate("user")
    claims = UserClaims(
        name="ana",
        publish=Permission(allow=["orders.>"], deny=["orders.old"]),
        subscribe=Permission(allow=["_INBOX.>"]),
        expires_in=3600,
        tags=["Team:Blue"],
    )
    answering = UserClaims(
        subscribe=Permission(allow=["orders.>"]),
        publish=Permission(deny=[">"]),
        responses=ResponsePermission(max_messages=1),
    )
    async with run_server(config=operator.config()) as server:
        helped = creds_text(answering.issue(helper.public_key, account), helper.seed)
        creds = creds_text(claims.issue(user.public_key, account), user.seed)
        async with natsproto.connect(server.url, creds=helped) as ben, natsproto.connect(server.url, creds=creds) as nc:
            await ben.subscribe("orders.>", cb=lambda message: message.respond(message.data))
            await ben.flush()
            assert (await nc.request("orders.new", b"5", timeout=20)).data == b"5"
            assert "orders.old" in await permission_error(nc, "orders.old")
            assert "prices" in await permission_error(nc, "prices")


async def test_scoped_signing_key_brings_its_template() -> None:
    operator = Operator()
    signing = KeyPair.generate("account")
    operator.account.signing_keys.append(
        {
            "kind": "user_scope",
            "key": signing.public_key,
            "role": "reader",
            "template": {
                "pub": {"allow": ["team.{{tag(team)}}"]},
                "sub": {"allow": ["_INBOX.>"]},
                "subs": -1,
                "data": -1,
                "payload": -1,
            },
        }
    )
    user = KeyPair.generate("user")
    own = {"issuer_account": operator.account.key.public}
    jwt = UserClaims(scoped=True, tags=["team:blue"]).issue(user.public_key, signing, **own)
    greedy = UserClaims(publish=Permission(allow=[">"])).issue(user.public_key, signing, **own)
    async with run_server(config=operator.config()) as server:
        async with natsproto.connect(server.url, creds=creds_text(jwt, user.seed)) as nc:
            assert "team.red" in await permission_error(nc, "team.red")
            await nc.publish("team.blue", b"")
            await nc.flush()
        with pytest.raises(ConnectFailed):
            await natsproto.connect(server.url, creds=creds_text(greedy, user.seed))


async def test_bearer_user_needs_no_key() -> None:
    operator = Operator()
    account = KeyPair.from_seed(operator.account.key.seed)
    everything = UserClaims(
        bearer=True, connection_types=["STANDARD"], source_networks=["127.0.0.0/8"], max_payload=64, max_data=-1
    )
    elsewhere = everything.replace(source_networks=["10.0.0.0/8"])
    user = KeyPair.generate("user").public_key
    async with run_server(config=operator.config()) as server:
        async with natsproto.connect(server.url, jwt=everything.issue(user, account)) as nc:
            await nc.flush()
        with pytest.raises(ConnectFailed):
            await natsproto.connect(server.url, jwt=elsewhere.issue(user, account))


def test_decoded_jwt_has_what_was_issued() -> None:
    account, user = KeyPair.generate("account"), KeyPair.generate("user")
    jwt = UserClaims(name="ana", expires_in=60, account="APP").issue(user.public_key, account)
    claims = decode_jwt(jwt)
    assert isinstance(claims, Claims)
    assert (claims.kind, claims.name, claims.audience) == ("user", "ana", "APP")
    assert (claims.issuer, claims.subject) == (account.public_key, user.public_key)
    assert claims.expires_at is not None
    assert (claims.expires_at - claims.issued_at).total_seconds() == 60


def test_changed_jwt_is_refused_without_its_text() -> None:
    jwt = UserClaims().issue(KeyPair.generate("user").public_key, KeyPair.generate("account"))
    head, body, signature = jwt.split(".")
    claims = json.loads(base64.urlsafe_b64decode(body + "=="))
    claims["nats"]["pub"] = {"allow": [">"]}
    altered = base64.urlsafe_b64encode(json.dumps(claims).encode()).rstrip(b"=").decode()
    none = base64.urlsafe_b64encode(b'{"typ":"JWT","alg":"none"}').rstrip(b"=").decode()
    for damaged in (f"{head}.{altered}.{signature}", f"{none}.{body}.", f"{head}.{body}", "", "a.b.c", jwt[:-4]):
        with pytest.raises(InvalidCredentials) as raised:
            decode_jwt(damaged)
        assert body not in str(raised.value)


def test_claims_that_cannot_be_are_refused() -> None:
    account, user = KeyPair.generate("account"), KeyPair.generate("user")
    with pytest.raises(InvalidCredentials, match="kind user"):
        UserClaims().issue(account.public_key, account)
    with pytest.raises(InvalidCredentials, match="of an account"):
        UserClaims().issue(user.public_key, user)
    with pytest.raises(InvalidCredentials, match="kind account"):
        UserClaims().issue(user.public_key, account, issuer_account=user.public_key)
    with pytest.raises(ConfigError, match="template"):
        UserClaims(scoped=True, max_payload=5)
    with pytest.raises(ConfigError, match="sequence"):
        Permission(allow="orders.>")
    with pytest.raises(ConfigError, match="sequence"):
        UserClaims(tags="blue")
    with pytest.raises(ConfigError, match="second"):
        UserClaims(expires_in=0.5)
