"""``python -m benchmarks``: natsproto and nats-py side by side; prints a table, writes JSON and, if asked, a page.

Every repetition is a fresh process (`benchmarks.client`); the two clients take turns, A B A B …, against one
nats-server, so that a machine that slows down slows both.
"""

from __future__ import annotations

import argparse
import asyncio
import importlib.metadata
import json
import os
import platform
import subprocess
import sys
import time
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

import natsproto
from benchmarks import counts, report
from benchmarks.client import IMPLEMENTATIONS, LOOPS
from benchmarks.implementation import Figures
from benchmarks.report import Comparison, Versions
from benchmarks.scenarios import LOOP_FREE, SCENARIOS, Scenario, scaled
from natsproto.testing import Server, run_server
from natsproto.version import __version__

_ROOT = Path(__file__).resolve().parent.parent
_QUICK_DIVISOR = 10
_PATIENCE = 300.0


class RunFailed(Exception):
    """A repetition gave no figures."""


@dataclass(frozen=True, slots=True)
class Plan:
    """What the command line asked for."""

    scenarios: tuple[Scenario, ...]
    loops: tuple[str, ...]
    repeat: int
    divisor: int
    ours: str
    theirs: str
    markdown: Path | None
    strict: bool
    command: str


def _plan(argv: Sequence[str]) -> Plan:
    by_name = {scenario.name: scenario for scenario in SCENARIOS}
    parser = argparse.ArgumentParser(prog="python -m benchmarks", description=__doc__)
    parser.add_argument("--only", default="", metavar="NAMES", help="comma-separated scenarios; see --list")
    parser.add_argument("--loop", choices=[*LOOPS, "both"], default="both")
    parser.add_argument("--repeat", type=int, metavar="N", help="pairs of repetitions (5; 1 with --quick)")
    parser.add_argument("--quick", action="store_true", help=f"{_QUICK_DIVISOR} times fewer messages: does it run?")
    parser.add_argument("--markdown", type=Path, metavar="PAGE", help="write the measured part of this page")
    parser.add_argument("--strict", action="store_true", help="exit with 1 if a ratio is below its bar")
    parser.add_argument("--impl", choices=IMPLEMENTATIONS, default=IMPLEMENTATIONS[0], help="what is measured")
    parser.add_argument(
        "--baseline",
        choices=IMPLEMENTATIONS,
        default=IMPLEMENTATIONS[1],
        help="what it is compared with; the same name twice shows the noise of the machine",
    )
    parser.add_argument("--list", action="store_true", help="print the scenarios and leave")
    args = parser.parse_args(argv)
    if args.list:
        for scenario in SCENARIOS:
            print(f"{scenario.name:<15} {scenario.count:>8,}  {scenario.about}")
        raise SystemExit(0)
    names = [name for name in args.only.split(",") if name] or list(by_name)
    if unknown := [name for name in names if name not in by_name]:
        parser.error(f"no scenario {', '.join(unknown)}; there are {', '.join(by_name)}")
    if args.repeat is not None and args.repeat < 1:
        parser.error("--repeat must be 1 or more")
    return Plan(
        scenarios=tuple(by_name[name] for name in names),
        loops=LOOPS if args.loop == "both" else (args.loop,),
        repeat=args.repeat or (1 if args.quick else 5),
        divisor=_QUICK_DIVISOR if args.quick else 1,
        ours=args.impl,
        theirs=args.baseline,
        markdown=args.markdown,
        strict=args.strict,
        command=" ".join(["python -m benchmarks", *argv]),
    )


async def _clear(server: Server) -> None:
    """Deletes what a repetition that failed has left there: the next one would fail because of it."""
    async with natsproto.connect(server.url) as nc:
        js = nc.jetstream()
        for name in [name async for name in js.stream_names()]:
            await js.delete_stream(name)


def repetition(server: Server, name: str, scenario: Scenario, loop: str, divisor: int) -> Figures:
    """The figures of one repetition in a process of its own; `RunFailed`, and then the server is as it was before."""
    try:
        return _figures(server, name, scenario, loop, divisor)
    except (RunFailed, subprocess.TimeoutExpired):
        asyncio.run(_clear(server))
        raise


