"""Sequences of calls and outages, drawn at random: mostly sensible ones, on few names, so that they meet each other.

Owns the vocabulary. A sequence is a list of steps and depends on the seed alone.
"""

from __future__ import annotations

import random
from collections.abc import Callable
from typing import Any, TypeVar

from tests.compat.differential.run import Step

SUBJECTS = ["a", "a.b", "a.c", "b"]
PATTERNS = ["a", "a.*", "a.>", "b", "*", "*.b"]
WRONG_SUBJECTS = ["", "a b", "a\r\nb"]
WRONG_PATTERNS = [*WRONG_SUBJECTS, ".a", "a.", "a..b"]  # nats-py publishes to these: a row of the list
PAYLOADS = [b"", b"x", b"hello", bytes(range(256)), b"y" * 5000]
HEADERS: list[dict[str, str] | None] = [None, None, {"k": "v"}, {"A-B": "1", "c": "two words"}, {"k": ""}]
WRONG_HEADERS: list[dict[str, str]] = [{"": "v"}, {"a b": "v"}, {"k": "v\r\nx"}, {"k:": "v"}]
STREAMS = ["S", "T"]
DURABLES = ["d", "e"]
KEYS = ["k", "k.l", "m"]
WRONG_KEYS = ["", "a b", ".k", "k.", "k*", "k>"]
NOT_OFFLINE = "js_publish_async"
"""A call that differs in an outage, by a row of the list, and with it all that follows. So does a fetch with
heartbeats, which nats-py gets later, for the next fetch.
"""
LAST = frozenset(
    {
        *("add_stream", "update_stream", "delete_stream", "purge_stream", "publish", "delete_msg", "request"),
        *("add_consumer", "delete_consumer", "pull_subscribe", "js_subscribe"),
        *("open_bucket", "put", "create", "update", "delete", "purge", "delete_key_value"),
        *("open_store", "delete_object_store"),
    }
)
"""Calls after whose timeout in an outage nothing can be compared: nats-py still sends the request when it is over."""

T = TypeVar("T")


def is_last(step: Step) -> bool:
    """True for a request of the program that changes something; in an outage it is the last call."""
    return step.name != "publish" and step.arguments.get("call", step.name) in LAST


