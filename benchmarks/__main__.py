"""``python -m benchmarks``: natsproto, nats-py and nats.js side by side, on traffic as users have it.

Each client is a process of its own, set up once for a scenario; they take turns, repetition by repetition, with new
traffic for each pair: the same for all. The server and what feeds it are processes of their own.
"""

from __future__ import annotations

import argparse
import contextlib
import importlib.metadata
import json
import os
import platform
import subprocess
import sys
import tempfile
import time
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Self

from benchmarks import node, python313, report
from benchmarks.drivers import Figures
from benchmarks.report import Comparison
from benchmarks.scenarios import FELT, SCENARIOS, Scenario
from natsproto import __version__
from natsproto.testing import ServerTls, run_server

_ROOT = Path(__file__).resolve().parent.parent
_QUICK_DIVISOR = 50
_SEED = 20_000
PAGE = _ROOT / "docs" / "benchmarks.md"


class RunFailed(Exception):
    """A client gave no figures."""


@dataclass(frozen=True, slots=True)
class Servers:
    """Where clients connect, by transport, and where the feeder does."""

    client: dict[str, str]
    feeder: dict[str, str]


@contextlib.contextmanager
def servers() -> Iterator[Servers]:
    """One server for TCP and WebSocket, another one for TLS."""
    with tempfile.TemporaryDirectory() as folder, contextlib.ExitStack() as stack:
        cert, key = Path(folder, "cert.pem"), Path(folder, "key.pem")
        command = ["openssl", "req", "-x509", "-newkey", "ec", "-pkeyopt", "ec_paramgen_curve:P-256", "-nodes"]
        command += ["-days", "2", "-subj", "/CN=localhost", "-keyout", str(key), "-out", str(cert)]
        subprocess.run(command, check=True, capture_output=True)
        plain = stack.enter_context(run_server(jetstream=True, websocket=True))
        tls = stack.enter_context(run_server(tls=ServerTls(cert=cert, key=key)))
        yield Servers(
            client={"tcp": plain.url, "websocket": plain.websocket_url, "tls": tls.url},
            feeder={"tcp": plain.url, "websocket": plain.url, "tls": tls.url},
        )


class Process:
    """A process that is told and answers line by line."""

    def __init__(self, name: str, command: list[str], environment: dict[str, str] | None = None) -> None:
        self._name = name
        self._process = subprocess.Popen(
            command,
            cwd=_ROOT,
            env={**os.environ, **(environment or {})},
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            stderr=subprocess.PIPE,
            text=True,
        )

    def __enter__(self) -> Self:
        if (said := self._line()) != "ready":
            raise RunFailed(f"{self._name} said {said!r}")
        return self

    def __exit__(self, *exc: object) -> None:
        self._process.kill()
        self._process.communicate()

    def repeat(self, seed: int) -> Figures:
        """The figures of a repetition."""
        assert self._process.stdin is not None
        self._process.stdin.write(f"{seed}\n")
        self._process.stdin.flush()
        figures: Figures = json.loads(self._line())
        return figures

    def _line(self) -> str:
        assert self._process.stdout is not None
        assert self._process.stderr is not None
        if not (said := self._process.stdout.readline()):
            raise RunFailed(f"{self._name}: {self._process.stderr.read().strip() or 'ended without a word'}")
        return said.strip()


def _worker(client: str, scenario: Scenario, loop: str, at: Servers, prefix: str, count: int) -> Process:
    url = at.client[scenario.transport]
    if client == "nats.js":
        return Process(client, *node.command(scenario, url, prefix, count))
    python = python313.PYTHON if client in report.ON_PYTHON_313 else sys.executable
    command = [python, "-m", "benchmarks.worker", client, loop, scenario.name, url, prefix, str(count)]
    return Process(client, command)


