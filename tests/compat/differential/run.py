"""One run of a sequence with one package: every call with what it returned, raised, called back, and how long it took.

Owns the clients, subscriptions and stores of the run, each under the number or name that the sequence gave it.
"""

from __future__ import annotations

import asyncio
import copy
import io
import json
import time
from collections import defaultdict
from collections.abc import AsyncIterator, Awaitable, Callable
from contextlib import asynccontextmanager, suppress
from typing import Any, NamedTuple

from natsproto.testing import End, FaultProxy
from tests.compat.differential.observe import error, seen, seen_message
from tests.compat.differential.world import TwoAccounts

CALL_TIMEOUT_S = 3.0
SETTLE_S = 0.02
"""Seconds after each call in which callbacks are made."""
FAULTS = ("cut", "force_reconnect", "down", "up")
FAULT_TIMEOUT_S = 30.0
"""Seconds for a step that waits for the server, or for the clients to notice."""
REFUSED = error(ConnectionRefusedError())
MANY_ATTEMPTS = 1000
"""Dials without an end: a client that gives up does so during an outage."""
NOTICE_S = 2.0
"""Seconds until a client that has not noticed the end of a connection, or its return, differs from one that has."""


class Step(NamedTuple):
    """A call: ``Run.<name>(**arguments)``."""

    name: str
    arguments: dict[str, Any]

    def __repr__(self) -> str:
        return f"{self.name}({', '.join(f'{name}={value!r}' for name, value in self.arguments.items())})"


class StepOutcome(NamedTuple):
    """The result of a step."""

    step: Step
    result: Any
    seconds: float


class Called(NamedTuple):
    """A call of a callback: the number of the step that it came with, and its argument, or its name."""

    step: int
    value: Any


class Missing(Exception):
    """The sequence uses something that an earlier call did not create."""