def _figures(server: Server, name: str, scenario: Scenario, loop: str, divisor: int) -> Figures:
    command = [sys.executable, "-m", "benchmarks.client", "--impl", name, "--scenario", scenario.name]
    command += ["--loop", loop, "--url", server.url, "--divisor", str(divisor)]
    command += ["--server-pid", str(server.pid)]
    before = counts.messages_received(server)
    done = subprocess.run(command, cwd=_ROOT, capture_output=True, text=True, timeout=_PATIENCE)
    if done.returncode:
        raise RunFailed(f"{name}: {done.stderr.strip() or f'exit code {done.returncode}'}")
    line: dict[str, object] = json.loads(done.stdout.splitlines()[-1])
    figures = line["figures"]
    assert isinstance(figures, dict)
    published = scenario.published(scaled(scenario, divisor))
    received = counts.messages_received(server) - before
    if published is not None and published != received:
        raise RunFailed(f"{name}: the server saw {received} messages, not {published}")
    return {str(key): float(value) for key, value in figures.items()}


def _compare(server: Server, plan: Plan, scenario: Scenario, loop: str) -> Comparison:
    comparison = Comparison(scenario, loop, scaled(scenario, plan.divisor))
    run_on = "asyncio" if loop == "-" else loop
    for _ in range(plan.repeat):
        try:
            ours = repetition(server, plan.ours, scenario, run_on, plan.divisor)
            theirs = repetition(server, plan.theirs, scenario, run_on, plan.divisor)
        except (RunFailed, subprocess.TimeoutExpired) as error:
            comparison.failures.append(str(error))
            break
        comparison.ours.append(ours)
        comparison.theirs.append(theirs)
    return comparison


def _versions(plan: Plan, server: Server) -> Versions:
    return Versions(
        ours=f"{plan.ours} {_version(plan.ours)}",
        theirs=f"{plan.theirs} {_version(plan.theirs)}",
        python=f"{platform.python_implementation()} {platform.python_version()}",
        uvloop=_version("uvloop"),
        server=counts.version(server),
    )


def _version(distribution: str) -> str:
    if distribution == "natsproto":
        return __version__  # of the checkout, which is what runs
    try:
        return importlib.metadata.version(distribution)
    except importlib.metadata.PackageNotFoundError:
        return "(not installed)"


def _write_json(document: dict[str, object]) -> Path:
    folder = _ROOT / "benchmarks" / "results"
    folder.mkdir(exist_ok=True)
    path = folder / time.strftime("%Y%m%d-%H%M%S.json")
    path.write_text(json.dumps(document, indent=1) + "\n", encoding="utf-8")
    return path


def main(argv: Sequence[str] | None = None) -> int:
    """Measure what was asked for; 1 if a run failed or, with --strict, if a promise is broken."""
    plan = _plan(sys.argv[1:] if argv is None else argv)
    comparisons: list[Comparison] = []
    with run_server(jetstream=True) as server:
        versions = _versions(plan, server)
        print(f"{versions}\n{plan.repeat} pairs of repetitions, load average {os.getloadavg()[0]:.1f}\n")
        headings = [heading.format(ours=plan.ours, theirs=plan.theirs) for heading in report.HEADINGS]
        print(report.table(headings), flush=True)
        for scenario in plan.scenarios:
            for loop in ("-",) if scenario.name in LOOP_FREE else plan.loops:
                comparison = _compare(server, plan, scenario, loop)
                comparisons.append(comparison)
                for cells in report.rows(comparison):
                    print(report.table(cells), flush=True)
                for failure in comparison.failures:
                    print(f"  {failure.splitlines()[-1]}", file=sys.stderr, flush=True)
    path = _write_json(report.as_json(comparisons, versions, plan.command))
    print(f"\nA ratio above 1 means that {plan.ours} is better. Written to {path.relative_to(_ROOT)}.")
    if plan.markdown is not None:
        report.write_page(plan.markdown, report.page(comparisons, versions, plan.command))
        print(f"Measured part written to {plan.markdown}.")
    failed = any(comparison.failures for comparison in comparisons)
    return int(failed or (plan.strict and any(comparison.short for comparison in comparisons)))


if __name__ == "__main__":
    raise SystemExit(main())
