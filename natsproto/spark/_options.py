"""Connection settings of a task, and the options of the data source: text in, checked values out.

``SparkNats`` is pickled into every task. Options are checked on the driver, before a query is planned: an unknown name
(Spark ignores misspelt ones), a value that breaks its rule, a literal secret, and a secret or server that the operator
does not allow are errors. Opens no connection and does not import Spark.
"""

from __future__ import annotations

import json
import logging
import os
import re
import ssl
from collections.abc import Callable, Mapping, Sequence
from datetime import UTC, datetime
from difflib import get_close_matches
from typing import TYPE_CHECKING, Any, ClassVar, Literal, TypeAlias, cast

from natsproto import Options, errors
from natsproto._durations import seconds
from natsproto._options.options import DEFAULT_SERVER, OptionArgs
from natsproto._value import Value
from natsproto.errors._base import HIDDEN, hide_arguments
from natsproto.jetstream import Timestamp
from natsproto.jetstream._values.asset_names import check_bucket_name, check_consumer_name, check_stream_name
from natsproto.protocol.addresses import parse_servers
from natsproto.protocol.subject import publish_subject, subscribe_subject
from natsproto.spark._bad_rows import BadRows, check_bad_rows
from natsproto.spark._outages import DEFAULT_OUTAGE_TIMEOUT_S
from natsproto.spark._range_reader import Bound, Method
from natsproto.spark._schema import check_server_headers, no_table
from natsproto.spark._secrets import AllowList, OptionRef, SecretRef

