"""Options of the data source are refused on the driver, in words, before anything is planned."""

from __future__ import annotations

from datetime import UTC, datetime

import pytest

from natsproto.errors import ConfigError, InvalidCredentials, InvalidSubject
from natsproto.spark._options import SinkOptions, SourceOptions
from natsproto.spark._secrets import SecretRef

BASE = {"servers": "nats://127.0.0.1:4222", "stream": "ORDERS"}


def source_options(**options: str) -> SourceOptions:
    return SourceOptions.read({**BASE, **options})


def sink(**options: str) -> SinkOptions:
    return SinkOptions.read({**BASE, **options})


def test_defaults_read_everything_and_lose_nothing() -> None:
    settings = source_options()
    assert (settings.start, settings.end, settings.fail_on_data_loss) == ("earliest", "latest", True)
    assert (settings.headers, settings.method) == (True, "auto")
    assert (sink().delivery, sink().duplicates) == ("ids", "refuse")


def test_names_of_options_are_the_same_in_any_case() -> None:
    settings = source_options(MAXOFFSETSPERTRIGGER="5", failondataloss="FALSE", checkpointlocation="/tmp/x")
    assert settings.max_sequences == 5
    assert settings.fail_on_data_loss is False


def test_outage_of_options_is_that_of_the_client() -> None:
    assert source_options(outageTimeout="7.5").nats.outage_timeout == 7.5


@pytest.mark.parametrize(
    ("text", "seconds"),
    [
        ("90", 90),
        ("1.5", 1.5),
        ("1e3", 1000),
        (".5", 0.5),
        ("30s", 30),
        ("5m", 300),
        ("1 hour", 3600),
        ("2 Minutes", 120),
        ("500ms", 0.5),
        (".5 h", 1800),
    ],
)
def test_durations_have_units(text: str, seconds: float) -> None:
    assert source_options(maxTriggerDelay=text).max_trigger_delay == seconds
    assert sink(timeout=text).timeout == seconds


@pytest.mark.parametrize("text", ["", "m", "5 parsecs", "-5s", "5s6", "0", "300000d", "inf", "nan"])
def test_durations_without_a_meaning_are_refused(text: str) -> None:
    with pytest.raises(ConfigError, match="must be a duration such as 30s, 5m or 1 hour"):
        source_options(maxTriggerDelay=text)


def test_outage_may_be_not_waited_for() -> None:
    assert source_options(outageTimeout="0").nats.outage_timeout == 0
    assert source_options(outageTimeout="0s").nats.outage_timeout == 0
    with pytest.raises(ConfigError, match="must be a duration"):
        source_options(outageTimeout="0 bananas")


def test_streams_may_have_bounds_of_their_own() -> None:
    several = {"stream": "ORDERS,OLD_*", "startingOffsets": '{"ORDERS": 5, "OLD_A": "latest"}'}
    settings = source_options(
        **several, endingOffsetsByTimestamp='{"ORDERS": 1769860800000, "OLD_B": "2026-01-31T12:00:00Z"}'
    )
    noon = datetime(2026, 1, 31, 12, tzinfo=UTC)
    assert settings.bounds_of("ORDERS") == (5, noon)
    assert settings.bounds_of("OLD_A") == ("latest", "latest")
    assert settings.bounds_of("OLD_B") == ("earliest", noon)


def test_subjects_are_a_comma_list() -> None:
    assert source_options(subjects="orders.eu, orders.us.>").subjects == ("orders.eu", "orders.us.>")


@pytest.mark.parametrize(
    ("text", "moment"),
    [
        ("2026-01-31T12:00:00Z", datetime(2026, 1, 31, 12, tzinfo=UTC)),
        ("2026-01-31 13:00:00+01:00", datetime(2026, 1, 31, 12, tzinfo=UTC)),
        ("1769860800000", datetime(2026, 1, 31, 12, tzinfo=UTC)),
    ],
)
def test_times_have_a_zone_or_are_milliseconds(text: str, moment: datetime) -> None:
    assert source_options(startingTimestamp=text).start == moment


@pytest.mark.parametrize(
    ("options", "words"),
    [
        ({"maxOffsetPerTrigger": "5"}, "did you mean maxOffsetsPerTrigger"),
        ({"unheard": "of"}, "unheard.*not an option"),
        ({"startingOffsets": "0"}, 'must be "earliest", "latest" or a sequence'),
        ({"startingOffsets": "first"}, 'must be "earliest", "latest" or a sequence'),
        ({"endingOffsets": "earliest"}, 'must be "latest" or a sequence'),
        ({"startingTimestamp": "2026-01-31T12:00:00"}, "must be a time with its zone"),
        ({"startingTimestamp": "2026-01-31T12:00:00Z", "startingOffsets": "5"}, "together with startingOffsets"),
        ({"failOnDataLoss": "maybe"}, "must be true or false"),
        ({"readMethod": "push"}, "must be one of auto, consumer, direct"),
        ({"maxBytesPerTrigger": "-1"}, "must be a number of 1 or more"),
        ({"stream": ""}, "is needed"),
        ({"stream": "a.b"}, "stream"),
        ({"servers": ""}, "is needed"),
        ({"connectTimeout": "soon"}, "must be a duration such as"),
        ({"subjects": "a..b"}, "subjects"),
        ({"subscribe": "ORDERS"}, "it is stream, or subjects of one here"),
        ({"kafka.bootstrap.servers": "x:9092"}, "it is servers here"),
        ({"startingOffsets": "{}5"}, 'must be JSON with a value for each stream: {"ORDERS": 5}'),
        ({"startingOffsets": '{"ORDERS": {"0": 5}}'}, "a stream has no partitions"),
        ({"startingOffsets": '{"ORDERS": 0}'}, "startingOffsets of ORDERS '0': must be"),
        ({"startingOffsets": '{"RETURNS": 5}'}, "'RETURNS': is not one of the streams ORDERS"),
        ({"endingOffsets": '{"ORDERS": "earliest"}'}, 'must be "latest" or a sequence'),
        ({"startingOffsetsByTimestamp": "2026-01-31T12:00:00Z"}, "must be JSON"),
        ({"startingOffsetsByTimestamp": '{"ORDERS": "noon"}'}, "must be a time with its zone"),
        ({"stream": "A,B", "startingOffsets": "5"}, r'give one for each \({"STREAM": 5}\)'),
        ({"maxRecordsPerPartition": "0"}, "must be a number of 1 or more"),
    ],
)
def test_a_wrong_option_of_the_source_is_named(options: dict[str, str], words: str) -> None:
    with pytest.raises(ConfigError, match=words):
        source_options(**options)


