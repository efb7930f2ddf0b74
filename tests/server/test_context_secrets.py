"""References to secrets in contexts and variables of the nats command line tool, at a real server."""

from __future__ import annotations

import base64
import json
from collections.abc import Mapping
from pathlib import Path

import pytest

import natsproto
from natsproto import Options
from natsproto.errors import ConfigError
from natsproto.testing import run_server
from tests.kit.identity import Key, Operator

SECRET = "hunter2"
REFERENCES = ["file", "FILE in HOME", "env", "Env", "data", "data with a media type"]
FIELDS = ["token", "password", "user_jwt and user_seed", "nkey", "creds"]
VARIABLES = {"token": "NATS_TOKEN", "password": "NATS_PASSWORD", "nkey": "NATS_NKEY", "creds": "NATS_CREDS"}


class Secrets:
    """Gives secrets by reference: files, variables and data."""

    def __init__(self, folder: Path) -> None:
        self.folder = folder
        (folder / "nats" / "context").mkdir(parents=True)
        self.environ = {"XDG_CONFIG_HOME": str(folder), "HOME": str(folder)}

    def reference(self, kind: str, name: str, secret: str) -> str:
        path = self.folder / name
        path.write_text(f"{secret}\n")
        self.environ[f"SECRET_{name}"] = secret
        data = base64.b64encode(secret.encode()).decode()
        return {
            "file": f"file://{path}",
            "FILE in HOME": f"FILE://~/{name}",
            "env": f"env://SECRET_{name}",
            "Env": f"Env://SECRET_{name}",
            "data": f"data:;base64,{data}",
            "data with a media type": f"data:application/octet-stream;base64,{data}",
        }[kind]

    def context(self, **settings: object) -> Options:
        (self.folder / "nats" / "context" / "shop.json").write_text(json.dumps({"description": "", **settings}))
        return Options.from_context("shop", self.environ)


@pytest.fixture
def secrets(tmp_path: Path) -> Secrets:
    return Secrets(tmp_path)


def server_and_secrets(field: str) -> tuple[str, dict[str, str]]:
    """Return the configuration of a server, and the settings that log in there."""
    if field in ("user_jwt and user_seed", "creds"):
        operator = Operator()
        user = operator.account.user()
        given = {"creds": user.creds} if field == "creds" else {"user_jwt": user.jwt, "user_seed": user.key.seed}
        return operator.config(), given
    key = Key.user()
    return {
        "token": ("authorization { token: t0k3n }", {"token": "t0k3n"}),
        "password": ("authorization { user: ann, password: p4ss }", {"password": "p4ss"}),
        "nkey": (f"authorization {{ users: [{{ nkey: {key.public} }}] }}", {"nkey": key.seed}),
    }[field]


@pytest.mark.parametrize("field", FIELDS)
async def test_references_of_a_context_are_resolved(field: str, secrets: Secrets) -> None:
    config, given = server_and_secrets(field)
    async with run_server(config=config) as server:
        for kind in REFERENCES:
            settings = {name: secrets.reference(kind, name, secret) for name, secret in given.items()}
            options = secrets.context(url=server.url, user="ann" if field == "password" else "", **settings)
            assert not any(secret in repr(options) for secret in given.values())
            async with natsproto.connect(options) as nc:
                await nc.flush()


@pytest.mark.parametrize("field", VARIABLES)
async def test_references_in_variables_are_resolved(field: str, secrets: Secrets) -> None:
    config, given = server_and_secrets(field)
    async with run_server(config=config) as server:
        for kind in REFERENCES:
            environ = {"NATS_URL": server.url, VARIABLES[field]: secrets.reference(kind, field, given[field])}
            if field == "password":
                environ["NATS_USER"] = "ann"
            async with natsproto.connect(Options.from_env({**secrets.environ, **environ})) as nc:
                await nc.flush()


async def test_token_given_as_user_may_be_a_reference(secrets: Secrets) -> None:
    async with run_server(config="authorization { token: t0k3n }") as server:
        environ = {"NATS_URL": server.url, "NATS_USER": secrets.reference("env", "token", "t0k3n")}
        async with natsproto.connect(Options.from_env({**secrets.environ, **environ})) as nc:
            await nc.flush()