def compare(
    scenario: Scenario, loop: str, at: Servers, pairs: int, divisor: int, *, with_node: bool, with_natsio: bool = False
) -> Comparison:
    """One row of the table. What fails is in it, not raised."""
    one = Comparison(scenario, loop)
    clients = ["natsproto", "nats-py"] + ["nats.js"] * (with_node and scenario.nats_js)
    if with_natsio and scenario.name in FELT and scenario.does != "blocking":
        clients += report.ON_PYTHON_313
    count = max(8 if scenario.fan_out or scenario.count < 100 else 64, scenario.count // divisor)
    feeder = [sys.executable, "-m", "benchmarks.feeder", at.feeder[scenario.transport], scenario.name]
    try:
        with Process("feeder", feeder):
            if scenario.fresh:
                _fresh(one, clients, at, min(pairs, 3), count)
            else:
                _alternating(one, clients, at, pairs, count)
    except RunFailed as error:
        one.failure = str(error)
    return one


def _alternating(one: Comparison, clients: list[str], at: Servers, pairs: int, count: int) -> None:
    with contextlib.ExitStack() as stack:
        workers = {
            client: stack.enter_context(
                _worker(client, one.scenario, one.loop, at, f"{one.scenario.name}-{place}", count)
            )
            for place, client in enumerate(clients)
        }
        for worker in workers.values():
            worker.repeat(_SEED)  # warms up
        for pair in range(1, pairs + 1):
            for client in clients if pair % 2 else reversed(clients):
                one.figures.setdefault(client, []).append(workers[client].repeat(_SEED + pair))


def _fresh(one: Comparison, clients: list[str], at: Servers, pairs: int, count: int) -> None:
    for pair in range(pairs):
        for place, client in enumerate(clients):
            with _worker(client, one.scenario, one.loop, at, f"{one.scenario.name}-{place}", count) as worker:
                one.figures.setdefault(client, []).append(worker.repeat(_SEED + pair))


def _versions(with_node: bool, with_natsio: bool) -> str:
    named = [
        f"natsproto {__version__}",
        *(f"{name} {importlib.metadata.version(name)}" for name in ("nats-py", "uvloop")),
    ]
    named += [f"{platform.python_implementation()} {platform.python_version()}"]
    return ", ".join(
        [*named, *([node.versions()] if with_node else []), *([python313.versions()] if with_natsio else [])]
    )


def _arguments(argv: Sequence[str]) -> argparse.Namespace:
    parser = argparse.ArgumentParser(prog="python -m benchmarks", description=__doc__)
    parser.add_argument("--only", default="", metavar="NAMES", help="comma-separated scenarios; see --list")
    parser.add_argument("--loop", choices=["uvloop", "asyncio"], help="only this one; without, both where that is said")
    parser.add_argument("--pairs", type=int, default=9, help="pairs of repetitions on uvloop; a third fewer on asyncio")
    parser.add_argument(
        "--quick", action="store_true", help=f"1 pair, {_QUICK_DIVISOR} times fewer messages: does it run?"
    )
    parser.add_argument("--no-node", action="store_true", help="without nats.js")
    parser.add_argument("--no-natsio", action="store_true", help="without natsio, which needs python3.13")
    parser.add_argument("--check", action="store_true", help="exit with 1 if anything is slower than nats-py or short")
    parser.add_argument("--page", action="store_true", help="write the tables into docs/")
    parser.add_argument("--list", action="store_true", help="print the scenarios and leave")
    return parser.parse_args(argv)


def main(argv: Sequence[str] | None = None) -> int:
    """Measures; 1 if something failed or, with --check, if a bar is missed."""
    given = list(sys.argv[1:] if argv is None else argv)
    args = _arguments(given)
    chosen = [one for one in SCENARIOS if not args.only or one.name in args.only.split(",")]
    if args.list:
        print("\n".join(f"{one.name:<20} {one.count:>7,}  {one.about}" for one in SCENARIOS))
        return 0
    pairs, divisor = (1, _QUICK_DIVISOR) if args.quick else (args.pairs, 1)
    with_node = not args.no_node and not args.quick and node.install()
    with_natsio = not args.no_natsio and not args.quick and python313.install()
    versions, command = _versions(with_node, with_natsio), " ".join(["python -m benchmarks", *given])
    print(
        f"{versions}\n{pairs} pairs, load average {os.getloadavg()[0]:.1f}\n\n{report.row(report.HEADINGS)}", flush=True
    )
    comparisons: list[Comparison] = []
    with servers() as at:
        for loop, scenario in _rows(chosen, args.loop):
            times = pairs if loop == "uvloop" else max(1, pairs * 2 // 3)
            node_too, natsio_too = (found and loop == "uvloop" for found in (with_node, with_natsio))
            one = compare(scenario, loop, at, times, divisor, with_node=node_too, with_natsio=natsio_too)
            comparisons.append(one)
            print(report.line(one), *([f"  {one.failure}"] if one.failure else []), sep="\n", flush=True)
    if args.page:
        report.write_page(PAGE, report.page(comparisons, versions, command))
        report.write_page(PAGE, report.felt(comparisons, versions), report.FELT_MARKS)
    if not args.quick:
        folder = _ROOT / "benchmarks" / "results"
        folder.mkdir(exist_ok=True)
        document = json.dumps(report.as_json(comparisons, versions, command), indent=1)
        (folder / time.strftime("%Y%m%d-%H%M%S.json")).write_text(document, encoding="utf-8")
    bad = {"FAILED", "SLOWER", "short"} if args.check else {"FAILED"}
    return int(any(one.verdict in bad for one in comparisons))


def _rows(chosen: list[Scenario], loop: str | None) -> Iterator[tuple[str, Scenario]]:
    for name in ("uvloop", "asyncio"):
        if loop in (None, name):
            yield from ((name, one) for one in chosen if name == "uvloop" or loop or one.both_loops)


if __name__ == "__main__":
    raise SystemExit(main())
