"""Which secrets and servers the options of the data source may name: only the operator decides, in the environment.

Options can come from SQL, whose author may have fewer rights than the processes of the cluster.
"""

from __future__ import annotations

import contextlib
import pickle
from collections.abc import Iterator
from pathlib import Path
from typing import TYPE_CHECKING

import pytest
from pyspark.errors import PySparkException

from natsproto import sync
from natsproto.errors import ConfigError, ConnectFailed, InvalidCredentials
from natsproto.spark import SecretRef, SparkNats, register, worker_client
from natsproto.spark._client import close_workers
from natsproto.spark._options import SinkOptions, SourceOptions
from natsproto.spark._secrets import SECRET_REFS_VARIABLE, SERVERS_VARIABLE, AllowList
from natsproto.testing import Server, run_server

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

SECRET = "s3cr3t-w0rd"
GOOD, EVIL = "tls://a.nats.example", "tls://evil.example"


def allowed_source(**options: str) -> SourceOptions:
    return SourceOptions.read({"servers": GOOD, "stream": "ORDERS", **options})


def secret() -> str:
    """For provider:."""
    return SECRET


@pytest.fixture(autouse=True)
def _unset(monkeypatch: pytest.MonkeyPatch) -> Iterator[None]:
    monkeypatch.delenv(SECRET_REFS_VARIABLE, raising=False)
    monkeypatch.delenv(SERVERS_VARIABLE, raising=False)
    yield
    close_workers()


# ---------------------------------------------------------------- without a list


@pytest.mark.parametrize(
    "options",
    [
        {"token": "env:AWS_SECRET_ACCESS_KEY"},
        {"token": "env:PATH"},
        {"token": "file:/etc/passwd"},
        {"creds": "file:/etc/nats/app.creds"},
        {"token": "provider:os:getcwd"},
        {"user": "env:HOME", "password": "env:NATS_PASSWORD"},
        {"tlsCa": "/etc/ssl/ca.pem"},
        {"tlsCert": "/etc/ssl/cert.pem", "tlsKey": "/etc/ssl/key.pem"},
        {"tlsCert": "spark_file:cert.pem", "tlsKey": "file:/etc/ssl/key.pem"},
    ],
    ids=str,
)
@pytest.mark.parametrize("read", [SourceOptions.read, SinkOptions.read], ids=["source", "sink"])
def test_files_providers_and_variables_need_an_entry(read: object, options: dict[str, str]) -> None:
    with pytest.raises(InvalidCredentials, match=f"is not in {SECRET_REFS_VARIABLE}.*environment of the driver"):
        read({"servers": GOOD, "stream": "ORDERS", **options})  # type: ignore[operator]


def test_nats_variables_need_none() -> None:
    assert str(allowed_source(token="env:NATS_TOKEN").nats.token) == "env:NATS_TOKEN"
    with pytest.raises(InvalidCredentials, match="is not in"):
        allowed_source(token="spark_file:id_ed25519")


def test_sent_files_need_an_entry(monkeypatch: pytest.MonkeyPatch) -> None:
    """Whoever has SQL only can send any file of the driver with ADD FILE."""
    monkeypatch.setenv(SECRET_REFS_VARIABLE, "env:NATS_*,spark_file:ca.pem,spark_file:*.creds")
    nats = allowed_source(token="env:NATS_TOKEN", tlsCa="spark_file:ca.pem").nats
    assert (str(nats.token), str(nats.tls_ca)) == ("env:NATS_TOKEN", "spark_file:ca.pem")
    assert str(allowed_source(creds="spark_file:app.creds").nats.creds) == "spark_file:app.creds"


def test_python_code_names_what_it_likes(tmp_path: Path) -> None:
    (tmp_path / "token").write_text(SECRET)
    config = SparkNats(servers=EVIL, token=SecretRef.file(tmp_path / "token"), tls_ca="/etc/ssl/ca.pem")
    assert isinstance(config.token, SecretRef)
    assert config.token.source() == tmp_path / "token"


