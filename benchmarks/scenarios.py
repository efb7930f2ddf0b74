"""What is measured: one line for each scenario.

Owns the table: which traffic, what a client does with it (``does`` names a driver of `benchmarks.drivers`), how much of
it, and what natsproto promises. Knows no client.

The counts make a repetition of nats-py take a quarter of a second or so.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field

from benchmarks.traffic import Traffic

__all__ = ["FELT", "KINDEST", "SCENARIOS", "Scenario"]

KINDEST = "kindest case: "
"""Begins what is said about a scenario whose messages are all alike."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Scenario:
    """One thing a program does with a client, measured the same way for each."""

    name: str
    about: str
    does: str
    count: int
    """Messages of one repetition."""
    traffic: Traffic = field(default_factory=Traffic)
    how: str = ""
    """What the driver does with them: "def", "async", "iterate", "ack" …"""
    subscriptions: int = 1
    """One for each group of the traffic."""
    fan_out: bool = False
    """Every subscription gets every message."""
    pace: int = 0
    """Messages a second; 0 for as fast as it goes."""
    burst: int = 1
    """Messages written together where there is a pace."""
    transport: str = "tcp"
    """Or "tls" or "websocket": that of the client under test."""
    judged: str = "cpu_us"
    """The figure that the bars are for: "rate", "cpu_us", "p50_us", "mib_per_s", "memory_mb"."""
    reach: float | None = None
    aim: float | None = None
    """Ratios to nats-py on uvloop."""
    both_loops: bool = False
    """Measured on asyncio as well."""
    nats_js: bool = True
    """Whether nats.js can do it too."""
    fresh: bool = False
    """Each repetition is a process of its own."""
    compat: bool = False
    """natsproto is driven as nats-py is, through natsproto.compat."""


_REAL = Traffic()
_SHORT = Traffic(size="short")
_ALIKE = Traffic(subjects=1, size=128)
_HEADERS = Traffic(headers=True)


def _receive(
    name: str, about: str, how: str, reach: float | None, aim: float | None = None, **more: object
) -> Scenario:
    count = {"iterate": 12_000}.get(how, 30_000)
    words = {"def": "`def` callback", "async": "`async def` callback", "iterate": "`async for`"}[how]
    fields = {"count": count, "nats_js": how != "async", **more}
    return Scenario(name=name, about=f"{about}, {words}", does="receive", how=how, reach=reach, aim=aim, **fields)  # type: ignore[arg-type]


def _twice(
    name: str, about: str, reach: tuple[float, float], aim: tuple[float, float], **more: object
) -> list[Scenario]:
    """For `def` and for `async def` handlers; nats-py has only the latter."""
    return [
        _receive(f"{name}_{how}", about, how, reach[place], aim[place], **more)
        for place, how in enumerate(("def", "async"))
    ]


def _trickle(name: str, about: str, how: str, bars: list[tuple[str, float, float]], **more: object) -> list[Scenario]:
    """A row for each figure that has a bar is not needed: the second bar belongs to the median time."""
    judged, reach, aim = bars[0]
    fields = {"does": "trickle", "how": how, "count": 400, "pace": 1000, "judged": judged, **more}
    return [Scenario(name=name, about=about, reach=reach, aim=aim, **fields)]  # type: ignore[arg-type]


def _small_object(size: str, nbytes: int, how: str, reach: float) -> Scenario:
    return Scenario(
        name=f"object_{size}_{how}",
        about=f"{how} objects of {nbytes // 1024} KiB one after another",
        does="small object",
        how=how,
        count=300,
        traffic=Traffic(subjects=-1, size=nbytes),
        reach=reach,
        nats_js=False,
    )


def _blocking(how: str, about: str, count: int) -> Scenario:
    fields = {"count": count, "judged": "p50_us", "reach": 1, "nats_js": False}
    return Scenario(name=f"sync_{how}", about=f"without `async`: {about}", does="blocking", how=how, **fields)  # type: ignore[arg-type]


