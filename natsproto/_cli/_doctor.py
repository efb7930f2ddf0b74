"""The examination of ``natsproto doctor``: each step of connecting, in words.

Owns the order of the steps and their texts, which contain no secret. It uses what every program may use, and prints
nothing.
"""

from __future__ import annotations

import asyncio
import errno
import json
import time
from collections.abc import AsyncGenerator
from contextlib import suppress
from datetime import datetime
from typing import Any, Literal, NamedTuple

from natsproto import Client, Options, ServerAddress, connect, errors
from natsproto._cli._output import shell_text

STEP_TIMEOUT_S = 3.0
"""Seconds that one step may take."""

MAX_CLOCK_ERROR_S = 2.0
"""Seconds that the clocks may differ."""

_UNSEEN = "not visible to this user"


class Step(NamedTuple):
    """The result of one step. ``advice`` says what to do about a failure."""

    name: str
    status: Literal["ok", "failed", "unseen", "skipped"]
    text: str
    advice: str = ""


async def examine(options: Options, *, jetstream: bool = True) -> AsyncGenerator[Step]:
    """Yield the steps for each server, then those for the account; without ``jetstream`` not its steps.

    Nothing is published to subjects of applications, and nothing is changed.
    """
    client: Client | None = None
    urls = options.servers.split(",") if isinstance(options.servers, str) else options.servers
    try:
        for url, address in zip(urls, options.addresses, strict=True):
            async for step, connected in _reach(options, url, address):
                yield step
                if connected is not None and connected.server_info.tls_required:
                    options = options._requiring_tls()  # as a client does that has used TLS
                if connected is not None and client is not None:
                    await connected.close()
                client = client or connected
        if client is None:
            yield Step("account", "skipped", "permissions, JetStream, replicas and clock: no server accepted the login")
            return
        user, ahead, problem = await _user_info(client)
        yield _permissions(user, problem)
        if jetstream:
            async for step in _jetstream(client):
                yield step
        yield _clock(ahead)
    finally:
        if client is not None:
            await client.close()


# ---------------------------------------------------------------- one server


async def _reach(options: Options, url: str, address: ServerAddress) -> AsyncGenerator[tuple[Step, Client | None]]:
    """Yield the steps from its name to the login, until one fails, and with the last the client."""
    if options.proxy is None and options.dialer is None:
        for find in (_look_up, _dial):
            step = await find(options, address)
            yield step, None
            if step.status == "failed":
                return
    else:
        yield Step("TCP", "skipped", f"{address} is reached through a proxy or dialer of the options"), None
    try:
        once = options._for_server(url).replace(name="natsproto doctor", allow_reconnect=False, retry_connect_for=0)
        client = await connect(once.replace(retry_on_failed_connect=False, ignore_discovered_servers=True))
    except (errors.ConnectFailed, errors.InvalidCredentials) as exc:
        yield _refusal(address, exc), None
        return
    info = client.server_info
    encrypted = once._tls_required or info.tls_required
    offered = "offered, but not used" if info.tls_available else "not used"
    yield Step("TLS", "ok", f"the certificate of {address} is trusted" if encrypted else offered), None
    cluster = f", cluster {info.cluster}" if info.cluster else ""
    yield (
        Step("login", "ok", f"{address} accepted the login: nats-server {info.version}, {info.server_name}{cluster}"),
        client,
    )


async def _look_up(options: Options, address: ServerAddress) -> Step:
    if address.is_ip:
        return Step("DNS", "ok", f"{address.host} is an address")
    try:
        async with asyncio.timeout(STEP_TIMEOUT_S):
            found = await asyncio.get_running_loop().getaddrinfo(address.host, address.port)
    except OSError as exc:
        text = f"{address.host} has no address: {exc.strerror or 'no answer'}"
        return Step("DNS", "failed", text, "check the spelling and the DNS; in Kubernetes try SERVICE.NAMESPACE.svc")
    return Step("DNS", "ok", f"{address.host} is {', '.join(sorted({str(entry[4][0]) for entry in found}))}")


async def _dial(options: Options, address: ServerAddress) -> Step:
    """Connect, and read the first line, which a nats-server sends unasked unless TLS or a WebSocket comes first."""
    began = time.perf_counter()
    try:
        async with asyncio.timeout(STEP_TIMEOUT_S):
            reader, writer = await asyncio.open_connection(address.host, address.port)
    except TimeoutError:
        text = f"{address} did not answer within {STEP_TIMEOUT_S:g} s"
        return Step("TCP", "failed", text, "the host is down, or a firewall or network policy drops the packets")
    except OSError as exc:
        if f"[Errno {errno.ECONNREFUSED}]" in str(exc):  # of one address, or of several
            return Step("TCP", "failed", f"nothing listens on {address}", "start the server, or correct host and port")
        return Step("TCP", "failed", f"{address}: {exc.strerror or exc}", "check the network between here and there")
    took, line = time.perf_counter() - began, b"INFO"
    if not address.websocket and not options.tls_first:
        with suppress(OSError, ValueError):  # too late, broken off, or too long
            async with asyncio.timeout(STEP_TIMEOUT_S):
                line = await reader.readline()
    writer.close()
    if not line.startswith(b"INFO"):
        said = f"it said {line[:40]!r}" if line else "it said nothing (with handshake_first it is one, see tls_first)"
        text = f"what listens on {address} is no nats-server: {said}"
        return Step("TCP", "failed", text, "correct the port: 4222 is for clients, 8222 is for monitoring")
    return Step("TCP", "ok", f"{address} accepts connections, after {took * 1000:.1f} ms")


