"""natsproto stands in for nats-py in a whole process, and frameworks do not notice."""

from __future__ import annotations

import subprocess
import sys

import pytest

from natsproto.testing import Server
from tests.compat.programs import FOLDER, PRINTED

pytestmark = pytest.mark.differs("it is about natsproto alone")


def run(*arguments: str) -> str:
    """What a process of its own prints."""
    done = subprocess.run([sys.executable, *arguments], capture_output=True, text=True, timeout=150)
    assert done.returncode == 0, done.stderr
    return done.stdout


def lines_of(program: str, server: Server) -> list[str]:
    """What a program prints, without the log of its framework."""
    lines = run("-W", "ignore", str(FOLDER / program), server.url).splitlines()
    return [line for line in lines if line in PRINTED[program]]


def test_install_serves_nats_and_its_submodules() -> None:
    program = """
import natsproto.compat
natsproto.compat.install()
natsproto.compat.install()
import nats, nats.aio.client, nats.aio.errors, nats.aio.msg, nats.aio.subscription, nats.errors, nats.js.api
import nats.js.client, nats.js.errors, nats.js.kv, nats.js.manager, nats.js.object_store, nats.micro.service, nats.nuid
from nats.aio.client import Client as NATS
assert nats is natsproto.compat.nats and nats.NATS is NATS is nats.aio.client.Client
assert nats.js.errors.NotFoundError is natsproto.compat.nats.js.errors.NotFoundError
print(issubclass(nats.errors.TimeoutError, TimeoutError))
"""
    assert run("-c", program) == "True\n"


def test_install_comes_before_nats() -> None:
    program = """
import nats, natsproto.compat
try:
    natsproto.compat.install()
except RuntimeError as error:
    print(error)
"""
    assert run("-c", program) == "nats was imported before: call natsproto.compat.install() first\n"


@pytest.mark.slow
def test_faststream_broker_runs_on_it(nats_server: Server) -> None:
    for _ in range(2):  # the second start finds the consumers of the first
        assert lines_of("faststream_app.py", nats_server) == PRINTED["faststream_app.py"]


@pytest.mark.slow
def test_taskiq_brokers_run_on_it(nats_server: Server) -> None:
    for _ in range(2):
        assert lines_of("taskiq_app.py", nats_server) == PRINTED["taskiq_app.py"]
