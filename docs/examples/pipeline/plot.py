"""Plots the data of ``demo.py --samples``: published orders, and orders in sums, over the time of the run.

python plot.py samples.json throughput.svg
"""

from __future__ import annotations

import json
import sys
from collections.abc import Sequence
from pathlib import Path

WIDTH, HEIGHT, LEFT, TOP, RIGHT, BOTTOM = 440, 250, 64, 36, 24, 30
Points = list[tuple[float, float]]


def curves(samples: Sequence[dict[str, float]]) -> tuple[Points, Points, list[tuple[float, str]]]:
    """Orders published and orders done by time, and the events of the run."""
    published: Points = [(0.0, 0.0)]
    done: Points = [(0.0, 0.0)]
    events: list[tuple[float, str]] = []
    batches: dict[float, float] = {}
    for sample in samples:
        at = sample["at"]
        if "published" in sample:
            published.append((at, sample["published"]))
        elif "event" in sample:
            events.append((at, str(sample["event"])))
        elif str(sample["query"]) == "results":
            batches[sample["batch"]] = sample["orders"]  # a batch that was done twice counts once
            before = at - sample["seconds"]
            done.append((max(before, done[-1][0]), done[-1][1]))
            done.append((at, sum(batches.values())))
    return published, done, events


def drawing(samples: Sequence[dict[str, float]]) -> str:
    """The picture, as SVG."""
    published, done, events = curves(samples)
    end = max(x for x, _ in published + done)
    most = max(y for _, y in published + done)

    def place(x: float, y: float) -> str:
        across = LEFT + x / end * (WIDTH - LEFT - RIGHT)
        return f"{across:.1f},{HEIGHT - BOTTOM - y / most * (HEIGHT - TOP - BOTTOM):.1f}"

    def line(points: Points, color: str) -> str:
        path = " ".join(place(x, y) for x, y in points)
        return f'<polyline points="{path}" fill="none" stroke="{color}" stroke-width="2"/>'

    def text(x: float, y: float, words: str, anchor: str = "middle", color: str = "#333") -> str:
        return f'<text x="{x:.0f}" y="{y:.0f}" text-anchor="{anchor}" fill="{color}">{words}</text>'

    floor = HEIGHT - BOTTOM
    parts = [
        f'<svg xmlns="http://www.w3.org/2000/svg" viewBox="0 0 {WIDTH} {HEIGHT}" font-family="sans-serif"',
        ' font-size="12">',
        f'<rect width="{WIDTH}" height="{HEIGHT}" fill="white"/>',
        f'<path d="M{LEFT},{TOP} V{floor} H{WIDTH - RIGHT}" fill="none" stroke="#999"/>',
    ]
    for part in range(5):
        x, y = place(end * part / 4, most * part / 4).split(",")
        parts.append(text(float(x), floor + 18, f"{end * part / 4:.0f} s"))
        parts.append(text(LEFT - 8, float(y) + 4, f"{float(f'{most * part / 4:.3g}'):,.0f}", "end"))
    for at, what in events:
        x = place(at, 0).split(",")[0]
        color, height = ("#666", floor - 6) if what == "start" else ("#c0392b", TOP + 12)
        parts.append(f'<path d="M{x},{TOP} V{floor}" stroke="{color}" stroke-dasharray="4 3"/>')
        parts.append(text(float(x) + 4, height, {"kill": "kill -9"}.get(what, what), "start", color))
    parts += [line(published, "#2980b9"), line(done, "#27ae60")]
    parts.append(text(LEFT, 20, "orders published", "start", "#2980b9"))
    parts.append(text(LEFT + 130, 20, "orders in sums, by batch", "start", "#27ae60"))
    return "\n".join([*parts, "</svg>\n"])


if __name__ == "__main__":
    source, target = sys.argv[1:]
    Path(target).write_text(drawing(json.loads(Path(source).read_text())))