# ---------------------------------------------------------------- the list


@pytest.mark.parametrize(
    ("refs", "ref", "servers", "allowed"),
    [
        ("env:NATS_*=tls://*.nats.example", "env:NATS_TOKEN", GOOD, True),
        ("env:NATS_*=tls://*.nats.example", "env:NATS_TOKEN", EVIL, False),
        ("env:NATS_*=tls://*.nats.example", "env:NATS_TOKEN", f"{GOOD},{EVIL}", False),
        ("env:NATS_*=tls://*.nats.example", "env:NATS_TOKEN", "nats://a.nats.example", False),
        ("env:NATS_*=tls://*.nats.example", "env:NATS_TOKEN", "tls://a.nats.example:4223", False),
        ("env:NATS_*=tls://*.nats.example:*", "env:NATS_TOKEN", "tls://a.nats.example:4223", True),
        ("env:NATS_*=tls://*.nats.example", "env:NATS_TOKEN", "tls://a.nats.example.evil.example", False),
        ("env:NATS_*=tls://*.nats.example", "env:NATS_TOKEN", "tls://evilnats.example", False),
        ("env:NATS_*=tls://*.nats.example", "env:NATS_TOKEN", "TLS://A.NATS.EXAMPLE", True),
        ("env:NATS_*=tls://[fd00::*]", "env:NATS_TOKEN", "tls://[fd00::1]", True),
        ("env:NATS_*=tls://10.0.0.*", "env:NATS_TOKEN", "tls://10.0.1.1", False),
        ("env:A=tls://evil.example, env:A=tls://a.nats.example", "env:A", f"{GOOD},{EVIL}", True),
        ("env:A", "env:AB", GOOD, False),
        ("env:A", "env:B", GOOD, False),
        ("env:A.*", "env:AB", GOOD, False),
        ("", "env:NATS_TOKEN", GOOD, False),
        (" , ", "env:NATS_TOKEN", GOOD, False),
        ("file:/etc/nats/*", "file:/etc/nats/app.creds", GOOD, True),
        ("file:/etc/nats/*", "file:/etc/nats/../shadow", GOOD, False),
        ("file:/etc/nats/*", "file:/etc//nats/app.creds", GOOD, False),
        ("file:/etc/a=b", "file:/etc/a=b", GOOD, True),
        ("provider:vault:token", "provider:vault:token", GOOD, True),
        ("provider:vault:*", "provider:os:getcwd", GOOD, False),
        ("env:NATS_*,spark_file:*", "file:/etc/passwd", GOOD, False),
    ],
)
def test_an_entry_allows_a_reference_for_its_servers(refs: str, ref: str, servers: str, allowed: bool) -> None:
    check = AllowList(refs).check_ref
    if allowed:
        check(SecretRef.parse(ref), servers.split(","))
    else:
        with pytest.raises(InvalidCredentials, match="option"):
            check(SecretRef.parse(ref), servers.split(","))


