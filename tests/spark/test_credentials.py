"""How tasks connect: what travels with them, what is looked up where they run, and what is never shown."""

from __future__ import annotations

import asyncio
import pickle
from pathlib import Path

import pytest

import natsproto
from natsproto.errors import ConfigError, ConnectFailed, InvalidCredentials
from natsproto.spark import SecretRef, SparkNats, worker_client
from natsproto.spark._client import close_workers
from natsproto.testing import Server, run_server

SECRET = "s3cr3t-w0rd"
EVERYWHERE = [
    SecretRef.env("NATS_TOKEN"),
    SecretRef.file("/etc/nats/token"),
    SecretRef.spark_file("token"),
    SecretRef.provider("company.vault:token"),
]


def provided_secret() -> str:
    """For SecretRef.provider."""
    return SECRET


@pytest.mark.parametrize("ref", EVERYWHERE, ids=str)
def test_reference_survives_text_and_pickle(ref: SecretRef) -> None:
    assert SecretRef.parse(str(ref)) == ref
    assert pickle.loads(pickle.dumps(ref)) == ref
    assert eval(repr(ref), {"SecretRef": SecretRef}) == ref


@pytest.mark.parametrize(
    ("kind", "where"),
    [
        ("env", "NOT A NAME"),
        ("env", ""),
        ("file", "relative/path"),
        ("spark_file", "a/path"),
        ("spark_file", ""),
        ("provider", "my_vault"),
        ("provider", "module:function()"),
        ("keychain", "x"),
    ],
)
def test_reference_that_cannot_be_one_is_refused(kind: str, where: str) -> None:
    with pytest.raises(ConfigError) as caught:
        SecretRef(kind=kind, location=where)
    assert not where or where not in str(caught.value), "it may be the secret itself"


def test_secret_given_as_a_reference_is_not_repeated() -> None:
    with pytest.raises(InvalidCredentials) as caught:
        SecretRef.parse(SECRET)
    assert SECRET not in str(caught.value)


@pytest.mark.parametrize("name", SparkNats.SECRETS)
def test_literal_secret_is_refused_unshown(name: str) -> None:
    with pytest.raises(InvalidCredentials) as caught:
        SparkNats(**{name: SECRET})  # type: ignore[arg-type]
    assert SECRET not in str(caught.value)
    assert "SecretRef" in str(caught.value)


def test_user_information_in_a_url_is_refused() -> None:
    with pytest.raises(InvalidCredentials) as caught:
        SparkNats(servers=f"nats://me:{SECRET}@localhost")
    assert SECRET not in str(caught.value)


@pytest.mark.parametrize(
    "fields",
    [{"user": "me", "password": SECRET}, {"token": SECRET}, {"servers": f"nats://me:{SECRET}@localhost:4222"}],
    ids=lambda fields: "+".join(fields),
)
def test_repr_shows_no_secret_that_was_allowed(fields: dict[str, str]) -> None:
    config = SparkNats(allow_literal_secrets=True, **fields)  # type: ignore[arg-type]
    again = pickle.loads(pickle.dumps(config))
    assert (again, hash(again)) == (config, hash(config))
    for text in (repr(config), str(config), f"{config}", repr(config.options())):
        assert SECRET not in text


def test_pickled_config_holds_no_secret(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("NATS_TOKEN", SECRET)
    config = SparkNats(token=SecretRef.env("NATS_TOKEN"))
    config.options()
    assert SECRET.encode() not in pickle.dumps(config)
    assert "SecretRef.env('NATS_TOKEN')" in repr(config)


@pytest.mark.parametrize(
    "fields",
    [
        {"servers": "nats://"},
        {"servers": ["nats://a", 3]},
        {"connect_timeout": 0},
        {"tls_cert": "/a/cert.pem"},
        {"tls_ca": "relative.pem"},
        {"tls_ca": SecretRef.env("CA")},
        {"user": "me", "token": SecretRef.env("T")},
    ],
    ids=str,
)
def test_mistakes_are_found_where_the_config_is_made(fields: dict[str, object]) -> None:
    with pytest.raises((ConfigError, TypeError)):
        SparkNats(**fields)  # type: ignore[arg-type]


def test_no_other_field_is_taken() -> None:
    with pytest.raises(TypeError, match="pasword"):
        SparkNats(pasword="x")  # type: ignore[call-arg]


@pytest.fixture(scope="module")
def guarded() -> object:
    """A server that wants a token."""
    with run_server(config=f'authorization {{ token: "{SECRET}" }}') as server:
        yield server
        close_workers()


@pytest.mark.parametrize("kind", ["env", "file", "provider", "spark_file"])
def test_secret_is_looked_up_where_the_client_connects(
    kind: str, guarded: Server, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    (tmp_path / "token").write_text(f"{SECRET}\n")
    monkeypatch.setenv("NATS_TOKEN", SECRET)
    monkeypatch.setattr("pyspark.SparkFiles.get", lambda name: str(tmp_path / name))
    ref = {
        "env": SecretRef.env("NATS_TOKEN"),
        "file": SecretRef.file(tmp_path / "token"),
        "provider": SecretRef.provider(f"{__name__}:provided_secret"),
        "spark_file": SecretRef.spark_file("token"),
    }[kind]
    with worker_client(SparkNats(servers=guarded.url, token=ref)) as client:
        client.flush()


def test_missing_secret_says_which_one(guarded: Server, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delenv("NATS_OTHER", raising=False)
    config = SparkNats(servers=guarded.url, token=SecretRef.env("NATS_OTHER"))
    with worker_client(config) as client, pytest.raises(ConnectFailed, match="env:NATS_OTHER"):
        client.flush()


def test_rotated_secret_is_read_at_the_next_attempt(guarded: Server, tmp_path: Path) -> None:
    path = tmp_path / "token"
    path.write_text("the old one")
    options = SparkNats(servers=guarded.url, token=SecretRef.file(path)).options()

    async def connect() -> None:
        async with natsproto.connect(options):
            pass

    with pytest.raises(ConnectFailed):
        asyncio.run(connect())
    path.write_text(SECRET)
    asyncio.run(connect())
