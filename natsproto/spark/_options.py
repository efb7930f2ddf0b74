"""Connection settings of a task, and the options of the data source: text in, checked values out.

``SparkNats`` is pickled into every task. Options are checked on the driver, before a query is planned: an unknown name
(Spark ignores misspelt ones), a value that breaks its rule, a literal secret, and a secret or server that the operator
does not allow are errors. Opens no connection and does not import Spark.
"""

from __future__ import annotations

import os
import ssl
from collections.abc import Callable, Mapping, Sequence
from datetime import UTC, datetime
from difflib import get_close_matches
from typing import Any, ClassVar, Literal, TypeVar, cast

from natsproto._options import DEFAULT_SERVER, OptionArgs, Options
from natsproto._value import Value
from natsproto.errors import ConfigError, InvalidCredentials
from natsproto.errors._base import HIDDEN
from natsproto.jetstream._asset_names import check_stream_name
from natsproto.jetstream._range_reader import Bound, Method
from natsproto.jetstream._timestamp import Timestamp
from natsproto.protocol.addresses import parse_servers
from natsproto.protocol.subject import publish_subject, subscribe_subject
from natsproto.spark._schema import check_server_headers
from natsproto.spark._secrets import AllowList, OptionRef, SecretRef


class SparkNats(Value):
    """Connection settings of the tasks of a job. Frozen, hashable and picklable; its ``repr`` shows no secret.

    A literal secret, user information in a URL included, is refused with InvalidCredentials unless
    ``allow_literal_secrets``: it would travel in every task and be stored with it. Secrets are looked up by the process
    that connects, at every attempt. ConfigError for invalid values, when it is made: on the driver. The fields without
    a word about Spark are those of ``natsproto.Options``.
    """

    servers: str | Sequence[str] = DEFAULT_SERVER
    """One URL, a comma-separated list or a sequence, as the executors reach them, without user information."""
    name: str = "natsproto.spark"
    """How the server calls the connections in its logs and monitoring."""
    user: str | SecretRef | None = None
    """The name to log in with, or a SecretRef."""
    password: str | SecretRef | None = None
    """A SecretRef of the password."""
    token: str | SecretRef | None = None
    """A SecretRef of the token."""
    jwt: str | SecretRef | None = None
    """A SecretRef of the user JWT."""
    nkey_seed: str | SecretRef | None = None
    """A SecretRef of the seed whose key logs in."""
    creds: str | SecretRef | None = None
    """A SecretRef of a credentials file, such as ``SecretRef.spark_file("app.creds")``."""
    tls: bool = False
    """Require TLS, with the certificate authorities of the executor."""
    tls_first: bool = False
    """Begin with the TLS handshake, before the server has said anything."""
    tls_hostname: str | None = None
    """The name that the server's certificate must have, if it is not the host of the URL."""
    tls_ca: str | SecretRef | None = None
    """An absolute path on the executors, or a SecretRef of a file: the certificate authorities to trust. Requires TLS.
    """
    tls_cert: str | SecretRef | None = None
    """The client's certificate, as ``tls_ca``; needs ``tls_key``."""
    tls_key: str | SecretRef | None = None
    """The key of ``tls_cert``, as ``tls_ca``."""
    connect_timeout: float = 5.0
    """Seconds for one attempt to connect."""
    retry_connect_for: float = 0.0
    """Seconds for which a task repeats its attempts to connect before it fails; 0 (default): one attempt at each
    server.
    """
    request_timeout: float = 5.0
    """Seconds to wait for a reply."""
    ping_interval: float = 120.0
    """Seconds between two PINGs on an idle connection."""
    inbox_prefix: str = "_INBOX"
    """The first tokens of the subjects for replies."""
    jetstream_domain: str | None = None
    """The JetStream domain to use; None: that of the servers."""
    jetstream_api_prefix: str | None = None
    """The prefix of JetStream's API, for one that another account exports; None: ``$JS.API``."""
    allow_literal_secrets: bool = False
    """Accept secrets that are written out. They travel in every task and are stored with it; for experiments."""

    SECRETS: ClassVar[tuple[str, ...]] = ("password", "token", "jwt", "nkey_seed", "creds")
    """The fields that hold secrets."""

    def _check(self) -> None:
        if not isinstance(self.servers, str):
            self.__dict__["servers"] = tuple(self.servers)  # a list could not be hashed
        if not self.allow_literal_secrets:
            for name in self.SECRETS:
                self._refuse_literal(name)
        for name in ("tls_ca", "tls_cert", "tls_key"):
            self._check_file(name)
        if (self.tls_cert is None) != (self.tls_key is None):
            raise ConfigError("tls_cert", self.tls_cert, "must be given together with tls_key")
        self.options()

    def _refuse_literal(self, name: str) -> None:
        if isinstance(getattr(self, name), str):
            raise InvalidCredentials(
                name,
                "is written out and would travel in every task: give a SecretRef (env, file, spark_file or provider), "
                "or allow_literal_secrets",
            )

    def _check_file(self, name: str) -> None:
        value = getattr(self, name)
        if isinstance(value, SecretRef):
            fits = value.is_file
        else:
            fits = value is None or (isinstance(value, str) and os.path.isabs(value))
        if not fits:
            raise ConfigError(name, HIDDEN, "must be an absolute path or a SecretRef that names a file")

    def options(self) -> Options:
        """The options of a client. Secrets are looked up when it connects, by that process."""
        if not self.allow_literal_secrets:
            for address in parse_servers(self.servers):
                if (address.user, address.password, address.token) != (None, None, None):
                    raise InvalidCredentials(
                        "servers", "hold user information: give user and password or token as SecretRef"
                    )
        given = {name: getattr(self, name) for name in _CONNECT_OPTIONS}
        for name in ("user", *self.SECRETS):
            value = getattr(self, name)
            given[name] = value.source if isinstance(value, SecretRef) else value
        if self.tls_ca is not None or self.tls_cert is not None:
            given["tls"] = self._tls_context
        elif self.tls:
            given["tls"] = True
        return Options(self.servers, **cast("OptionArgs", given))

    def _tls_context(self) -> ssl.SSLContext:
        context = ssl.create_default_context(cafile=_path(self.tls_ca))
        if (cert := _path(self.tls_cert)) is not None:
            context.load_cert_chain(cert, _path(self.tls_key))
        return context

    def __repr__(self) -> str:
        shown = [f"servers={', '.join(map(str, parse_servers(self.servers)))!r}"]
        for name in self._fields:
            value = getattr(self, name)
            if name != "servers" and value != getattr(SparkNats, name):
                secret = name in self.SECRETS and isinstance(value, str)
                shown.append(f"{name}={HIDDEN if secret else repr(value)}")
        return f"SparkNats({', '.join(shown)})"