async def test_file_of_a_reference_is_read_at_every_attempt(secrets: Secrets) -> None:
    reference = secrets.reference("file", "token", "old")
    async with run_server(config="authorization { token: t0k3n }") as server:
        options = secrets.context(url=server.url, token=reference)
        (secrets.folder / "token").write_text("t0k3n")
        async with natsproto.connect(options) as nc:
            await nc.flush()


async def test_paths_may_contain_any_variable(secrets: Secrets) -> None:
    config, given = server_and_secrets("creds")
    secrets.reference("file", "user.creds", given["creds"])
    secrets.environ["KEYS"] = str(secrets.folder)
    async with run_server(config=config) as server:
        for path in ("$KEYS/user.creds", "${KEYS}/user.creds", "file://$KEYS/user.creds"):
            async with natsproto.connect(secrets.context(url=server.url, creds=path)) as nc:
                await nc.flush()


@pytest.mark.parametrize("field", ["token", "password", "user_jwt", "user_seed", "nkey", "creds"])
@pytest.mark.parametrize(
    ("reference", "reason"),
    [
        (f"op://vault/{SECRET}", "op: references are not supported: use file://, env:// or data:"),
        (f"nsc://o/a/{SECRET}", "nsc: references are not supported"),
        (f"vault://{SECRET}", "vault: references are not supported"),
        (f"env:{SECRET}", "must be file://PATH, env://NAME or data:;base64,TEXT"),
        ("file://", "must be file://PATH, env://NAME or data:;base64,TEXT"),
        ("env://NOT_SET", "the environment variable NOT_SET is not set"),
        ("env://EMPTY", "the environment variable EMPTY is empty"),
        (f"env://{SECRET}-{SECRET}", r"the environment variable \(hidden\) is not set"),
        (f"data:{SECRET}", "must be data:;base64,TEXT"),
        (f"data:;base64,{SECRET}", "is not UTF-8 text in base64"),
        ("data:;base64,", "its data is empty"),
        ("data:;base64,//4=", "is not UTF-8 text in base64"),
    ],
)
def test_unusable_references_are_refused(field: str, reference: str, reason: str, secrets: Secrets) -> None:
    secrets.environ["EMPTY"] = ""
    settings: Mapping[str, object] = {"user": "ann"} if field == "password" else {}
    if field == "user_seed":
        settings = {"user_jwt": "eyJ0eXAi.eyJqdGki.c2lnbmF0dXJl"}
    with pytest.raises(ConfigError, match=f"context shop field {field}.*{reason}") as caught:
        secrets.context(**settings, **{field: reference})
    assert SECRET not in str(caught.value)
    assert caught.value.__cause__ is None
    assert caught.value.__context__ is None


@pytest.mark.parametrize(
    ("settings", "reason"),
    [
        ({"user_seed": SECRET}, "field user_seed .*needs user_jwt"),
        ({"creds": "env://TEXT"}, "field creds .*the text of a creds file"),
        ({"creds": f"s3:{SECRET}"}, "field creds .*s3: references are not supported"),
        ({"ca": f"env://{SECRET}"}, "field ca .*env: references are not supported"),
        ({"user_jwt": "eyJ0eXAi.eyJqdGki.c2lnbmF0dXJl", "user_seed": SECRET}, "nkey_seed .*not the seed of a user"),
    ],
)
def test_settings_that_cannot_log_in_are_refused(settings: dict[str, str], reason: str, secrets: Secrets) -> None:
    secrets.environ["TEXT"] = SECRET
    with pytest.raises(ConfigError, match=reason) as caught:
        secrets.context(**settings)
    assert SECRET not in str(caught.value)


def test_secrets_with_a_colon_are_taken_literally(secrets: Secrets) -> None:
    for secret in ("pa:ss", "x:", ":env://", "a://b", "pass word://x"):
        assert secrets.context(user="ann", password=secret).password == secret
