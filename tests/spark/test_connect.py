"""The helpers and the data source on a Connect server: there are no RDDs, and nobody reads what a partition returns."""

from __future__ import annotations

import asyncio
import importlib.util
import os
import subprocess
import sys
from pathlib import Path

import pytest

import natsproto
from natsproto.testing._server import Server
from tests.spark.conftest import need_java

ROOT = Path(__file__).parent.parent.parent


@pytest.mark.spark_full
@pytest.mark.timeout(600)
async def test_helpers_and_data_source_on_spark_connect(nats_server: Server, tmp_path: Path) -> None:
    need_java()
    if importlib.util.find_spec("grpc_status") is None:
        pytest.skip("Spark Connect needs pyspark[connect]")
    async with natsproto.connect(nats_server.url) as client:
        js = client.jetstream()
        await js.create_stream(name="ORDERS", subjects=["orders"])
        await js.create_stream(name="OUT", subjects=["out.>"], duplicate_window=600)
        prices = await js.create_key_value(bucket="prices")
        for number in range(5):
            await prices.put(f"k{number}", b"%d" % number)
        for number in range(300):
            await js.publish("orders", b"%d" % number)
    env = {**os.environ, "PYSPARK_PYTHON": sys.executable, "PYTHONPATH": str(ROOT)}
    command = [sys.executable, "-m", "tests.spark.connect_job", nats_server.url, str(tmp_path)]
    job = await asyncio.to_thread(
        subprocess.run, command, cwd=ROOT, env=env, capture_output=True, text=True, timeout=500
    )
    assert job.returncode == 0, job.stderr[-4000:]
