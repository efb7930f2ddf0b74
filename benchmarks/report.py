"""From repetitions to ratios, and from ratios to a table for people, a page, and JSON.

Every ratio is made so that more than 1 means that natsproto is better. It is formed for each pair of neighbouring
repetitions; shown are the median and the 90 % interval of the median (bootstrap with a fixed seed).
"""

from __future__ import annotations

import random
from collections.abc import Sequence
from dataclasses import dataclass, field
from pathlib import Path
from statistics import median

from benchmarks.drivers import Figures
from benchmarks.scenarios import FELT, Scenario

__all__ = ["HEADINGS", "Comparison", "Ratio", "as_json", "felt", "page", "row", "write_page"]

BEGIN, END = "<!-- measured: begin -->", "<!-- measured: end -->"
FELT_MARKS = "<!-- felt: begin -->", "<!-- felt: end -->"
ON_PYTHON_313 = ["natsproto on Python 3.13", "natsio"]
"""Clients that are compared with each other on that Python."""
_HIGHER_IS_BETTER = frozenset({"rate", "mib_per_s"})
_RESAMPLES = 2000
_UNITS = {"cpu_us": "CPU", "rate": "rate", "p50_us": "p50", "mib_per_s": "rate", "memory_mb": "memory"}


@dataclass(frozen=True, slots=True)
class Ratio:
    """A median and its 90 % interval."""

    middle: float
    low: float
    high: float

    @classmethod
    def of(cls, pairs: Sequence[float]) -> Ratio:
        rng = random.Random(16)
        medians = sorted(median(rng.choices(pairs, k=len(pairs))) for _ in range(_RESAMPLES))
        return cls(median(pairs), medians[_RESAMPLES // 20], medians[-_RESAMPLES // 20])

    def __str__(self) -> str:
        return f"{self.middle:.2f} ({self.low:.2f}-{self.high:.2f})"


@dataclass(slots=True)
class Comparison:
    """One scenario on one loop; figures of each client, repetition by repetition."""

    scenario: Scenario
    loop: str
    figures: dict[str, list[Figures]] = field(default_factory=dict)
    failure: str = ""

    def ratio(self, key: str, other: str = "nats-py") -> Ratio | None:
        """natsproto to another client, on its Python; None where one of them has no such figure."""
        own = ON_PYTHON_313[0] if other == ON_PYTHON_313[1] else "natsproto"
        ours, theirs = self.figures.get(own, []), self.figures.get(other, [])
        if not ours or not theirs or key not in ours[0] or key not in theirs[0]:
            return None
        quotients = [max(a[key], 0.004) / max(b[key], 0.004) for a, b in zip(ours, theirs, strict=False)]
        return Ratio.of(quotients if key in _HIGHER_IS_BETTER else [1 / one for one in quotients])

    def value(self, client: str, key: str) -> float | None:
        """The median of a figure."""
        found = [one[key] for one in self.figures.get(client, []) if key in one]
        return median(found) if found else None

    @property
    def slower(self) -> bool:
        """Whether natsproto is slower than nats-py: by the judged figure, or clearly by its rate or CPU."""
        judged = self.ratio(self.scenario.judged)
        others = [found for key in ("rate", "cpu_us") if not self.scenario.pace and (found := self.ratio(key))]
        clearly = any(one.high < 1 for one in others)
        return judged is not None and (judged.middle < 1 or judged.low < 0.95 or clearly)

    @property
    def verdict(self) -> str:
        """Beside the bars, which are for uvloop."""
        judged = self.ratio(self.scenario.judged)
        if self.failure or judged is None:
            return "FAILED"
        if self.slower:
            return "SLOWER"
        if self.loop != "uvloop" or self.scenario.reach is None:
            return "ok"
        if judged.middle < self.scenario.reach:
            return "short"
        return "aim" if self.scenario.aim is not None and judged.middle >= self.scenario.aim else "reach"


HEADINGS = (
    "scenario",
    "loop",
    "rate /nats-py",
    "CPU /nats-py",
    "p50 /nats-py",
    "CPU µs",
    "/nats.js",
    "bars",
    "verdict",
)
WIDTHS = (18, 8, 20, 20, 20, 15, 8, 16, 8)


def _number(value: float | None) -> str:
    if value is None:
        return "-"
    return f"{value:,.0f}" if value >= 100 else f"{value:.1f}" if value >= 10 else f"{value:.2f}"


def _bars(scenario: Scenario) -> str:
    if scenario.reach is None:
        return ""
    aim = "" if scenario.aim is None else f" / {scenario.aim:g}"
    return f"{_UNITS[scenario.judged]} {scenario.reach:g}{aim}"


def _cells(one: Comparison) -> list[str]:
    shown = [one.ratio("memory_mb") or one.ratio("rate"), one.ratio("cpu_us"), one.ratio("p50_us")]
    micros = [_number(one.value(client, "cpu_us")) for client in ("natsproto", "nats-py")]
    js = _to_nats_js(one)
    cells = ["" if ratio is None else str(ratio) for ratio in shown]
    return [*cells, " / ".join(micros), f"{js.middle:.2f}" if js else ""]


def _to_nats_js(one: Comparison) -> Ratio | None:
    """By rate; by CPU time where the pace gives the rate."""
    return one.ratio("cpu_us" if one.scenario.pace else "rate", "nats.js")


def row(cells: Sequence[str]) -> str:
    """One line of the table on the terminal; widths are fixed so that lines appear as they are measured."""
    return "  ".join(cell.ljust(width) for cell, width in zip(cells, WIDTHS, strict=True)).rstrip()


def line(one: Comparison) -> str:
    """A comparison on the terminal."""
    return row([one.scenario.name, one.loop, *_cells(one), _bars(one.scenario), one.verdict])


def page(comparisons: Sequence[Comparison], versions: str, command: str) -> str:
    """The measured part of the page."""
    pairs = max((len(one.figures.get("natsproto", [])) for one in comparisons), default=0)
    lines = [f"Command: `{command}`", "", f"Versions: {versions}. Pairs: up to {pairs}.", ""]
    lines += ["<!-- chart -->", ""]  # the site draws it
    for loop in dict.fromkeys(one.loop for one in comparisons):
        lines += [f"### On {loop}", ""]
        lines += [
            "| scenario | content | rate | CPU | p50 | CPU µs: ours / nats-py | rate to nats.js | bars | verdict |"
        ]
        lines += ["|---" * 9 + "|"]
        for one in comparisons:
            if one.loop == loop:
                cells = [f"`{one.scenario.name}`", one.scenario.about, *_cells(one)]
                bars = _bars(one.scenario) if loop == "uvloop" else ""
                verdict = f"**{one.verdict}**" if one.verdict in ("SLOWER", "FAILED") else one.verdict
                lines.append("| " + " | ".join([*cells, bars, verdict]) + " |")
        lines.append("")
    return "\n".join(lines)


def felt(comparisons: Sequence[Comparison], versions: str) -> str:
    """The first table: how many times as much CPU time, or time, the others need for what users do."""
    found = {one.scenario.name: one for one in comparisons if one.loop == "uvloop"}
    lines = [f"{versions}.", "", "| you | nats-py | natsio | rate to nats.js |", "|---|---|---|---|"]
    for name, words in FELT.items():
        if name in found:
            key = "p50_us" if words.endswith(": time") else "cpu_us"
            one = found[name]
            ratios = [one.ratio(key), one.ratio(key, ON_PYTHON_313[1]), _to_nats_js(one)]
            cells = ["" if ratio is None else f"{ratio.middle:.2g} \N{MULTIPLICATION SIGN}" for ratio in ratios]
            lines.append("| " + " | ".join([words, *cells]) + " |")
    return "\n".join([*lines, ""])


def write_page(path: Path, measured: str, marks: tuple[str, str] = (BEGIN, END)) -> None:
    """Puts ``measured`` between the marks of the page. ValueError if it has none."""
    text = path.read_text(encoding="utf-8")
    before, begin, rest = text.partition(marks[0])
    _, end, after = rest.partition(marks[1])
    if not begin or not end:
        raise ValueError(f"{path} has no lines {marks[0]!r} and {marks[1]!r} to write between")
    path.write_text(f"{before}{begin}\n\n{measured}\n{end}{after}", encoding="utf-8")


def as_json(comparisons: Sequence[Comparison], versions: str, command: str) -> dict[str, object]:
    """Everything measured, repetition by repetition."""
    measured = [
        {"scenario": one.scenario.name, "loop": one.loop, "figures": one.figures, "failure": one.failure}
        for one in comparisons
    ]
    return {"command": command, "versions": versions, "comparisons": measured}
