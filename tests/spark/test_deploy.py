"""The deployment pages, step by step: one archive for ``--py-files``, on clusters that do not have natsproto."""

from __future__ import annotations

import asyncio
import contextlib
import os
import shutil
import site
import subprocess
import sys
import time
from collections.abc import Iterator
from pathlib import Path

import pytest

import natsproto
from natsproto.testing._server import Server
from tests.spark.conftest import need_java, need_spark

ROOT = Path(__file__).parent.parent.parent
PIPELINE = ROOT / "docs/examples/pipeline"
pytestmark = [pytest.mark.spark_full, pytest.mark.timeout(900)]


@pytest.fixture(scope="module")
def archive(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """What ``make spark-zip`` makes: the wheel under a name that Spark takes."""
    folder = tmp_path_factory.mktemp("dist")
    build = [sys.executable, "-m", "build", "--wheel", "--no-isolation", "--outdir", str(folder), str(ROOT)]
    subprocess.run(build, check=True, capture_output=True, timeout=100)
    (wheel,) = folder.glob("*.whl")
    return wheel.rename(folder / "natsproto-spark.zip")


@pytest.fixture(scope="module")
def bare_python(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A Python that has everything that this one has, and not natsproto."""
    venv = tmp_path_factory.mktemp("cluster") / "venv"
    subprocess.run([sys.executable, "-m", "venv", "--without-pip", str(venv)], check=True, timeout=100)
    (here,) = (venv / "lib").glob("python*/site-packages")
    for folder in site.getsitepackages():
        for entry in Path(folder).iterdir():
            if "natsproto" not in entry.name and not (here / entry.name).exists():
                (here / entry.name).symlink_to(entry)
    python = venv / "bin/python"
    found = subprocess.run([python, "-c", "import natsproto"], env=environment(python), capture_output=True, cwd=venv)
    assert b"ModuleNotFoundError" in found.stderr, "the cluster must not have it"
    return python


def environment(python: Path) -> dict[str, str]:
    import pyspark

    env = {name: value for name, value in os.environ.items() if not name.startswith(("PYTHON", "SPARK", "PYSPARK"))}
    return env | {
        "SPARK_HOME": str(Path(pyspark.__file__).parent),
        "PYSPARK_PYTHON": str(python),
        "PYSPARK_DRIVER_PYTHON": str(python),
        "SPARK_LOCAL_IP": "127.0.0.1",
    }


@contextlib.contextmanager
def started(name: str, folder: Path, env: dict[str, str], *arguments: str) -> Iterator[Path]:
    """A daemon of Spark; its log."""
    log = folder / f"{name}.log"
    command = [f"{env['SPARK_HOME']}/bin/spark-class", f"org.apache.spark.deploy.{name}", "--host", "127.0.0.1"]
    with log.open("wb") as out:
        daemon = subprocess.Popen([*command, *arguments], env=env, cwd=folder, stdout=out, stderr=out)
    try:
        yield log
    finally:
        daemon.terminate()
        try:
            daemon.wait(20)
        except subprocess.TimeoutExpired:
            daemon.kill()
            daemon.wait()


def wait_for(log: Path, words: str) -> str:
    deadline = time.monotonic() + 300
    while True:
        for line in log.read_text().splitlines():
            if words in line:
                return line
        assert time.monotonic() < deadline, log.read_text()[-2000:]
        time.sleep(0.05)


@pytest.fixture(scope="module")
def standalone(bare_python: Path, tmp_path_factory: pytest.TempPathFactory) -> Iterator[str]:
    """A master and a worker on loopback."""
    need_java()
    env, folder = environment(bare_python), tmp_path_factory.mktemp("standalone")
    ports = ["--port", "0", "--webui-port", "0"]
    with started("master.Master", folder, env, *ports) as log:
        master = wait_for(log, "Starting Spark master at ").rpartition(" ")[2]
        size = ["--cores", "2", "--memory", "2g", "--work-dir", str(folder / "work"), "--webui-port", "0"]
        with started("worker.Worker", folder, env, *size, master) as worker:
            wait_for(worker, "Successfully registered with master")
            yield master


def submit(master: str, archive: Path, python: Path, folder: Path, *program: object) -> str:
    env = environment(python)
    command = [
        f"{env['SPARK_HOME']}/bin/spark-submit",
        *("--master", master, "--py-files", archive, "--driver-memory", "1g", "--executor-memory", "1g"),
        *("--conf", "spark.driver.host=127.0.0.1", "--conf", "spark.ui.enabled=false"),
        *program,
    ]
    done = subprocess.run(
        [str(part) for part in command], env=env, cwd=folder, capture_output=True, text=True, timeout=800
    )
    failed = "\n".join(line for line in done.stderr.splitlines() if "\tat " not in line)
    assert done.returncode == 0, done.stdout[-2000:] + failed[-4000:]
    return done.stdout


def master_of(kind: str, request: pytest.FixtureRequest) -> str:
    return str(request.getfixturevalue("standalone")) if kind == "standalone" else kind


@pytest.mark.parametrize("kind", ["standalone", "local-cluster[2,1,1024]"])
async def test_pipeline_runs_with_one_archive(
    kind: str, request: pytest.FixtureRequest, archive: Path, bare_python: Path, nats_server: Server, tmp_path: Path
) -> None:
    """The job of the pipeline with the data source, a lookup and foreachBatch."""
    need_java()
    need_spark(4, 2)  # older ones make one micro-batch, and its watermark closes windows in the next
    master = master_of(kind, request)
    orders = 2000
    generate = [sys.executable, PIPELINE / "generator.py", "--servers", nats_server.url, "--orders", orders]
    await asyncio.to_thread(subprocess.run, [*map(str, generate), "--rate", "0"], check=True, timeout=100)
    job = shutil.copy(PIPELINE / "job.py", tmp_path / "job.py")
    (tmp_path / "checkpoint").mkdir()
    options = ("--servers", nats_server.url, "--checkpoint", tmp_path / "checkpoint", "--once")
    await asyncio.to_thread(submit, master, archive, bare_python, tmp_path, job, *options)
    async with natsproto.connect(nats_server.url) as nc:
        js = nc.jetstream()
        sums = [message async for message in (await js.stream("RESULTS")).get_batch()]
        assert len(sums) == 4
        bucket = await js.key_value("totals")
        assert len([key async for key in bucket.keys()]) >= 4  # noqa: SIM118  # no mapping


WHERE = """
import sys
from pyspark.sql import SparkSession
import natsproto
from natsproto.spark import SecretRef, SparkNats, run_partition

spark = SparkSession.builder.getOrCreate()
cfg = SparkNats(servers=sys.argv[1], token=SecretRef.spark_file("nats.token"))

async def tell(client, rows):
    async for row in rows:
        await client.flush()
        yield client.server_info.server_id and natsproto.__file__

places = set(spark.range(0, 4, 1, 2).rdd.mapPartitions(run_partition(tell, cfg)).collect())
print("PLACES", natsproto.__file__, *places)
"""


@pytest.mark.parametrize("kind", ["standalone", "local-cluster[2,1,1024]"])
async def test_secret_travels_as_a_file_of_the_job(
    kind: str, request: pytest.FixtureRequest, archive: Path, bare_python: Path, tmp_path: Path
) -> None:
    need_java()
    master = master_of(kind, request)
    (tmp_path / "nats.token").write_text("s3cr3t")
    (tmp_path / "where.py").write_text(WHERE)
    from natsproto.testing import run_server

    async with run_server(jetstream=True, token="s3cr3t") as server:
        said = await asyncio.to_thread(
            submit, master, archive, bare_python, tmp_path, "--files", "nats.token", "where.py", server.url
        )
    (line,) = (line for line in said.splitlines() if line.startswith("PLACES"))
    assert len(line.split()) >= 3
    assert all("natsproto-spark.zip" in index for index in line.split()[1:]), line