@pytest.mark.parametrize(
    ("servers", "allowed"),
    [(GOOD, True), (f"{GOOD},{EVIL}", False), (EVIL, False), ("a.nats.example", False), ("nats://plain:4222", True)],
)
def test_servers_of_options_are_those_of_the_list(servers: str, allowed: bool, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv(SERVERS_VARIABLE, "tls://*.nats.example, nats://plain")
    for options in ({}, {"token": "env:NATS_TOKEN"}):
        if allowed:
            allowed_source(servers=servers, **options)
        else:
            with pytest.raises(ConfigError, match=f"is not in {SERVERS_VARIABLE}"):
                allowed_source(servers=servers, **options)


@pytest.mark.parametrize(
    ("variable", "value"),
    [
        (SECRET_REFS_VARIABLE, "*"),
        (SECRET_REFS_VARIABLE, "NATS_TOKEN"),
        (SECRET_REFS_VARIABLE, "env:NATS_*=tls://"),
        (SERVERS_VARIABLE, "nats.example"),
        (SERVERS_VARIABLE, "tls://a b"),
        (SERVERS_VARIABLE, "*"),
    ],
)
def test_a_list_with_a_mistake_allows_nothing(variable: str, value: str, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv(variable, value)
    with pytest.raises(ConfigError, match=variable):
        allowed_source(token="env:NATS_TOKEN")


# ---------------------------------------------------------------- where it counts


@pytest.fixture(scope="module")
def guarded() -> Iterator[Server]:
    with run_server(config=f'authorization {{ token: "{SECRET}" }}') as server:
        yield server


def test_executors_have_a_list_of_their_own(guarded: Server, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    (tmp_path / "token").write_text(SECRET)
    monkeypatch.setenv(SECRET_REFS_VARIABLE, f"file:{tmp_path}/*,provider:{__name__}:*,env:NATS_*")
    monkeypatch.setenv("NATS_TOKEN", SECRET)
    for ref in (f"file:{tmp_path}/token", f"provider:{__name__}:secret", "env:NATS_TOKEN"):
        monkeypatch.setenv(SECRET_REFS_VARIABLE, f"file:{tmp_path}/*,provider:{__name__}:*,env:NATS_*")
        nats = pickle.loads(pickle.dumps(allowed_source(servers=guarded.url, token=ref).nats))
        with worker_client(nats) as client:
            client.flush()
        close_workers()
        monkeypatch.setenv(SECRET_REFS_VARIABLE, "spark_file:*")
        with worker_client(nats) as client, pytest.raises(ConnectFailed, match=SECRET_REFS_VARIABLE):
            client.flush()
        close_workers()


PREFIXES = [
    "", "spark.", "spark.sql.", "spark.executorEnv.", "spark.driverEnv.", "spark.yarn.appMasterEnv.",
    "spark.kubernetes.driverEnv.", "spark.hadoop.", "spark.executor.extraJavaOptions.", "env.", "environment.",
]  # fmt: skip


def test_sql_cannot_set_the_list(spark: SparkSession, jetstream_server: Server, tmp_path: Path) -> None:
    """As a SQL user would try: SET every name, then read what only the cluster may read."""
    register(spark)
    for name, value in ((SECRET_REFS_VARIABLE, "env:*,file:*,provider:*"), (SERVERS_VARIABLE, "nats://*:*")):
        for prefix in PREFIXES:
            with contextlib.suppress(PySparkException):  # Spark refuses to change some of its own
                spark.sql(f"SET {prefix}{name}={value}")

    def count(view: str, **options: str) -> int:
        given = {"servers": jetstream_server.url, "stream": "ORDERS", **options}
        named = ", ".join(f"{name} '{value}'" for name, value in given.items())
        spark.sql(f"CREATE TEMPORARY VIEW {view} USING nats OPTIONS ({named})")
        return spark.sql(f"SELECT * FROM {view}").count()

    (tmp_path / "token").write_text(SECRET)
    assert count("plain") == 3
    assert count("allowed", token=f"file:{tmp_path}/token") == 3  # by the environment of the session's processes
    for number, ref in enumerate(("env:PATH", "file:/etc/hostname", "file:/etc/passwd", "provider:os:getcwd")):
        with pytest.raises(PySparkException, match=SECRET_REFS_VARIABLE):
            count(f"refused_{number}", token=ref)


@pytest.fixture
def jetstream_server() -> Iterator[Server]:
    """A server with a stream ORDERS of three messages."""
    with run_server(jetstream=True) as server, sync.connect(server.url) as nc:
        js = nc.jetstream()
        js.create_stream(name="ORDERS", subjects=["orders"])
        for number in range(3):
            js.publish("orders", b"%d" % number)
        yield server