class Draw:
    """Draws the steps of one sequence."""

    def __init__(self, seed: int) -> None:
        self.chance = random.Random(seed)
        self.count = 0

    def sequence(self, length: int) -> list[Step]:
        """About ``length`` steps of one or two subjects, with an outage now and then."""
        topics: dict[str, Callable[[], list[Step]]] = {
            name: getattr(self, f"_{name}") for name in ("core", "streams", "readers", "buckets", "objects", "micro")
        }
        chosen = self.chance.sample([*topics], self.chance.choice([1, 1, 2]))
        steps = [self._connect(0)]
        if self.chance.random() < 0.4:
            steps.append(self._connect(1))
        for name in chosen:
            steps += self._begin(name)
        while len(steps) < length:
            topic = topics[self.chance.choice(chosen)]
            steps += topic()
            if self.chance.random() < 0.06:
                steps += self._outage(topic)
                if is_last(steps[-1]):
                    return steps
        if self.chance.random() < 0.5:
            steps.append(Step(self.pick("close", "drain"), {"client": 0}))
            steps += topics[self.chance.choice(chosen)]()
            steps.append(Step("state", {"client": 0}))
        return steps

    def pick(self, *values: T) -> T:
        return self.chance.choice(values)

    def one(self, values: list[Any], wrong: list[Any] | None = None) -> Any:
        """A value, seldom a wrong one."""
        return self.chance.choice(wrong if wrong and self.chance.random() < 0.06 else values)

    @property
    def client(self) -> int:
        return self.pick(0, 0, 0, 1)

    def _connect(self, client: int) -> Step:
        options: dict[str, Any] = {}
        if self.chance.random() < 0.5:
            options = self.pick(
                {"name": "n"}, {"no_echo": True}, {"verbose": True}, {"inbox_prefix": "inbox.x"},
                {"allow_reconnect": False}, {"max_reconnect_attempts": 2}, {"drain_timeout": 1},
                {"pending_size": 10_000},
            )  # fmt: skip
        return Step("connect", {"client": client, "options": options})

    def _outage(self, topic: Callable[[], list[Step]]) -> list[Step]:
        """A cut, a reconnect that the program asks for, or some time without a server or the way to it, which may last
        until the end.
        """
        end = self.pick("FIN", "RST")
        down = Step("down", {"client": 0, "end": end, "stops": self.pick(True, False)})
        calls = [step for step in topic()[:2] if step.name != NOT_OFFLINE and not step.arguments.get("heartbeat")]
        meanwhile = self.pick([], [Step("state", {"client": 0})], calls)
        outage = self.pick(
            [Step("cut", {"client": 0, "end": end})],
            [Step("force_reconnect", {"client": self.client})],
            [down, *meanwhile, Step("up", {})],
        )
        last = [place for place, step in enumerate(outage) if is_last(step)]
        if last:
            return outage[: last[0] + 1]
        return [*outage, Step("state", {"client": 0})]

    def _begin(self, topic: str) -> list[Step]:
        if topic in ("streams", "readers"):
            steps = [self._add_stream(STREAMS[0], ["a.>"])]
            return steps + [self._js_publish() for _ in range(self.pick(0, 3, 6))]
        if topic == "buckets":
            return [self._open_bucket(create=True)]
        if topic == "objects":
            return [self._open_store(create=True)]
        if topic == "micro":
            return [self._add_service(), self._add_endpoint()]
        return []

    # ------------------------------------------------------------ core

    def _sub(self) -> str:
        return f"sub{self.pick(0, 1, 2)}"

    def _core(self) -> list[Step]:
        client, sub = self.client, self._sub()
        subject = self.one(SUBJECTS, WRONG_SUBJECTS)
        data, headers = self.pick(*PAYLOADS), self.one(HEADERS, WRONG_HEADERS)
        publish = Step(
            "publish",
            {
                "client": client,
                "subject": subject,
                "data": data,
                "reply": self.one(["", "", "r"], ["r r"]),
                "headers": headers,
            },
        )
        old = self.chance.random() < 0.3
        request = Step(
            "request",
            {"client": client, "subject": subject, "data": b"?", "headers": None if old else headers, "old": old},
        )
        return self.pick(
            [publish], [publish] * 3, [publish, Step("flush", {"client": client})], [request], [request],
            [self._subscribe(client, sub)], [self._subscribe(client, sub)],
            [Step("next_msg", {"sub": sub, "timeout": self.pick(0.05, 0.2)})],
            [Step("iterate", {"sub": sub, "count": self.pick(1, 2, 5)})],
            [Step("unsubscribe", {"sub": sub, "limit": self.pick(0, 0, 1, 3)})],
            [Step("drain_sub", {"sub": sub})], [Step("sub_state", {"sub": sub})], [Step("future", {"sub": sub})],
            [Step("state", {"client": client})], [Step("rtt", {"client": client})],
        )  # fmt: skip

    def _subscribe(self, client: int, sub: str) -> Step:
        return Step(
            "subscribe",
            {
                "client": client,
                "sub": sub,
                "subject": self.one(PATTERNS, WRONG_PATTERNS),
                "queue": self.one(["", "", f"q{sub}"], ["q q"]),  # of one member, since the server chooses
                "kind": self.pick("none", "none", "plain", "raises", "responds", "responds", "future"),
                "limits": self.pick({}, {}, {"max_msgs": 2}, {"max_msgs": 1}),
            },
        )

    # ------------------------------------------------------------ streams

    def _add_stream(self, name: str, subjects: list[str]) -> Step:
        extra: dict[str, Any] = self.pick(
            {}, {}, {"max_msgs": 3}, {"storage": "memory"}, {"max_msgs_per_subject": 1, "allow_direct": True},
            {"description": "text"}, {"allow_rollup_hdrs": True}, {"retention": "workqueue"}, {"duplicate_window": 1.0},
            {"max_age": 60.0}, {"deny_delete": True}, {"metadata": {"m": "1"}}, {"num_replicas": 3},
            {"max_msg_size": 100},
        )  # fmt: skip
        return self._manage(
            self.pick("add_stream", "add_stream", "update_stream"), {"name": name, "subjects": subjects, **extra}
        )

    def _manage(self, call: str, arguments: dict[str, Any]) -> Step:
        return Step("manage", {"client": self.client, "call": call, "arguments": arguments})

    def _js_publish(self) -> Step:
        self.count += 1
        headers = self.pick(
            None, None, {"Nats-Msg-Id": self.pick("1", "2")}, {"Nats-Expected-Last-Sequence": self.pick("0", "2")},
            {"Nats-Expected-Stream": self.pick("S", "T")}, {"Nats-Rollup": "sub"}, {"k": "v"},
        )  # fmt: skip
        arguments: dict[str, Any] = {"subject": self.one(SUBJECTS), "payload": b"%d" % self.count, "headers": headers}
        if self.chance.random() < 0.2:
            arguments["stream"] = self.pick("S", "T")
        return self._manage("publish", arguments)

    def _streams(self) -> list[Step]:
        name = self.one(STREAMS, ["", "a b", "x.y"])
        seq = self.pick(1, 2, 3, 100)
        calls: list[tuple[str, dict[str, Any]]] = [
            ("stream_info", {"name": name}),
            ("stream_info", {"name": name, "subjects_filter": ">"}),
            ("get_msg", {"stream_name": name, "seq": seq}),
            ("get_msg", {"stream_name": name, "seq": seq, "subject": "a.b", "next": True}),
            ("get_msg", {"stream_name": name, "seq": seq, "direct": True}),
            ("get_last_msg", {"stream_name": name, "subject": "a.b"}),
            ("get_last_msg", {"stream_name": name, "subject": "a.b", "direct": True}),
            ("delete_msg", {"stream_name": name, "seq": seq}),
            ("purge_stream", {"name": name, **self.pick({}, {"keep": 1}, {"subject": "a.b"}, {"seq": 3})}),
            ("delete_stream", {"name": name}),
            ("streams_info", {}),
            ("streams_info_iterator", {}),
            ("find_stream_name_by_subject", {"subject": self.one(SUBJECTS)}),
            ("account_info", {}),
            ("consumers_info", {"stream": name}),
            ("consumer_info", {"stream": name, "consumer": self.one(DURABLES)}),
            ("delete_consumer", {"stream": name, "consumer": self.one(DURABLES)}),
        ]
        return self.pick(
            [self._manage(*self.pick(*calls))], [self._manage(*self.pick(*calls))], [self._js_publish()],
            [self._add_stream(name, self.pick(["a.>"], ["b"], ["a.b", "a.c"], []))],
            [Step("js_publish_async", {"client": self.client, "subject": self.one(SUBJECTS), "data": b"async"})],
            [self._add_consumer(name)],
        )  # fmt: skip

    def _add_consumer(self, stream: str) -> Step:
        config: dict[str, Any] = self.pick(
            {}, {"ack_policy": "explicit"}, {"ack_policy": "none"}, {"filter_subject": "a.b"}, {"max_deliver": 2},
            {"deliver_policy": "last"}, {"deliver_policy": "by_start_sequence", "opt_start_seq": 2}, {"ack_wait": 5.0},
            {"filter_subjects": ["a.b", "a.c"]}, {"inactive_threshold": 30.0}, {"max_ack_pending": 1},
            {"deliver_subject": "push.d", "ack_policy": "explicit"}, {"replay_policy": "instant"}, {"description": "d"},
        )  # fmt: skip
        names = self.pick(
            {"durable_name": "d"}, {"durable_name": "e"}, {"name": "e"}, {"durable_name": "d", "name": "d"}
        )
        return Step("add_consumer", {"client": self.client, "stream": stream, "config": {**names, **config}})

    # ------------------------------------------------------------ readers

    def _readers(self) -> list[Step]:
        client, sub = self.client, self._sub()
        timeout = self.pick(0.3, 0.6)
        heartbeat = self.pick(None, None, None, 0.04)
        settle = Step(
            "settle",
            {
                "sub": sub,
                **self.pick(
                    {"how": "ack", "arguments": {}}, {"how": "ack", "arguments": {}}, {"how": "nak", "arguments": {}},
                    {"how": "nak", "arguments": {"delay": 0.05}}, {"how": "term", "arguments": {}},
                    {"how": "in_progress", "arguments": {}}, {"how": "ack_sync", "arguments": {"timeout": 1}},
                ),
                "again": self.chance.random() < 0.15,
            },
        )  # fmt: skip
        fetch = Step("fetch", {"sub": sub, "count": self.pick(1, 2, 5), "timeout": timeout, "heartbeat": heartbeat})
        return self.pick(
            [self._pull(client, sub)], [self._pull(client, sub), fetch, settle], [fetch], [fetch, settle], [settle],
            [self._push(client, sub)], [self._push(client, sub), Step("js_next", {"sub": sub, "timeout": 0.3})],
            [Step("js_next", {"sub": sub, "timeout": timeout})], [self._js_publish()], [self._js_publish()],
            [Step("sub_info", {"sub": sub})], [Step("unsubscribe", {"sub": sub, "limit": 0})],
            [Step("drain_sub", {"sub": sub})], [self._manage("consumers_info", {"stream": "S"})],
            [self._manage("consumer_info", {"stream": "S", "consumer": "d"})], [self._add_consumer("S")],
            [self._manage("delete_consumer", {"stream": "S", "consumer": self.one(DURABLES)})],
        )  # fmt: skip

    def _pull(self, client: int, sub: str) -> Step:
        if self.chance.random() < 0.3:
            arguments = self.pick(
                {"consumer": "d", "stream": "S"}, {"durable": "e", "stream": "S"},
                {"consumer": "missing", "stream": "S"},
            )  # fmt: skip
            return Step("pull_bind", {"client": client, "sub": sub, "arguments": arguments})
        arguments = {"subject": self.one(["a.>", "a.b", "b", ">"])}
        arguments |= self.pick({}, {"durable": "d"}, {"durable": "e"}, {"durable": "d", "stream": "S"}, {"stream": "T"})
        return Step("pull_subscribe", {"client": client, "sub": sub, "arguments": arguments})

    def _push(self, client: int, sub: str) -> Step:
        arguments: dict[str, Any] = {"subject": self.one(["a.>", "a.b", "b"])}
        arguments |= self.pick(
            {}, {}, {"durable": "d"}, {"durable": "e"}, {"queue": "q"}, {"queue": "q", "durable": "q"},
            {"ordered_consumer": True}, {"manual_ack": True}, {"stream": "S"}, {"stream": "T"}, {"durable": "a.b"},
        )  # fmt: skip
        return Step(
            "js_subscribe",
            {
                "client": client,
                "sub": sub,
                "kind": self.pick("none", "none", "plain", "raises"),
                "arguments": arguments,
            },
        )

    # ------------------------------------------------------------ buckets

    def _open_bucket(self, *, create: bool) -> Step:
        config = self.pick(
            {}, {}, {"history": 5}, {"ttl": 60.0}, {"storage": "memory"}, {"description": "d"}, {"max_value_size": 10}
        )
        bucket = self.one(["bucket"], ["a b", "a.b", ""])
        return Step("open_bucket", {"client": self.client, "bucket": bucket, "create": config if create else None})

    def _buckets(self) -> list[Step]:
        key, value = self.one(KEYS, WRONG_KEYS), self.pick(b"", b"v", b"w", b"long enough to be refused")
        last = self.pick(0, 1, 2, 3)
        calls: list[tuple[str, dict[str, Any]]] = [
            ("put", {"key": key, "value": value}),
            ("put", {"key": key, "value": value}),
            ("get", {"key": key}),
            ("get", {"key": key, "revision": last or 9}),
            ("create", {"key": key, "value": value}),
            ("update", {"key": key, "value": value, "last": last}),
            ("update", {"key": key, "value": value}),
            ("delete", {"key": key}),
            ("delete", {"key": key, "last": last or 1}),
            ("purge", {"key": self.one(KEYS)}),  # nats-py purges wrong ones, too: a row of the list
            ("keys", self.pick({}, {"filters": ["k"]}, {"filters": ["k.>", "m"]})),
            ("history", {"key": key}),
            ("purge_deletes", {"olderthan": self.pick(0, 1800)}),
        ]
        watch = self.pick(
            ("watchall", {}), ("watchall", {"include_history": True}), ("watchall", {"ignore_deletes": True}),
            ("watch", {"keys": self.one(["k", "k.>", ">", "m"])}), ("watchall", {"meta_only": True}),
        )  # fmt: skip
        step = Step("kv", dict(zip(("bucket", "call", "arguments"), ("bucket", *self.pick(*calls)), strict=True)))
        return self.pick(
            [step], [step], [step], [step],
            [Step("watch", {"bucket": "bucket", "call": watch[0], "arguments": watch[1], "count": self.pick(1, 3, 8)})],
            [Step("kv_status", {"bucket": "bucket"})], [self._open_bucket(create=self.pick(True, False))],
            [self._manage("delete_key_value", {"bucket": "bucket"})] if self.chance.random() < 0.2 else [step],
        )  # fmt: skip

    # ------------------------------------------------------------ objects

    def _open_store(self, *, create: bool) -> Step:
        config = self.pick({}, {"description": "d"}, {"storage": "memory"}, {"ttl": 60.0})
        store = self.one(["store"], ["a b", "a.b"])
        return Step("open_store", {"client": self.client, "store": store, "create": config if create else None})

    def _objects(self) -> list[Step]:
        name = self.pick("o", "p", "with space")
        put = Step(
            "put_object",
            {
                "store": "store",
                "name": name,
                "size": self.pick(0, 1, 5000, 50_000),
                "how": self.pick("bytes", "file", "meta"),
            },
        )
        calls = self.pick(
            ("get", {"name": name}), ("get", {"name": name}), ("get", {"name": name, "show_deleted": True}),
            ("get_info", {"name": name}), ("get_info", {"name": name, "show_deleted": True}),
            ("delete", {"name": name}),
            ("list", {}), ("list", {"ignore_deletes": True}),
        )  # fmt: skip
        step = Step("object", {"store": "store", "call": calls[0], "arguments": calls[1]})
        watch = self.pick(("watch", {}), ("watch", {"ignore_deletes": True}), ("watch", {"updates_only": True}))
        rare = self.pick(
            Step("object", {"store": "store", "call": "seal", "arguments": {}}),
            self._manage("delete_object_store", {"bucket": "store"}),
        )
        return self.pick(
            [put], [put], [step], [step], [Step("object_status", {"store": "store"})],
            [Step("watch", {"bucket": "store", "call": watch[0], "arguments": watch[1], "count": self.pick(1, 4)})],
            [self._open_store(create=self.pick(True, False))], [rare] if self.chance.random() < 0.2 else [step],
        )  # fmt: skip

    # ------------------------------------------------------------ micro

    def _add_service(self) -> Step:
        config = {"name": self.one(["svc"], ["a b", ""]), "version": self.one(["1.0.0"], ["1", ""])}
        config |= self.pick({}, {"description": "d"}, {"metadata": {"m": "1"}})
        return Step("add_service", {"client": self.client, "service": "service", "config": config})

    def _add_endpoint(self) -> Step:
        config = {
            "name": self.one(["e", "f"], ["a b", "a.b"]),
            **self.pick({}, {"subject": "a.x"}, {"queue_group": "g"}),
        }
        config |= self.pick({}, {"metadata": {"m": "1"}})
        kind = self.pick("responds", "responds", "raises", "refuses")
        return Step("add_endpoint", {"service": "service", "kind": kind, "config": config})

    def _micro(self) -> list[Step]:
        client = self.client
        request = Step(
            "request",
            {
                "client": client,
                "subject": self.pick("e", "e", "f", "a.x"),
                "data": b"?",
                "headers": self.one(HEADERS),
                "old": False,
            },
        )
        verb, name = self.pick("PING", "INFO", "STATS"), self.pick("svc", "")
        return self.pick(
            [request], [request], [self._add_endpoint()],
            [Step("ask_service", {"client": client, "verb": verb, "name": name})],
            [Step("service", {"service": "service", "call": self.pick("info", "stats", "stopped", "reset")})],
            [Step("service", {"service": "service", "call": "stop"})] if self.chance.random() < 0.3 else [request],
        )  # fmt: skip