log = logging.getLogger("natsproto.spark")


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
    outage_timeout: float = DEFAULT_OUTAGE_TIMEOUT_S
    """Seconds of an outage that planning, connecting, reading and lookups wait for the servers; 0: none, one attempt at
    each server. Writing has a ``timeout`` of its own.
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
    _OWN: ClassVar[tuple[str, ...]] = (
        *("servers", "user", *SECRETS, "allow_literal_secrets"),
        *("tls", "tls_ca", "tls_cert", "tls_key", "outage_timeout"),
    )
    """The fields that are not options of a client as they are."""

    if not TYPE_CHECKING:
        __init__ = hide_arguments(Value.__init__)

    def _check(self) -> None:
        if not isinstance(self.servers, str):
            self.__dict__["servers"] = tuple(self.servers)  # a list could not be hashed
        if not self.allow_literal_secrets:
            for name in self.SECRETS:
                self._refuse_literal(name)
        for name in ("tls_ca", "tls_cert", "tls_key"):
            self._check_file(name)
        if (self.tls_cert is None) != (self.tls_key is None):
            raise errors.ConfigError("tls_cert", self.tls_cert, "must be given together with tls_key")
        seconds("outage_timeout", self.outage_timeout)
        self.options()

    def _refuse_literal(self, name: str) -> None:
        if isinstance(getattr(self, name), str):
            raise errors.InvalidCredentials(
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
            raise errors.ConfigError(name, HIDDEN, "must be an absolute path or a SecretRef that names a file")

    def options(self) -> Options:
        """The options of a client. Secrets are looked up when it connects, by that process."""
        if not self.allow_literal_secrets:
            for address in parse_servers(self.servers):
                if (address.user, address.password, address.token) != (None, None, None):
                    raise errors.InvalidCredentials(
                        "servers", "hold user information: give user and password or token as SecretRef"
                    )
        given = {name: getattr(self, name) for name in self._fields if name not in self._OWN}
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
                shown.append(f"{name}={HIDDEN if name in self.SECRETS and isinstance(value, str) else repr(value)}")
        return f"SparkNats({', '.join(shown)})"


def _path(file: str | SecretRef | None) -> str | None:
    return str(file.path()) if isinstance(file, SecretRef) else file


Bounds: TypeAlias = Bound | Mapping[str, Bound]
"""One for all streams, or one for each by its name."""
Delivery = Literal["ids", "cursor", "none"]
Duplicates = Literal["refuse", "allow"]


class SourceOptions(Value):
    """Options of ``spark.read`` and ``spark.readStream``; the table below has their names."""

    nats: SparkNats
    streams: tuple[str, ...] = ()
    """Names, or patterns in which ``*`` stands for any characters."""
    bucket: str = ""
    """A bucket to read as a table of its current values, instead of streams."""
    subjects: tuple[str, ...] = ()
    """Subjects that are read, with wildcards; none for all."""
    start: Bounds = "earliest"
    """Where to begin."""
    end: Bounds = "latest"
    """Where to end; a sequence is read, a time is not."""
    max_sequences: int | None = None
    """The most sequences of a micro-batch, or with ``subjects`` messages."""
    max_bytes: int | None = None
    """The most bytes of a micro-batch, by the average of the stream."""
    min_sequences: int | None = None
    """The fewest sequences of a micro-batch."""
    max_trigger_delay: float = 900.0
    """Seconds that a micro-batch waits for ``min_sequences``."""
    partitions: int = 0
    """Ranges of a batch; 0: by its size."""
    partition_sequences: int = 0
    """The most sequences of a range; 0: no limit."""
    fail_on_data_loss: bool = True
    """True if messages that were removed unread are DataLost, False for a line in the log."""
    headers: bool = True
    """True for a column of headers."""
    method: Method = "auto"
    """How messages are read; see ``read_range``."""
    batch_rows: int = 4096
    """Rows of an Arrow batch."""

    @classmethod
    def read(cls, options: Mapping[str, str], *, streaming: bool | None = None) -> SourceOptions:
        """From the options of a DataFrameReader or DataStreamReader; ConfigError for invalid ones.

        ``streaming`` says which of the two it is; without it the options of both are allowed.
        """
        refused = _BATCH_ONLY if streaming else _STREAMING_ONLY
        found = cls(**_read(options, _SOURCE, {} if streaming is None else refused))
        if found.bucket:
            given = [name for name in _STREAMS_ONLY if getattr(found, name) != getattr(cls, name)]
            if given:
                raise errors.ConfigError(
                    "bucket", found.bucket, f"has current values only: leave out {', '.join(given)}"
                )
        elif not found.streams:
            raise errors.ConfigError("option stream", "", "is needed")
        if found.max_sequences is not None and (found.min_sequences or 0) > found.max_sequences:
            raise errors.ConfigError("minOffsetsPerTrigger", found.min_sequences, "is more than maxOffsetsPerTrigger")
        for name, bound in (("startingOffsets", found.start), ("endingOffsets", found.end)):
            for stream in bound if isinstance(bound, Mapping) else ():
                if not any(is_named(stream, pattern) for pattern in found.streams):
                    raise errors.ConfigError(name, stream, f"is not one of the streams {', '.join(found.streams)}")
            if isinstance(bound, int) and (len(found.streams) > 1 or any("*" in one for one in found.streams)):
                raise errors.ConfigError(
                    name, bound, 'is a sequence of one stream: give one for each ({"STREAM": 5}) or a time'
                )
        for bound in found.end.values() if isinstance(found.end, Mapping) else (found.end,):
            if bound == "earliest":
                raise errors.ConfigError("endingOffsets", bound, 'must be "latest" or a sequence')
        return found

    def bounds_of(self, stream: str) -> tuple[Bound, Bound]:
        """Where to begin and to end with a stream. Without an entry it is read as a whole."""
        start, end = self.start, self.end
        return (
            start.get(stream, "earliest") if isinstance(start, Mapping) else start,
            end.get(stream, "latest") if isinstance(end, Mapping) else end,
        )


def is_named(stream: str, pattern: str) -> bool:
    """True if this is the stream's name, or a pattern (``*``: any characters) that matches it."""
    return re.fullmatch(".*".join(map(re.escape, pattern.split("*"))), stream) is not None