_CONNECT_OPTIONS = (
    "name",
    "tls_first",
    "tls_hostname",
    "connect_timeout",
    "retry_connect_for",
    "request_timeout",
    "ping_interval",
    "inbox_prefix",
    "jetstream_domain",
    "jetstream_api_prefix",
)


def _path(file: str | SecretRef | None) -> str | None:
    return str(file.path()) if isinstance(file, SecretRef) else file


V = TypeVar("V")
ExactlyOnce = Literal["msgid", "atomic", "none"]
_SPARK_OPTIONS = ("path", "checkpointLocation", "queryName", "outputMode")
"""Options that Spark hands to a data source together with its own."""


class SourceOptions(Value):
    """Options of ``spark.read`` and ``spark.readStream``. ``end`` is inclusive.

    ``streams`` are names, or patterns in which ``*`` stands for any characters.
    """

    nats: SparkNats
    streams: tuple[str, ...]
    subjects: tuple[str, ...] = ()
    start: Bound = "earliest"
    end: Bound = "latest"
    max_sequences: int | None = None
    max_bytes: int | None = None
    min_sequences: int | None = None
    max_trigger_delay: float = 900.0
    partitions: int = 0
    fail_on_data_loss: bool = True
    headers: bool = True
    method: Method = "auto"
    batch_rows: int = 4096
    pushdown: bool = False

    @classmethod
    def read(cls, options: Mapping[str, str], *, streaming: bool | None = None) -> SourceOptions:
        """From the options of a DataFrameReader or DataStreamReader; ConfigError for invalid ones.

        ``streaming`` says which of the two it is; without it the options of both are allowed.
        """
        given = _OptionReader(options)
        if streaming is not None:
            given.refuse(_BATCH_ONLY if streaming else _STREAMING_ONLY)
        settings = cls(
            nats=_nats(given),
            streams=given.required("stream", _streams),
            subjects=given.get("subjects", _subjects, ()),
            start=_bound(given, "starting", "earliest"),
            end=_bound(given, "ending", "latest"),
            max_sequences=given.get("maxOffsetsPerTrigger", _positive, None),
            max_bytes=given.get("maxBytesPerTrigger", _positive, None),
            min_sequences=given.get("minOffsetsPerTrigger", _positive, None),
            max_trigger_delay=given.get("maxTriggerDelay", _seconds, 900.0),
            partitions=given.get("minPartitions", _positive, 0),
            fail_on_data_loss=given.get("failOnDataLoss", _flag, True),
            headers=given.get("includeHeaders", _flag, True),
            method=cast("Method", given.get("readMethod", _one_of("auto", "consumer", "direct"), "auto")),
            batch_rows=given.get("batchRows", _positive, 4096),
            pushdown=given.get("pushdown", _flag, False),
        )
        given.check_all_known()
        if settings.max_sequences is not None and (settings.min_sequences or 0) > settings.max_sequences:
            raise ConfigError("minOffsetsPerTrigger", settings.min_sequences, "is more than maxOffsetsPerTrigger")
        for name, bound in (("startingOffsets", settings.start), ("endingOffsets", settings.end)):
            if isinstance(bound, int) and (len(settings.streams) > 1 or any("*" in one for one in settings.streams)):
                raise ConfigError(name, bound, "is a sequence of one stream: give a time for several streams")
        if settings.end == "earliest" or (isinstance(settings.end, int) and settings.end < 1):
            raise ConfigError("endingOffsets", settings.end, 'must be "latest" or a sequence')
        return settings