SCENARIOS: tuple[Scenario, ...] = (
    *_twice("wildcard", "1,000 subjects by a wildcard", (2.5, 2.3), (3.2, 2.8), both_loops=True),
    _receive("wildcard_iter", "1,000 subjects by a wildcard", "iterate", 6, 8, both_loops=True),
    *_twice("short", "1,000 subjects, 60 to 400 B", (2.5, 2.3), (3.2, 2.8), traffic=_SHORT),
    *_twice("many", "100,000 subjects in random order", (1, 1), (2.5, 2.3), traffic=Traffic(subjects=100_000)),
    *_twice("zipf", "10,000 subjects by Zipf's law", (1, 1), (2.5, 2.3), traffic=Traffic(subjects=0)),
    *_twice("one", "one subject", (2.8, 2.5), (3.3, 3), traffic=Traffic(subjects=1)),
    *_twice("subs20", "20 subscriptions", (2.2, 1.8), (2.8, 2.2), traffic=Traffic(groups=20), subscriptions=20),
    *_twice("subs500", "500 subscriptions", (2.8, 2), (4, 2.6), traffic=Traffic(groups=500), subscriptions=500),
    *_twice(
        "fan500",
        "each message to all of 500 subscriptions",
        (2.8, 2),
        (4, 2.6),
        traffic=Traffic(subjects=1),
        subscriptions=500,
        fan_out=True,
        count=60,
    ),
    *_twice("headers", "headers that never repeat", (2.7, 2.4), (3.5, 3), traffic=_HEADERS, count=15_000),
    *_trickle("pace_def", "1,000 a second, `def` callback", "def", [("cpu_us", 1.4, 1.8)], both_loops=True),
    *_trickle("pace_async", "1,000 a second, `async def` callback", "async", [("cpu_us", 1.2, 1.5)], nats_js=False),
    *_trickle("pace_iter", "1,000 a second, `async for`", "iterate", [("cpu_us", 1.7, 2)]),
    *_trickle(
        "pace_js_ack", "1,000 a second from a stream, acknowledged", "ack", [("cpu_us", 1.2, 1.5)], nats_js=False
    ),
    *_trickle("pace_p50", "1,000 a second, `def` callback: median time", "def", [("p50_us", 1.05, 1.2)]),
    *_trickle(
        "reads_3", "3 messages a read, `def` callback", "def", [("cpu_us", 1.4, 2)], burst=3, pace=3000, count=1200
    ),
    *_trickle(
        "reads_100",
        "100 messages a read, `def` callback",
        "def",
        [("cpu_us", 2, 2.5)],
        burst=100,
        pace=10_000,
        count=4000,
    ),
    _receive("big_64k", "64 KiB", "async", 1.4, 1.6, traffic=Traffic(size=65_536), count=600, nats_js=True),
    _receive("big_1m", "1 MiB", "async", 3, 4, traffic=Traffic(size=1_048_576), count=40, nats_js=True),
    _receive("tls_in", "TLS, 1,000 subjects", "def", 1.6, 2, transport="tls", nats_js=False),
    _receive("ws_in", "WebSocket, 1,000 subjects", "def", 2, 2.5, transport="websocket", count=15_000, nats_js=False),
    Scenario(
        name="pub", about="publish, 1,000 subjects", does="publish", count=30_000, reach=3, aim=3.5, both_loops=True
    ),
    Scenario(
        name="pub_many",
        about="publish, 100,000 subjects in random order",
        does="publish",
        count=30_000,
        traffic=Traffic(subjects=100_000),
        reach=1,
        aim=2.5,
    ),
    Scenario(
        name="pub_headers",
        about="publish with two headers that never repeat",
        does="publish",
        count=15_000,
        traffic=_HEADERS,
        reach=2.3,
        aim=2.8,
    ),
    Scenario(
        name="pub_64k",
        about="publish 64 KiB",
        does="publish",
        count=1000,
        traffic=Traffic(size=65_536),
        reach=1,
        aim=1.2,
    ),
    Scenario(
        name="pub_1m", about="publish 1 MiB", does="publish", count=40, traffic=Traffic(size=1_048_576), reach=1, aim=3
    ),
    Scenario(
        name="tls_out",
        about="publish over TLS",
        does="publish",
        count=30_000,
        transport="tls",
        reach=1.5,
        aim=2,
        nats_js=False,
    ),
    Scenario(
        name="ws_out",
        about="publish over WebSocket",
        does="publish",
        count=8_000,
        transport="websocket",
        reach=1,
        aim=6,
        nats_js=False,
    ),
    Scenario(name="requests64", about="64 requests in flight", does="request", how="64", count=5_000, reach=2.6, aim=3),
    Scenario(
        name="requests",
        about="requests one after another: median time",
        does="request",
        how="1",
        count=400,
        judged="p50_us",
        reach=1,
        aim=1.2,
    ),
    Scenario(
        name="js_window",
        about="JetStream publish with ids, 1,000 unacknowledged",
        does="window",
        count=10_000,
        traffic=_HEADERS,
        reach=3,
        aim=4,
        both_loops=True,
    ),
    Scenario(
        name="js_publish",
        about="JetStream publish with ids, one after another: median time",
        does="stored",
        count=400,
        traffic=_HEADERS,
        judged="p50_us",
        reach=1,
        aim=1.2,
        nats_js=False,
    ),
    Scenario(
        name="fetch_none",
        about="fetch(500), no acknowledgements",
        does="fetch",
        count=8_000,
        reach=7,
        aim=9,
        both_loops=True,
    ),
    Scenario(
        name="fetch_ack", about="fetch(500), each acknowledged", does="fetch", how="ack", count=6_000, reach=5, aim=6
    ),
    Scenario(
        name="fetch_headers",
        about="fetch(500) with headers, one of them read",
        does="fetch",
        how="headers",
        count=5_000,
        traffic=_HEADERS,
        reach=6,
        aim=8,
    ),
    Scenario(
        name="kv_watch",
        about="key/value watch, values of all keys",
        does="watch",
        count=8_000,
        traffic=Traffic(subjects=-1),
        reach=6,
        aim=8,
    ),
    Scenario(
        name="object_put",
        about="put an object of 16 MiB",
        does="object",
        how="put",
        count=16,
        judged="mib_per_s",
        reach=1,
        aim=1.2,
        nats_js=False,
    ),
    Scenario(
        name="object_get",
        about="get an object of 16 MiB",
        does="object",
        how="get",
        count=16,
        judged="mib_per_s",
        reach=5,
        aim=10,
        nats_js=False,
    ),
    _small_object("1k", 1024, "put", 1),
    _small_object("1k", 1024, "get", 2),
    _small_object("64k", 65536, "put", 1),
    _small_object("64k", 65536, "get", 2),
    _receive("compat_async", "through natsproto.compat: 1,000 subjects", "async", 1.5, 2, compat=True, nats_js=False),
    Scenario(
        name="compat_fetch",
        about="through natsproto.compat: fetch(500), each acknowledged",
        does="fetch",
        how="ack",
        count=6_000,
        reach=1.5,
        aim=3,
        compat=True,
        nats_js=False,
    ),
    _receive("alike_def", KINDEST + "one subject, 128 B", "def", 3, traffic=_ALIKE),
    _receive("alike_iter", KINDEST + "one subject, 128 B", "iterate", 8, traffic=_ALIKE),
    Scenario(
        name="alike_pub",
        about=KINDEST + "publish, one subject, 128 B",
        does="publish",
        count=30_000,
        traffic=_ALIKE,
        reach=2.7,
    ),
    Scenario(
        name="alike_fetch", about=KINDEST + "fetch(500), 128 B", does="fetch", count=8_000, traffic=_ALIKE, reach=8
    ),
    Scenario(
        name="connect",
        about="connect and close: median time",
        does="connect",
        count=50,
        judged="p50_us",
        reach=1,
        nats_js=False,
    ),
    _blocking("request", "requests one after another: median time", 400),
    _blocking("publish", "JetStream publish, one after another: median time", 400),
    _blocking("get", "get of a key, one after another: median time", 400),
    _blocking("fetch", "fetch(10), each acknowledged: median time", 100),
    Scenario(
        name="idle_subscriptions",
        about="memory of 10,000 idle subscriptions",
        does="idle",
        count=10_000,
        judged="memory_mb",
        reach=1.4,
        nats_js=False,
        fresh=True,
    ),
    Scenario(
        name="waiting_messages",
        about="memory of 20,000 waiting messages",
        does="waiting",
        count=20_000,
        traffic=_SHORT,
        judged="memory_mb",
        reach=1,
        nats_js=False,
        fresh=True,
    ),
)

FELT: Mapping[str, str] = {
    "pace_def": "get one message at a time, callback",
    "pace_js_ack": "read a stream, one message at a time, acknowledged",
    "requests": "request after request: time",
    "js_publish": "publish to a stream, one after another: time",
    "wildcard_async": "get 1,000 subjects as fast as they come, `async def` callback",
    "wildcard_iter": "the same, `async for`",
    "subs500_async": "the same, 500 subscriptions",
    "pub": "publish as fast as it goes",
    "requests64": "64 requests at a time",
    "js_window": "publish to a stream with ids, 1,000 unacknowledged",
    "fetch_ack": "`fetch(500)` from a stream, each acknowledged",
    "kv_watch": "watch all keys of a bucket",
    "big_64k": "get payloads of 64 KiB",
    "pub_64k": "publish payloads of 64 KiB",
    "sync_request": "without `async`: request after request: time",
    "sync_publish": "without `async`: publish to a stream: time",
    "sync_get": "without `async`: get a key: time",
    "sync_fetch": "without `async`: `fetch(10)`, acknowledged: time",
}
"""What users feel, in their words: the rows of the first table. natsio is measured in those with ``async``."""