class SinkOptions(Value):
    """Options of ``df.write`` and ``df.writeStream``; the table below has their names."""

    nats: SparkNats
    stream: str = ""
    """The stream that is written."""
    bucket: str = ""
    """A bucket in which values are put and deleted, instead of a stream."""
    subject: str = ""
    """The subject of all rows."""
    delivery: Delivery = "ids"
    """How a repetition is kept from storing rows twice: by ids, within the duplicate window; by cursors, always."""
    duplicates: Duplicates = "refuse"
    """"allow" accepts that rows are stored twice by a repetition later than the duplicate window."""
    cursor_subject: str = ""
    """The subject below which cursors are kept, if not that of ``js.cursor``."""
    max_pending: int = 2000
    """Messages that wait for their acknowledgement at a time."""
    timeout: float = 30.0
    """Seconds for every message to be acknowledged."""
    write_id: str = ""
    """The name of a batch write, with which it can be repeated as a whole."""
    server_headers: tuple[str, ...] = ()
    """Server-control headers that rows may carry."""
    stable_order: bool = False
    """The promise that the rows of a partition come in the same order whenever they are computed."""
    bad_rows: BadRows = "fail"
    """How rows that cannot be messages are treated."""
    letter_subject: str = ""
    """The subject of their dead letters."""
    checkpoint: str = ""
    """The location of the query's checkpoint."""

    @classmethod
    def read(cls, options: Mapping[str, str], *, streaming: bool = False) -> SinkOptions:
        """From the options of a DataFrameWriter or (``streaming``) DataStreamWriter; ConfigError for invalid ones."""
        refused = {"writeId": "names a batch write: a query has its id in its checkpoint"} if streaming else {}
        given = {name.lower(): text for name, text in options.items()}
        if given.pop("recoverywindow", None) is not None:
            log.warning("option recoveryWindow has no effect: the sink searches no stream for rows; see delivery")
        location = given.get("checkpointlocation", "")
        found = cls(**_read(given, _SINK, refused), checkpoint=location)
        if found.write_id and found.delivery != "cursor":
            raise errors.ConfigError(
                "writeId",
                found.write_id,
                "names a cursor: give delivery=cursor. Ids hold for the duplicate_window only",
            )
        check_bad_rows(found.bad_rows, found.letter_subject, option="badRows", letter_option="deadLetterSubject")
        if found.bucket:
            if found.stream or found.subject or found.letter_subject:
                raise errors.ConfigError(
                    "bucket", found.bucket, "cannot be given with stream, subject or deadLetterSubject"
                )
            return found.replace(stream=f"KV_{found.bucket}")
        if not found.stream:
            raise errors.ConfigError("option stream", "", "is needed")
        return found


# ---------------------------------------------------------------- reading options


def _read(
    options: Mapping[str, str], table: Mapping[str, tuple[str, Read]], refused: Mapping[str, str]
) -> dict[str, Any]:
    """The fields that are given. Names are case-insensitive, as in Spark, which ignores misspelt ones."""
    rules = {name.lower(): (name, *rule) for name, rule in {**_CONNECTION, **table}.items()}
    found: dict[str, Any] = {}
    connection: dict[str, Any] = {}
    given = {name.lower(): text for name, text in options.items() if name.lower() not in _OF_SPARK}
    if not given or any(low.startswith("option.") for low in given):
        raise no_table()  # Spark 4.3 gives "option.servers", or nothing
    for low in sorted(given.keys() - rules.keys()):
        near = get_close_matches(low, rules, 1)
        hint = f": did you mean {rules[near[0]][0]}?" if near else ""
        if low in _OTHER_WORDS:
            hint = f": it is {_OTHER_WORDS[low]} here"
        raise errors.ConfigError("option", low, f"is not an option of this data source{hint}")
    for low, (name, field, read) in rules.items():
        if (text := given.get(low)) is None:
            continue
        if name in refused:
            raise errors.ConfigError(f"option {name}", text, refused[name])
        into = connection if name in _CONNECTION else found
        if field in into:
            other = next(one for one, (same, _) in table.items() if same == field)
            raise errors.ConfigError(name, text, f"cannot be given together with {other}")
        into[field] = read(name, text if field in _REFERENCES else text.strip())
    if not connection.get("servers"):
        raise errors.ConfigError("option servers", "", "is needed: nats://host:4222, as the executors reach it")
    return {"nats": _checked_by_operator(SparkNats(**connection)), **found}


def _reference(name: str, value: str) -> str | SecretRef:
    """A SecretRef if the text looks like one or is the path of a TLS file; other text is a literal."""
    if value.startswith(("env:", "file:", "spark_file:", "provider:")):
        return SecretRef.parse(value)
    if name.startswith("tls") and os.path.isabs(value):
        return SecretRef.file(value)
    return value


