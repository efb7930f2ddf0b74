"""What is measured: one line per scenario.

Owns the table of scenarios, their message counts and which figure is compared. Knows nothing of any client:
`does` names a function that every implementation module registers (see `benchmarks.implementation`). A new
scenario is one line here and one function in each of those modules.

The counts make one run of nats-py take about half a second to a second and a half, and keep the backlog of the
slowest reader below the server's limit for a slow consumer (64 MB pending, 10 s to write).
"""

from __future__ import annotations

from dataclasses import dataclass
from enum import Enum

__all__ = ["LOOP_FREE", "SCENARIOS", "Feed", "Metric", "Scenario", "scaled"]


@dataclass(frozen=True, slots=True)
class Metric:
    """A figure of a run; `key` is its name in the JSON."""

    key: str
    unit: str
    higher_is_better: bool = False


class Feed(Enum):
    """Which other process the scenario needs."""

    NONE = "none"
    PUBLISHER = "publish"
    FILLER = "fill"
    ECHO = "echo"


RATE = Metric("rate", "msg/s", higher_is_better=True)
P50 = Metric("p50_us", "µs")
P99 = Metric("p99_us", "µs")
IMPORT = Metric("import_ms", "ms")
MEMORY = Metric("memory_mb", "MB")
THROUGHPUT = Metric("mib_per_s", "MiB/s", higher_is_better=True)


@dataclass(frozen=True, slots=True, kw_only=True)
class Scenario:
    """One thing a program does with a client, measured the same way for each."""

    name: str
    does: str
    """The registered function that performs it."""
    about: str
    count: int
    """Measured operations of one run; the warm-up is not among them."""
    size: int = 128
    """Payload bytes."""
    subjects: int = 1
    """Over how many subjects the messages go round."""
    headers: bool = False
    """Two headers on each message, one of them never the same twice."""
    feed: Feed = Feed.NONE
    value: Metric = RATE
    """What is compared."""
    more: tuple[Metric, ...] = ()
    """Compared in lines of their own, below."""
    bar: float | None = None
    """The ratio that natsproto promises on uvloop."""
    scalable: bool = True
    """Whether `--quick` may lower the count."""
    storage: str = ""
    """Of the stream that takes part; none if empty."""
    window: int = 1
    """Messages that may be unacknowledged at a time."""
    answered: bool = False
    """The process answers its own messages."""
    uneven: bool = False
    """Payloads from half of `size` to one and a half of it in turn, `size` on average."""

    def published(self, count: int) -> int | None:
        """How many messages the server must have seen after a run of `count`; None where that says nothing.

        Answers count like requests, and each warm-up is one operation more. Where there is a stream, what it holds
        is counted instead: requests to the API are messages too.
        """
        if self.storage:
            return None
        if self.feed is Feed.ECHO or self.answered:
            return 2 * (count + 1)
        return count + 1 if self.value is RATE or self.feed is Feed.PUBLISHER else None


_FED = Feed.PUBLISHER
_FILLED = Feed.FILLER