def _refusal(address: ServerAddress, error: errors.ConnectFailed | errors.InvalidCredentials) -> Step:
    """Return the step that failed: TLS or the login."""
    cause = error.attempts[0][1] if isinstance(error, errors.ConnectFailed) and error.attempts else error
    if isinstance(cause, errors.TlsFailed):
        advice = "nats:// is without TLS; NATS_CA, NATS_CERT and NATS_KEY name PEM files"
        return Step("TLS", "failed", f"{address}: {shell_text(cause.reason)}", advice)
    if isinstance(error, errors.LoginRefused):
        what, advice = "the credentials", "check user and account; the log of the server tells more"
        if error.anonymous:
            what, advice = "a client without credentials", "give some, in the URL, with NATS_CREDS … or --context"
        return Step("login", "failed", f"{address} rejected {what}: {error.reason}", advice)
    if isinstance(cause, errors.InvalidCredentials):
        return Step("login", "failed", str(cause), "correct the credentials")
    text = str(cause) if isinstance(cause, errors.NatsError) else f"{address}: {cause}"
    return Step("login", "failed", text, "look at the log of the server; raise NATS_TIMEOUT for a slow network")


# ---------------------------------------------------------------- the account


async def _user_info(client: Client) -> tuple[dict[str, Any], float | None, str]:
    """Return the server's data about this user, the seconds that its clock is ahead, and why no answer comes.

    They are {}, None and "" if this user or server has none.
    """
    began = time.time()
    try:
        answer = json.loads((await client.request("$SYS.REQ.USER.INFO", timeout=STEP_TIMEOUT_S)).data)
        here = (began + time.time()) / 2
        return dict(answer["data"]), datetime.fromisoformat(answer["server"]["time"]).timestamp() - here, ""
    except (errors.PermissionDenied, errors.RequestTimeout) as exc:
        return {}, None, "" if isinstance(exc, errors.PermissionDenied) and exc.operation == "publish to" else str(exc)
    except (errors.NatsError, LookupError, TypeError, ValueError):
        return {}, None, ""


def _permissions(user: dict[str, Any], problem: str) -> Step:
    if problem:
        return Step("permissions", "failed", f"no request gets an answer: {problem}", "give the user the permission")
    if not user:
        return Step("permissions", "unseen", f"the permissions are {_UNSEEN}")
    may = user.get("permissions") or {}
    rules = f"publish {_rules(may.get('publish'))} and subscribe to {_rules(may.get('subscribe'))}"
    name = f"user {user['user']}" if user.get("user") else "a user without a name"
    return Step("permissions", "ok", f"{name} of account {user.get('account')} may {rules}")


def _rules(rules: dict[str, list[str]] | None) -> str:
    allowed, denied = (", ".join((rules or {}).get(name) or ()) for name in ("allow", "deny"))
    return (allowed or "everything") + (f" except {denied}" if denied else "")


async def _jetstream(client: Client) -> AsyncGenerator[Step]:
    js = client.jetstream(timeout=STEP_TIMEOUT_S)
    try:
        account = await js.account_info()
        used = f"{account.storage:,} bytes in files, {account.memory:,} in memory"
        yield Step("JetStream", "ok", f"streams: {account.streams}, consumers: {account.consumers}; {used}")
    except errors.PermissionDenied:
        yield Step("JetStream", "unseen", f"its state is {_UNSEEN}")
    except errors.JetStreamNotEnabled:
        yield Step("JetStream", "failed", "JetStream is off", "enable it for server and account, or use --no-jetstream")
        return
    except errors.NatsError as exc:
        yield Step("JetStream", "failed", str(exc), "the cluster may have no leader: look at its servers")
        return
    yield await _replicas(client)


async def _replicas(client: Client) -> Step:
    streams = client.jetstream(timeout=STEP_TIMEOUT_S).streams()
    wrong, replicated, number = list[str](), 0, 0
    try:
        async for info in streams:
            number += 1
            replicated += info.config.num_replicas > 1
            if (cluster := info.cluster) is not None:
                wrong += [] if cluster.leader else [f"{info.name} has no leader"]
                late = (peer.name for peer in cluster.replicas if peer.offline or not peer.current)
                wrong += [f"{info.name} is behind on {name}" for name in late]
    except errors.PermissionDenied:
        return Step("replicas", "unseen", f"the streams are {_UNSEEN}")
    except errors.NatsError as exc:
        return Step("replicas", "failed", str(exc), "look at the log of the server")
    wrong += [f"{name} does not answer" for name in (*streams.missing, *streams.offline)]
    if wrong:
        more = f" and {len(wrong) - 3} more" if len(wrong) > 3 else ""
        return Step("replicas", "failed", "; ".join(wrong[:3]) + more, "start the servers that are missing")
    return Step("replicas", "ok", f"streams: {number}, replicated: {replicated}, none behind")


def _clock(ahead: float | None) -> Step:
    if ahead is None:
        return Step("clock", "unseen", f"the server's clock is {_UNSEEN}")
    if abs(ahead) > MAX_CLOCK_ERROR_S:
        text = f"the server's clock is {abs(ahead):,.0f} s {'ahead' if ahead > 0 else 'behind'}"
        return Step("clock", "failed", text, "set both by NTP: certificates, JWTs and start times depend on it")
    return Step("clock", "ok", f"the server's clock differs by less than {MAX_CLOCK_ERROR_S:g} s")