def _checked_by_operator(nats: SparkNats) -> SparkNats:
    """Check servers and references against this process's environment, and make the executors check theirs."""
    servers = tuple(address.url for address in parse_servers(nats.servers))
    AllowList.of_environment().check_servers(servers)
    guarded: dict[str, OptionRef] = {}
    for field in _REFERENCES:
        if isinstance(ref := getattr(nats, field), SecretRef):
            guarded[field] = OptionRef(kind=ref.kind, location=ref.location, servers=servers)
            guarded[field].check()
    return nats.replace(**guarded)


def _bounds(name: str, text: str) -> Bounds:
    return _of_each(name, text, _bound) if text.startswith("{") else _bound(name, text)


def _bound(name: str, text: str) -> Bound:
    word = text.lower()
    if word in ("earliest", "latest"):
        return cast("Literal['earliest', 'latest']", word)
    return _positive(name, word, '"earliest", "latest" or a sequence of the stream, or JSON of them by stream')


def _moments(name: str, text: str) -> Bounds:
    return _of_each(name, text, _moment)


def _of_each(name: str, text: str, read: Callable[[str, str], Bound]) -> Bounds:
    """The bounds of streams, as JSON: {"ORDERS": 5}."""
    try:
        given = json.loads(text)
    except ValueError:
        given = None
    if not isinstance(given, dict) or not all(isinstance(one, str | int) for one in given.values()):
        raise errors.ConfigError(
            name, text, 'must be JSON with a value for each stream: {"ORDERS": 5} (a stream has no partitions)'
        )
    return {check_stream_name(stream): read(f"{name} of {stream}", str(one)) for stream, one in given.items()}


def _moment(name: str, text: str) -> datetime:
    try:
        if text.isascii() and text.isdigit():
            return Timestamp.from_ns(int(text) * 1_000_000)
        return Timestamp.parse(text.replace(" ", "T", 1)).astimezone(UTC)
    except (ValueError, OverflowError):
        raise errors.ConfigError(
            name, text, "must be a time with its zone (2026-01-31T12:00:00Z) or milliseconds"
        ) from None


def _plain(name: str, text: str) -> str:
    return text


def _positive(name: str, text: str, form: str = "a number of 1 or more") -> int:
    if not (text.isascii() and text.isdigit() and 0 < int(text) < 2**63):
        raise errors.ConfigError(name, text, f"must be {form}")
    return int(text)


def _flag(name: str, text: str) -> bool:
    if text.lower() not in ("true", "false"):
        raise errors.ConfigError(name, text, "must be true or false")
    return text.lower() == "true"


def _seconds(name: str, text: str) -> float:
    found = _DURATION.fullmatch(text.lower())
    number, unit = (found[1], found[2]) if found else (text, "")
    try:
        duration = float(number) * (_UNITS.get(unit) or _UNITS[unit.removesuffix("s")])
    except (ValueError, KeyError):
        duration = -1.0
    if not (0 < duration < 1e9 or (duration == 0 and name == "outageTimeout")):
        raise errors.ConfigError(name, text, "must be a duration such as 30s, 5m or 1 hour, or a number of seconds")
    return duration


def _streams(name: str, text: str) -> tuple[str, ...]:
    if not text:
        raise errors.ConfigError(f"option {name}", text, "is needed")
    found = tuple(dict.fromkeys(one.strip() for one in text.split(",")))
    for one in found:
        check_stream_name(one.replace("*", "x"))
    return found


def _stream(name: str, text: str) -> str:
    return check_stream_name(text) if text else ""


def _bucket(name: str, text: str) -> str:
    check_bucket_name(text)
    return text


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


def _name(name: str, text: str) -> str:
    try:
        return check_consumer_name(text)
    except errors.InvalidSubject as exc:
        raise errors.ConfigError(name, text, f"becomes a part of a subject: {exc.rule}") from None


def _one_of(*words: str) -> Callable[[str, str], str]:
    def read(name: str, text: str) -> str:
        if text.lower() not in words:
            raise errors.ConfigError(name, text, f"must be one of {', '.join(words)}")
        return text.lower()

    return read


# ---------------------------------------------------------------- the tables

