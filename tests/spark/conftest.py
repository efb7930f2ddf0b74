"""Spark for tests: one session for each module that asks for it, and a nats-server with JetStream beside it.

Only these fixtures need Java; where it is missing the tests that ask for a session say so and are skipped.
"""

from __future__ import annotations

import gc
import os
import sys
import warnings
from collections.abc import Iterator
from importlib.metadata import version
from pathlib import Path
from typing import TYPE_CHECKING

import pytest

from natsproto import sync
from natsproto.spark._client import close_workers
from natsproto.spark._options import SparkNats
from natsproto.testing import Server, run_server
from tests.spark.java import missing

if TYPE_CHECKING:
    from pyspark.sql import SparkSession


SPARK = tuple(map(int, version("pyspark").split(".")[:2]))
collect_ignore = ["test_source.py"] if SPARK < (4, 2) else []  # calls the source with limits


def need_spark(*least: int) -> None:
    """Skips a test of what an older Spark does not have."""
    if least > SPARK:
        pytest.skip(f"needs Spark {'.'.join(map(str, least))}")


def need_java() -> None:
    """Skips the test where Spark cannot run."""
    if problem := missing():
        pytest.skip(problem)


def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    """What has a session is slow, and one worker has them all.

    PySpark leaves sockets and temporary folders to the garbage collector, which is none of our business: it may come
    in any test of a module with a session.
    """
    modules = {item.path for item in items if "spark" in getattr(item, "fixturenames", ())}
    for item in items:
        if "spark" in getattr(item, "fixturenames", ()):
            item.add_marker(pytest.mark.slow)
        if item.path in modules:
            item.add_marker(pytest.mark.xdist_group("spark"))
            item.add_marker(pytest.mark.filterwarnings("ignore::ResourceWarning"))
            item.add_marker(pytest.mark.filterwarnings("ignore::pytest.PytestUnraisableExceptionWarning"))


@pytest.fixture(scope="module")
def spark(tmp_path_factory: pytest.TempPathFactory) -> Iterator[SparkSession]:
    """A session on local[2] with Python workers of this environment."""
    need_java()
    folder = tmp_path_factory.mktemp("spark")
    (folder / "events").mkdir()
    os.environ["PYSPARK_PYTHON"] = os.environ["PYSPARK_DRIVER_PYTHON"] = sys.executable
    with pytest.MonkeyPatch.context() as patch:  # workers inherit what is set when the first session starts
        refs = f"env:NATS_*,spark_file:*,file:{tmp_path_factory.getbasetemp()}/*"
        patch.setenv("NATSPROTO_SPARK_SECRET_REFS", refs)
        if os.environ.get("PYTHONDONTWRITEBYTECODE"):  # each of them would compile everything anew
            patch.delenv("PYTHONDONTWRITEBYTECODE")
            patch.setenv("PYTHONPYCACHEPREFIX", str(tmp_path_factory.getbasetemp() / "bytecode"))
        session = start_session(folder)
    yield session
    session.stop()
    del session
    with warnings.catch_warnings():  # what it has left must not be found in tests that know nothing of it
        warnings.simplefilter("ignore", ResourceWarning)
        gc.collect()


def start_session(folder: Path) -> SparkSession:
    """A session whose files are below this folder."""
    from pyspark.sql import SparkSession

    builder = SparkSession.builder
    if "COVERAGE_PROCESS_CONFIG" in os.environ:  # coverage measures every process that is started
        builder = builder.config("spark.python.daemon.module", "tests.spark.measured_daemon")
    return (
        builder.master("local[2,4]")  # 4 attempts a task: local mode takes no other word for it
        .appName("natsproto tests")
        .config("spark.ui.enabled", "false")
        .config("spark.driver.host", "127.0.0.1")
        .config("spark.driver.bindAddress", "127.0.0.1")
        .config("spark.local.dir", str(folder))
        .config("spark.sql.warehouse.dir", str(folder / "warehouse"))
        .config("spark.sql.shuffle.partitions", "2")
        .config("spark.eventLog.enabled", "true")
        .config("spark.eventLog.dir", str(folder / "events"))
        .config("spark.eventLog.compress", "false")
        .config("spark.python.authenticate.socketTimeout", "120s")  # the default of 15 s is too short on a busy machine
        .config("spark.log.level", "ERROR")
        .getOrCreate()
    )


@pytest.fixture(scope="module")
def server() -> Iterator[Server]:
    """A nats-server with JetStream; tests use streams of their own."""
    with run_server(jetstream=True) as running:
        yield running
        close_workers()


@pytest.fixture(scope="module")
def nats(server: Server) -> SparkNats:
    """How to reach it."""
    return SparkNats(servers=server.url)


@pytest.fixture(scope="module")
def nc(server: Server) -> Iterator[sync.Client]:
    """A client to set the scene with."""
    with sync.connect(server.url) as client:
        yield client