@pytest.mark.parametrize(
    ("name", "value", "streaming", "words"),
    [
        ("endingOffsets", "5", True, "spark.read"),
        ("endingoffsets", "latest", True, "spark.read"),
        ("endingTimestamp", "2026-01-31T12:00:00Z", True, "trigger"),
        ("endingOffsetsByTimestamp", '{"ORDERS": 1}', True, "spark.read"),
        ("maxOffsetsPerTrigger", "5", False, "endingOffsets"),
        ("maxBytesPerTrigger", "5", False, "endingOffsets"),
        ("minOffsetsPerTrigger", "5", False, "endingOffsets"),
        ("maxTriggerDelay", "5", False, "endingOffsets"),
    ],
)
def test_option_of_the_other_kind_of_query(name: str, value: str, streaming: bool, words: str) -> None:
    given = {**BASE, name: value}
    with pytest.raises(ConfigError, match=rf"(?i)option {name} '{value}': .*{words}"):
        SourceOptions.read(given, streaming=streaming)
    assert SourceOptions.read(given, streaming=not streaming) == SourceOptions.read(given)


def test_write_id_is_for_batches() -> None:
    assert sink(writeId="w", delivery="cursor").write_id == "w"
    with pytest.raises(ConfigError, match=r"option writeId 'w': .*checkpoint"):
        SinkOptions.read({**BASE, "writeId": "w"}, streaming=True)


@pytest.mark.parametrize(
    ("options", "words"),
    [
        ({"delivery": "always"}, "must be one of ids, cursor, none"),
        ({"duplicates": "yes"}, "must be one of refuse, allow"),
        ({"subject": "orders.*"}, "wildcard"),
        ({"writeId": "a.b", "delivery": "cursor"}, "becomes a part of a subject"),
        ({"writeId": "a"}, "names a cursor: give delivery=cursor"),
        ({"startingOffsets": "5"}, "is not an option of this data source"),
    ],
)
def test_a_wrong_option_of_the_sink_is_named(options: dict[str, str], words: str) -> None:
    with pytest.raises(ConfigError, match=words):
        sink(**options)


def test_option_of_an_older_sink_has_no_effect(caplog: pytest.LogCaptureFixture) -> None:
    assert sink(recoveryWindow="900") == sink()
    assert "recoveryWindow has no effect" in caplog.text


@pytest.mark.parametrize("given", [{}, {"option.servers": "nats://127.0.0.1", "option.stream": "ORDERS"}])
def test_table_of_a_catalog_is_refused(given: dict[str, str]) -> None:
    """As Spark 4.3 gives the options of CREATE TABLE, with a schema and without."""
    for read in (SourceOptions.read, SinkOptions.read):
        with pytest.raises(ConfigError, match=r"CREATE TABLE and INSERT.*TEMPORARY VIEW"):
            read(given)


def test_bad_subjects_have_their_own_error() -> None:
    with pytest.raises(InvalidSubject):
        source_options(subjects="a b")


def test_credentials_are_references(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("NATSPROTO_SPARK_SECRET_REFS", "env:*,file:*,provider:*")
    nats = source_options(user="env:NATS_USER", password="file:/run/secret", creds="provider:vault.nats:creds").nats
    found = {"user": nats.user, "password": nats.password, "creds": nats.creds}
    assert all(isinstance(ref, SecretRef) for ref in found.values())
    assert [str(ref) for ref in found.values()] == ["env:NATS_USER", "file:/run/secret", "provider:vault.nats:creds"]
    assert source_options(user="me").nats.user == "me"


@pytest.mark.parametrize("name", ["password", "token", "jwt", "nkeySeed", "creds"])
def test_literal_secret_in_options_is_refused(name: str) -> None:
    with pytest.raises(InvalidCredentials) as refused:
        source_options(**{name: "hunter2"})
    assert "hunter2" not in str(refused.value)


def test_a_secret_in_a_url_is_refused_and_not_repeated() -> None:
    with pytest.raises(InvalidCredentials) as refused:
        source_options(servers="nats://me:hunter2@127.0.0.1")
    assert "hunter2" not in str(refused.value)


def test_literal_secret_is_allowed_by_option() -> None:
    settings = source_options(password="hunter2", user="me", allowLiteralSecrets="true")
    assert settings.nats.password == "hunter2"
    assert "hunter2" not in repr(settings)
