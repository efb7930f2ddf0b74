"""natsproto stands in for nats-py in a whole process, and frameworks do not notice."""

from __future__ import annotations

import pytest

from natsproto.testing import Server
from tests.compat.programs import STARTS, complaint, run_python

pytestmark = pytest.mark.differs("it is about natsproto alone")


def printed(program: str) -> str:
    done = run_python("-c", program)
    assert done.returncode == 0, done.stderr
    return done.stdout


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
    assert printed(program) == "True\n"


def test_install_comes_before_nats() -> None:
    program = """
import nats, natsproto.compat
try:
    natsproto.compat.install()
except RuntimeError as error:
    print(error)
"""
    assert printed(program) == "nats was imported before: call natsproto.compat.install() first\n"


@pytest.mark.slow
@pytest.mark.parametrize("program", ["faststream_app.py", "taskiq_app.py"])
def test_framework_runs_on_it(nats_server: Server, program: str) -> None:
    for _ in range(STARTS):  # the second one finds the consumers of the first
        assert complaint(program, nats_server.url) == ""