_READ_A_RANGE = "a query of readStream has no end: read a range with spark.read, or use trigger(availableNow=True)"
_BATCH_ONLY: dict[str, str] = {
    "endingOffsets": _READ_A_RANGE,
    "endingTimestamp": _READ_A_RANGE,
    "pushdown": "Spark pushes no filters into readStream: use the option subjects",
}
_LIMITS_A_BATCH = (
    "is for the micro-batches of readStream: bound what spark.read reads by startingOffsets and endingOffsets"
)
_STREAMING_ONLY: dict[str, str] = dict.fromkeys(
    ("maxOffsetsPerTrigger", "maxBytesPerTrigger", "minOffsetsPerTrigger", "maxTriggerDelay"), _LIMITS_A_BATCH
)


class SinkOptions(Value):
    """Options of ``df.write`` and ``df.writeStream``. ``recovery_window`` and ``timeout`` are in seconds."""

    nats: SparkNats
    stream: str
    subject: str = ""
    exactly_once: ExactlyOnce = "msgid"
    recovery_window: float = 900.0
    progress_subject: str = ""
    atomic_batch_rows: int = 500
    max_pending: int = 2000
    timeout: float = 30.0
    write_id: str = ""
    server_headers: tuple[str, ...] = ()
    stable_order: bool = False

    @classmethod
    def read(cls, options: Mapping[str, str], *, streaming: bool = False) -> SinkOptions:
        """From the options of a DataFrameWriter or (``streaming``) DataStreamWriter; ConfigError for invalid ones."""
        given = _OptionReader(options)
        if streaming:
            given.refuse({"writeId": "names a batch write: a query has its id in its checkpoint"})
        exactly_once = given.get("exactlyOnce", _one_of("msgid", "atomic", "none"), "msgid")
        settings = cls(
            nats=_nats(given),
            stream=given.required("stream", check_stream_name),
            subject=given.get("subject", _subject, ""),
            exactly_once=cast("ExactlyOnce", exactly_once),
            recovery_window=given.get("recoveryWindow", _seconds, 900.0),
            progress_subject=given.get("progressSubject", _subject, ""),
            atomic_batch_rows=given.get("atomicBatchRows", _positive, 500),
            max_pending=given.get("maxPending", _positive, 2000),
            timeout=given.get("timeout", _seconds, 30.0),
            write_id=given.get("writeId", _token, ""),
            server_headers=given.get("serverHeaders", _server_headers, ()),
            stable_order=given.get("stableOrder", _flag, False),
        )
        given.check_all_known()
        if exactly_once == "atomic" and not settings.progress_subject:
            raise ConfigError(
                "progressSubject",
                "",
                "is required for exactlyOnce=atomic: a subject of the stream that nothing else uses",
            )
        if settings.atomic_batch_rows > 999:
            raise ConfigError(
                "atomicBatchRows", settings.atomic_batch_rows, "an atomic batch holds 999 rows beside its marker"
            )
        return settings


