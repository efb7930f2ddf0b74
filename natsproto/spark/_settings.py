"""The options of the data source: text in, checked values out.

Owns the names, defaults and rules of ``.option(...)``. Everything is refused here, on the driver, before anything is
planned or connected: an option that does not exist (Spark itself ignores misspelt ones), a value that breaks its rule,
and a secret that is written out instead of referred to.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from datetime import UTC, datetime
from difflib import get_close_matches
from typing import Any, Literal, TypeVar, cast

from natsproto._value import Value
from natsproto.errors import ConfigError
from natsproto.jetstream._config import stream_name
from natsproto.jetstream._timestamp import Timestamp
from natsproto.protocol.subject import publish_subject, subscribe_subject
from natsproto.spark._config import SecretRef, SparkNats
from natsproto.spark._publishing import check_server_headers

V = TypeVar("V")
Method = Literal["auto", "consumer", "direct"]
Guarantee = Literal["msgid", "atomic", "none"]
Place = Literal["earliest", "latest"] | int | datetime

_SPARKS_OWN = ("path", "checkpointLocation", "queryName", "outputMode")
"""Options that Spark hands to a data source together with its own."""


class SourceSettings(Value):
    """What ``spark.read`` and ``spark.readStream`` take. ``end`` and the like are inclusive, as sequences are."""

    nats: SparkNats
    stream: str
    subjects: tuple[str, ...] = ()
    start: Place = "earliest"
    end: Place = "latest"
    max_sequences: int | None = None
    max_octets: int | None = None
    min_sequences: int | None = None
    max_delay: float = 900.0
    partitions: int = 0
    fail_on_data_loss: bool = True
    headers: bool = True
    method: Method = "auto"
    batch_rows: int = 8192
    pushdown: bool = False

    @classmethod
    def read(cls, options: Mapping[str, str]) -> SourceSettings:
        """From the options of a DataFrameReader or DataStreamReader; ConfigError for what breaks a rule."""
        given = _Given(options)
        settings = cls(
            nats=_nats(given),
            stream=given.required("stream", stream_name),
            subjects=given.get("subjects", _subjects, ()),
            start=_place(given, "starting", "earliest"),
            end=_place(given, "ending", "latest"),
            max_sequences=given.get("maxOffsetsPerTrigger", _positive, None),
            max_octets=given.get("maxBytesPerTrigger", _positive, None),
            min_sequences=given.get("minOffsetsPerTrigger", _positive, None),
            max_delay=given.get("maxTriggerDelay", _seconds, 900.0),
            partitions=given.get("minPartitions", _positive, 0),
            fail_on_data_loss=given.get("failOnDataLoss", _flag, True),
            headers=given.get("includeHeaders", _flag, True),
            method=cast("Method", given.get("readMethod", _one_of("auto", "consumer", "direct"), "auto")),
            batch_rows=given.get("batchRows", _positive, 8192),
            pushdown=given.get("pushdown", _flag, False),
        )
        given.check_all_known()
        if settings.max_sequences is not None and (settings.min_sequences or 0) > settings.max_sequences:
            raise ConfigError("minOffsetsPerTrigger", settings.min_sequences, "is more than maxOffsetsPerTrigger")
        if settings.end == "earliest" or (isinstance(settings.end, int) and settings.end < 1):
            raise ConfigError("endingOffsets", settings.end, 'must be "latest" or a sequence')
        return settings


class SinkSettings(Value):
    """What ``df.write`` and ``df.writeStream`` take. ``recovery_window`` and ``timeout`` in seconds."""

    nats: SparkNats
    stream: str
    subject: str = ""
    guarantee: Guarantee = "msgid"
    recovery_window: float = 900.0
    progress_subject: str = ""
    chunk_rows: int = 500
    window: int = 2000
    timeout: float = 30.0
    write_id: str = ""
    server_headers: tuple[str, ...] = ()
    stable_order: bool = False

    @classmethod
    def read(cls, options: Mapping[str, str]) -> SinkSettings:
        """From the options of a DataFrameWriter or DataStreamWriter; ConfigError for what breaks a rule."""
        given = _Given(options)
        guarantee = given.get("exactlyOnce", _one_of("msgid", "atomic", "none"), "msgid")
        settings = cls(
            nats=_nats(given),
            stream=given.required("stream", stream_name),
            subject=given.get("subject", _subject, ""),
            guarantee=cast("Guarantee", guarantee),
            recovery_window=given.get("recoveryWindow", _seconds, 900.0),
            progress_subject=given.get("progressSubject", _subject, ""),
            chunk_rows=given.get("chunkRows", _positive, 500),
            window=given.get("window", _positive, 2000),
            timeout=given.get("timeout", _seconds, 30.0),
            write_id=given.get("writeId", _token, ""),
            server_headers=given.get("serverHeaders", _server_headers, ()),
            stable_order=given.get("stableOrder", _flag, False),
        )
        given.check_all_known()
        if guarantee == "atomic" and not settings.progress_subject:
            raise ConfigError(
                "progressSubject",
                "",
                "is needed for exactlyOnce=atomic: a subject of the stream for nothing else",
            )
        if settings.chunk_rows > 999:
            raise ConfigError("chunkRows", settings.chunk_rows, "an atomic batch holds 999 rows beside its marker")
        return settings


# ---------------------------------------------------------------- reading options


class _Given:
    """The options as given, and which of them anybody asked for. Names are the same in any case, as Spark has it."""

    def __init__(self, options: Mapping[str, str]) -> None:
        self._values = {name.lower(): value for name, value in options.items()}
        self._known = {name.lower(): name for name in _SPARKS_OWN}

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

    def check_all_known(self) -> None:
        for name in sorted(self._values.keys() - self._known.keys()):
            near = get_close_matches(name, self._known, 1)
            hint = f": do you mean {self._known[near[0]]}?" if near else ""
            raise ConfigError("option", name, f"does not exist here{hint}")


_TEXTS = {
    "name": "name",
    "tlsHostname": "tls_hostname",
    "inboxPrefix": "inbox_prefix",
    "jetstreamDomain": "jetstream_domain",
    "jetstreamApiPrefix": "jetstream_api_prefix",
}
_REFERENCES = {
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
_FLAGS = {"tls": "tls", "tlsFirst": "tls_first", "allowLiteralSecrets": "allow_literal_secrets"}
_DURATIONS = {"connectTimeout": "connect_timeout", "requestTimeout": "request_timeout", "pingInterval": "ping_interval"}


def _nats(given: _Given) -> SparkNats:
    found: dict[str, object] = {"servers": given.get("servers", _plain, "")}
    if not found["servers"]:
        raise ConfigError("option servers", "", "is needed: nats://host:4222, as the executors reach it")
    found |= {field: value for name, field in _TEXTS.items() if (value := given.text(name)) is not None}
    for name, field in _FLAGS.items():
        if given.text(name) is not None:
            found[field] = given.get(name, _flag, False)
    for name, field in _DURATIONS.items():
        if given.text(name) is not None:
            found[field] = given.get(name, _seconds, 0.0)
    for name, field in _REFERENCES.items():
        if (value := given.text(name)) is not None:
            found[field] = _reference(field, value)
    return SparkNats(**cast("dict[str, Any]", found))


def _reference(field: str, value: str) -> str | SecretRef:
    """A reference where the text looks like one. What is left is a literal, which SparkNats judges."""
    if value.startswith(("env:", "file:", "spark_file:", "provider:")):
        return SecretRef.parse(value)
    return value


def _place(given: _Given, which: str, default: Literal["earliest", "latest"]) -> Place:
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
