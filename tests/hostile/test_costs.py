"""What hostile texts and peers cost, and what an error report shows."""

from __future__ import annotations

import asyncio
import gc
import time
from pathlib import Path
from typing import Any

import pytest

import natsproto
from natsproto import Options, PermissionViolation
from natsproto._core.event_bus import EventBus
from natsproto._core.events import MAX_QUEUED_EVENTS
from natsproto.compat import nats
from natsproto.errors import InvalidCredentials
from natsproto.errors._client import PermissionDenied
from natsproto.protocol.auth import parse_creds
from natsproto.spark import SparkNats
from natsproto.spark._secrets import AllowList
from natsproto.testing import run_server
from natsproto.tracing import MessageTrace, TracedServer

SECRET = "s3cr3t-pa55word"
PACKAGE = str(Path(natsproto.__file__).parent)


@pytest.mark.parametrize(
    "text",
    [
        "---BEGIN " + " " * 20_000 + "x",
        "-----BEGIN NATS USER JWT-----\n" + "-" * 20_000 + "\n",
        "-" * 20_000,
        ("---" + " " * 200) * 200,
        "---BEGIN " + "- " * 10_000 + "---",
        "---BEGIN A " * 2_000 + "---",
    ],
)
def test_odd_credentials_are_refused_at_once(text: str) -> None:
    began = time.process_time()
    with pytest.raises(InvalidCredentials):
        Options(creds=text)._check_files() if "BEGIN" not in text else Options(creds=text)
    assert time.process_time() - began < 0.5


def test_markers_of_creds_are_read_leniently() -> None:
    for dashes in ("---", "-----", "------"):
        with pytest.raises(InvalidCredentials, match="SEED"):
            parse_creds(f"{dashes} BEGIN  NATS USER JWT {dashes}\r\na.b.c\n{dashes}END NATS USER JWT{dashes}\n")


async def test_a_callback_that_hangs_keeps_few_events(caplog: pytest.LogCaptureFixture) -> None:
    called = 0

    async def hang(event: object) -> None:
        nonlocal called
        called += 1
        await asyncio.Event().wait()

    bus = EventBus(hang)
    bus.is_quiet = True
    for _ in range(5 * MAX_QUEUED_EVENTS):
        bus.emit(PermissionViolation(error=PermissionDenied("publish to", "denied", "Permissions Violation")))
    assert await bus.wait_handled(0.01) == MAX_QUEUED_EVENTS
    gc.collect()
    assert sum(isinstance(one, PermissionViolation) for one in gc.get_objects()) <= MAX_QUEUED_EVENTS + 10
    assert called == 1
    assert caplog.text.count("events wait for it") == 1
    assert bus._worker is not None
    bus._worker.cancel()
    await asyncio.wait((bus._worker,))


def holds(value: Any, depth: int = 0) -> bool:
    if isinstance(value, str | bytes | bytearray):
        return SECRET in (value if isinstance(value, str) else value.decode("latin-1"))
    if isinstance(value, dict):
        return any(holds(part, depth + 1) for part in (*value.keys(), *value.values())) if depth < 4 else False
    if isinstance(value, list | tuple | set):
        return any(holds(part, depth + 1) for part in value) if depth < 4 else False
    return SECRET in repr(value)


def frames_with_secret(error: BaseException) -> list[str]:
    """The frames of natsproto that an error report would show with the secret."""
    found, errors = [], [error]
    for one in errors:
        errors += [more for more in (one.__cause__, one.__context__) if more is not None and more not in errors]
        trace = one.__traceback__
        while trace is not None:
            frame = trace.tb_frame
            if frame.f_code.co_filename.startswith(PACKAGE):
                found += [
                    f"{frame.f_code.co_qualname}: {name}" for name, value in frame.f_locals.items() if holds(value)
                ]
            trace = trace.tb_next
    return found


async def test_frames_of_compat_hold_no_secret() -> None:
    async with run_server(user="u", password="x") as server:
        options: list[dict[str, Any]] = [
            {"user": "u", "password": SECRET, "nope": 1},
            {"user": "u", "password": SECRET, "allow_reconnect": False, "max_reconnect_attempts": 1},
            {"token": SECRET, "allow_reconnect": False, "max_reconnect_attempts": 1},
            {"user_credentials": f"/nowhere/{SECRET}", "allow_reconnect": False},
            {"user": "u", "password": SECRET, "connect_timeout": -1},
        ]
        for given in options:
            with pytest.raises(Exception) as caught:  # noqa: PT011  # whatever it is
                await nats.connect(server.url, **given)
            assert frames_with_secret(caught.value) == []
        with pytest.raises(Exception) as caught:  # noqa: PT011
            await nats.connect(f"nats://u:{SECRET}@127.0.0.1:999999")
        assert frames_with_secret(caught.value) == []


@pytest.mark.parametrize(
    "given",
    [
        {"servers": "nats://a", "password": SECRET},
        {"servers": f"nats://u:{SECRET}@a"},
        {"servers": "nats://a", "token": SECRET, "nope": 1},
        {"servers": "nats://a", "creds": SECRET, "tls_cert": "x"},
    ],
)
def test_frames_of_spark_hold_no_secret(given: dict[str, Any]) -> None:
    with pytest.raises((natsproto.NatsError, TypeError)) as caught:
        SparkNats(**given)
    assert frames_with_secret(caught.value) == []


def test_files_of_the_driver_need_an_entry() -> None:
    allowed = AllowList()
    assert [entry.pattern for entry, _ in allowed._refs if "spark_file" in entry.pattern] == []


def test_the_text_of_a_trace_is_escaped() -> None:
    server = TracedServer(
        hop="", name="evil\x1b[2J\r\nfake line", id="", cluster="", domain="", version="", hops=0, events=()
    )
    trace = MessageTrace(subject="s", servers=(server,), complete=True)
    assert "\x1b" not in str(trace)
    assert len(str(trace).splitlines()) == 1