SCENARIOS: tuple[Scenario, ...] = (
    Scenario(name="pub_16", does="publish", about="publish, 16 B", size=16, count=600_000, bar=3),
    Scenario(name="pub_128", does="publish", about="publish, 128 B", count=500_000, bar=3),
    Scenario(name="pub_1k", does="publish", about="publish, 1 KiB", size=1024, count=300_000, bar=1),
    Scenario(name="pub_64k", does="publish", about="publish, 64 KiB", size=65536, count=10_000, bar=1),
    Scenario(
        name="pub_many_128",
        does="publish",
        about="publish, 128 B, 1,000 subjects in turn",
        subjects=1000,
        count=500_000,
        bar=1,
    ),
    Scenario(
        name="pub_hdr_128",
        does="publish_headers",
        about="publish with two headers, 128 B",
        headers=True,
        count=200_000,
        bar=1,
    ),
    Scenario(
        name="sub_cb_128",
        does="subscribe_callback",
        about="subscribe, `async def` callback, 128 B",
        feed=_FED,
        count=250_000,
        bar=3.5,
    ),
    Scenario(
        name="sub_cb_def_128",
        does="subscribe_plain_callback",
        about="subscribe, plain `def` callback, 128 B (nats-py: `async def`)",
        feed=_FED,
        count=250_000,
        bar=3.5,
    ),
    Scenario(
        name="sub_many_128",
        does="subscribe_callback",
        about="subscribe to a wildcard, callback, 128 B, 1,000 subjects in turn",
        subjects=1000,
        feed=_FED,
        count=250_000,
        bar=1,
    ),
    Scenario(
        name="sub_iter_16",
        does="subscribe_iterate",
        about="subscribe, `async for`, 16 B",
        size=16,
        feed=_FED,
        count=100_000,
        bar=10,
    ),
    Scenario(
        name="sub_iter_128",
        does="subscribe_iterate",
        about="subscribe, `async for`, 128 B",
        feed=_FED,
        count=100_000,
        bar=10,
    ),
    Scenario(
        name="sub_iter_1k",
        does="subscribe_iterate",
        about="subscribe, `async for`, 1 KiB",
        size=1024,
        feed=_FED,
        count=50_000,
        bar=1,
    ),
    Scenario(
        name="sub_batch_128",
        does="subscribe_batches",
        about="subscribe, batches, 128 B (nats-py: `async for`)",
        feed=_FED,
        count=100_000,
        bar=10,
    ),
    Scenario(
        name="sub_hdr_128",
        does="subscribe_headers",
        about="subscribe, callback reads one of two headers, 128 B",
        headers=True,
        feed=_FED,
        count=120_000,
        bar=2.5,
    ),
    Scenario(
        name="pubsub_128",
        does="publish_subscribe",
        about="publish and receive (callback) in one process, 128 B",
        count=150_000,
        bar=1,
    ),
    Scenario(
        name="req_seq",
        does="request_sequential",
        about="requests one after another, 128 B",
        feed=Feed.ECHO,
        count=3_000,
        value=P50,
        more=(P99, RATE),
        bar=1,
    ),
    Scenario(
        name="req_conc64",
        does="request_concurrent",
        about="64 requests in flight, 128 B",
        feed=Feed.ECHO,
        count=25_600,
        bar=1.35,
    ),
    Scenario(
        name="svc_conc64",
        does="service_requests",
        about="a service's endpoint and 64 requests to it in flight, 128 B, one process",
        answered=True,
        count=25_600,
    ),
    Scenario(
        name="js_pub_seq",
        does="stream_publish",
        about="JetStream publish, one after another, 128 B, memory",
        storage="memory",
        count=4_000,
        value=P50,
        more=(P99, RATE),
        bar=1,
    ),
    Scenario(
        name="js_pub_win256",
        does="stream_publish_window",
        about="JetStream publish, 256 unacknowledged, 128 B, memory",
        storage="memory",
        window=256,
        count=50_000,
        bar=4.5,
    ),
    Scenario(
        name="js_pub_win1000",
        does="stream_publish_window",
        about="JetStream publish, 1,000 unacknowledged, 128 B, memory",
        storage="memory",
        window=1000,
        count=50_000,
        bar=4.5,
    ),
    Scenario(
        name="js_pub_win1000_file",
        does="stream_publish_window",
        about="JetStream publish, 1,000 unacknowledged, 128 B, file",
        storage="file",
        window=1000,
        count=50_000,
        bar=4.5,
    ),
    Scenario(
        name="js_fast_ingest",
        does="stream_fast_ingest",
        about="JetStream fast ingest, 128 B, memory (nats-py: 1,000 unacknowledged)",
        storage="memory",
        window=1000,
        count=50_000,
        bar=15,
    ),
    Scenario(
        name="js_fetch500_none",
        does="fetch",
        about="fetch(500) again and again, no acknowledgements, 128 B, memory",
        storage="memory",
        feed=_FILLED,
        count=60_000,
        bar=7,
    ),
    Scenario(
        name="js_fetch500_ack",
        does="fetch_acked",
        about="fetch(500) again and again, each acknowledged, 128 B, memory",
        storage="memory",
        feed=_FILLED,
        count=40_000,
        bar=3.5,
    ),
    Scenario(
        name="js_consume_none",
        does="consume",
        about="reading without end, `async for`, no acknowledgements, 128 B, memory (nats-py: fetch(500))",
        storage="memory",
        feed=_FILLED,
        count=60_000,
        bar=7,
    ),
    Scenario(
        name="js_consume_uneven",
        does="consume",
        about="as `js_consume_none`, payloads of 65 to 191 B in turn",
        storage="memory",
        feed=_FILLED,
        uneven=True,
        count=60_000,
    ),
    Scenario(
        name="js_consume_ack",
        does="consume_acked",
        about="reading without end, `async for`, each acknowledged, 128 B, memory (nats-py: fetch(500))",
        storage="memory",
        feed=_FILLED,
        count=40_000,
        bar=4,
    ),
    Scenario(
        name="js_handle_none",
        does="handle",
        about="calling a handler, no acknowledgements, 128 B, memory (nats-py: fetch(500))",
        storage="memory",
        feed=_FILLED,
        count=60_000,
        bar=7,
    ),
    Scenario(
        name="js_handle_ack",
        does="handle_acked",
        about="calling a handler, each acknowledged, 128 B, memory (nats-py: fetch(500))",
        storage="memory",
        feed=_FILLED,
        count=40_000,
        bar=4,
    ),
    Scenario(
        name="js_ordered",
        does="read_ordered",
        about="ordered consumer, 128 B, memory",
        storage="memory",
        feed=_FILLED,
        count=100_000,
        bar=2.5,
    ),
    Scenario(
        name="kv_get_seq",
        does="key_get",
        about="key/value get, one after another, 128 B, memory",
        storage="memory",
        count=4_000,
        value=P50,
        more=(P99, RATE),
        bar=1,
    ),
    Scenario(
        name="kv_put_seq",
        does="key_put",
        about="key/value put, one after another, 128 B, memory",
        storage="memory",
        count=4_000,
        value=P50,
        more=(P99, RATE),
        bar=1,
    ),
    Scenario(
        name="kv_get_conc64",
        does="key_get",
        about="64 key/value gets in flight, 128 B, memory",
        storage="memory",
        window=64,
        count=25_600,
        bar=2.2,
    ),
    Scenario(
        name="kv_put_conc64",
        does="key_put",
        about="64 key/value puts in flight, 128 B, memory",
        storage="memory",
        window=64,
        count=25_600,
        bar=1.2,
    ),
    Scenario(
        name="kv_watch50k",
        does="key_watch",
        about="initial values of a watch on 50,000 keys, 128 B, memory",
        storage="memory",
        count=50_000,
        bar=4,
    ),
    Scenario(
        name="obj_put_64m",
        does="object_put",
        about="put an object of 64 MiB from bytes, memory",
        storage="memory",
        size=128 * 1024,
        count=512,
        value=THROUGHPUT,
        bar=1.2,
    ),
    Scenario(
        name="obj_get_64m",
        does="object_get",
        about="get an object of 64 MiB as bytes, memory",
        storage="memory",
        size=128 * 1024,
        count=512,
        value=THROUGHPUT,
        bar=40,
    ),
    Scenario(name="connect", does="connect", about="connect and close", count=500, value=P50, bar=1),
    Scenario(
        name="import",
        does="import_module",
        about="import in a fresh interpreter, on top of `import asyncio`",
        count=5,
        value=IMPORT,
        bar=1,
        scalable=False,
    ),
    Scenario(
        name="mem_10k_subs",
        does="memory_subscriptions",
        about="memory of 10,000 idle subscriptions",
        count=10_000,
        value=MEMORY,
        bar=1,
        scalable=False,
    ),
    Scenario(
        name="mem_obj_put",
        does="memory_object_put",
        about="highest memory while a file of 64 MiB is put into an object store",
        storage="memory",
        size=128 * 1024,
        count=512,
        value=MEMORY,
        scalable=False,
    ),
    Scenario(
        name="mem_obj_get",
        does="memory_object_get",
        about="highest memory while an object of 64 MiB is got into a file",
        storage="memory",
        size=128 * 1024,
        count=512,
        value=MEMORY,
        scalable=False,
    ),
    Scenario(
        name="mem_100k_msgs",
        does="memory_messages",
        about="memory of 100,000 buffered messages, 128 B",
        feed=_FED,
        count=100_000,
        value=MEMORY,
        bar=1,
        scalable=False,
    ),
)

LOOP_FREE = frozenset({"import"})
"""Scenarios in which no event loop runs; they are measured once."""


def scaled(scenario: Scenario, divisor: int) -> int:
    """The count of a run that is `divisor` times shorter; a multiple of 64, for the 64 in flight."""
    return scenario.count if not scenario.scalable else max(64, scenario.count // divisor // 64 * 64)