Read: TypeAlias = Callable[[str, str], object]
"""Reads the text of an option, by its name; ConfigError."""
_OF_SPARK = frozenset({"path", "checkpointlocation", "queryname", "outputmode"})
"""Options that Spark hands to a data source together with its own."""
_REFERENCES = frozenset(("user", *SparkNats.SECRETS, "tls_ca", "tls_cert", "tls_key"))
_DURATION = re.compile(r"([0-9]*\.?[0-9]+)\s*([a-z]+)")
_UNITS = {
    **dict.fromkeys(("", "s", "sec", "second"), 1.0),
    **dict.fromkeys(("m", "min", "minute"), 60.0),
    **dict.fromkeys(("h", "hour"), 3600.0),
    **dict.fromkeys(("d", "day"), 86400.0),
    **dict.fromkeys(("ms", "msec", "millisecond"), 0.001),
}
_READERS: dict[type, Read] = {bool: _flag, float: _seconds}
_CONNECTION: dict[str, tuple[str, Read]] = {
    re.sub("_(.)", lambda found: found[1].upper(), field): (
        field,
        _reference if field in _REFERENCES else _READERS.get(type(getattr(SparkNats, field)), _plain),
    )
    for field in SparkNats._fields
}
"""The fields of SparkNats, in camel case."""
_SOURCE: dict[str, tuple[str, Read]] = {
    "stream": ("streams", _streams),
    "bucket": ("bucket", _bucket),
    "subjects": ("subjects", _subjects),
    "startingOffsets": ("start", _bounds),
    "startingTimestamp": ("start", _moment),
    "startingOffsetsByTimestamp": ("start", _moments),
    "endingOffsets": ("end", _bounds),
    "endingTimestamp": ("end", _moment),
    "endingOffsetsByTimestamp": ("end", _moments),
    "maxOffsetsPerTrigger": ("max_sequences", _positive),
    "maxBytesPerTrigger": ("max_bytes", _positive),
    "minOffsetsPerTrigger": ("min_sequences", _positive),
    "maxTriggerDelay": ("max_trigger_delay", _seconds),
    "minPartitions": ("partitions", _positive),
    "maxRecordsPerPartition": ("partition_sequences", _positive),
    "failOnDataLoss": ("fail_on_data_loss", _flag),
    "includeHeaders": ("headers", _flag),
    "readMethod": ("method", _one_of("auto", "consumer", "direct")),
    "batchRows": ("batch_rows", _positive),
}
_STREAMS_ONLY = (
    *("streams", "subjects", "start", "end", "partitions", "partition_sequences", "fail_on_data_loss", "method"),
)
_READ_A_RANGE = "a query of readStream has no end: read a range with spark.read, or use trigger(availableNow=True)"
_BATCH_ONLY = {
    "endingOffsets": _READ_A_RANGE,
    "endingTimestamp": _READ_A_RANGE,
    "endingOffsetsByTimestamp": _READ_A_RANGE,
    "bucket": "a bucket is a table of current values: read it with spark.read, or its changes as stream KV_<bucket>",
}
_LIMITS_A_BATCH = (
    "is for the micro-batches of readStream: bound what spark.read reads by startingOffsets and endingOffsets"
)
_STREAMING_ONLY: dict[str, str] = dict.fromkeys(
    ("maxOffsetsPerTrigger", "maxBytesPerTrigger", "minOffsetsPerTrigger", "maxTriggerDelay"), _LIMITS_A_BATCH
)
_SINK: dict[str, tuple[str, Read]] = {
    "stream": ("stream", _stream),
    "bucket": ("bucket", _bucket),
    "subject": ("subject", _subject),
    "delivery": ("delivery", _one_of("ids", "cursor", "none")),
    "duplicates": ("duplicates", _one_of("refuse", "allow")),
    "cursorSubject": ("cursor_subject", _subject),
    "maxPending": ("max_pending", _positive),
    "timeout": ("timeout", _seconds),
    "writeId": ("write_id", _name),
    "serverHeaders": ("server_headers", _server_headers),
    "stableOrder": ("stable_order", _flag),
    "badRows": ("bad_rows", _one_of("fail", "drop", "deadletter")),
    "deadLetterSubject": ("letter_subject", _subject),
}
_OTHER_WORDS = {
    **dict.fromkeys(("subscribe", "subscribepattern", "assign", "topic", "topics"), "stream, or subjects of one"),
    **dict.fromkeys(("kafka.bootstrap.servers", "bootstrap.servers", "server", "url"), "servers"),
}
"""Options of other data sources, in lower case."""
