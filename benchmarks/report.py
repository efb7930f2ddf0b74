"""From repetitions to ratios, and from ratios to a table for people, a page and a JSON document.

Owns the arithmetic of the comparison: every ratio is made so that more than 1 means that the measured client is
better than the baseline; it is formed per pair of neighbouring repetitions, then the median is taken.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from statistics import median

from benchmarks.implementation import Figures
from benchmarks.scenarios import Metric, Scenario

__all__ = ["CPU", "Comparison", "Versions", "as_json", "page", "pairs", "ratio", "table", "write_page"]

CPU = Metric("cpu_us", "µs")
SERVER = Metric("server_us", "µs")
BEGIN, END = "<!-- measured: begin -->", "<!-- measured: end -->"


def ratio(metric: Metric, ours: float, theirs: float) -> float:
    """How many times better `ours` is. Differences of memory can be nothing at all: they count as one page."""
    ours, theirs = max(ours, 0.004), max(theirs, 0.004)
    return ours / theirs if metric.higher_is_better else theirs / ours


@dataclass(slots=True)
class Comparison:
    """One scenario on one loop: the repetitions of both clients, pair by pair."""

    scenario: Scenario
    loop: str
    count: int
    ours: list[Figures] = field(default_factory=list)
    theirs: list[Figures] = field(default_factory=list)
    failures: list[str] = field(default_factory=list)

    def values(self, metric: Metric) -> tuple[list[float], list[float]]:
        """What both measured, in the order of the repetitions."""
        return [one[metric.key] for one in self.ours], [one[metric.key] for one in self.theirs]

    def ratios(self, metric: Metric) -> list[float]:
        """One ratio for each pair."""
        return [ratio(metric, ours, theirs) for ours, theirs in zip(*self.values(metric), strict=True)]

    @property
    def measures_cpu(self) -> bool:
        """Whether CPU time per operation means something here."""
        return all(CPU.key in one for one in (*self.ours, *self.theirs))

    @property
    def server_shares(self) -> tuple[float, float] | None:
        """Which part of all CPU time went to the server, with either client; None where it was not measured."""
        if not all(SERVER.key in one for one in (*self.ours, *self.theirs)):
            return None
        ours, theirs = (
            median(one[SERVER.key] / (one[SERVER.key] + one[CPU.key]) for one in side)
            for side in (self.ours, self.theirs)
        )
        return ours, theirs

    @property
    def short(self) -> bool:
        """Whether the promise of `scenario.bar` was broken. It is given for uvloop, and nowhere below 1."""
        if not self.ours or self.scenario.bar is None:
            return False
        bar = self.scenario.bar if self.loop != "asyncio" else min(1.0, self.scenario.bar)
        return median(self.ratios(self.scenario.value)) < bar


@dataclass(frozen=True, slots=True)
class Versions:
    """What took part."""

    ours: str
    theirs: str
    python: str
    uvloop: str
    server: str

    def __str__(self) -> str:
        return f"{self.ours}, {self.theirs}, {self.python}, uvloop {self.uvloop}, nats-server {self.server}"


def pairs(comparison: Comparison) -> Iterable[tuple[str, Metric]]:
    """The lines of a comparison: its name and the metric, the compared one first."""
    yield comparison.scenario.name, comparison.scenario.value
    for metric in comparison.scenario.more:
        yield f"{comparison.scenario.name} {metric.key.removesuffix('_us')}", metric


def _number(value: float) -> str:
    """Three digits or so: 1.23M, 45.6k, 7,890, 12.3, 0.45."""
    if value >= 1e6:
        return f"{value / 1e6:.2f}M"
    if value >= 1e4:
        return f"{value / 1e3:.1f}k" if value < 1e5 else f"{value / 1e3:.0f}k"
    return f"{value:,.0f}" if value >= 100 else f"{value:.1f}" if value >= 10 else f"{value:.2f}"


def _spread(values: Sequence[float]) -> str:
    middle = _number(median(values))
    return middle if len(values) == 1 else f"{middle} ({_number(min(values))}-{_number(max(values))})"


HEADINGS = (
    *("scenario", "loop", "", "{ours}", "{theirs}", "ratio", "min-max", "bar"),
    *("CPU µs", "CPU µs", "CPU ratio", "server"),
)


def rows(comparison: Comparison) -> list[tuple[str, ...]]:
    """The cells of a comparison under `HEADINGS`."""
    lines: list[tuple[str, ...]] = []
    if comparison.failures:
        name = comparison.scenario.name
        return [(name, comparison.loop, "FAILED", *[""] * (len(HEADINGS) - 3))]
    for name, metric in pairs(comparison):
        ours, theirs = comparison.values(metric)
        ratios = comparison.ratios(metric)
        first = metric is comparison.scenario.value
        bar = comparison.scenario.bar if first and comparison.loop != "asyncio" else None
        cells = [name, comparison.loop, metric.unit, _spread(ours), _spread(theirs)]
        cells += [f"{median(ratios):.2f}", f"{min(ratios):.2f}-{max(ratios):.2f}" if len(ratios) > 1 else ""]
        cells += ["" if bar is None else f"{bar:g} {'short' if comparison.short else 'ok'}"]
        if first and comparison.measures_cpu:
            mine, others = comparison.values(CPU)
            cells += [f"{median(mine):.2f}", f"{median(others):.2f}", f"{median(comparison.ratios(CPU)):.2f}"]
        else:
            cells += ["", "", ""]
        cells += [_shares(comparison) if first else ""]
        lines.append(tuple(cells))
    return lines


def _shares(comparison: Comparison) -> str:
    shares = comparison.server_shares
    return "" if shares is None else " / ".join(f"{share:.0%}" for share in shares)


WIDTHS = (18, 8, 6, 24, 24, 7, 13, 10, 8, 8, 9, 11)


def table(cells: Sequence[str]) -> str:
    """One line of the table on the terminal; widths are fixed so that lines appear as they are measured."""
    left = 3
    return "  ".join(
        cell.ljust(width) if place < left else cell.rjust(width)
        for place, (cell, width) in enumerate(zip(cells, WIDTHS, strict=True))
    ).rstrip()


def page(comparisons: Sequence[Comparison], versions: Versions, command: str) -> str:
    """The measured part of the page, as Markdown: ratios only, no date, no machine."""
    loops = list(dict.fromkeys(one.loop for one in comparisons if one.loop != "-")) or ["-"]
    by_place = {(one.scenario.name, one.loop): one for one in comparisons}
    scenarios = list({one.scenario.name: one.scenario for one in comparisons}.values())
    head = ["scenario", "what", *(f"{loop}: {what}" for loop in loops for what in ("ratio", "CPU", "server"))]
    lines = [f"Command: `{command}`", "", f"Versions: {versions}.", ""]
    repetitions = max((len(one.ours) for one in comparisons), default=0)
    lines += [f"Pairs of repetitions per cell: {repetitions}. Median (lowest-highest).", ""]
    lines += ["| " + " | ".join(head) + " |", "|---" * len(head) + "|"]
    for scenario in scenarios:
        for place, metric in enumerate((scenario.value, *scenario.more)):
            label = f"`{scenario.name}`" if not place else ""
            about = f"{scenario.about}: {_WORDS[metric.key]}" if not place else _WORDS[metric.key]
            cells = [label, about]
            for loop in loops:
                one = by_place.get((scenario.name, loop)) or by_place.get((scenario.name, "-"))
                cells += _page_cells(one, metric, first=not place)
            lines.append("| " + " | ".join(cells) + " |")
    return "\n".join(lines) + "\n"


_WORDS = {
    "rate": "rate",
    "mib_per_s": "throughput",
    "p50_us": "median time",
    "p99_us": "99th percentile",
    "import_ms": "time",
    "memory_mb": "resident memory",
}


def _page_cells(one: Comparison | None, metric: Metric, *, first: bool) -> list[str]:
    if one is None or one.failures or not one.ours:
        return ["-", "", ""]
    ratios = one.ratios(metric)
    spread = f" ({min(ratios):.2f}-{max(ratios):.2f})" if len(ratios) > 1 else ""
    cpu = f"{median(one.ratios(CPU)):.2f}" if first and one.measures_cpu else ""
    return [f"**{median(ratios):.2f}**{spread}", cpu, _shares(one) if first else ""]


def write_page(path: Path, measured: str) -> None:
    """Put `measured` between the marks of the page at `path`, leaving the words around it alone.

    Raises ValueError if the page has no such marks; a page that does not exist becomes the measured part only.
    """
    text = path.read_text(encoding="utf-8") if path.exists() else f"# Benchmarks\n\n{BEGIN}\n{END}\n"
    before, begin, rest = text.partition(BEGIN)
    _, end, after = rest.partition(END)
    if not begin or not end:
        raise ValueError(f"{path} has no lines {BEGIN!r} and {END!r} to write between")
    path.write_text(f"{before}{BEGIN}\n\n{measured}\n{END}{after}", encoding="utf-8")


def as_json(comparisons: Sequence[Comparison], versions: Versions, command: str) -> dict[str, object]:
    """Everything measured, repetition by repetition."""
    return {
        "command": command,
        "versions": str(versions),
        "comparisons": [
            {
                "scenario": one.scenario.name,
                "loop": one.loop,
                "count": one.count,
                "ours": one.ours,
                "theirs": one.theirs,
                "ratios": {
                    metric.key: one.ratios(metric) for metric in (one.scenario.value, *one.scenario.more) if one.ours
                },
                "failures": one.failures,
            }
            for one in comparisons
        ],
    }