class Run:
    """A run with ``package``, as ``user`` of the server."""

    def __init__(self, package: Any, world: TwoAccounts, proxy: FaultProxy, user: str) -> None:
        self.package, self.world, self.proxy, self.user = package, world, proxy, user
        self.server = world.server
        self.clients: dict[int, Any] = {}
        self.things: dict[str, Any] = {}
        """Subscriptions, buckets, stores, watchers and services."""
        self.stopped: set[str] = set()
        self.endpoints: set[str] = set()
        self.outcomes: list[StepOutcome] = []
        self.logs: dict[str, list[Called]] = defaultdict(list)
        """The calls of each callback."""
        self.closed_offline: set[str] = set()
        """Callbacks that nats-py makes or not, and in any order."""
        self.pending: dict[str, list[Any]] = defaultdict(list)
        """Messages of JetStream that were not acknowledged yet."""

    async def perform(self, steps: list[Step]) -> None:
        """Make the calls, one after the other, and let the server be there afterwards."""
        for step in steps:
            began = time.monotonic()
            try:
                async with asyncio.timeout(FAULT_TIMEOUT_S if step.name in FAULTS else CALL_TIMEOUT_S):
                    result = seen(await getattr(self, step.name)(**copy.deepcopy(step.arguments)))
            except Missing:
                result = "<missing>"
            except Exception as exc:
                result = error(exc)
            self.outcomes.append(StepOutcome(step, result, time.monotonic() - began))
            await self._settle()
        if not self.server.running:
            await self.server.restart()

    async def _settle(self) -> None:
        for nc in self.clients.values():
            if nc.is_connected and not nc.is_draining:
                with suppress(Exception):
                    await nc.flush(2)
                    await nc.flush(2)  # nats-py's first PING overtakes what it has buffered
        await asyncio.sleep(SETTLE_S)
        await self.world.removed()

    @property
    def open_clients(self) -> int:
        return sum(nc.is_connected for nc in self.clients.values())

    async def unsubscribe_all(self) -> None:
        """End all subscriptions, so that only the clients' own are left."""
        for name in [name for name, thing in self.things.items() if hasattr(thing, "unsubscribe")]:
            await self._end(name)
        await self._settle()

    async def finish(self) -> None:
        """Close everything that is left."""
        for number, nc in self.clients.items():
            if nc.is_reconnecting:
                self.closed_offline.add(f"client {number}")
            with suppress(Exception):
                async with asyncio.timeout(CALL_TIMEOUT_S):
                    await nc.close()

    def _log(self, name: str, value: Any) -> None:
        """Write down a call. One of many attempts to connect stands for all, whose number depends on the time."""
        if name in self.closed_offline:
            return
        log = self.logs[name]
        if value != REFUSED or not log or log[-1].value != value:
            log.append(Called(len(self.outcomes), value))

    def _client(self, number: int) -> Any:
        if number not in self.clients:
            raise Missing
        return self.clients[number]

    def _thing(self, name: str) -> Any:
        if name not in self.things:
            raise Missing
        return self.things[name]

    async def _end(self, sub: str) -> None:
        """End an earlier subscription under this name."""
        if sub in self.things:
            with suppress(Exception):
                await self.things.pop(sub).unsubscribe()

    # ------------------------------------------------------------ core

    async def connect(self, client: int, options: dict[str, Any]) -> Any:
        if client in self.clients:
            await self.clients.pop(client).close()

        async def on_error(exc: Exception) -> None:
            self._log(f"client {client}", error(exc))

        def on(name: str) -> Callable[[], Awaitable[None]]:
            async def callback() -> None:
                self._log(f"client {client}", name)

            return callback

        names = ("disconnected_cb", "reconnected_cb", "closed_cb", "discovered_server_cb", "lame_duck_mode_cb")
        waits = {"reconnect_time_wait": 0.05, "max_reconnect_attempts": MANY_ATTEMPTS}
        given = {"user": self.user, "password": "p", **waits, **options}
        nc = await self.package.connect(
            self.proxy.url, error_cb=on_error, **{name: on(name) for name in names}, **given
        )
        self.clients[client] = nc
        return None

    async def state(self, client: int) -> Any:
        nc = self._client(client)
        names = ("is_closed", "is_reconnecting", "is_connected", "is_connecting", "is_draining", "is_draining_pubs")
        # The size depends on the lengths of ids, and is of no meaning in the end.
        waiting = None if nc.is_closed else nc.pending_data_size > 0
        return [getattr(nc, name) for name in names] + [nc.max_payload, waiting, error_or_none(nc.last_error)]

    async def publish(self, client: int, subject: str, data: bytes, reply: str, headers: dict[str, str] | None) -> Any:
        return await self._client(client).publish(subject, data, reply=reply, headers=headers)

    async def flush(self, client: int) -> Any:
        return await self._client(client).flush(timeout=2)

    async def rtt(self, client: int) -> Any:
        return type(await self._client(client).rtt(timeout=2)).__name__

    async def close(self, client: int) -> Any:
        return await self._client(client).close()

    async def drain(self, client: int) -> Any:
        return await self._client(client).drain()

    async def cut(self, client: int, end: str) -> Any:
        """Break the connections and wait until those that reconnect are back."""
        self._client(client)
        async with self._reconnected():
            self.proxy.cut(End[end])

    async def force_reconnect(self, client: int) -> Any:
        async with self._reconnected(client):
            await self._client(client).force_reconnect()
        return self._client(client).is_connected

    async def down(self, client: int, end: str, stops: bool) -> Any:
        """Break the connections, let none be made, and stop the server if ``stops``, until ``up``."""
        self._client(client)
        self.proxy.refuse()
        self.proxy.cut(End[end])
        await self._until(lambda: all(nc.is_closed or self._has_tried(number) for number, nc in self.clients.items()))
        if stops:
            await self.server.stop()

    async def up(self) -> Any:
        """Start the server if it was stopped, and wait until the clients that reconnect are back."""
        if not self.server.running:
            await self.server.restart()
        async with self._reconnected():
            await self.proxy.allow()

    def _has_tried(self, number: int) -> bool:
        """True for a client that has lost its connection, dialled in vain, and will dial again."""
        nc, log = self.clients[number], self.logs[f"client {number}"]
        gives_up = nc.options["max_reconnect_attempts"] < MANY_ATTEMPTS
        return not nc.is_connected and not gives_up and bool(log) and log[-1].value == REFUSED

    @asynccontextmanager
    async def _reconnected(self, *numbers: int) -> AsyncIterator[None]:
        """Wait, after what the block does, until the clients have a new connection, or none and never again."""
        counts = {nc: nc.stats["reconnects"] for number, nc in self.clients.items() if not numbers or number in numbers}
        yield
        await self._until(
            lambda: (
                all(nc.is_closed or nc.stats["reconnects"] > count for nc, count in counts.items())
                and not any(nc.is_reconnecting for nc in counts)
            )
        )

    async def _until(self, reached: Callable[[], bool]) -> None:
        """Wait for a state, which a client may never reach: then the rest of the sequence shows it."""
        with suppress(TimeoutError):
            async with asyncio.timeout(NOTICE_S):
                while not reached():  # noqa: ASYNC110  # polled, so that no callback is needed
                    await asyncio.sleep(0.01)

    async def subscribe(
        self, client: int, sub: str, subject: str, queue: str, kind: str, limits: dict[str, int]
    ) -> Any:
        """``kind`` is the callback: none, plain, raises, responds, future."""
        nc = self._client(client)
        await self._end(sub)
        arguments: dict[str, Any] = {"queue": queue, **limits}
        if kind == "future":
            arguments["max_msgs"] = 1  # the second one would end nats-py's read loop
            arguments["future"] = future = asyncio.get_running_loop().create_future()
            self.things[f"future {sub}"] = future
        elif kind != "none":

            async def callback(msg: Any) -> None:
                self._log(sub, seen_message(msg))
                if kind == "raises":
                    raise ValueError("raised by the callback")
                if kind == "responds" and msg.reply:
                    await msg.respond(b"re: " + msg.data)

            arguments["cb"] = callback
        self.things[sub] = await nc.subscribe(subject, **arguments)

    async def sub_state(self, sub: str) -> Any:
        found = self._thing(sub)
        return [found.subject, found.queue, found.pending_msgs, found.delivered]

    async def future(self, sub: str) -> Any:
        async with asyncio.timeout(0.3):
            return await self._thing(f"future {sub}")

    async def next_msg(self, sub: str, timeout: float) -> Any:
        return await self._thing(sub).next_msg(timeout=timeout)

    async def iterate(self, sub: str, count: int) -> Any:
        found = []
        with suppress(TimeoutError):
            async with asyncio.timeout(0.3):
                async for msg in self._thing(sub).messages:
                    found.append(seen_message(msg))
                    if len(found) == count:
                        break
        return found

    async def unsubscribe(self, sub: str, limit: int) -> Any:
        return await self._thing(sub).unsubscribe(limit)

    async def drain_sub(self, sub: str) -> Any:
        return await self._thing(sub).drain()

    async def request(self, client: int, subject: str, data: bytes, headers: dict[str, str] | None, old: bool) -> Any:
        return await self._client(client).request(subject, data, timeout=0.3, headers=headers, old_style=old)

    # ------------------------------------------------------------ JetStream

    async def manage(self, client: int, call: str, arguments: dict[str, Any]) -> Any:
        """A call of the manager or the context, with plain arguments."""
        result = await getattr(self._client(client).jetstream(timeout=2), call)(**arguments)
        return [one async for one in result] if hasattr(result, "__aiter__") else result

    async def js_publish_async(self, client: int, subject: str, data: bytes) -> Any:
        js = self._client(client).jetstream(timeout=2)
        future = await js.publish_async(subject, data)
        async with asyncio.timeout(2):
            await js.publish_async_completed()
        return [js.publish_async_pending(), await future]

    async def add_consumer(self, client: int, stream: str, config: dict[str, Any]) -> Any:
        return await self._client(client).jetstream(timeout=2).add_consumer(stream, **config)

    async def pull_subscribe(self, client: int, sub: str, arguments: dict[str, Any]) -> Any:
        self.things[sub] = await self._client(client).jetstream(timeout=2).pull_subscribe(**arguments)

    async def pull_bind(self, client: int, sub: str, arguments: dict[str, Any]) -> Any:
        self.things[sub] = await self._client(client).jetstream(timeout=2).pull_subscribe_bind(**arguments)

    async def fetch(self, sub: str, count: int, timeout: float, heartbeat: float | None) -> Any:
        pull = self._thing(sub)
        if not hasattr(pull, "fetch"):
            raise Missing
        found = await pull.fetch(count, timeout=timeout, heartbeat=heartbeat)
        self.pending[sub] += found
        return found

    async def sub_info(self, sub: str) -> Any:
        found = self._thing(sub)
        if not hasattr(found, "consumer_info"):
            raise Missing
        return await found.consumer_info()

    async def settle(self, sub: str, how: str, arguments: dict[str, Any], again: bool) -> Any:
        """Answer the oldest message that ``fetch`` or ``next_msg`` returned."""
        if not self.pending[sub]:
            raise Missing
        msg = self.pending[sub].pop(0)
        result = [await getattr(msg, how)(**arguments)]
        if again:
            result.append(await getattr(msg, how)(**arguments))
        return result

    async def js_subscribe(self, client: int, sub: str, kind: str, arguments: dict[str, Any]) -> Any:

        async def callback(msg: Any) -> None:
            self._log(sub, seen_message(msg))
            if kind == "raises":
                raise ValueError("raised by the callback")

        await self._end(sub)
        if kind != "none":
            arguments = {**arguments, "cb": callback}
        self.things[sub] = await self._client(client).jetstream(timeout=2).subscribe(**arguments)

    async def js_next(self, sub: str, timeout: float) -> Any:
        found = await self._thing(sub).next_msg(timeout=timeout)
        self.pending[sub].append(found)
        return found

    # ------------------------------------------------------------ buckets

    async def open_bucket(self, client: int, bucket: str, create: dict[str, Any] | None) -> Any:
        js = self._client(client).jetstream(timeout=2)
        found = await (js.key_value(bucket) if create is None else js.create_key_value(bucket=bucket, **create))
        self.things[bucket] = found

    async def kv(self, bucket: str, call: str, arguments: dict[str, Any]) -> Any:
        return await getattr(self._thing(bucket), call)(**arguments)

    async def kv_status(self, bucket: str) -> Any:
        status = await self._thing(bucket).status()
        return [status.bucket, status.values, status.history, status.ttl, status.stream_info.config.name]

    async def watch(self, bucket: str, call: str, arguments: dict[str, Any], count: int) -> Any:
        """Read up to ``count`` updates, then stop."""
        watcher = await getattr(self._thing(bucket), call)(**arguments)
        found = []
        try:
            for _ in range(count):
                update = await watcher.updates(timeout=0.3)
                found.append(seen(update))
        except TimeoutError as exc:
            found.append(error(exc))
        finally:
            await watcher.stop()
        return found

    async def open_store(self, client: int, store: str, create: dict[str, Any] | None) -> Any:
        js = self._client(client).jetstream(timeout=2)
        self.things[store] = await (
            js.object_store(store) if create is None else js.create_object_store(store, **create)
        )

    async def put_object(self, store: str, name: str, size: int, how: str) -> Any:
        data = bytes(range(256)) * (size // 256 + 1)
        content: Any = io.BytesIO(data[:size]) if how == "file" else data[:size]
        meta = None
        if how == "meta":
            api = self.package.js.api
            options = api.ObjectMetaOptions(max_chunk_size=1000)
            meta = api.ObjectMeta(description="d", headers={"h": "1"}, options=options)
        return await self._thing(store).put(name, content, meta=meta)

    async def object(self, store: str, call: str, arguments: dict[str, Any]) -> Any:
        return await getattr(self._thing(store), call)(**arguments)

    async def object_status(self, store: str) -> Any:
        status = await self._thing(store).status()
        return [status.bucket, status.sealed, status.description, status.stream_info.config.name]

    # ------------------------------------------------------------ micro

    async def add_service(self, client: int, service: str, config: dict[str, Any]) -> Any:
        if service in self.things and service not in self.stopped:
            raise Missing
        self.endpoints.clear()
        micro = self.package.micro
        self.things[service] = await micro.add_service(self._client(client), **config)
        self.stopped.discard(service)

    async def add_endpoint(self, service: str, kind: str, config: dict[str, Any]) -> Any:
        name = f"{service} {config['name']}"
        subject = config.get("subject", config["name"])
        if service in self.stopped or subject in self.endpoints:
            raise Missing  # nats-py adds it, and nothing ever removes it; or the server chooses one of two
        self.endpoints.add(subject)

        async def handler(request: Any) -> None:
            self._log(name, [seen(request.subject), bytes(request.data), seen(request.headers)])
            if kind == "raises":
                raise ValueError("raised by the handler")
            if kind == "refuses":
                await request.respond_error("409", "no", data=b"why")
            else:
                await request.respond(b"re: " + request.data, headers={"h": "1"})

        return await self._thing(service).add_endpoint(handler=handler, **config)

    async def service(self, service: str, call: str) -> Any:
        if call == "stop":
            self.stopped.add(service)
        found = getattr(self._thing(service), call)
        result = found() if callable(found) else found
        return await result if asyncio.iscoroutine(result) else result

    async def ask_service(self, client: int, verb: str, name: str) -> Any:
        """The reply of the only service with this name, as it is on the wire."""
        subject = f"$SRV.{verb}.{name}" if name else f"$SRV.{verb}"
        reply = await self._client(client).request(subject, b"", timeout=2)
        return [seen(json.loads(reply.data)), seen(reply.headers)]


def error_or_none(value: BaseException | None) -> Any:
    return None if value is None else error(value)["raised"]