# ---------------------------------------------------------------- reading options


class _OptionReader:
    """The options as given, and the names of those that were read. Names are case-insensitive, as in Spark."""

    def __init__(self, options: Mapping[str, str]) -> None:
        self._values = {name.lower(): value for name, value in options.items()}
        self._known = {name.lower(): name for name in _SPARK_OPTIONS}

    def text(self, name: str) -> str | None:
        self._known[name.lower()] = name
        return self._values.get(name.lower())

    def get(self, name: str, read: Callable[[str, str], V], default: V) -> V:
        value = self.text(name)
        return default if value is None else read(name, value.strip())

    def required(self, name: str, read: Callable[[str], V]) -> V:
        value = self.text(name)
        if not value:
            raise ConfigError(f"option {name}", value or "", "is needed")
        return read(value)

    def refuse(self, rules: Mapping[str, str]) -> None:
        """ConfigError for an option among ``rules``, which say what to do instead."""
        for name, rule in rules.items():
            if (value := self.text(name)) is not None:
                raise ConfigError(f"option {name}", value, rule)

    def check_all_known(self) -> None:
        for name in sorted(self._values.keys() - self._known.keys()):
            near = get_close_matches(name, self._known, 1)
            hint = f": did you mean {self._known[near[0]]}?" if near else ""
            raise ConfigError("option", name, f"is not an option of this data source{hint}")


_TEXT_OPTIONS = {
    "name": "name",
    "tlsHostname": "tls_hostname",
    "inboxPrefix": "inbox_prefix",
    "jetstreamDomain": "jetstream_domain",
    "jetstreamApiPrefix": "jetstream_api_prefix",
}
_SECRET_OPTIONS = {
    "user": "user",
    "password": "password",
    "token": "token",
    "jwt": "jwt",
    "nkeySeed": "nkey_seed",
    "creds": "creds",
    "tlsCa": "tls_ca",
    "tlsCert": "tls_cert",
    "tlsKey": "tls_key",
}
_FLAG_OPTIONS = {"tls": "tls", "tlsFirst": "tls_first", "allowLiteralSecrets": "allow_literal_secrets"}
_DURATION_OPTIONS = {
    "connectTimeout": "connect_timeout",
    "retryConnectFor": "retry_connect_for",
    "requestTimeout": "request_timeout",
    "pingInterval": "ping_interval",
}


def _nats(given: _OptionReader) -> SparkNats:
    found: dict[str, object] = {"servers": given.get("servers", _plain, "")}
    if not found["servers"]:
        raise ConfigError("option servers", "", "is needed: nats://host:4222, as the executors reach it")
    found |= {field: value for name, field in _TEXT_OPTIONS.items() if (value := given.text(name)) is not None}
    for name, field in _FLAG_OPTIONS.items():
        if given.text(name) is not None:
            found[field] = given.get(name, _flag, False)
    for name, field in _DURATION_OPTIONS.items():
        if given.text(name) is not None:
            found[field] = given.get(name, _seconds, 0.0)
    for name, field in _SECRET_OPTIONS.items():
        if (value := given.text(name)) is not None:
            found[field] = _reference(field, value)
    nats = SparkNats(**cast("dict[str, Any]", found))
    return _checked_by_operator(nats)


