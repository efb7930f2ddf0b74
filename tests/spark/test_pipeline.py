"""The pipeline of the documentation: its parts, and the whole with a kill -9."""

from __future__ import annotations

import asyncio
import json
import os
import subprocess
import sys
from pathlib import Path
from xml.etree import ElementTree

import pytest

import natsproto
from natsproto.testing._server import Server
from tests.spark.conftest import need_java

FOLDER = Path(__file__).parent.parent.parent / "docs/examples/pipeline"


def run_job(program: str, *arguments: object, timeout: float = 50) -> str:
    env = {**os.environ, "PYSPARK_PYTHON": sys.executable}
    command = [sys.executable, str(FOLDER / program), *map(str, arguments)]
    done = subprocess.run(command, env=env, capture_output=True, text=True, timeout=timeout)
    assert done.returncode == 0, done.stdout + done.stderr[-4000:]
    return done.stdout


async def test_orders_are_stored_once(nats_server: Server) -> None:
    for _ in range(2):
        await asyncio.to_thread(run_job, "generator.py", "--servers", nats_server.url, "--orders", 500, "--rate", 0)
    async with natsproto.connect(nats_server.url) as nc:
        js = nc.jetstream()
        orders = [json.loads(message.data)["order"] async for message in (await js.stream("ORDERS")).get_batch()]
        price = await (await js.key_value("products")).get("p3")
    assert orders == [*range(500), -1]
    assert json.loads(price.value) == {"category": "category-3", "price": 121}


def test_plot_is_drawn_from_what_a_run_has_noted(tmp_path: Path) -> None:
    samples = [
        {"at": 0.1, "event": "start"},
        {"at": 1.0, "published": 1000},
        {"at": 4.0, "query": "results", "batch": 0, "orders": 600, "seconds": 2.0},
        {"at": 5.0, "event": "kill"},
        {"at": 9.0, "query": "results", "batch": 1, "orders": 400, "seconds": 3.0},
        {"at": 9.5, "query": "totals", "batch": 1, "orders": 400, "seconds": 3.0},
    ]
    (tmp_path / "samples.json").write_text(json.dumps(samples))
    run_job("plot.py", tmp_path / "samples.json", tmp_path / "plot.svg")
    drawn = ElementTree.parse(tmp_path / "plot.svg").getroot()
    lines = [part.get("points", "").split() for part in drawn if part.tag.endswith("polyline")]
    assert [len(points) for points in lines] == [2, 5]
    assert lines[0][-1].split(",")[1] == lines[1][-1].split(",")[1], "all that was published is summed"
    assert "kill -9" in "".join(drawn.itertext())


@pytest.mark.spark_full
@pytest.mark.timeout(900)
@pytest.mark.parametrize("master", ["local[2]", "local-cluster[2,1,1024]"])
def test_pipeline_sums_are_right_after_kills(master: str, monkeypatch: pytest.MonkeyPatch) -> None:
    need_java()
    import pyspark

    monkeypatch.setenv("SPARK_HOME", str(Path(pyspark.__file__).parent))
    said = run_job("demo.py", "--orders", 30_000, "--kill", 1, "--master", master, timeout=880)
    assert "all of them are right, and stored once" in said