def _reference(field: str, value: str) -> str | SecretRef:
    """A SecretRef if the text looks like one or is the path of a TLS file; other text is a literal."""
    if value.startswith(("env:", "file:", "spark_file:", "provider:")):
        return SecretRef.parse(value)
    if field.startswith("tls_") and os.path.isabs(value):
        return SecretRef.file(value)
    return value


def _checked_by_operator(nats: SparkNats) -> SparkNats:
    """Check servers and references against this process's environment, and make the executors check theirs."""
    servers = tuple(address.url for address in parse_servers(nats.servers))
    AllowList.of_environment().check_servers(servers)
    guarded: dict[str, OptionRef] = {}
    for field in _SECRET_OPTIONS.values():
        if isinstance(ref := getattr(nats, field), SecretRef):
            guarded[field] = OptionRef(kind=ref.kind, location=ref.location, servers=servers)
            guarded[field].check()
    return nats.replace(**guarded)


def _bound(given: _OptionReader, which: str, default: Literal["earliest", "latest"]) -> Bound:
    offsets, moment = given.text(f"{which}Offsets"), given.text(f"{which}Timestamp")
    if offsets is not None and moment is not None:
        raise ConfigError(f"{which}Timestamp", moment, f"cannot be given together with {which}Offsets")
    if moment is not None:
        return _moment(f"{which}Timestamp", moment.strip())
    if offsets is None:
        return default
    word = offsets.strip().lower()
    if word in ("earliest", "latest"):
        return cast("Literal['earliest', 'latest']", word)
    return _positive(f"{which}Offsets", word, '"earliest", "latest" or a sequence of the stream')


def _moment(name: str, text: str) -> datetime:
    try:
        if text.isascii() and text.isdigit():
            return Timestamp.from_ns(int(text) * 1_000_000)
        return Timestamp.parse(text.replace(" ", "T", 1)).astimezone(UTC)
    except (ValueError, OverflowError):
        raise ConfigError(name, text, "must be a time with its zone (2026-01-31T12:00:00Z) or milliseconds") from None


def _plain(name: str, text: str) -> str:
    return text


def _positive(name: str, text: str, form: str = "a number of 1 or more") -> int:
    if not (text.isascii() and text.isdigit() and 0 < int(text) < 2**63):
        raise ConfigError(name, text, f"must be {form}")
    return int(text)


def _flag(name: str, text: str) -> bool:
    if text.lower() not in ("true", "false"):
        raise ConfigError(name, text, "must be true or false")
    return text.lower() == "true"


def _seconds(name: str, text: str) -> float:
    try:
        seconds = float(text)
    except ValueError:
        seconds = 0.0
    if not 0 < seconds < 1e9:
        raise ConfigError(name, text, "must be a number of seconds, more than 0")
    return seconds


def _streams(text: str) -> tuple[str, ...]:
    found = tuple(dict.fromkeys(name.strip() for name in text.split(",")))
    for name in found:
        check_stream_name(name.replace("*", "x"))
    return found


def _subjects(name: str, text: str) -> tuple[str, ...]:
    found = tuple(subject.strip() for subject in text.split(","))
    for subject in found:
        subscribe_subject(subject, name)
    return found


def _server_headers(name: str, text: str) -> tuple[str, ...]:
    return check_server_headers(name, [header.strip() for header in text.split(",")])


def _subject(name: str, text: str) -> str:
    publish_subject(text, name)
    return text


def _token(name: str, text: str) -> str:
    publish_subject(text, name)
    if "." in text:
        raise ConfigError(name, text, "must not contain dots: it becomes one token of a subject")
    return text


def _one_of(*words: str) -> Callable[[str, str], str]:
    def read(name: str, text: str) -> str:
        if text.lower() not in words:
            raise ConfigError(name, text, f"must be one of {', '.join(words)}")
        return text.lower()

    return read
